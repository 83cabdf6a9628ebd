"""What the server's side owes a task: revoke, requeue, settle, or wait.

The operator and the embedded runner call the same function. It gets what was observed, with ages in seconds
of the observer's own monotonic clock, and returns one mutation or how long to wait. All its mutations carry
their preconditions, so a decision on an old read does no harm: it is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from fencepost.protocol import lease
from fencepost.protocol.backoff import backoff_seconds, spread_of
from fencepost.protocol.mutation import OperatorMutation, Requeue, Revoke, Settle
from fencepost.protocol.payload import framed_sha256
from fencepost.protocol.submission import Submission, new_receipt
from fencepost.protocol.task import OPERATOR_HOLDER, Kind, LeaseEnd, Outcome, Reason, State, Task

SETTLE_DOMAIN = "fencepost/settle/v1"
JUST_AFTER_SECONDS = 0.001  # a lease is over when *more* than its duration has passed


@dataclass(frozen=True, slots=True, kw_only=True)
class Ages:
    """Seconds, all of the observer's own clock.

    `lease_unchanged`: since it last saw (UID, token, renewals) change. `hold_unchanged`: since it first saw
    this (UID, token, hold). `task`: since the task was created, by the API server's own times.
    """

    lease_unchanged: float = 0.0
    hold_unchanged: float = 0.0
    task: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    mutation: OperatorMutation


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """Nothing to do until the task changes."""


Decision = Act | Wait | Rest


def decide(task: Task, ages: Ages, *, recorded_by: str) -> Decision:
    """What to do about a task now. `recorded_by` is the account of whoever settles."""
    if task.settled or task.deleting:
        return Rest()
    overdue = _seconds_to_deadline(task, ages)
    if overdue is not None and overdue <= 0:
        return _past_deadline(task, recorded_by)
    decision = _held(task, ages) if task.held else _free_or_on_hold(task, ages, recorded_by)
    return _earlier(decision, overdue)


def lease_is_over(task: Task, unchanged_seconds: float) -> bool:
    """Nothing has changed for longer than the lease asked for."""
    return unchanged_seconds > task.spec.lease_duration_seconds


def revoke(task: Task, end: LeaseEnd, message: str = "") -> Revoke:
    """The revoke of the lease that `task` shows."""
    return Revoke(
        key=task.key,
        uid=task.uid,
        token=task.token,
        holder=task.holder,
        renewals=task.renewals,
        state=task.state,
        failures=task.failures,
        end=end,
        message=message,
    )


def settle(task: Task, reason: Reason, *, recorded_by: str) -> Settle:
    """The operator's own receipt: Rejected, with a reason; its key makes a repeat the same settle.

    Its value is empty: what the last attempt said is in `last-lease`, and a text that differs from run to
    run would make two runs of the same work differ in their snapshot's digest.
    """
    key = framed_sha256(SETTLE_DOMAIN, task.uid, str(task.token), reason.value)
    submission = Submission(
        uid=task.uid,
        idempotency_key=key,
        kind=Kind.RESULT,
        outcome=Outcome.REJECTED,
        value="",
        recorded_by=recorded_by,
        token=None,
        holder=OPERATOR_HOLDER,
    )
    receipt = new_receipt(task, submission, reason=reason)
    return Settle(
        key=task.key, uid=task.uid, token=task.token, state=task.state, head=task.head, receipt=receipt
    )


def _seconds_to_deadline(task: Task, ages: Ages) -> float | None:
    """None where there is no deadline, or none that matters: it neither revokes nor settles an Unknown."""
    if task.spec.active_deadline_seconds is None or task.state is State.UNKNOWN:
        return None
    return task.spec.active_deadline_seconds - ages.task


def _past_deadline(task: Task, recorded_by: str) -> Decision:
    if task.held:
        return Act(mutation=revoke(task, LeaseEnd.DEADLINE))
    return Act(mutation=settle(task, Reason.DEADLINE_EXCEEDED, recorded_by=recorded_by))


def _held(task: Task, ages: Ages) -> Decision:
    if lease_is_over(task, ages.lease_unchanged):
        return Act(mutation=revoke(task, LeaseEnd.EXPIRED))
    return Wait(seconds=task.spec.lease_duration_seconds - ages.lease_unchanged + JUST_AFTER_SECONDS)


def _free_or_on_hold(task: Task, ages: Ages, recorded_by: str) -> Decision:
    if task.hold is None:
        return Rest()
    if not _may_requeue(task, ages):
        exhausted = task.state is State.OPEN and not lease.failures_left(task)
        if not exhausted:
            return Rest()
        return Act(mutation=settle(task, Reason.FAILURES_EXHAUSTED, recorded_by=recorded_by))
    # An Unknown right after its submit is no failure, yet it waits like the first one, or it would spin.
    failures = max(1, task.failures)
    wait = backoff_seconds(task.spec.retry_policy, failures=failures, spread=spread_of(task))
    if ages.hold_unchanged < wait:
        return Wait(seconds=wait - ages.hold_unchanged)
    return Act(
        mutation=Requeue(key=task.key, uid=task.uid, token=task.token, hold=task.hold, state=task.state)
    )


def _may_requeue(task: Task, ages: Ages) -> bool:
    """Past its deadline an Unknown is not run again: it waits for a report."""
    deadline = task.spec.active_deadline_seconds
    return lease.may_requeue(task) and (deadline is None or ages.task < deadline)


def _earlier(decision: Decision, seconds: float | None) -> Decision:
    if seconds is None or isinstance(decision, Act):
        return decision
    if isinstance(decision, Wait):
        return Wait(seconds=min(decision.seconds, seconds))
    return Wait(seconds=seconds)
