from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.protocol.steps import Step, StepChainBroken, StepKind, mark_text, next_step, replay, step_hash
from fencepost.protocol.task import GENESIS

# The nine steps that the shelter-feed harness writes, with the head that it prints.
SHELTER_FEED = [
    ("lease", "S1:token=1"),
    ("lease", "S2:token=2"),
    ("submit", "9a74a6a6ac34ab53:S2"),
    ("lease", "S3:token=3"),
    ("recover", "9f360e7372edd0c6:S3"),
    ("submit", "bd55c2c5e823fbd9:S3"),
    ("lease", "S4:token=4"),
    ("submit", "f9814493633f3263:S4"),
    ("submit", "e40996ec64247393:S4"),
]


def chain_of(texts: list[tuple[str, str]], digits: int = 64) -> list[Step]:
    steps: list[Step] = []
    for kind, state in texts:
        steps.append(next_step(steps[-1] if steps else None, kind, state, digits=digits))
    return steps


def test_the_shelter_feed_chain_ends_in_its_known_head() -> None:
    steps = chain_of(SHELTER_FEED, digits=16)
    assert steps[0].hash == "c3eb316aa1d75df8"
    assert replay(steps, digits=16) == "aeb556852aebebf0"
    assert len({step.hash for step in steps}) == 9
    assert {step.kind for step in steps} < set(StepKind)


def test_an_empty_chain_ends_in_genesis() -> None:
    assert replay([]) == GENESIS


def test_a_chain_counts_its_steps_from_one() -> None:
    assert [step.sequence for step in chain_of(SHELTER_FEED)] == [*range(1, 10)]


def test_a_mark_is_position_and_head() -> None:
    assert mark_text(9, "aeb5") == "9 aeb5"


@given(st.lists(st.tuples(st.sampled_from(list(StepKind)), st.text(max_size=20)), max_size=12))
def test_a_replay_computes_the_same_chain(texts: list[tuple[str, str]]) -> None:
    steps = chain_of(texts)
    assert replay(steps) == replay(iter(chain_of(texts)))
    assert replay(steps) == (steps[-1].hash if steps else GENESIS)


@pytest.mark.parametrize("field", ["sequence", "kind", "state", "hash"])
@pytest.mark.parametrize("position", [0, 4, 8])
def test_a_changed_step_breaks_the_chain(field: str, position: int) -> None:
    steps = chain_of(SHELTER_FEED)
    changed: Any = 77 if field == "sequence" else "changed"
    steps[position] = replace(steps[position], **{field: changed})
    with pytest.raises(StepChainBroken, match="does not follow"):
        replay(steps)


@pytest.mark.parametrize("position", [0, 3, 7])
def test_a_lost_or_doubled_step_breaks_the_chain(position: int) -> None:
    steps = chain_of(SHELTER_FEED)
    with pytest.raises(StepChainBroken):
        replay(steps[:position] + steps[position + 1 :])
    with pytest.raises(StepChainBroken):
        replay(steps[: position + 1] + steps[position:])


def test_digits_cut_the_hash() -> None:
    whole = step_hash(GENESIS, "lease", "x")
    assert len(whole) == 64
    assert step_hash(GENESIS, "lease", "x", digits=16) == whole[:16]
