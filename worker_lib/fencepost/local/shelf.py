"""What one transaction of an embedded store can look up and keep.

A shelf decides nothing: it finds and keeps frozen values, all or nothing. There are two, SQLite (`tables`)
and dictionaries (`fencepost.testing`); everything that is decided about their contents is in `ledger` and
`joining`, once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fencepost.protocol.job import Job
from fencepost.protocol.report import ReportAnswer
from fencepost.protocol.task import Candidate, ObjectKey, State, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A task with the store's own times, in seconds of the store's one clock.

    `created` is when it was made, `since` when its lease was claimed, renewed or ended, its hold changed or
    it was settled. `due` is when the server's side has to look at it next; None is never.
    """

    task: Task
    created: float
    since: float
    due: float | None = None


class Shelf(Protocol):
    """One transaction. What it is asked for is what is stored now, its own changes included."""

    @property
    def latest(self) -> float:
        """The latest time that the store's clock is known to have had: it never goes back behind it."""

    def kept(self, key: ObjectKey) -> Kept | None:
        """The task of this name."""

    def keep(self, kept: Kept) -> None:
        """Store a new task or the new form of a stored one."""

    def drop(self, key: ObjectKey) -> None:
        """Delete a task and its receipts."""

    def candidates(self, namespace: str, queue: str, limit: int) -> Sequence[Candidate]:
        """Claimable tasks, higher priority first, then older first."""

    def due(self, now: float, limit: int) -> Sequence[ObjectKey]:
        """Tasks whose `due` has come, the longest overdue first."""

    def tasks(self, namespace: str, queue: str | None) -> Sequence[Task]:
        """All tasks of a namespace, by name."""

    def unsettled_of_outbox(self, namespace: str, outbox: str) -> Sequence[Task]:
        """Unsettled tasks that are held under this outbox, whatever the incarnation."""

    def claimed_by_outbox(self, namespace: str, outbox: str) -> Sequence[Task]:
        """Tasks whose lease, or whose last lease, was of this outbox."""

    def children(self, owner_uid: str) -> Sequence[Task]:
        """Tasks of this owner."""

    def may_join(self, key: ObjectKey, uid: str) -> bool:
        """Whether this very job is not joined and there is something to do about it.

        That is so when none of its tasks is open any more, or when it has tasks still to be made.
        """

    def counted(self, owner_uid: str) -> Mapping[State, int]:
        """How many tasks of this owner are in each state."""

    def can_go_on(self) -> bool:
        """Whether an unsettled task may be claimed now, or something is due about one later."""

    def job(self, key: ObjectKey) -> Job | None:
        """The job of this name."""

    def keep_job(self, job: Job) -> None:
        """Store a new job or the new form of a stored one."""

    def drop_job(self, key: ObjectKey) -> None:
        """Delete a job; its tasks stay until they are dropped."""

    def jobs(self, namespace: str) -> Sequence[Job]:
        """All jobs of a namespace, by name."""

    def unfinished_jobs(self) -> Sequence[ObjectKey]:
        """Jobs that are not joined, or whose continuation has not been started, of every namespace."""

    def answer(self, event_id: str) -> ReportAnswer | None:
        """The answer that was kept for a reported event."""

    def keep_answer(self, answer: ReportAnswer) -> None:
        """Store the answer to a new event."""

    def accepted_payload(self, scope: str, payload_sha256: str) -> str:
        """The hash of the receipt that has this payload in this dedup scope, or empty."""

    def keep_payload(self, scope: str, payload_sha256: str, receipt_sha256: str) -> None:
        """Store that a payload was accepted in a scope wider than one task."""

    def consumed(self, job_uid: str) -> str | None:
        """The digest under which a job was consumed."""

    def keep_consumed(self, job_uid: str, digest: str) -> None:
        """Store that a job was consumed."""
