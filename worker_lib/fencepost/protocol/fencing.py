"""Fencing tokens and holders: their text, and who may still write.

FENCE-01: the token of a task never decreases and grows by one with every claim, and with nothing else, so
it is the number of claims. FENCE-02: a write under another token or holder is refused and leaves nothing.
The check is made where the write happens: by the API server's `test` operations, or inside the embedded
store's transaction. A check made before the write would only narrow the window.
"""

from __future__ import annotations

import re
from typing import Final

from fencepost.protocol import limits
from fencepost.protocol.task import Task

# `$` alone would let a line break through in Python: the functions below match the whole text.
TOKEN_PATTERN: Final = r"^(0|[1-9][0-9]{0,15})$"
COUNTER_PATTERN: Final = r"^(0|[1-9][0-9]{0,8})$"
HOLDER_PATTERN: Final = r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}/[0-9a-z]{1,64}$"

_TOKEN: Final = re.compile(TOKEN_PATTERN)
_COUNTER: Final = re.compile(COUNTER_PATTERN)
_HOLDER: Final = re.compile(HOLDER_PATTERN)


class NotCanonical(ValueError):  # noqa: N818
    """A number or holder that is not written the one way it may be written."""


def token_of(text: str) -> int:
    """The fencing token that `text` says; raises `NotCanonical` (leading zeros, signs, over 2^53 − 1)."""
    if not _TOKEN.fullmatch(text) or int(text) > limits.FENCING_TOKEN_MAX:
        raise NotCanonical(
            f"{text!r} is no fencing token: a whole number from 0 to {limits.FENCING_TOKEN_MAX}"
        )
    return int(text)


def counter_of(text: str) -> int:
    """The count of renewals or failures that `text` says; raises `NotCanonical`."""
    if not _COUNTER.fullmatch(text):
        raise NotCanonical(f"{text!r} is no counter: a whole number from 0 to {limits.COUNTER_MAX}")
    return int(text)


def holder_name(outbox: str, incarnation: str) -> str:
    """`OUTBOX-UUID/INCARNATION`: the same volume is the same worker, a copied one not the same incarnation.

    Raises `NotCanonical` if the result is no holder.
    """
    holder = f"{outbox}/{incarnation}"
    if not _HOLDER.fullmatch(holder):
        raise NotCanonical(
            f"{holder!r} is no holder: expected a lower-case UUID, a slash and 1 to 64 of 0-9 a-z"
        )
    return holder


def next_token(task_token: int) -> int:
    """The token of the next claim."""
    return task_token + 1


def is_current(task: Task, *, token: int, holder: str) -> bool:
    """Whether a lease is the one in force: token *and* holder, as a revoke leaves the token where it is.

    The record that a settled task keeps of its last lease still counts: what is refused there is refused
    because the task is settled.
    """
    return task.token == token and task.holder == holder and holder != ""
