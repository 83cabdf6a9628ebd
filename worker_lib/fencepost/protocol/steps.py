"""The append-only chain over the steps of an outbox (I4): lease, row, submit, recover.

Each step's hash covers the one before, so a replay computes the same chain, and a file that lost or
gained a step says so. The position travels to the server with each claim (`outbox-mark`), where the loss
of the whole file can still be seen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from fencepost.protocol.task import GENESIS


class StepKind(StrEnum):
    """What happened."""

    LEASE = "lease"
    ROW = "row"
    SUBMIT = "submit"
    RECOVER = "recover"


class StepChainBroken(ValueError):  # noqa: N818
    """A step whose hash does not follow from the one before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step; `state` is its text, `hash` covers it and everything before."""

    sequence: int
    kind: str
    state: str
    hash: str


def step_hash(previous: str, kind: str, state: str, *, digits: int = 64) -> str:
    """SHA-256 of `previous|kind|state`, cut to `digits` hexadecimal digits."""
    return hashlib.sha256(f"{previous}|{kind}|{state}".encode()).hexdigest()[:digits]


def next_step(previous: Step | None, kind: str, state: str, *, digits: int = 64) -> Step:
    """The step that follows `previous`, or the first one after GENESIS."""
    before = previous.hash if previous else GENESIS
    sequence = previous.sequence + 1 if previous else 1
    return Step(sequence=sequence, kind=kind, state=state, hash=step_hash(before, kind, state, digits=digits))


def replay(steps: Iterable[Step], *, digits: int = 64) -> str:
    """The head that a replay computes; raises `StepChainBroken` at the first step that differs."""
    previous: Step | None = None
    for step in steps:
        expected = next_step(previous, step.kind, step.state, digits=digits)
        if step != expected:
            raise StepChainBroken(f"step {step.sequence} ({step.kind}) does not follow from the one before")
        previous = step
    return previous.hash if previous else GENESIS


def mark_text(sequence: int, head: str) -> str:
    """The outbox mark of a claim: how many steps the chain has, and its head."""
    return f"{sequence} {head}"
