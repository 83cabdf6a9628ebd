"""`Lease`: what a handler is given beside the request. Public; safe to use from the handler's thread.

A `def` handler runs in a thread and calls `lease.emit(...)`; an `async def` handler runs on the worker's loop
and awaits the twin with `_async` at the end. Calling the first from the second would block the loop for
ever, so it is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from fencepost.outbox import NewRow, OutboxConflict, Statement
from fencepost.protocol.payload import sha256_hex, value_text
from fencepost.protocol.receipt import key_problem
from fencepost.protocol.submission import Submission, Verdict, refuse_what_does_not_fit
from fencepost.protocol.task import Kind, Outcome, Receipt
from fencepost.worker.delivery import Delivery
from fencepost.worker.handler import plain_value
from fencepost.worker.holding import Holding
from fencepost.worker.outcomes import LeaseOver
from fencepost.worker.snapshot import SettledBranch, branches_of
from fencepost.worker.stopping import Flag
from fencepost.worker.workplace import Workplace

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskName:
    """Which task it is."""

    name: str
    namespace: str
    uid: str
    branch: str | None = None
    job: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Emitted:
    """What became of a row. RETRY_LATER: it lies in the outbox and is sent before the result.

    There is no verdict where no store would take it; the outbox's dead letters say why.
    """

    verdict: Verdict | None
    receipt: Receipt | None


class Lease:
    """The lease under which a handler works."""

    def __init__(self, place: Workplace, holding: Holding, delivery: Delivery) -> None:
        self._place = place
        self._holding = holding
        self._delivery = delivery
        self._loop = asyncio.get_running_loop()
        self._deferred: list[Statement] = []

    @property
    def task(self) -> TaskName:
        """The task's name, namespace and UID, and the branch and job it belongs to."""
        task = self._holding.task
        job = task.owner.name if task.owner and task.owner.kind == "FanOutJob" else None
        return TaskName(
            name=task.key.name, namespace=task.key.namespace, uid=task.uid, branch=task.branch, job=job
        )

    @property
    def token(self) -> int:
        """The fencing token: the number of claims so far. Hand it to whatever can compare it."""
        return self._holding.task.token

    @property
    def holder(self) -> str:
        """`OUTBOX-UUID/INCARNATION`."""
        return self._holding.task.holder

    @property
    def attempt(self) -> int:
        """1 for the first claim of the task, 2 for the second and so on; the same as the token."""
        return self._holding.task.token

    @property
    def failures(self) -> int:
        """How many leases of this task ended without a result before this one."""
        return self._holding.task.failures

    @property
    def previous_progress(self) -> str:
        """The progress that the last heartbeat of the task left, of whatever lease; empty if none did."""
        return self._holding.previous_progress

    @property
    def lost(self) -> Flag:
        """Set when the lease is over or may be: stop working. What you return later may be refused."""
        return self._holding.lost

    @property
    def stopping(self) -> Flag:
        """Set when the worker was told to stop: finish within its grace, or raise `LeaseOver`."""
        return self._place.stopping.requested

    def check(self) -> None:
        """Raises `LeaseOver` if the lease is lost or the worker was told to stop. Call it in long loops."""
        if self.lost:
            raise LeaseOver("the lease is lost")
        if self.stopping:
            raise LeaseOver("the worker was told to stop")

    def heartbeat(self, progress: str | None = None) -> bool:
        """Renew now, and leave `progress` (cut to 1 KiB) for people and the next attempt.

        The worker renews by itself every third of the lease: call this only to tell progress. It is a write.
        Returns whether the lease is known to be ours after it.
        """
        return self._from_thread(self.heartbeat_async(progress), "heartbeat")

    async def heartbeat_async(self, progress: str | None = None) -> bool:
        """As `heartbeat`, for `async def` handlers."""
        return await self._holding.renew(progress)

    def emit(self, payload: object, key: str | None = None) -> Emitted:
        """Hand in one row on the way: first into the outbox, then to the store, like a result.

        `payload`: text, or anything that has a canonical JSON text of at most 16 KiB. `key`: an idempotency
        key of your own, else one is made from the outbox, the task and the payload, so that a repeat after a
        crash is the same row. At most 28 rows a task. Raises `PayloadRefused`, `ResultUnfit` or
        `SubmissionTooLarge` before anything is stored, and the outbox's own errors.
        """
        return self._from_thread(self.emit_async(payload, key), "emit")

    async def emit_async(self, payload: object, key: str | None = None) -> Emitted:
        """As `emit`, for `async def` handlers."""
        value = value_text(plain_value(payload))
        problem = None if key is None else key_problem(key)
        if problem:
            raise ValueError(problem)
        task = self._holding.task
        if all(receipt.payload_sha256 != sha256_hex(value) for receipt in task.receipts):
            refuse_what_does_not_fit(task, self._row_submission(value))
        try:
            row = self._place.outbox.store_result(self._new_row(Kind.ROW, Outcome.OK, value, key))
        except OutboxConflict:
            return Emitted(verdict=Verdict.CONFLICT, receipt=None)
        self._holding.rows_may_wait = True
        if (row.token, row.holder) != (task.token, task.holder):  # from before a crash: under this lease now
            row = self._place.outbox.rearm(row.id, token=task.token, holder=task.holder)
        delivered = await self._delivery.deliver(row, task)
        if delivered.task is not None:
            self._holding.learned(delivered.task)
        if delivered.is_stale:
            self._holding.lose("a row was refused as stale", over=True)
        return Emitted(verdict=delivered.verdict, receipt=delivered.receipt)

    def defer(self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> None:
        """Have a statement run inside the outbox's own transaction, together with the result: all or nothing.

        The tables are the user's, in the outbox file; names that begin with `fencepost_` are ours.
        """
        self._deferred.append(Statement(sql=sql, parameters=parameters))

    def branches(self) -> Mapping[str, SettledBranch]:
        """For a continuation: the joined snapshot that it was given, by branch name, in sorted order.

        Large values are read from the tasks that have them, and every value is compared with its hash.
        Raises `SnapshotUnavailable`.
        """
        return self._from_thread(self.branches_async(), "branches")

    async def branches_async(self) -> Mapping[str, SettledBranch]:
        """As `branches`, for `async def` handlers."""
        return await branches_of(self._place.store, self._holding.task)

    @property
    def deferred(self) -> Sequence[Statement]:
        """What `defer` collected so far."""
        return tuple(self._deferred)

    def _row_submission(self, value: str) -> Submission:
        task = self._holding.task
        return Submission(
            uid=task.uid,
            idempotency_key="-",
            kind=Kind.ROW,
            outcome=Outcome.OK,
            value=value,
            recorded_by=self._place.account,
            token=task.token,
            holder=task.holder,
        )

    def _new_row(self, kind: Kind, outcome: Outcome, value: str, key: str | None) -> NewRow:
        return new_row(self._holding, kind, outcome, value, key=key, device_time=self._place.now())

    def _from_thread(self, coroutine: Coroutine[Any, Any, T], name: str) -> T:
        try:
            running: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is self._loop:
            coroutine.close()
            raise RuntimeError(f"in an async handler write `await lease.{name}_async(...)`")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()


def new_row(
    holding: Holding, kind: Kind, outcome: Outcome, value: str, *, key: str | None, device_time: str
) -> NewRow:
    """A row of the outbox under the lease of `holding`."""
    task = holding.task
    return NewRow(
        task_key=task.key,
        uid=task.uid,
        token=task.token,
        holder=task.holder,
        kind=kind,
        outcome=outcome,
        value=value,
        idempotency_key=key,
        job=task.owner if task.owner and task.owner.kind == "FanOutJob" else None,
        branch=task.branch,
        device_time=device_time,
    )
