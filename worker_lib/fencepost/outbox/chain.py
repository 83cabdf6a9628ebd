"""The steps of an outbox and what their texts say (I4).

Each text is a compact JSON array, so that no key or name can be read as a separator. Together they cover
what must not change behind our back: under which lease a task was held, what was stored for it, and which
receipt answered it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from fencepost.outbox.rows import Row
from fencepost.protocol.steps import Step, StepChainBroken, next_step
from fencepost.protocol.task import GENESIS


def lease_state(*, uid: str, token: int, holder: str) -> str:
    """The text of the step `lease`."""
    return _text(uid, token, holder)


def row_state(*, uid: str, kind: str, outcome: str, idempotency_key: str, payload_sha256: str) -> str:
    """The text of the step `row`."""
    return _text(uid, kind, outcome, idempotency_key, payload_sha256)


def state_of_row(row: Row) -> str:
    """What the step `row` of this row must say."""
    return row_state(
        uid=row.uid,
        kind=row.kind.value,
        outcome=row.outcome.value,
        idempotency_key=row.idempotency_key,
        payload_sha256=row.payload_sha256,
    )


def submit_state(row: Row) -> str:
    """The text of the step `submit`: the verdict, and the receipt that proves it."""
    return _text(row.uid, row.idempotency_key, row.verdict or "", row.receipt_sha256)


def recover_state(row: Row) -> str:
    """The text of the step `recover`: a row that stood without a receipt when a new life began."""
    return _text(row.uid, row.idempotency_key, row.payload_sha256)


def replay_from(base: Step | None, steps: Iterable[Step]) -> Step | None:
    """The newest step of a replay from `base` on; raises `StepChainBroken` at the first that differs."""
    newest = base
    for step in steps:
        if step != next_step(newest, step.kind, step.state):
            raise StepChainBroken(f"step {step.sequence} ({step.kind}) does not follow from the one before")
        newest = step
    return newest


def base_step(sequence: int, digest: str) -> Step | None:
    """Where a replay starts: the newest pruned step, or None for the beginning."""
    if sequence == 0 and digest == GENESIS:
        return None
    return Step(sequence=sequence, kind="", state="", hash=digest)


def _text(*parts: str | int) -> str:
    return json.dumps(parts, separators=(",", ":"), ensure_ascii=False)
