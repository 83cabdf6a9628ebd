"""The life of a lease: what may be claimed, renewed, ended and freed, as tables.

Everything that decides about a lease lives here; a pair that is in no table is refused and changes nothing.
The diagrams in the docs are drawn from these tables.

Whose clock: none. A lease is over when the server's side has seen no change of (UID, token, renewals) for
the duration of the lease, measured by one observer's own monotonic clock, and has then revoked it with a
write that tests all three (`upkeep`). Until then nobody else can hold the task, so a late submit under it
is still safe and still accepted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from fencepost.protocol.fencing import next_token
from fencepost.protocol.limits import COUNTER_MAX, FENCING_TOKEN_MAX
from fencepost.protocol.task import Hold, LastLease, LeaseEnd, Outcome, State, Task, UnknownPolicy


class NotClaimable(StrEnum):
    """Why a task cannot be claimed now."""

    SETTLED = "settled"
    HELD = "held"
    ON_HOLD = "on hold"
    SUSPENDED = "suspended"
    EXTERNAL = "external"
    TOKENS_EXHAUSTED = "out of fencing tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndEffect:
    """What the end of a lease leaves behind: the hold, and whether it counts as a failure."""

    hold: Hold | None
    counts: bool


_FREE: Final = EndEffect(hold=None, counts=False)
_BACKOFF: Final = EndEffect(hold=Hold.BACKOFF, counts=True)
_UNKNOWN: Final = EndEffect(hold=Hold.UNKNOWN, counts=False)
_UNKNOWN_COUNTS: Final = EndEffect(hold=Hold.UNKNOWN, counts=True)

# (state, why the lease ends) -> what it leaves. From Unknown the hold is always Unknown: the work may have
# taken effect, so nobody may run it again before the unknown policy or a report says so. A release at a
# worker's start counts, or a task that kills its worker would loop for ever. A deadline ends no Unknown.
LEASE_ENDS: Final[dict[tuple[State, LeaseEnd], EndEffect]] = {
    (State.OPEN, LeaseEnd.SHUTDOWN): _FREE,
    (State.OPEN, LeaseEnd.ERROR): _BACKOFF,
    (State.OPEN, LeaseEnd.START): _BACKOFF,
    (State.OPEN, LeaseEnd.UNWANTED): _BACKOFF,
    (State.OPEN, LeaseEnd.EXPIRED): _BACKOFF,
    (State.OPEN, LeaseEnd.DEADLINE): _BACKOFF,
    (State.OPEN, LeaseEnd.CANCELLED): _BACKOFF,
    (State.UNKNOWN, LeaseEnd.SHUTDOWN): _UNKNOWN,
    (State.UNKNOWN, LeaseEnd.AFTER_UNKNOWN): _UNKNOWN,
    (State.UNKNOWN, LeaseEnd.ERROR): _UNKNOWN_COUNTS,
    (State.UNKNOWN, LeaseEnd.START): _UNKNOWN_COUNTS,
    (State.UNKNOWN, LeaseEnd.UNWANTED): _UNKNOWN_COUNTS,
    (State.UNKNOWN, LeaseEnd.EXPIRED): _UNKNOWN_COUNTS,
    (State.UNKNOWN, LeaseEnd.CANCELLED): _UNKNOWN_COUNTS,
}

# Who may say so: a worker for what it holds itself, the server's side for everybody's.
ENDED_BY_WORKER: Final = frozenset(
    {LeaseEnd.SHUTDOWN, LeaseEnd.ERROR, LeaseEnd.START, LeaseEnd.UNWANTED, LeaseEnd.AFTER_UNKNOWN}
)
ENDED_BY_OPERATOR: Final = frozenset({LeaseEnd.EXPIRED, LeaseEnd.DEADLINE, LeaseEnd.CANCELLED})

# (state, outcome of a submit) -> state. Settled states have no row: they are final.
SUBMITS: Final[dict[tuple[State, Outcome], State]] = {
    (State.OPEN, Outcome.OK): State.SUCCEEDED,
    (State.OPEN, Outcome.REJECTED): State.FAILED,
    (State.OPEN, Outcome.UNKNOWN): State.UNKNOWN,
    (State.UNKNOWN, Outcome.OK): State.SUCCEEDED,
    (State.UNKNOWN, Outcome.REJECTED): State.FAILED,
    (State.UNKNOWN, Outcome.UNKNOWN): State.UNKNOWN,
}

# (state, hold) of a task that nobody holds -> whether freeing it may be right; `may_requeue` has the rest.
REQUEUES: Final = frozenset({(State.OPEN, Hold.BACKOFF), (State.UNKNOWN, Hold.UNKNOWN)})


def why_not_claimable(task: Task) -> NotClaimable | None:
    """None if the task may be claimed, else the first reason against it."""
    if task.settled:
        return NotClaimable.SETTLED
    if task.held:
        return NotClaimable.HELD
    if task.hold is not None:
        return NotClaimable.ON_HOLD
    if task.spec.suspend:
        return NotClaimable.SUSPENDED
    if task.spec.external:
        return NotClaimable.EXTERNAL
    return NotClaimable.TOKENS_EXHAUSTED if task.token >= FENCING_TOKEN_MAX else None


def claimed(task: Task, *, holder: str, account: str, outbox_mark: str, at: str) -> Task:
    """The task after a lawful claim: token +1, renewals from zero. `at` is informative text."""
    return replace(
        task,
        token=next_token(task.token),
        holder=holder,
        account=account,
        outbox_mark=outbox_mark,
        renewals=0,
        hold=Hold.LEASED,
        acquired_at=at,
        renewed_at=at,
    )


def renewed(task: Task, *, at: str, progress: str | None) -> Task:
    """The task after a heartbeat. Renewals are counted, because two equal times would be no change."""
    kept = task.progress if progress is None else progress
    return replace(task, renewals=task.renewals + 1, renewed_at=at, progress=kept)


def ended(task: Task, *, end: LeaseEnd, message: str = "") -> Task:
    """The task after its lease ended for this reason; the token stays. Raises `KeyError` off the table."""
    effect = LEASE_ENDS[task.state, end]
    return replace(
        task,
        holder="",
        account="",
        outbox_mark="",
        renewals=0,
        acquired_at="",
        renewed_at="",
        hold=effect.hold,
        failures=failures_after(task.failures, effect),
        last_lease=LastLease(token=task.token, holder=task.holder, end=end, message=message),
    )


def failures_after(failures: int, effect: EndEffect) -> int:
    """The count of failures after a lease ended with this effect; it stops at the counter's maximum."""
    return min(COUNTER_MAX, failures + 1) if effect.counts else failures


def failures_left(task: Task) -> bool:
    """Whether the task may be tried again: its failures so far are within `maxFailures`."""
    return task.failures <= task.spec.retry_policy.max_failures


def may_requeue(task: Task) -> bool:
    """Whether the task may be freed for the next claim once its backoff is over."""
    if task.held or task.hold is None or (task.state, task.hold) not in REQUEUES:
        return False
    if task.state is State.UNKNOWN and task.spec.unknown_policy is UnknownPolicy.HOLD:
        return False
    return failures_left(task)


def requeued(task: Task) -> Task:
    """The task after it was freed."""
    return replace(task, hold=None)
