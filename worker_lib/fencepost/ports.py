"""What a worker needs of the place where tasks are kept, and the ways a write to it can end.

Three stores implement it: the API server (`kube`), SQLite (`local`) and memory (`testing`). One contract
suite runs over all of them.

A remote write ends in one of three ways. *Applied*: the store says so, and what it stored is what was sent.
*Refused*: it says so, and nothing was changed. *Unanswered*: nobody can tell; the write may still be applied
half a minute later. Unanswered is never taken for either of the others (see `certainty`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from fencepost.protocol.job import Job
from fencepost.protocol.mutation import Mutation, WorkerMutation
from fencepost.protocol.task import Candidate, ObjectKey, Owner, Task, TaskSpec


class Cause(Enum):
    """Why a store refused, by what the caller should do."""

    PRECONDITION = "what the write was decided on has changed: read again and decide again"
    ADMISSION = "a rule of the schema or a policy forbids it: never retried for ever"
    FORBIDDEN = "the account may not do this: a person has to grant it"
    MISSING = "the object is not there"
    EXISTS = "an object of this name is there already"
    TOO_LARGE = "the object would be over a size limit: no retry can change it"
    OVERLOADED = "not now: try again after `retry_after_seconds`"
    SCHEMA = "the store kept something else than was sent: its schema is older than this library"


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """The write is in the store; `task` is the whole task as stored."""

    task: Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Nothing was changed. `message` is the store's own sentence."""

    cause: Cause
    message: str
    retry_after_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unanswered:
    """No answer, or one that says nothing about the write (time-out, reset, 5xx after sending)."""

    message: str


Answer = Applied | Refused | Unanswered


class StoreUnavailable(Exception):  # noqa: N818
    """A read failed for a reason that may pass: try again, after `retry_after_seconds` if given."""

    def __init__(self, message: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class StoreRefused(Exception):  # noqa: N818
    """A read was refused for a reason that does not pass by itself; the message says what to do."""

    def __init__(self, message: str, cause: Cause) -> None:
        super().__init__(message)
        self.cause = cause


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTask:
    """A task to be created. `owner` and `branch` are set for the children of a job."""

    key: ObjectKey
    spec: TaskSpec
    owner: Owner | None = None
    branch: str | None = None


class TaskWriter(Protocol):
    """The part that `certainty` needs: write, and read back past every cache."""

    async def write(self, mutation: Mutation) -> Answer:
        """Carry out one mutation with all its comparisons. Never raises for a refusal or a lost answer."""

    async def task(self, key: ObjectKey) -> Task | None:
        """The task as it is now, never from a cache; None if there is none.

        Raises `StoreUnavailable` or `StoreRefused`.
        """


class TaskStore(TaskWriter, Protocol):
    """What a worker or producer needs of a store. Bound to one namespace."""

    @property
    def namespace(self) -> str:
        """The namespace that it lists and creates in."""

    async def account(self) -> str:
        """The caller's own account as the store sees it: recorded at the claim, checked at the submit."""

    async def claimable(self, queue: str, limit: int) -> Sequence[Candidate]:
        """At most `limit` tasks of the queue that may be claimed, higher priority first.

        A hint: the claim itself compares. Raises `StoreUnavailable` or `StoreRefused`.
        """

    async def unsettled_of_outbox(self, outbox: str) -> Sequence[Task]:
        """The unsettled tasks whose lease names this outbox (UUID), whatever the incarnation."""

    async def claimed_by_outbox(self, outbox: str) -> Sequence[Task]:
        """All tasks, settled ones too, whose last lease names this outbox: what an audit compares."""

    async def accepted_elsewhere(self, task: Task, payload_sha256: str) -> str:
        """The hash of the receipt that has this `Ok` payload in a dedup scope wider than the task, or empty.

        What `judge` takes as `elsewhere`. Empty where only the scope `Task` is served. A hint: the submit
        itself compares, and is refused with PRECONDITION if another payload came first.
        """
        return ""

    async def job(self, key: ObjectKey) -> Job | None:
        """The job as it is now; None if there is none."""

    async def create(self, new: NewTask) -> Answer:
        """Create the task; `Refused(EXISTS)` if the name is taken."""

    async def tasks(self, queue: str | None = None) -> Sequence[Task]:
        """All tasks of the namespace, for people who look."""

    async def jobs(self) -> Sequence[Job]:
        """All jobs of the namespace, for people who look."""

    async def close(self) -> None:
        """Let go of connections and files. May be called twice."""


__all__ = [
    "Answer",
    "Applied",
    "Cause",
    "NewTask",
    "Refused",
    "StoreRefused",
    "StoreUnavailable",
    "TaskStore",
    "TaskWriter",
    "Unanswered",
    "WorkerMutation",
]
