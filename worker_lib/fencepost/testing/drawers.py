"""The shelf in memory: dictionaries of frozen values; a transaction works on copies of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fencepost.local.jobs import all_made, is_finished
from fencepost.local.shelf import Kept
from fencepost.protocol.job import Job
from fencepost.protocol.lease import why_not_claimable
from fencepost.protocol.report import ReportAnswer
from fencepost.protocol.task import Candidate, ObjectKey, State, Task


@dataclass(slots=True, kw_only=True)
class Drawers:
    """See `fencepost.local.shelf.Shelf`."""

    latest: float = 0.0
    all_kept: dict[ObjectKey, Kept] = field(default_factory=dict)
    all_jobs: dict[ObjectKey, Job] = field(default_factory=dict)
    answers: dict[str, ReportAnswer] = field(default_factory=dict)
    payloads: dict[tuple[str, str], str] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)

    def copy(self) -> Drawers:
        """Drawers of their own with the same contents: what a transaction works on."""
        return Drawers(
            latest=self.latest,
            all_kept=dict(self.all_kept),
            all_jobs=dict(self.all_jobs),
            answers=dict(self.answers),
            payloads=dict(self.payloads),
            digests=dict(self.digests),
        )

    def kept(self, key: ObjectKey) -> Kept | None:
        return self.all_kept.get(key)

    def keep(self, kept: Kept) -> None:
        self.all_kept[kept.task.key] = kept

    def drop(self, key: ObjectKey) -> None:
        self.all_kept.pop(key, None)

    def candidates(self, namespace: str, queue: str, limit: int) -> Sequence[Candidate]:
        free = [
            kept.task
            for kept in self.all_kept.values()
            if kept.task.key.namespace == namespace
            and kept.task.spec.queue == queue
            and why_not_claimable(kept.task) is None
        ]
        free.sort(key=lambda task: -task.spec.priority)
        return [_candidate(task) for task in free[:limit]]

    def due(self, now: float, limit: int) -> Sequence[ObjectKey]:
        come = [
            (kept.due, key) for key, kept in self.all_kept.items() if kept.due is not None and kept.due <= now
        ]
        come.sort(key=lambda pair: pair[0])
        return [key for _, key in come[:limit]]

    def next_due(self) -> float | None:
        return min((kept.due for kept in self.all_kept.values() if kept.due is not None), default=None)

    def tasks(self, namespace: str, queue: str | None) -> Sequence[Task]:
        return self._tasks(
            kept.task
            for kept in self.all_kept.values()
            if kept.task.key.namespace == namespace and queue in (None, kept.task.spec.queue)
        )

    def unsettled_of_outbox(self, namespace: str, outbox: str) -> Sequence[Task]:
        return [
            task for task in self.tasks(namespace, None) if not task.settled and task.outbox == outbox != ""
        ]

    def claimed_by_outbox(self, namespace: str, outbox: str) -> Sequence[Task]:
        return [task for task in self.tasks(namespace, None) if outbox in _outboxes(task)]

    def children(self, owner_uid: str) -> Sequence[Task]:
        return self._tasks(kept.task for kept in self.all_kept.values() if _is_of(kept.task, owner_uid))

    def may_join(self, key: ObjectKey, uid: str) -> bool:
        job = self.all_jobs.get(key)
        if job is None or job.uid != uid or job.joined:
            return False
        return not all_made(job) or all(task.settled for task in self.children(uid))

    def counted(self, owner_uid: str) -> Mapping[State, int]:
        return Counter(task.state for task in self.children(owner_uid))

    def can_go_on(self) -> bool:
        return any(
            kept.due is not None or why_not_claimable(kept.task) is None for kept in self.all_kept.values()
        )

    def job(self, key: ObjectKey) -> Job | None:
        return self.all_jobs.get(key)

    def keep_job(self, job: Job) -> None:
        self.all_jobs[job.key] = job

    def drop_job(self, key: ObjectKey) -> None:
        self.all_jobs.pop(key, None)

    def jobs(self, namespace: str) -> Sequence[Job]:
        found = [job for key, job in self.all_jobs.items() if key.namespace == namespace]
        return sorted(found, key=lambda job: job.key.name)

    def unfinished_jobs(self) -> Sequence[ObjectKey]:
        return [key for key, job in self.all_jobs.items() if not is_finished(job)]

    def answer(self, event_id: str) -> ReportAnswer | None:
        return self.answers.get(event_id)

    def keep_answer(self, answer: ReportAnswer) -> None:
        self.answers[answer.report.event_id] = answer

    def accepted_payload(self, scope: str, payload_sha256: str) -> str:
        return self.payloads.get((scope, payload_sha256), "")

    def keep_payload(self, scope: str, payload_sha256: str, receipt_sha256: str) -> None:
        self.payloads[scope, payload_sha256] = receipt_sha256

    def consumed(self, job_uid: str) -> str | None:
        return self.digests.get(job_uid)

    def keep_consumed(self, job_uid: str, digest: str) -> None:
        self.digests[job_uid] = digest

    @staticmethod
    def _tasks(found: Iterable[Task]) -> list[Task]:
        return sorted(found, key=lambda task: task.key.name)


def _candidate(task: Task) -> Candidate:
    return Candidate(
        key=task.key,
        uid=task.uid,
        version=task.version,
        token=task.token,
        failures=task.failures,
        owner=task.owner,
        branch=task.branch,
    )


def _is_of(task: Task, owner_uid: str) -> bool:
    return task.owner is not None and task.owner.uid == owner_uid


def _outboxes(task: Task) -> set[str]:
    last = task.last_lease.holder.partition("/")[0] if task.last_lease else ""
    return {task.outbox, last} - {""}
