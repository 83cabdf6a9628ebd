"""A worker, a store in memory and an outbox in a folder: what the tests of the worker play with."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from fencepost import Worker
from fencepost.outbox import NewRow, Outbox, Row
from fencepost.ports import Answer, Applied
from fencepost.protocol.job import Branch, JobSpec
from fencepost.protocol.mutation import Claim, Mutation
from fencepost.protocol.task import Kind, ObjectKey, Outcome, Task, TaskSpec
from fencepost.testing.memory import MemoryStore
from fencepost.worker.clock import time_of_day
from fencepost.worker.settings import Settings

QUICK = Settings(
    once=True, grace_seconds=0.3, idle_seconds_min=0.001, idle_seconds_max=0.002, patience_seconds=0.5
)
NOW = time_of_day()  # a start prunes what is older than a month

EXECUTED_ALTHOUGH_FORBIDDEN: list[object] = []


class WatchedStore(MemoryStore):
    """A store in memory that shows each write to `before` first, and may answer in its place."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[Mutation] = []
        self.reads: Counter[str] = Counter()
        self.before: Callable[[Mutation], Answer | None] = lambda mutation: None

    async def write(self, mutation: Mutation) -> Answer:
        self.writes.append(mutation)
        return self.before(mutation) or await super().write(mutation)

    async def claimable(self, queue: str, limit: int):  # type: ignore[no-untyped-def]
        self.reads["claimable"] += 1
        return await super().claimable(queue, limit)

    async def job(self, key: ObjectKey):  # type: ignore[no-untyped-def]
        self.reads["job"] += 1
        return await super().job(key)

    async def task(self, key: ObjectKey) -> Task | None:
        self.reads["task"] += 1
        return await super().task(key)

    def of_kind(self, kind: type[Mutation]) -> list[Mutation]:
        return [write for write in self.writes if isinstance(write, kind)]


class Scene:
    """One store, and as many outboxes as a test names."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = WatchedStore()

    async def work(self, worker: Worker, *, outbox: str = "outbox.db", **changes: object) -> Counter[str]:
        """One life of the worker, until nothing is left."""
        settings = replace(QUICK, **changes)  # type: ignore[arg-type]
        try:
            return await worker.run_async(store=self.store, outbox=self.folder / outbox, settings=settings)
        finally:
            assert EXECUTED_ALTHOUGH_FORBIDDEN == []

    @contextmanager
    def outbox(self, name: str = "outbox.db", incarnation: str = "earlier") -> Iterator[Outbox]:
        """The outbox under an incarnation of the test's own."""
        with Outbox.open(
            self.folder / name,
            owner="test",
            incarnation=incarnation,
            new_uuid=lambda: str(uuid.uuid4()),
            now=lambda: NOW,
        ) as opened:
            yield opened

    async def claimed(self, task: Task, outbox: Outbox) -> Task:
        """The task after a claim by this outbox."""
        return await self.claimed_as(task, outbox.holder, outbox.mark)

    async def claimed_as(self, task: Task, holder: str, mark: str = "0 GENESIS") -> Task:
        current = self.store.look(task.key.name)
        claim = Claim(
            key=task.key,
            uid=task.uid,
            version=current.version,
            token=current.token + 1,
            holder=holder,
            account=await self.store.account(),
            outbox_mark=mark,
            at=NOW,
        )
        answer = await MemoryStore.write(self.store, claim)
        assert isinstance(answer, Applied), answer
        return answer.task

    def rows(self, name: str = "outbox.db") -> list[Row]:
        with self.outbox(name, incarnation="looking") as opened:
            return list(opened.all())

    async def job(self, name: str = "job", *branches: str, **spec: object) -> None:
        """A job whose branches are queued in `q`, with its children."""
        made = JobSpec(
            branches=tuple(Branch(name=branch, request="{}") for branch in branches or ("a", "b")),
            template=TaskSpec(queue="q"),
            **spec,  # type: ignore[arg-type]
        )
        await self.store.create_job(name, made)
        self.store.keep()


def result_row(task: Task, value: str, *, outcome: Outcome = Outcome.OK, kind: Kind = Kind.RESULT) -> NewRow:
    """The row that a worker stores for `task` under the lease it shows."""
    return NewRow(
        task_key=task.key,
        uid=task.uid,
        token=task.token,
        holder=task.holder,
        kind=kind,
        outcome=outcome,
        value=value,
        job=task.owner,
        branch=task.branch,
    )


def other_holder() -> str:
    return f"{uuid.uuid4()}/other"


def echo(queue: str = "q") -> Worker:
    """A worker whose result is the request."""
    worker = Worker(queue=queue)

    @worker.task
    def handle(request: dict) -> dict:  # type: ignore[type-arg]
        return request

    return worker


def forbidden(queue: str = "q") -> Worker:
    """A worker that must not execute anything."""
    worker = Worker(queue=queue)

    @worker.task
    def handle(request: dict) -> dict:  # type: ignore[type-arg]
        EXECUTED_ALTHOUGH_FORBIDDEN.append(request)  # an exception would be a retryable error, no more
        return request

    return worker
