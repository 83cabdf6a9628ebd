"""What becomes of a row in an outbox after a verdict, as a table.

A task whose result already lies in this outbox is never executed again: its row is re-armed to the new
lease and submitted. A stale row is parked: not retried by itself, re-armed on a re-claim, looked at on each
drain, dead-lettered when its task is settled by another or gone. Parked and dead rows still count as "lies
in this outbox". An Unknown that was acknowledged does not, it is no result; nor does one that is dead: no
store will ever take it, and the work would never be done again.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from fencepost.protocol.submission import Judgement, Verdict
from fencepost.protocol.task import Outcome, Task


class RowStatus(StrEnum):
    """Where a row of the outbox stands."""

    PENDING = "pending"
    ACKNOWLEDGED = "acknowledged"
    PARKED = "parked"
    DEAD = "dead"


AFTER_VERDICT: Final[dict[Verdict, RowStatus]] = {
    Verdict.ACCEPTED: RowStatus.ACKNOWLEDGED,
    Verdict.RECOVERED: RowStatus.ACKNOWLEDGED,
    Verdict.DUPLICATE: RowStatus.ACKNOWLEDGED,
    Verdict.REJECTED_DUPLICATE: RowStatus.ACKNOWLEDGED,
    Verdict.CONFLICT: RowStatus.DEAD,
    Verdict.REJECTED_STALE_TOKEN: RowStatus.PARKED,
    Verdict.REJECTED_EXPIRED_LEASE: RowStatus.PARKED,
    Verdict.ALREADY_TERMINAL: RowStatus.DEAD,
    Verdict.TERMINAL_CONFLICT: RowStatus.DEAD,
    Verdict.UNKNOWN_TASK: RowStatus.DEAD,
    Verdict.UNKNOWN_JOB: RowStatus.DEAD,
    Verdict.UNKNOWN_BRANCH: RowStatus.DEAD,
    Verdict.RETRY_LATER: RowStatus.PENDING,
}


def status_after(judgement: Judgement, task: Task | None, *, outbox: str) -> RowStatus:
    """The status of a row after its verdict. `outbox` is the UUID of the outbox that has the row.

    A replay acknowledges a row only if the receipt came from this outbox: a key that another outbox used
    first says that the caller's keys are not unique, and that is for a person to see. A stale row of a task
    that is settled has nothing left to wait for.
    """
    if judgement.verdict is Verdict.DUPLICATE:
        receipt = judgement.receipt
        ours = receipt is not None and receipt.holder.partition("/")[0] == outbox
        return RowStatus.ACKNOWLEDGED if ours else RowStatus.DEAD
    status = AFTER_VERDICT[judgement.verdict]
    if status is RowStatus.PARKED and (task is None or task.settled):
        return RowStatus.DEAD
    return status


def is_result(status: RowStatus, outcome: Outcome) -> bool:
    """Whether a row of this status is a result that must not be made again."""
    return outcome is not Outcome.UNKNOWN or status not in (RowStatus.ACKNOWLEDGED, RowStatus.DEAD)
