"""What the bytes of a value are, and how they are hashed: one rule for worker, operator and every store.

A value is UTF-8 text, and its hash is the SHA-256 of exactly those bytes. Text is taken as it is; any other
value is turned into text by JCS (RFC 8785), which writes one number one way and refuses what other JSON
readers would change behind our back: NaN, infinities and integers outside ±(2^53 − 1).

Rejected: "sorted json.dumps". It is no specification, and two clients that both use it disagree on numbers,
escapes and the order of keys outside the basic plane.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from itertools import islice
from typing import Any

import rfc8785

from fencepost.protocol import limits

FIRST_FLOAT_WITH_EXPONENT = 1e21  # RFC 8785 writes whole numbers below it with all their digits


class PayloadRefused(ValueError):  # noqa: N818 - the sentence a reader sees, not a failure of ours
    """A value that cannot be kept exactly; the message says what is wrong and where."""


def value_text(value: object) -> str:
    """The text of `value`: itself if it is text, else its canonical JSON (RFC 8785).

    Raises `PayloadRefused` for what JSON cannot keep exactly and for text over the limit of a receipt.
    """
    text = value if isinstance(value, str) else canonical_json(value)
    refuse_unencodable(text)
    size = limits.stored_size(text)
    if size > limits.VALUE_BYTES_MAX:
        raise PayloadRefused(
            f"the value takes {size} bytes as stored JSON text, over the limit of {limits.VALUE_BYTES_MAX}: "
            "store it elsewhere and return a reference and a digest"
        )
    return text


def request_text(request: Mapping[str, Any]) -> str:
    """The canonical JSON of a task's request.

    Raises `PayloadRefused` if it is no object, cannot be kept exactly, or is over 64 KiB.
    """
    if not isinstance(request, Mapping):
        raise PayloadRefused(f"a request is a JSON object, got {type(request).__name__}")
    text = canonical_json(dict(request))
    size = limits.stored_size(text)
    if size > limits.REQUEST_BYTES_MAX:
        raise PayloadRefused(f"the request takes {size} bytes, over the limit of {limits.REQUEST_BYTES_MAX}")
    return text


def stored_json_size(value: object) -> int:
    """Bytes that a whole JSON value takes in a stored object, where `<`, `>` and `&` are six bytes each.

    Raises `RecursionError` at about a thousand levels.
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    five_more = sum(text.count(character) for character in "<>&")
    three_more = text.count("\u2028") + text.count("\u2029")
    return limits.text_size(text) + 5 * five_more + 3 * three_more


def canonical_json(value: object) -> str:
    """The RFC 8785 text of `value`; raises `PayloadRefused` where there is none."""
    refuse_too_deep(value)
    try:
        text = rfc8785.dumps(value).decode("utf-8")  # type: ignore[arg-type]
    except (rfc8785.CanonicalizationError, UnicodeError, ValueError) as error:
        raise PayloadRefused(f"not representable as canonical JSON (RFC 8785): {error}") from None
    return text


def refuse_too_deep(value: object) -> None:
    """Refuse nesting beyond the limit without recursing, so that no input can exhaust the stack.

    Nor the memory: values that share their parts (YAML aliases) can stand for far more than they take. On
    the way, whole numbers that are too big to be exact are refused in either of Python's types.
    """
    level: list[object] = [value]
    for _ in range(limits.REQUEST_DEPTH_MAX):
        for one in level:
            _refuse_unsafe_float(one)
        inside = (inner for outer in level for inner in _children(outer))
        level = list(islice(inside, limits.JOB_SPEC_BYTES_MAX + 1))
        if not level:
            return
        if len(level) > limits.JOB_SPEC_BYTES_MAX:
            raise PayloadRefused(
                f"more than {limits.JOB_SPEC_BYTES_MAX} values: nothing that is accepted holds so many"
            )
    raise PayloadRefused(f"nested deeper than {limits.REQUEST_DEPTH_MAX} levels")


def _refuse_unsafe_float(value: object) -> None:
    """Refuse a float that RFC 8785 writes as an integer which no reader of the text may take for exact."""
    if isinstance(value, float) and limits.FENCING_TOKEN_MAX < abs(value) < FIRST_FLOAT_WITH_EXPONENT:
        raise PayloadRefused(
            f"not representable as canonical JSON (RFC 8785): {value:.0f} is a whole number "
            "beyond ±(2^53 − 1); pass it as text"
        )


def _children(value: object) -> list[object]:
    if isinstance(value, Mapping):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple) else []


def refuse_unencodable(text: str) -> None:
    """Refuse lone surrogates, which UTF-8 has no bytes for."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise PayloadRefused(f"not encodable as UTF-8 at character {error.start}: lone surrogate") from None


def sha256_hex(text: str) -> str:
    """Lower-case hexadecimal SHA-256 of the UTF-8 bytes of `text`."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def framed_sha256(*parts: str) -> str:
    """SHA-256 over `parts`, each framed by its length in bytes, so that no two lists share their bytes."""
    digest = hashlib.sha256()
    for part in parts:
        encoded = part.encode("utf-8")
        digest.update(f"{len(encoded)}:".encode("ascii"))
        digest.update(encoded)
    return digest.hexdigest()
