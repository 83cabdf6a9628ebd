"""Leases without an outbox: the four writes for scripts in any language, one by one.

What an outbox guarantees is the script's own business here: to keep its result before it submits, and to
submit the same again until it gets a verdict. The key of a submit is derived from the lease, so the same
result of the same lease is the same submit.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from fencepost.certainty import write_until_certain
from fencepost.ports import Answer, Applied, Cause, Refused, StoreRefused, StoreUnavailable, TaskStore
from fencepost.protocol.fanout import JOB_KIND
from fencepost.protocol.fencing import HOLDER_PATTERN, is_current, next_token
from fencepost.protocol.join import is_recorded
from fencepost.protocol.limits import FENCING_TOKEN_MAX
from fencepost.protocol.mutation import Claim, Heartbeat, Release, WorkerMutation
from fencepost.protocol.payload import sha256_hex
from fencepost.protocol.receipt import default_idempotency_key
from fencepost.protocol.steps import mark_text
from fencepost.protocol.submission import Submission
from fencepost.protocol.task import GENESIS, Candidate, Kind, LeaseEnd, ObjectKey, Outcome, State, Task
from fencepost.worker.clock import time_of_day
from fencepost.worker.failures import SchemaTooOld
from fencepost.worker.handing_in import Judged, NotNow, Unacceptable, hand_in
from fencepost.worker.outcomes import value_for_unreadable_request
from fencepost.worker.settings import PAGE, retry_seconds

TRIES_MAX: Final = 9  # of one write whose fate is uncertain: about 40 seconds with its pauses
NO_OUTBOX_MARK: Final = mark_text(0, GENESIS)


class LeaseUnreadable(ValueError):  # noqa: N818 - the sentence a reader sees
    """The text is no lease as `claim` prints it; the message says what is missing or wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BareLease:
    """What a script has to remember: which task, and under which token and holder."""

    key: ObjectKey
    uid: str
    token: int
    holder: str

    def is_in_force(self, task: Task | None) -> bool:
        """Whether `task` is still held under this lease."""
        ours = task is not None and task.uid == self.uid and not task.settled
        return ours and task is not None and is_current(task, token=self.token, holder=self.holder)


def lease_text(task: Task) -> str:
    """The lease as JSON: what the other commands need, and what the work needs."""
    owner = task.owner if task.owner and task.owner.kind == JOB_KIND else None
    fields = {
        "namespace": task.key.namespace,
        "name": task.key.name,
        "uid": task.uid,
        "token": task.token,
        "holder": task.holder,
        "queue": task.spec.queue,
        "leaseDurationSeconds": task.spec.lease_duration_seconds,
        "failures": task.failures,
        "previousProgress": task.progress,
        "job": owner.name if owner else None,
        "branch": task.branch,
        "request": json.loads(task.spec.request),
    }
    return json.dumps({name: value for name, value in fields.items() if value is not None}, indent=2)


def lease_from_text(text: str) -> BareLease:
    """The lease that `lease_text` wrote. Raises `LeaseUnreadable`."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LeaseUnreadable(f"a lease is the JSON that `fencepost claim` prints: {error}") from None
    if not isinstance(fields, Mapping):
        raise LeaseUnreadable("a lease is a JSON object, as `fencepost claim` prints it")
    lease = BareLease(
        key=ObjectKey(namespace=_text(fields, "namespace"), name=_text(fields, "name")),
        uid=_text(fields, "uid"),
        token=_token(fields),
        holder=_text(fields, "holder"),
    )
    if not re.fullmatch(HOLDER_PATTERN, lease.holder):
        raise LeaseUnreadable(f"{lease.holder!r} is no holder: a UUID, a slash and 1 to 64 of 0-9 a-z")
    return lease


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value:
        raise LeaseUnreadable(f"the lease has no {name}: give the JSON that `fencepost claim` printed")
    return value


def _token(fields: Mapping[str, Any]) -> int:
    value = fields.get("token")
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= FENCING_TOKEN_MAX:
        raise LeaseUnreadable(f"the lease's token is {value!r}: a whole number of at least 1")
    return value


async def claim_one(store: TaskStore, queue: str, *, holder: str) -> Task | None:
    """Claim one task that is wanted; None if there is nothing to claim.

    One whose request cannot be read is rejected on the way, as by a worker. Raises `StoreUnavailable`,
    `StoreRefused` or `SchemaTooOld`.
    """
    account = await store.account()
    candidates = list(await store.claimable(queue, PAGE))
    while candidates:
        task = await _claim(store, candidates.pop(0), holder=holder, account=account)
        if task is None:
            continue
        if await _is_unwanted(store, task):
            message = "its job is gone or has recorded the branch"
            await let_go(store, _lease_of(task), LeaseEnd.UNWANTED, message)
        elif problem := task.spec.request_problem:
            value = value_for_unreadable_request(problem)
            await submit(store, _lease_of(task), kind=Kind.RESULT, outcome=Outcome.REJECTED, value=value)
        else:
            return task
    return None


async def _claim(store: TaskStore, candidate: Candidate, *, holder: str, account: str) -> Task | None:
    answer = await certain(
        store,
        Claim(
            key=candidate.key,
            uid=candidate.uid,
            version=candidate.version,
            token=next_token(candidate.token),
            holder=holder,
            account=account,
            outbox_mark=NO_OUTBOX_MARK,
            at=time_of_day(),
        ),
    )
    if isinstance(answer, Applied):
        return answer.task
    if isinstance(answer, Refused) and answer.cause in (Cause.PRECONDITION, Cause.MISSING):
        return None
    raise _not_done(answer, f"the claim of {candidate.key}")


async def _is_unwanted(store: TaskStore, task: Task) -> bool:
    if task.owner is None or task.owner.kind != JOB_KIND:
        return False
    job = await store.job(ObjectKey(namespace=task.key.namespace, name=task.owner.name))
    return is_recorded(job, job_uid=task.owner.uid, branch=task.branch or "")


async def renew(store: TaskStore, lease: BareLease, *, progress: str | None = None) -> Task | None:
    """Renew once; the task, or None if the lease is over. Raises as `claim_one`."""
    while True:
        task = await store.task(lease.key)
        if task is None or not lease.is_in_force(task):
            return None
        answer = await certain(
            store,
            Heartbeat(
                key=lease.key,
                uid=lease.uid,
                token=lease.token,
                holder=lease.holder,
                renewals=task.renewals,
                at=time_of_day(),
                progress=progress,
            ),
        )
        if isinstance(answer, Applied):
            return answer.task
        if not (isinstance(answer, Refused) and answer.cause is Cause.PRECONDITION):
            raise _not_done(answer, f"the heartbeat of {lease.key}")


async def let_go(store: TaskStore, lease: BareLease, end: LeaseEnd, message: str = "") -> Task | None:
    """End the lease with this reason; the task, or None if it was over already. Raises as `claim_one`."""
    while True:
        task = await store.task(lease.key)
        if task is None or not lease.is_in_force(task):
            return None
        release = Release(
            key=lease.key,
            uid=lease.uid,
            token=lease.token,
            holder=lease.holder,
            state=task.state,
            failures=task.failures,
            end=end,
            message=message,
        )
        answer = await certain(store, release)
        if isinstance(answer, Applied):
            return answer.task
        if not (isinstance(answer, Refused) and answer.cause is Cause.PRECONDITION):
            raise _not_done(answer, f"the release of {lease.key}")


async def submit(
    store: TaskStore, lease: BareLease, *, kind: Kind, outcome: Outcome, value: str, key: str | None = None
) -> Judged | Unacceptable | NotNow:
    """Hand in a result or a row. After an accepted Unknown the lease is released. Raises as `claim_one`."""
    outbox = lease.holder.partition("/")[0]
    submission = Submission(
        uid=lease.uid,
        idempotency_key=key
        or default_idempotency_key(
            outbox=outbox,
            uid=lease.uid,
            kind=kind,
            outcome=outcome,
            payload_sha256=sha256_hex(value),
            token=lease.token,
        ),
        kind=kind,
        outcome=outcome,
        value=value,
        recorded_by=await store.account(),
        token=lease.token,
        holder=lease.holder,
        device_time=time_of_day(),
    )
    task = await store.task(lease.key)
    end = await hand_in(store, lease.key, task, submission, write=lambda write: certain(store, write))
    if (
        isinstance(end, Judged)
        and outcome is Outcome.UNKNOWN
        and end.task
        and end.task.state is State.UNKNOWN
    ):
        await let_go(store, lease, LeaseEnd.AFTER_UNKNOWN)
    return end


async def certain(store: TaskStore, mutation: WorkerMutation) -> Answer:
    """Send one write until its fate is certain, for about forty seconds."""
    return await write_until_certain(store, mutation, pause=_pause())


def _pause() -> Callable[[int], Awaitable[bool]]:
    async def pause(tries: int) -> bool:
        if tries >= TRIES_MAX:
            return False
        await asyncio.sleep(retry_seconds(tries, spread=random.random()))
        return True

    return pause


def _lease_of(task: Task) -> BareLease:
    return BareLease(key=task.key, uid=task.uid, token=task.token, holder=task.holder)


def _not_done(answer: Answer, what: str) -> Exception:
    """The exception for an answer that is neither applied nor a precondition that is gone."""
    if not isinstance(answer, Refused):
        message = "" if isinstance(answer, Applied) else answer.message
        return StoreUnavailable(f"{what} may or may not have been applied, try again: {message}")
    if answer.cause is Cause.OVERLOADED:
        return StoreUnavailable(f"{what}: {answer.message}", answer.retry_after_seconds)
    if answer.cause is Cause.SCHEMA:
        return SchemaTooOld(f"{what}: {answer.message}; install the CRDs of this version of fencepost")
    return StoreRefused(f"{what} was refused: {answer.message}", answer.cause)
