"""YAML and JSON text to plain values, read the way kubectl reads it.

Guarantees: a key that stands twice is refused, in YAML and in JSON alike (the last one would win without a
word); so are keys that are no text, aliases that stand for more than any object can hold, and nesting that
would exhaust the stack. Unquoted scalars mean what they mean to kubectl: `y` and `off` are booleans, 1e3 is
a number, a date is text. A file therefore means the same embedded as on a cluster.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import yaml

from fencepost.protocol.limits import OBJECT_BYTES_MAX

WEIGHT_MAX: Final = OBJECT_BYTES_MAX
"""How many bytes of JSON one document may stand for, at the least, once its aliases are written out."""

NUMBER_TOO_LONG: Final = "a number has more digits than any JSON reader keeps: write it as text"

_BASE: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml is ten times faster where it is
_LARGEST_EXACT: Final = 2**53

_BOOL: Final = re.compile(
    r"^(?:y|Y|yes|Yes|YES|on|On|ON|true|True|TRUE|n|N|no|No|NO|off|Off|OFF|false|False|FALSE)$"
)
_TRUE: Final = frozenset({"y", "yes", "on", "true"})
_INT: Final = re.compile(r"^[-+]?(?:0b[01_]+|0o?[0-7_]+|0x[0-9a-fA-F_]+|0|[1-9][0-9_]*)$")
_FLOAT: Final = re.compile(
    r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)
_NULL: Final = re.compile(r"^(?:~|null|Null|NULL|)$")
_MERGE: Final = re.compile(r"^<<$")


class DocumentUnreadable(ValueError):  # noqa: N818 - the sentence a reader sees
    """Text that is no YAML or JSON, or that means something else than it looks like."""


def documents_of(text: str) -> list[Any]:
    """The values of all documents in `text` that are not empty. Raises `DocumentUnreadable`."""
    try:
        found = _json_document(text) if text.lstrip().startswith("{") else _yaml_documents(text)
    except RecursionError:
        raise DocumentUnreadable("nested too deeply to be read") from None
    for document in found:
        _refuse_what_no_object_can_hold(document)
    return found


def _json_document(text: str) -> list[Any]:
    """One JSON object; text that begins like one and is none may still be YAML."""
    try:
        return [
            json.loads(
                text,
                object_pairs_hook=_json_object,
                parse_float=_number,
                parse_constant=_refuse_constant,
            )
        ]
    except json.JSONDecodeError as error:
        return _yaml_instead(text, error)
    except DocumentUnreadable:
        raise
    except ValueError:  # Python reads no integer of thousands of digits
        raise DocumentUnreadable(NUMBER_TOO_LONG) from None


def _yaml_instead(text: str, error: json.JSONDecodeError) -> list[Any]:
    try:
        return _yaml_documents(text)
    except DocumentUnreadable:
        where = f"line {error.lineno}, column {error.colno}"
        raise DocumentUnreadable(f"no JSON: {error.msg} ({where})") from None


def _json_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise DocumentUnreadable(f"the key {key[:80]!r} stands twice in one object")
        found[key] = value
    return found


def _refuse_constant(name: str) -> None:
    raise DocumentUnreadable(f"{name} is no JSON number")


def _number(text: str) -> float | int:
    """5.0 and 5 are one JSON number; beyond 2^53 a float stays one, so that it is refused as inexact."""
    value = float(text)
    return int(value) if value.is_integer() and abs(value) < _LARGEST_EXACT else value


def _yaml_documents(text: str) -> list[Any]:
    try:
        found = list(yaml.load_all(text, Loader=_Loader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}: " if mark else ""
        raise DocumentUnreadable(f"{where}{error.problem or error}") from None
    except yaml.YAMLError as error:
        raise DocumentUnreadable(f"no YAML: {error}") from None
    return [document for document in found if document is not None]


class _Loader(_BASE):  # type: ignore[misc]
    """A safe loader with kubectl's idea of scalars, and no key twice."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - not ours

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        first: dict[str, int] = {}
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            line = key_node.start_mark.line + 1
            if not isinstance(key, str):
                raise _problem(key_node, f"the key {_written(key_node)} is no text in YAML: quote it")
            if key in first:
                raise _problem(key_node, f"the key {key[:80]!r} stands twice (first on line {first[key]})")
            first[key] = line
        return dict(super().construct_mapping(node, deep=deep))

    def construct_yaml_bool(self, node: Any) -> bool:
        return str(self.construct_scalar(node)).lower() in _TRUE

    def construct_yaml_int(self, node: Any) -> int:
        text = str(self.construct_scalar(node)).replace("_", "")
        octal = re.fullmatch(r"([-+]?)0([0-7]+)", text)
        try:
            return int(f"{octal[1]}0o{octal[2]}" if octal else text, 0)
        except ValueError:  # thousands of digits
            raise _problem(node, NUMBER_TOO_LONG) from None

    def construct_yaml_float(self, node: Any) -> float | int:
        text = str(self.construct_scalar(node)).lower()
        if text.endswith((".inf", ".nan")):
            raise _problem(node, f"{text} is no JSON number")
        return _number(text)


for _tag, _pattern in (
    ("bool", _BOOL),
    ("int", _INT),
    ("float", _FLOAT),
    ("null", _NULL),
    ("merge", _MERGE),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", _pattern, None)
_Loader.add_constructor("tag:yaml.org,2002:bool", _Loader.construct_yaml_bool)
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_yaml_float)


def _written(node: Any) -> str:
    """How a scalar stands in the file."""
    return node.value[:80] if isinstance(node.value, str) else "that is a list or an object"


def _problem(node: Any, problem: str) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


def _refuse_what_no_object_can_hold(document: Any) -> None:
    """Aliases that stand for gigabytes or for themselves, and texts without bytes; never recurses."""
    weight = 0
    waiting = [document]
    while waiting:
        value = waiting.pop()
        weight += _weight(value)
        if weight > WEIGHT_MAX:
            raise DocumentUnreadable(
                f"it stands for more than {WEIGHT_MAX} characters: no object can hold it"
            )
        if isinstance(value, Mapping):
            waiting.extend(value.keys())
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)


def _weight(value: Any) -> int:
    """The fewest bytes of JSON that the value itself takes, with the comma or colon after it."""
    if not isinstance(value, str):
        return 2
    try:
        return len(value.encode("utf-8")) + 2
    except UnicodeEncodeError:
        raise DocumentUnreadable(
            f"{value!r:.80} has a lone surrogate, which UTF-8 has no bytes for"
        ) from None
