"""Mutations as a worker or the operator decides on them, from the task that was last seen."""

from __future__ import annotations

from itertools import count

from fencepost.protocol.mutation import Claim, Heartbeat, Release, Requeue, Submit
from fencepost.protocol.submission import Submission, judge
from fencepost.protocol.task import Candidate, Kind, LeaseEnd, Outcome, Task

NOW = "2026-11-30T13:00:00Z"
OUTBOXES = tuple(
    f"{digit * 8}-{digit * 4}-{digit * 4}-{digit * 4}-{digit * 12}" for digit in "123456789abcdef"
)
HOLDER = f"{OUTBOXES[0]}/a"
OTHER_HOLDER = f"{OUTBOXES[1]}/b"

_numbers = count(1)


def claim_of(
    task: Task | Candidate, *, account: str, holder: str = HOLDER, outbox_mark: str = "3 abc"
) -> Claim:
    return Claim(
        key=task.key,
        uid=task.uid,
        version=task.version,
        token=task.token + 1,
        holder=holder,
        account=account,
        outbox_mark=outbox_mark,
        at=NOW,
    )


def heartbeat_of(task: Task, *, progress: str | None = None) -> Heartbeat:
    return Heartbeat(
        key=task.key,
        uid=task.uid,
        token=task.token,
        holder=task.holder,
        renewals=task.renewals,
        at=NOW,
        progress=progress,
    )


def release_of(task: Task, end: LeaseEnd, *, message: str = "") -> Release:
    return Release(
        key=task.key,
        uid=task.uid,
        token=task.token,
        holder=task.holder,
        state=task.state,
        failures=task.failures,
        end=end,
        message=message,
    )


def submit_of(
    task: Task,
    *,
    outcome: Outcome = Outcome.OK,
    kind: Kind = Kind.RESULT,
    value: str | None = None,
    device_time: str = "",
) -> Submit:
    """What `judge` accepts on this task; every call is another submit unless the value is given."""
    number = next(_numbers)
    submission = Submission(
        uid=task.uid,
        idempotency_key=f"key-{value or number}",
        kind=kind,
        outcome=outcome,
        value="" if outcome is Outcome.UNKNOWN else value or f"value <{number}> & ünï",
        recorded_by=task.account,
        token=task.token,
        holder=task.holder,
        device_time=device_time,
    )
    receipt = judge(task, submission).receipt
    assert receipt is not None
    return Submit(
        key=task.key,
        uid=task.uid,
        token=task.token,
        holder=task.holder,
        state=task.state,
        head=task.head,
        receipt=receipt,
    )


def requeue_of(task: Task) -> Requeue:
    assert task.hold is not None
    return Requeue(key=task.key, uid=task.uid, token=task.token, hold=task.hold, state=task.state)
