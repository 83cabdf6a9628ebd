"""A store that is itself the server, behind the port that workers use: one ledger, whatever the shelf.

A subclass says how a transaction is run. Reads go through the ledger too: a lease that has run out is revoked
by whoever looks first, so no reader sees a lease that is over.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

from fencepost.local import joining, keeping
from fencepost.local.admission import refusal_of_task
from fencepost.local.jobs import JobApplied
from fencepost.local.ledger import Ledger
from fencepost.local.reports import take_report
from fencepost.ports import Answer, Cause, NewTask, Refused, TaskStore
from fencepost.protocol.job import Job, JobSpec
from fencepost.protocol.mutation import Mutation
from fencepost.protocol.report import Report, ReportAnswer
from fencepost.protocol.task import Candidate, ObjectKey, Task

T = TypeVar("T")


class EmbeddedStore(TaskStore):
    """`namespace` is the one that it lists and creates in; writes go where their key says."""

    def __init__(self, *, namespace: str, account: str) -> None:
        self._namespace = namespace
        self._account = account

    @abstractmethod
    async def _run(self, operation: Callable[[Ledger], T]) -> T:
        """Run one transaction and commit what it changed.

        Raises `StoreUnavailable` or `StoreRefused`; nothing is changed then.
        """

    @abstractmethod
    async def _run_write(self, operation: Callable[[Ledger], Answer]) -> Answer:
        """Run one transaction that answers; it may end `Unanswered`, and never raises."""

    @property
    def namespace(self) -> str:
        return self._namespace

    async def account(self) -> str:
        return self._account

    async def write(self, mutation: Mutation) -> Answer:
        return await self._run_write(lambda ledger: ledger.write(mutation))

    async def create(self, new: NewTask) -> Answer:
        """Create the task in this store's namespace; `Refused(EXISTS)` if the name is taken.

        What a cluster would not take is `Refused(ADMISSION)`.
        """
        if new.key.namespace != self._namespace:
            return Refused(
                cause=Cause.FORBIDDEN, message=f"this store creates in {self._namespace}, not in {new.key}"
            )
        refusal = refusal_of_task(new)
        if refusal is not None:
            return refusal
        return await self._run_write(lambda ledger: ledger.create(new))

    async def task(self, key: ObjectKey) -> Task | None:
        return await self._run(lambda ledger: ledger.task(key))

    async def claimable(self, queue: str, limit: int) -> Sequence[Candidate]:
        def list_candidates(ledger: Ledger) -> Sequence[Candidate]:
            ledger.keep_up(keeping.DUE_AT_ONCE_MAX)
            return ledger.shelf.candidates(self._namespace, queue, limit)

        return await self._run(list_candidates)

    async def unsettled_of_outbox(self, outbox: str) -> Sequence[Task]:
        return await self._run(lambda ledger: ledger.shelf.unsettled_of_outbox(self._namespace, outbox))

    async def claimed_by_outbox(self, outbox: str) -> Sequence[Task]:
        return await self._run(lambda ledger: ledger.shelf.claimed_by_outbox(self._namespace, outbox))

    async def accepted_elsewhere(self, task: Task, payload_sha256: str) -> str:
        return await self._run(lambda ledger: ledger.elsewhere(task, payload_sha256))

    async def job(self, key: ObjectKey) -> Job | None:
        return await self._run(lambda ledger: ledger.shelf.job(key))

    async def tasks(self, queue: str | None = None) -> Sequence[Task]:
        return await self._run(lambda ledger: ledger.shelf.tasks(self._namespace, queue))

    async def jobs(self) -> Sequence[Job]:
        return await self._run(lambda ledger: ledger.shelf.jobs(self._namespace))

    async def create_job(self, name: str, spec: JobSpec) -> JobApplied | Refused:
        """A job and the tasks of its branches, in one step. The same content again is a replay."""
        key = ObjectKey(namespace=self._namespace, name=name)
        return await self._run(lambda ledger: joining.create_job(ledger, key, spec))

    async def report(self, report: Report) -> ReportAnswer:
        """Take an outcome that is told from outside; see `reports.take_report`. Raises `ValueError`."""
        return await self._run(lambda ledger: take_report(ledger, self._namespace, report))

    async def keep_up(self, *, batch_due: bool = True) -> int:
        """Do what is due now, as a keeper does; how many tasks were due."""
        return await self._run(lambda ledger: keeping.keep(ledger, batch_due=batch_due))

    async def set_suspended(self, name: str, *, suspend: bool) -> Task | None:
        """Suspend a task, or let it go on. None if there is no such task."""
        key = ObjectKey(namespace=self._namespace, name=name)
        return await self._run(lambda ledger: ledger.set_suspended(key, suspend=suspend))

    async def resume_job(self, name: str) -> Job | None:
        """Let a suspended job go on. None if there is no such job."""
        key = ObjectKey(namespace=self._namespace, name=name)
        return await self._run(lambda ledger: joining.resume(ledger, key))

    async def delete_task(self, name: str) -> None:
        """Delete a task with its receipts, as `kubectl delete` does; nothing if there is none."""
        key = ObjectKey(namespace=self._namespace, name=name)
        await self._run(lambda ledger: ledger.shelf.drop(key))
