"""Reading the world: events into the cache, uncached reads, whole lists; and which objects to look at then.

An event, a read and a list all end in the same place, the cache, and whatever changed there puts keys on
the queue. So a lost event costs time and nothing else: the periodic list finds the change.

A branch that settles is no reason to look at its job at once, unless it was the last one, or the job makes
its tasks few at a time: a job of a thousand branches would be planned a thousand times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from fencepost.api import names
from fencepost.api.read import Unreadable, job_from_object, task_from_object
from fencepost.kube.client import ApiClient, Response, Result
from fencepost.kube.refusals import is_status, problem_of_read
from fencepost.protocol.job import Job
from fencepost.protocol.join import Child, Standing, is_late
from fencepost.protocol.task import ObjectKey, Task
from fencepost_operator import paths
from fencepost_operator.cache import Cache, SeenJob
from fencepost_operator.clock import ServerClock
from fencepost_operator.keys import Key, job_key, task_key
from fencepost_operator.leases import LeaseObserver
from fencepost_operator.logs import Repeats, about, logger
from fencepost_operator.queue import WorkQueue
from fencepost_operator.unfit import Unfit, refused_continuation, too_large_spec, unreadable_spec

PAGE_SIZE: Final = 200
DELETED: Final = "DELETED"

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeJob:
    """A job as just read, with everything in it, and its conditions as they are stored."""

    job: Job
    conditions: Sequence[Json]


class World:
    """Everything that is known of the cluster. One event loop owns it."""

    def __init__(
        self,
        *,
        client: ApiClient,
        cache: Cache,
        queue: WorkQueue[Key],
        leases: LeaseObserver,
        server_clock: ServerClock,
        clock: Callable[[], float],
        repeats: Repeats,
    ) -> None:
        self.cache = cache
        self.server_clock = server_clock
        self._client = client
        self._queue = queue
        self._leases = leases
        self._clock = clock
        self._repeats = repeats

    # Events

    def task_event(self, event: str | None, found: Json) -> None:
        """The watch, or Kopf's first list (`event` None), showed a task like this."""
        key, uid = _key_and_uid(found)
        if event == DELETED:
            self._task_is_gone(key, uid=uid)
            return
        if self.cache.knows_task(key, uid=uid, version=_version(found)):
            return
        task = self._task(found)
        before = self.cache.task(key)
        if task is not None and self.cache.task_event(task):
            self._task_has_changed(key, before, task)

    def job_event(self, event: str | None, found: Json) -> None:
        """The watch showed a job like this."""
        key, uid = _key_and_uid(found)
        if event == DELETED:
            self._job_is_gone(key, uid=uid)
            return
        if self.cache.knows_job(key, uid=uid, version=_version(found)):
            return
        job = self._job(found)
        if job is not None and self.cache.job_event(job, _conditions(found)):
            self._queue.add(job_key(key))

    # Reads that no cache answers

    async def read_task(self, key: ObjectKey) -> Task | None:
        """The task as it is now; None if there is none, or nothing that can be read as one.

        Raises `StoreUnavailable` or `StoreRefused`.
        """
        asked = self._clock()
        found = await self.read(paths.task(key.namespace, key.name), f"task {key}")
        if found is None:
            self._task_is_gone(key, asked=asked)
            return None
        task = self._task(found)
        before = self.cache.task(key)
        if task is not None and self.cache.task_answer(task, asked=asked, written=False):
            self._task_has_changed(key, before, task)
        return task

    async def read_job(self, key: ObjectKey) -> WholeJob | None:
        """The job as it is now, whole; None if there is none. Raises as `read_task`."""
        asked = self._clock()
        found = await self.read(paths.job(key.namespace, key.name), f"job {key}")
        if found is None:
            self._job_is_gone(key, asked=asked)
            return None
        job = self._job(found)
        if job is None:
            return None
        conditions = _conditions(found)
        if self.cache.job_answer(job, conditions, asked=asked, written=False):
            self._queue.add(job_key(key))
        return WholeJob(job=job, conditions=conditions)

    async def read(self, path: str, what: str) -> Json | None:
        """The object as it is now; None only if the server says that this object is not there.

        Raises `StoreUnavailable` or `StoreRefused`.
        """
        result = await self._client.get(path)
        self.heard(result)
        if isinstance(result, Response) and result.ok:
            return result.body  # type: ignore[no-any-return]
        if says_that_it_is_absent(result):
            return None
        raise problem_of_read(result, what)

    # Answers to writes of ours

    def task_written(self, task: Task, *, asked: float) -> None:
        """The answer to a write that was sent at `asked`."""
        before = self.cache.task(task.key)
        if self.cache.task_answer(task, asked=asked, written=True):
            self._task_has_changed(task.key, before, task)

    def job_written(self, found: Json, *, asked: float) -> None:
        """As `task_written`."""
        job = self._job(found)
        if job is not None:
            self.cache.job_answer(job, _conditions(found), asked=asked, written=True)

    def heard(self, result: Result) -> None:
        """Every answer tells the server's time."""
        if isinstance(result, Response):
            self.server_clock.tell(result.date)

    # Whole lists

    async def list_all(self, namespaces: Sequence[str | None]) -> None:
        """Read both kinds whole, page by page, and forget what is not there any more.

        `namespaces` is (None,) for all of them. Raises `StoreUnavailable` or `StoreRefused`.
        """
        asked = self._clock()
        seen_tasks: set[ObjectKey] = set()
        seen_jobs: set[ObjectKey] = set()
        for namespace in namespaces:
            # Jobs first: their children's values need not be kept where the branch is recorded.
            seen_jobs |= await self._list(names.FAN_OUT_JOBS, namespace, self._listed_job)
            seen_tasks |= await self._list(names.LEASED_TASKS, namespace, self._listed_task)
        old_tasks, old_jobs = self.cache.not_touched_since(asked)
        for key in set(old_tasks) - seen_tasks:
            self._task_is_gone(key, asked=asked)
        for key in set(old_jobs) - seen_jobs:
            self._job_is_gone(key, asked=asked)

    async def _list(
        self, resource: str, namespace: str | None, take: Callable[[Json, float], ObjectKey]
    ) -> set[ObjectKey]:
        seen: set[ObjectKey] = set()
        asked = self._clock()
        async for result in self._client.pages(paths.collection(resource, namespace), page_size=PAGE_SIZE):
            self.heard(result)
            if not isinstance(result, Response) or not result.ok:
                raise problem_of_read(result, f"the list of {resource}")
            for item in result.body.get("items") or []:
                seen.add(self._taken(item, asked, take))
        return seen

    def _taken(self, found: Json, asked: float, take: Callable[[Json, float], object]) -> ObjectKey:
        """The key of the item; one that we are not up to must not stand in the way of the others."""
        try:
            take(found, asked)
        except Exception:
            self.tell_defect(found)
        return _key_and_uid(found)[0]

    def tell_defect(self, found: Json) -> None:
        """To be called while an exception is handled that no object should be able to raise."""
        key, uid = _key_and_uid(found)
        if self._repeats.is_news(uid, "defect"):
            note = about(key.namespace, key.name, uid=uid)
            logger.exception("defect: an object could not be taken in", extra=note)

    def _listed_task(self, found: Json, asked: float) -> ObjectKey:
        key, uid = _key_and_uid(found)
        if self.cache.knows_task(key, uid=uid, version=_version(found)):
            return key
        task = self._task(found)
        before = self.cache.task(key)
        if task is not None and self.cache.task_answer(task, asked=asked, written=False):
            self._task_has_changed(key, before, task)
        return key

    def _listed_job(self, found: Json, asked: float) -> ObjectKey:
        key, _ = _key_and_uid(found)
        job = self._job(found)
        if job is not None:
            self.cache.job_answer(job, _conditions(found), asked=asked, written=False)
        self._queue.add(job_key(key))  # each list looks at every job once, changed or not
        return key

    # What to look at

    def _task_has_changed(self, key: ObjectKey, before: Task | None, task: Task) -> None:
        if task.settled:
            self._leases.forget(key.namespace, key.name)
            self._queue.forget(task_key(key))
        elif task.hold is not None or task.spec.active_deadline_seconds is not None:
            self._queue.add(task_key(key))
        job = self.cache.job_of(key.namespace, key.name)
        if job is not None:
            self._child_has_changed(job, key, before, task)

    def _child_has_changed(
        self, job: SeenJob, key: ObjectKey, before: Task | None, task: Task | None
    ) -> None:
        branch = job.names[key.name]
        if branch is None:
            self._continuation_has_changed(job, task)
        elif job.job.joined:
            if task is not None and self._is_late(job, branch, task):
                self._queue.add(job_key(job.job.key))
        elif not job.open or task is None or before is None or job.job.spec.parallelism is not None:
            self._queue.add(job_key(job.job.key))
        elif task.settled and (pause := job.memory.spacing.seconds_until_due(self._clock())) is not None:
            self._queue.add_after(job_key(job.job.key), pause)

    def _continuation_has_changed(self, job: SeenJob, task: Task | None) -> None:
        """What has the name of a continuation matters until that is started, and if it is another object."""
        record = job.job.status.continuation
        known = record is not None and record.started and (task is None or task.uid == record.uid)
        if job.job.joined and not known:
            job.memory.continued = False
            self._queue.add(job_key(job.job.key))

    def _is_late(self, job: SeenJob, branch: str, task: Task) -> bool:
        known = next(one for one in job.job.spec.branches if one.name == branch)
        return is_late(job.job, Child(branch=known, standing=Standing.OURS, task=task))

    def _task_is_gone(self, key: ObjectKey, *, uid: str | None = None, asked: float | None = None) -> None:
        before = self.cache.task(key)
        if not self.cache.task_gone(key, uid=uid, asked=asked):
            return
        self._leases.forget(key.namespace, key.name)
        self._queue.forget(task_key(key))
        job = self.cache.job_of(key.namespace, key.name)
        if job is not None:
            self._child_has_changed(job, key, before, None)

    def _job_is_gone(self, key: ObjectKey, *, uid: str | None = None, asked: float | None = None) -> None:
        if self.cache.job_gone(key, uid=uid, asked=asked):
            self._queue.forget(job_key(key))

    # Parsing

    def _task(self, found: Json) -> Task | None:
        try:
            return task_from_object(found)
        except Unreadable as problem:
            key, uid = _key_and_uid(found)
            self.cache.unreadable_task(key, uid=uid, version=_version(found))
            self._tell_unreadable(key, uid, problem)
            return None

    def _job(self, found: Json) -> Job | None:
        key, uid = _key_and_uid(found)
        try:
            job = job_from_object(found)
            trouble = (
                None if self._is_known(key, uid) else too_large_spec(found) or refused_continuation(found)
            )
        except Unreadable as problem:
            job, trouble = None, unreadable_spec(found)
            if trouble is None:
                self._tell_unreadable(key, uid, problem)
        if trouble is None:
            return job
        self._leave_alone(key, Unfit(uid=uid, trouble=trouble, since=self._clock()))
        return None

    def _is_known(self, key: ObjectKey, uid: str) -> bool:
        """A spec is immutable but for two small fields, so its size is looked at once."""
        seen = self.cache.job(key)
        return seen is not None and seen.uid == uid

    def _leave_alone(self, key: ObjectKey, unfit: Unfit) -> None:
        if self.cache.job_is_unfit(key, unfit):
            note = about(key.namespace, key.name, uid=unfit.uid, reason=unfit.trouble.reason)
            logger.error("a job is left alone: %s", unfit.trouble.message, extra=note)
            self._queue.add(job_key(key))

    def _tell_unreadable(self, key: ObjectKey, uid: str, problem: Unreadable) -> None:
        if self._repeats.is_news(uid, "unreadable"):
            logger.error("left alone: %s", problem, extra=about(key.namespace, key.name, uid=uid))


def says_that_it_is_absent(result: Result) -> bool:
    """A 404 about the object. Another 404 says that its kind is not served, which is no answer about it."""
    if not isinstance(result, Response) or result.status != HTTPStatus.NOT_FOUND:
        return False
    details = result.body.get("details") if is_status(result.body) else None
    return isinstance(details, dict) and bool(details.get("name"))


def _key_and_uid(found: Json) -> tuple[ObjectKey, str]:
    metadata = found["metadata"]
    return ObjectKey(namespace=metadata["namespace"], name=metadata["name"]), str(metadata["uid"])


def _version(found: Json) -> str:
    return str(found["metadata"].get("resourceVersion"))


def _conditions(found: Json) -> Sequence[Json]:
    status = found.get("status") or {}
    return tuple(status.get("conditions") or ())
