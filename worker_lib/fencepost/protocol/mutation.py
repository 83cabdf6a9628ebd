"""The eight mutations of a task as data, and the one function that carries them out.

A mutation names the UID and everything else it was decided on; the store compares all of it inside the
write that changes the object. The API server does so by resourceVersion (claim) and by JSON Patch `test`
operations (the rest); the embedded stores call `apply` inside their transaction. So there is no
read-then-write anywhere, and a mutation that arrives late or twice is refused.

========== ======== ================================================= =====================================
mutation   by       compared, beside the UID                          effect
========== ======== ================================================= =====================================
Claim      worker   version of the object that was judged claimable   token +1, holder, hold Leased
Heartbeat  worker   token, holder, renewals, not settled              renewals +1, progress
Release    worker   token, holder, state                              `lease.LEASE_ENDS`
Submit     worker   token, holder, state, head                        one more receipt, `lease.SUBMITS`
Revoke     operator token, holder, renewals, state                    `lease.LEASE_ENDS`; the token stays
Requeue    operator token, hold, state                                no hold
Settle     operator token, no holder, state, head                     a receipt of the operator's own; from a
                                                                     report of Unknown also hold Unknown
========== ======== ================================================= =====================================

(An emitted row is a `Submit` of a receipt of kind Row.)

Every write ends applied, refused or unknown. An unknown one may still be applied half a minute later, so
reading back and finding nothing proves nothing: `standing` tells whether its effect is there, whether it
can no longer be applied, or whether the identical write has to be sent again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from fencepost.protocol import lease
from fencepost.protocol.fencing import is_current
from fencepost.protocol.task import (
    OPERATOR_HOLDER,
    Hold,
    Kind,
    LeaseEnd,
    ObjectKey,
    Outcome,
    Reason,
    Receipt,
    State,
    Task,
)


class MutationRefused(Exception):  # noqa: N818
    """A precondition does not hold (any more); the message names it. Nothing was changed."""


class Standing(Enum):
    """What a read says about a write whose answer was lost."""

    APPLIED = "its effect is there"
    GONE = "its precondition is gone: it can never be applied"
    PENDING = "neither: it has to be sent again, identical"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    key: ObjectKey
    uid: str
    version: str
    token: int  # the new one: the token of the object that was judged, plus one
    holder: str
    account: str
    outbox_mark: str
    at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    key: ObjectKey
    uid: str
    token: int
    holder: str
    renewals: int  # as last seen; the heartbeat makes it one more
    at: str
    progress: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    key: ObjectKey
    uid: str
    token: int
    holder: str
    state: State
    failures: int  # as of the claim; only the end of a lease changes it
    end: LeaseEnd
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    key: ObjectKey
    uid: str
    token: int
    holder: str
    state: State
    head: str
    receipt: Receipt


@dataclass(frozen=True, slots=True, kw_only=True)
class Revoke:
    key: ObjectKey
    uid: str
    token: int
    holder: str
    renewals: int
    state: State
    failures: int
    end: LeaseEnd
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requeue:
    key: ObjectKey
    uid: str
    token: int
    hold: Hold
    state: State


@dataclass(frozen=True, slots=True, kw_only=True)
class Settle:
    key: ObjectKey
    uid: str
    token: int
    state: State
    head: str
    receipt: Receipt


WorkerMutation = Claim | Heartbeat | Release | Submit
OperatorMutation = Revoke | Requeue | Settle
Mutation = WorkerMutation | OperatorMutation


def apply(task: Task, mutation: Mutation) -> Task:
    """The task after the mutation; raises `MutationRefused`. The version is the store's to raise."""
    if task.uid != mutation.uid:
        raise MutationRefused(f"{task.key} is another object now (UID {task.uid}, expected {mutation.uid})")
    match mutation:
        case Claim():
            return _apply_claim(task, mutation)
        case Heartbeat():
            return _apply_heartbeat(task, mutation)
        case Release() | Revoke():
            return _apply_end(task, mutation)
        case Requeue():
            return _apply_requeue(task, mutation)
        case _:
            return _apply_receipt(task, mutation)


def state_after(state: State, receipt: Receipt) -> State:
    """The state that a new receipt implies; raises `KeyError` where the table has no row."""
    if receipt.kind is Kind.ROW:
        return state
    if receipt.reason is Reason.CANCELLED:
        return State.CANCELLED
    return lease.SUBMITS[state, receipt.outcome]


def standing(task: Task | None, mutation: Mutation) -> Standing:
    """What an uncached read, begun after the write was sent, says about it."""
    if task is None or task.uid != mutation.uid:
        return Standing.GONE
    if _effect_is_there(task, mutation):
        return Standing.APPLIED
    try:
        apply(task, mutation)
    except MutationRefused:
        return Standing.GONE
    return Standing.PENDING


def _effect_is_there(task: Task, mutation: Mutation) -> bool:
    match mutation:
        case Claim():
            return is_current(task, token=mutation.token, holder=mutation.holder)
        case Heartbeat():
            mine = is_current(task, token=mutation.token, holder=mutation.holder)
            return mine and task.renewals > mutation.renewals
        case Release() | Revoke():
            last = task.last_lease
            return (
                last is not None
                and (last.token, last.holder, last.end) == (mutation.token, mutation.holder, mutation.end)
                and not is_current(task, token=mutation.token, holder=mutation.holder)
            )
        case Requeue():
            return task.token > mutation.token or (task.token == mutation.token and task.hold is None)
        case _:
            return mutation.receipt in task.receipts


def _apply_claim(task: Task, claim: Claim) -> Task:
    if task.version != claim.version or task.token + 1 != claim.token:
        raise MutationRefused(f"{task.key} has changed since it was judged claimable")
    reason = lease.why_not_claimable(task)
    if reason is not None:
        raise MutationRefused(f"{task.key} is not claimable: {reason.value}")
    return lease.claimed(
        task, holder=claim.holder, account=claim.account, outbox_mark=claim.outbox_mark, at=claim.at
    )


def _apply_heartbeat(task: Task, heartbeat: Heartbeat) -> Task:
    _refuse_other_lease(task, token=heartbeat.token, holder=heartbeat.holder)
    if task.settled or task.renewals != heartbeat.renewals:
        raise MutationRefused(f"{task.key} is settled or was renewed meanwhile")
    return lease.renewed(task, at=heartbeat.at, progress=heartbeat.progress)


def _apply_end(task: Task, end: Release | Revoke) -> Task:
    _refuse_other_lease(task, token=end.token, holder=end.holder)
    if task.settled or task.state is not end.state:
        raise MutationRefused(f"{task.key} is {task.state.value} now, not {end.state.value}")
    if isinstance(end, Revoke) and task.renewals != end.renewals:
        raise MutationRefused(f"{task.key} was renewed meanwhile")
    allowed = lease.ENDED_BY_OPERATOR if isinstance(end, Revoke) else lease.ENDED_BY_WORKER
    if end.end not in allowed or (task.state, end.end) not in lease.LEASE_ENDS:
        raise MutationRefused(f"a lease of {task.key} does not end by {end.end.value} in {task.state.value}")
    return lease.ended(task, end=end.end, message=end.message)


def _apply_requeue(task: Task, requeue: Requeue) -> Task:
    if (task.token, task.hold, task.state) != (requeue.token, requeue.hold, requeue.state):
        raise MutationRefused(f"{task.key} is no longer on hold as it was")
    if task.held or task.settled:
        raise MutationRefused(f"{task.key} is held or settled")
    return lease.requeued(task)


def _apply_receipt(task: Task, write: Submit | Settle) -> Task:
    if isinstance(write, Submit):
        _refuse_other_lease(task, token=write.token, holder=write.holder)
    elif task.held or task.token != write.token:
        raise MutationRefused(f"{task.key} is held, or was claimed meanwhile")
    if task.settled or task.state is not write.state or task.head != write.head:
        raise MutationRefused(f"{task.key} has another receipt or is settled")
    if any(known.idempotency_key == write.receipt.idempotency_key for known in task.receipts):
        raise MutationRefused(f"{task.key} has a receipt of the key {write.receipt.idempotency_key}")
    _refuse_foreign_receipt(task, write)
    state = state_after(task.state, write.receipt)
    unheld_unknown = state is State.UNKNOWN and not task.held
    return replace(
        task,
        receipts=(*task.receipts, write.receipt),
        state=state,
        hold=Hold.UNKNOWN if unheld_unknown else task.hold,
    )


def _refuse_foreign_receipt(task: Task, write: Submit | Settle) -> None:
    """As the admission rules do: a new receipt is the next one, and this lease's or the operator's."""
    receipt = write.receipt
    if (receipt.sequence, receipt.previous) != (task.count + 1, task.head):
        raise MutationRefused(f"the receipt does not follow the newest one of {task.key}")
    account = receipt.recorded_by
    holder = OPERATOR_HOLDER
    if isinstance(write, Submit):
        holder, account = write.holder, task.account
        if receipt.reason is not None:
            raise MutationRefused("only the operator gives a reason")
    if (receipt.fencing_token, receipt.holder, receipt.recorded_by) != (task.token, holder, account):
        raise MutationRefused(f"the receipt names another token, holder or account than {task.key} has")


def _refuse_other_lease(task: Task, *, token: int, holder: str) -> None:
    if not is_current(task, token=token, holder=holder):
        now = f"token {task.token} held by {task.holder or 'nobody'}"
        raise MutationRefused(f"the lease of {task.key} with token {token} is over: {now}")


__all__ = [
    "Claim",
    "Heartbeat",
    "Kind",
    "Mutation",
    "MutationRefused",
    "OperatorMutation",
    "Outcome",
    "Release",
    "Requeue",
    "Revoke",
    "Settle",
    "Standing",
    "Submit",
    "WorkerMutation",
    "apply",
    "standing",
    "state_after",
]
