"""Reading one field of a parsed JSON object: the value of the wanted type, or what is wrong with it.

The places are literals of the caller, so that a look-up that succeeds costs no more than a dictionary's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, TypeVar

from fencepost.protocol import fencing
from fencepost.protocol.payload import PayloadRefused, request_text

Fields = Mapping[str, Any]
Word = TypeVar("Word", bound=StrEnum)
Value = TypeVar("Value")

NOTHING: Final[Fields] = MappingProxyType({})


class Wrong(Exception):  # noqa: N818 - what it becomes once the object is known says more
    """What is wrong with one field: its place, and the problem."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.problem = problem


class UnfitRequest(Wrong):
    """A request that cannot be kept exactly, or is too large."""


def canonical(parse: Callable[[Any], Value], value: object, where: str) -> Value:
    """What `parse` makes of the value; its refusal becomes `Wrong`."""
    try:
        return parse(value)
    except (fencing.NotCanonical, PayloadRefused) as refused:
        raise Wrong(where, str(refused)) from None


def request_of(fields: Fields, where: str) -> str:
    """The canonical text of the request, `{}` if there is none. Raises `UnfitRequest`."""
    try:
        return request_text(fields.get("request", NOTHING))
    except PayloadRefused as refused:
        raise UnfitRequest(where, str(refused)) from None


def object_of(fields: Fields, name: str, where: str, default: Fields | None = None) -> Fields:
    """The object under `name`. Raises `Wrong` if it is absent and there is no default."""
    value = fields.get(name, default)
    if type(value) is dict or isinstance(value, Mapping):  # the first is what JSON gives, and fast
        return value
    raise Wrong(where, "missing" if value is None else f"expected an object, got {value!r:.80}")


def entries_of(fields: Fields, name: str, where: str) -> Sequence[Fields]:
    """The objects of a list; none if the list is absent."""
    entries = fields.get(name)
    if not entries:
        return ()
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        raise Wrong(where, "expected a list of objects")
    return entries


def optional_text_of(fields: Fields, name: str, where: str) -> str | None:
    """None if it is absent."""
    return text_of(fields, name, where) if fields.get(name) is not None else None


def text_of(fields: Fields, name: str, where: str, default: str | None = None) -> str:
    """The text under `name`. Raises `Wrong` if it is absent and there is no default."""
    value = fields.get(name, default)
    if isinstance(value, str):
        return value
    raise _unexpected(name, where, "text", value)


def number_of(fields: Fields, name: str, where: str, default: int | None = None) -> int:
    """The whole number under `name`; true and false are none."""
    value = fields.get(name, default)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise _unexpected(name, where, "a whole number", value)


def optional_number_of(fields: Fields, name: str, where: str) -> int | None:
    """None if it is absent."""
    return number_of(fields, name, where) if fields.get(name) is not None else None


def flag_of(fields: Fields, name: str, where: str) -> bool:
    """False if it is absent."""
    value = fields.get(name, False)
    if isinstance(value, bool):
        return value
    raise _unexpected(name, where, "true or false", value)


def word_of(fields: Fields, name: str, where: str, words: type[Word], default: Word | None = None) -> Word:
    """The member of `words` whose value is under `name`."""
    value = fields.get(name, default)
    try:
        return words(value)
    except ValueError:
        raise _unexpected(name, where, " or ".join(words), value) from None


def optional_word_of(fields: Fields, name: str, where: str, words: type[Word]) -> Word | None:
    """None if it is absent."""
    return word_of(fields, name, where, words) if fields.get(name) is not None else None


def _unexpected(name: str, where: str, expected: str, value: object) -> Wrong:
    path = where if where.endswith(name) else f"{where}.{name}"
    return Wrong(path, f"expected {expected}, got {'nothing' if value is None else f'{value!r:.80}'}")
