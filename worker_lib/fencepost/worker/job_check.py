"""Is the branch still wanted? One read of the job before a task that it owns is executed.

A task can outlive its place in the job: a create that comes late, or a branch that was recorded as deleted.
Executing it would do work whose result nobody takes. One read is shared by the tasks of a page if it began
after the list that showed them, and for a few seconds at most.
"""

from __future__ import annotations

from dataclasses import dataclass

from fencepost.ports import Cause, StoreRefused
from fencepost.protocol.fanout import JOB_KIND
from fencepost.protocol.job import Job
from fencepost.protocol.join import is_recorded
from fencepost.protocol.task import ObjectKey, Task
from fencepost.worker.settings import JOB_READ_SECONDS_MAX
from fencepost.worker.workplace import Workplace


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    began: float
    job: Job | None


class JobCheck:
    """Keeps the last read of the job that the tasks of a page belong to."""

    def __init__(self, place: Workplace) -> None:
        self._place = place
        self._reads: dict[ObjectKey, _Read] = {}

    async def is_unwanted(self, task: Task, *, listed: float) -> bool:
        """Whether the task must not be executed. Raises `StoreUnavailable` or `StoreRefused`."""
        if task.owner is None or task.owner.kind != JOB_KIND:
            return False
        key = ObjectKey(namespace=task.key.namespace, name=task.owner.name)
        try:
            job = await self._job(key, listed)
        except StoreRefused as refused:
            if refused.cause is not Cause.SCHEMA:
                raise
            return True  # nobody can read the job, so nobody records the branch; the other tasks go on
        return is_recorded(job, job_uid=task.owner.uid, branch=task.branch or "")

    async def _job(self, key: ObjectKey, listed: float) -> Job | None:
        known = self._reads.get(key)
        now = self._place.clock()
        if known is not None and known.began >= listed and now - known.began <= JOB_READ_SECONDS_MAX:
            return known.job
        self._reads = {k: r for k, r in self._reads.items() if now - r.began <= JOB_READ_SECONDS_MAX}
        job = await self._place.store.job(key)
        self._reads[key] = _Read(began=now, job=job)
        return job
