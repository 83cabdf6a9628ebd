"""Whatever the API server can store, an answer that has it in it can be read."""

from __future__ import annotations

import json

import pytest

from fencepost.kube.parsing import DEPTH_MAX, cut_to_depth, parsed


def nested(levels: int, inside: str = "1") -> str:
    return '{"a":[' * (levels // 2) + inside + "]}" * (levels // 2)


def depth_of(value: object) -> int:
    """Levels of a value with one child on each."""
    levels = 0
    while isinstance(value, dict | list) and value:
        value = next(iter(value.values() if isinstance(value, dict) else value))
        levels += 1
    return levels


def test_usual_answers_are_not_touched() -> None:
    text = json.dumps({"a": [1, {"b": 'x"]}\\'}], "deep": json.loads(nested(DEPTH_MAX - 2))})
    assert parsed(text.encode()) == json.loads(text)
    assert cut_to_depth(text.encode()) == text.encode()


@pytest.mark.parametrize("levels", [1_500, 9_998])
def test_what_is_too_deep_is_cut_and_its_neighbours_stay(levels: int) -> None:
    text = f'[{{"before": "{{["}}, {nested(levels)}, {nested(levels)}, {{"after": "]]\\""}}]'
    before, first, second, after = parsed(text.encode())
    assert (before, after) == ({"before": "{["}, {"after": ']]"'})
    assert depth_of(first) == depth_of(second) == DEPTH_MAX - 1


def test_what_is_no_json_stays_none() -> None:
    for text in ("[" * 5_000, "]" * 5_000, "{", "", '{"a": tru}'):
        with pytest.raises(ValueError):
            parsed(text.encode())
