"""JSON from outside, refused where Python's reader would change it without a word.

Duplicate members, numbers that are no numbers (`NaN`, `1e400`), integers of thousands of digits and nesting
that exhausts the stack: one clear error each.
"""

from __future__ import annotations

import json
import math
from typing import Any


class JsonRefused(ValueError):  # noqa: N818 - the sentence a reader sees
    """The text is no JSON that can be kept exactly; the message says where or why."""


def parse_json(text: str) -> Any:
    """The value of `text`. Raises `JsonRefused`."""
    try:
        return json.loads(
            text, object_pairs_hook=_members, parse_constant=_refuse_constant, parse_float=_finite_float
        )
    except JsonRefused:
        raise
    except json.JSONDecodeError as error:
        raise JsonRefused(f"{error.msg} in line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise JsonRefused("it is nested too deeply") from None
    except ValueError as error:
        raise JsonRefused(f"a number is too long: {error}") from None


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for name, value in pairs:
        if name in members:
            raise JsonRefused(f"the member {name!r} is there twice")
        members[name] = value
    return members


def _refuse_constant(constant: str) -> Any:
    raise JsonRefused(f"{constant} is no JSON")


def _finite_float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise JsonRefused(f"{text[:40]} is too large for a number: pass it as text")
    return number
