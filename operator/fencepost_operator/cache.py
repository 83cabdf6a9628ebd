"""What the watch has shown of the two kinds, small and frozen; no more than a hint, as every cache.

Guarantees: what is in here was true at some moment, and nothing is decided on it that the API server does
not compare again inside the write. Three sources feed it, and none of them may take it back in time for
good. An *event* comes in the order of its object's life, so it is always taken; but while the answer to a
write of ours is known and its event is still on the way, older events are passed over (for a few seconds,
lest a lost event blind us). An *answer* or a *read* is taken only if nothing else has touched the object
since it was asked for. Which of two versions is older is asked only in those seconds: a restored etcd counts
from further back, and must not be disbelieved for longer.

Children are found by their derived names, so a task that somebody made under the name of a branch is found
too, and told apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from fencepost.protocol import fanout
from fencepost.protocol.job import Branch, Job
from fencepost.protocol.join import Child, Standing
from fencepost.protocol.task import ObjectKey, Task
from fencepost_operator.decide import Trouble
from fencepost_operator.slim import slim_job, without_request, without_values
from fencepost_operator.spacing import Spacing
from fencepost_operator.unfit import Unfit

AWAIT_EVENT_SECONDS: Final = 5.0
REMEMBER_GONE_SECONDS: Final = 60.0  # longer than any request is in flight

Place = tuple[str, str]  # namespace, name


@dataclass(slots=True)
class SeenTask:
    """A task as last seen; `task` is None if it cannot be read as one."""

    task: Task | None
    uid: str
    version: str
    touched: float
    awaited: str = ""
    awaited_until: float = 0.0


@dataclass(slots=True)
class JobMemory:
    """What one process remembers of a job beside what is written down: nothing that correctness needs.

    `trouble` is what the server refused last, `settled_at` when the last branch was seen to settle,
    `continued` that nothing is left to do about the continuation; `late_copy_at`, on our clock, when a
    create of it that was not answered can have come at the latest, so that one more look is due.
    """

    spacing: Spacing
    trouble: Trouble | None = None
    settled_at: float | None = None
    continued: bool = False
    late_copy_at: float | None = None


@dataclass(slots=True)
class SeenJob:
    """A job as last seen, with what is derived from it once.

    `names`: the names of its children to their branches, and of its continuation to None. `open`: the
    names of children that are neither known to be settled nor recorded; when it is empty the join is due.
    """

    job: Job
    uid: str
    version: str
    touched: float
    memory: JobMemory
    conditions: Sequence[Mapping[str, Any]] = ()
    names: dict[str, str | None] = field(default_factory=dict)
    open: set[str] = field(default_factory=set)
    awaited: str = ""
    awaited_until: float = 0.0


class Gone:
    """What was deleted of late, so that an answer that was on its way does not bring it back."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._times: dict[Place, float] = {}  # in the order of time

    def note(self, place: Place) -> None:
        now = self._clock()
        self._times.pop(place, None)
        self._times[place] = now
        while self._times and next(iter(self._times.values())) < now - REMEMBER_GONE_SECONDS:
            del self._times[next(iter(self._times))]

    def since(self, place: Place, asked: float) -> bool:
        """Whether it was deleted after that moment."""
        return self._times.get(place, float("-inf")) > asked


class Cache:
    """Tasks and jobs by namespace and name. One event loop owns it."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        """`clock` is monotonic, in seconds."""
        self._clock = clock
        self._tasks: dict[Place, SeenTask] = {}
        self._jobs: dict[Place, SeenJob] = {}
        self._job_of_name: dict[Place, Place] = {}
        self._unfit_jobs: dict[Place, Unfit] = {}
        self._gone_tasks = Gone(clock)
        self._gone_jobs = Gone(clock)

    # Reading

    def task(self, key: ObjectKey) -> Task | None:
        seen = self._tasks.get((key.namespace, key.name))
        return seen.task if seen else None

    def job(self, key: ObjectKey) -> SeenJob | None:
        return self._jobs.get((key.namespace, key.name))

    def unfit_job(self, key: ObjectKey) -> Unfit | None:
        """The job under this key if it is one that is left alone."""
        return self._unfit_jobs.get((key.namespace, key.name))

    def job_of(self, namespace: str, task_name: str) -> SeenJob | None:
        """The job that has derived this name, for a branch or for its continuation."""
        place = self._job_of_name.get((namespace, task_name))
        return self._jobs.get(place) if place else None

    def tasks(self) -> Iterator[Task]:
        return (seen.task for seen in self._tasks.values() if seen.task is not None)

    def jobs(self) -> Iterator[Job]:
        return (seen.job for seen in self._jobs.values())

    @property
    def task_count(self) -> int:
        return len(self._tasks)

    @property
    def job_count(self) -> int:
        return len(self._jobs)

    def children(self, seen: SeenJob) -> dict[str, Child]:
        """Each branch of the job and what is known of its task, by branch name."""
        job = seen.job
        return {branch.name: self.child(job, branch) for branch in job.spec.branches}

    def child(self, job: Job, branch: Branch) -> Child:
        """What is known of the task of one branch; `job` and `branch` are those that the cache has."""
        wanted = fanout.child_task(job, branch)
        found = self._tasks.get((wanted.key.namespace, wanted.key.name))
        if found is None:
            return Child(branch=branch, standing=Standing.UNSEEN)
        if found.task is None or not fanout.is_ours(found.task, wanted):
            return Child(branch=branch, standing=Standing.STRANGER)
        return Child(branch=branch, standing=Standing.OURS, task=found.task)

    # Feeding

    def knows_task(self, key: ObjectKey, *, uid: str, version: str) -> bool:
        """Whether an event shows no more than is known: for instance that of a write whose answer came first.

        Asked before an object is parsed, which is most of what an event costs us.
        """
        return _is_known(self._tasks.get((key.namespace, key.name)), uid, version)

    def knows_job(self, key: ObjectKey, *, uid: str, version: str) -> bool:
        """As `knows_task`."""
        return _is_known(self._jobs.get((key.namespace, key.name)), uid, version)

    def task_event(self, task: Task) -> bool:
        """An event showed the task like this; False if that is known or older than what is known."""
        seen = self._tasks.get((task.key.namespace, task.key.name))
        if not self._event_counts(seen, task.uid, task.version):
            return False
        self._put_task(task)
        return True

    def task_answer(self, task: Task, *, asked: float, written: bool) -> bool:
        """The server answered a request, sent at `asked`, with the task like this; False if it is not taken.

        `written`: by a write of ours, so that events before it are still on the way.
        """
        place = (task.key.namespace, task.key.name)
        seen = self._tasks.get(place)
        if seen is None and self._gone_tasks.since(place, asked):
            return False
        if seen is not None and (seen.touched > asked or seen.version == task.version):
            return False
        put = self._put_task(task)
        if written:
            put.awaited, put.awaited_until = task.version, self._clock() + AWAIT_EVENT_SECONDS
        return True

    def unreadable_task(self, key: ObjectKey, *, uid: str, version: str) -> bool:
        """An object of the kind that cannot be read as a task; False if that is known."""
        place = (key.namespace, key.name)
        seen = self._tasks.get(place)
        if seen is not None and (seen.uid, seen.version) == (uid, version):
            return False
        self._tasks[place] = SeenTask(task=None, uid=uid, version=version, touched=self._clock())
        return True

    def task_gone(self, key: ObjectKey, *, uid: str | None = None, asked: float | None = None) -> bool:
        """The task is deleted, by an event about `uid` or a read begun at `asked`; False if not taken."""
        place = (key.namespace, key.name)
        seen = self._tasks.get(place)
        if seen is None or (uid is not None and seen.uid != uid):
            return False
        if asked is not None and seen.touched > asked:
            return False
        del self._tasks[place]
        self._gone_tasks.note(place)
        job = self.job_of(*place)
        if job is not None and (branch := job.names[key.name]) and branch not in job.job.status.branches:
            job.open.add(key.name)
        return True

    def job_event(self, job: Job, conditions: Sequence[Mapping[str, Any]]) -> bool:
        """An event showed the job like this; False if that is known or older than what is known."""
        seen = self._jobs.get((job.key.namespace, job.key.name))
        if not self._event_counts(seen, job.uid, job.version):
            return False
        self._put_job(job, conditions)
        return True

    def job_answer(
        self, job: Job, conditions: Sequence[Mapping[str, Any]], *, asked: float, written: bool
    ) -> bool:
        """As `task_answer`."""
        place = (job.key.namespace, job.key.name)
        seen = self._jobs.get(place)
        if seen is None and self._gone_jobs.since(place, asked):
            return False
        if seen is not None and (seen.touched > asked or seen.version == job.version):
            return False
        put = self._put_job(job, conditions)
        if written:
            put.awaited, put.awaited_until = job.version, self._clock() + AWAIT_EVENT_SECONDS
        return True

    def job_is_unfit(self, key: ObjectKey, unfit: Unfit) -> bool:
        """Nobody can fan this job out, so there is no other under its name; False if that is known."""
        place = (key.namespace, key.name)
        if self._unfit_jobs.get(place) == unfit:
            return False
        if place in self._jobs:
            self._drop_job(place)
        self._unfit_jobs[place] = unfit
        return True

    def job_gone(self, key: ObjectKey, *, uid: str | None = None, asked: float | None = None) -> bool:
        """As `task_gone`."""
        place = (key.namespace, key.name)
        unfit = self._unfit_jobs.get(place)
        if unfit is not None and uid in (None, unfit.uid):
            del self._unfit_jobs[place]
        seen = self._jobs.get(place)
        if seen is None or (uid is not None and seen.uid != uid):
            return False
        if asked is not None and seen.touched > asked:
            return False
        self._drop_job(place)
        self._gone_jobs.note(place)
        return True

    def not_touched_since(self, asked: float) -> tuple[list[ObjectKey], list[ObjectKey]]:
        """Tasks and jobs that nothing has touched since then: what a whole list has to show, or is gone."""
        tasks = [ObjectKey(namespace=p[0], name=p[1]) for p, s in self._tasks.items() if s.touched <= asked]
        jobs = [ObjectKey(namespace=p[0], name=p[1]) for p, s in self._jobs.items() if s.touched <= asked]
        jobs += [
            ObjectKey(namespace=p[0], name=p[1]) for p, u in self._unfit_jobs.items() if u.since <= asked
        ]
        return tasks, jobs

    def _event_counts(self, seen: SeenTask | SeenJob | None, uid: str, version: str) -> bool:
        if _is_known(seen, uid, version):
            return False
        if seen is None or seen.uid != uid:
            return True
        awaits = bool(seen.awaited) and self._clock() < seen.awaited_until
        return not awaits or is_newer(version, seen.awaited)

    def _put_task(self, task: Task) -> SeenTask:
        place = (task.key.namespace, task.key.name)
        job = self.job_of(*place)
        kept = without_request(task)
        if not self._values_are_wanted(kept, job):
            kept = without_values(kept)
        seen = SeenTask(task=kept, uid=task.uid, version=task.version, touched=self._clock())
        self._tasks[place] = seen
        if job is not None and job.names[task.key.name] is not None:
            self._note_open(job, kept)
        return seen

    def _values_are_wanted(self, task: Task, job: SeenJob | None) -> bool:
        """Until the branch of a settled child is recorded, and while it is not known whose child it is."""
        if not task.settled or task.owner is None or task.owner.kind != fanout.JOB_KIND:
            return False
        return job is None or job.names.get(task.key.name) not in job.job.status.branches

    def _note_open(self, job: SeenJob, task: Task) -> None:
        recorded = job.names[task.key.name] in job.job.status.branches
        ours = task.owner is not None and task.owner.uid == job.uid
        if recorded or (task.settled and ours):
            if task.key.name in job.open:
                job.open.discard(task.key.name)
                job.memory.settled_at = self._clock()
        else:
            job.open.add(task.key.name)

    def _put_job(self, job: Job, conditions: Sequence[Mapping[str, Any]]) -> SeenJob:
        place = (job.key.namespace, job.key.name)
        self._unfit_jobs.pop(place, None)
        known = self._jobs.get(place)
        if known is not None and known.uid != job.uid:
            self._drop_job(place)
            known = None
        names = known.names if known else _derived_names(job)
        kept = slim_job(job)
        seen = SeenJob(
            job=kept,
            uid=job.uid,
            version=job.version,
            touched=self._clock(),
            memory=known.memory if known else JobMemory(spacing=Spacing(now=self._clock())),
            conditions=tuple(conditions),
            names=names,
        )
        self._jobs[place] = seen
        if known is None:
            self._job_of_name.update({(place[0], name): place for name in names})
        self._look_at_children(seen)
        return seen

    def _look_at_children(self, seen: SeenJob) -> None:
        namespace, records = seen.job.key.namespace, seen.job.status.branches
        for name, branch in seen.names.items():
            if branch is None:
                continue
            found = self._tasks.get((namespace, name))
            if found is not None and found.task is not None:
                self._note_open(seen, found.task)
                if branch in records and found.task.settled:
                    found.task = without_values(found.task)
            elif branch not in records:
                seen.open.add(name)

    def _drop_job(self, place: Place) -> None:
        seen = self._jobs.pop(place)
        for name in seen.names:
            self._job_of_name.pop((place[0], name), None)


def _is_known(seen: SeenTask | SeenJob | None, uid: str, version: str) -> bool:
    """Whether it was seen at this version; its event is then no longer on the way."""
    if seen is None or (seen.uid, seen.version) != (uid, version):
        return False
    seen.awaited = ""
    return True


def is_newer(version: str, other: str) -> bool:
    """Whether a resource version is certainly newer than another of the same object."""
    decimal = version.isdecimal() and other.isdecimal()
    return decimal and int(version) > int(other)


def _derived_names(job: Job) -> dict[str, str | None]:
    names: dict[str, str | None] = {
        fanout.child_name(job, branch.name): branch.name for branch in job.spec.branches
    }
    names[fanout.continuation_name(job)] = None
    return names
