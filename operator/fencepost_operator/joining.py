"""The fan-out and the join of one job: make its tasks, record what settled, commit the snapshot.

The plan is made on the cache, by `decide.plan_job`; what makes it safe is that the status is written at the
very version of the job that was planned on, that children have derived names, and that a child is taken for
deleted only by an uncached read that began after the mark was read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from fencepost.ports import Answer, Applied, Cause, Refused
from fencepost.protocol import fanout
from fencepost.protocol.job import Branch, Job, JobStatus
from fencepost.protocol.join import Child, JoinPlan, Standing
from fencepost_operator.apply import FOR_A_PERSON, Writer, Written
from fencepost_operator.cache import SeenJob
from fencepost_operator.decide import StallReason, Trouble, plan_job
from fencepost_operator.keys import Key
from fencepost_operator.logs import Repeats, about, logger
from fencepost_operator.metrics import Metrics
from fencepost_operator.observe import World
from fencepost_operator.queue import WorkQueue

CREATES_AT_ONCE: Final = 16  # of one job; the client bounds what all jobs together have in flight
CREATES_OF_ONE_LOOK: Final = 256  # so that the progress of a large job is seen while it is fanned out

Children = dict[str, Child]
Result = TypeVar("Result")


class Joining:
    """Looks at jobs. One event loop owns it."""

    def __init__(
        self,
        *,
        world: World,
        writer: Writer,
        queue: WorkQueue[Key],
        clock: Callable[[], float],
        metrics: Metrics,
        repeats: Repeats,
    ) -> None:
        self._world = world
        self._writer = writer
        self._queue = queue
        self._clock = clock
        self._metrics = metrics
        self._repeats = repeats

    async def look(self, key: Key) -> bool:
        """Bring the job one step further. True if all is done that can be done now.

        Raises `StoreUnavailable` or `StoreRefused`.
        """
        seen = self._world.cache.job(key.object_key)
        if seen is None or seen.job.deleting:
            return True
        children = self._world.cache.children(seen)
        plan = self._plan(seen, children)
        if plan.look_up:
            children = children | await self._looked_up(seen.job, plan.look_up)
            plan = self._plan(seen, children)
        await self._retire(plan)
        created = True
        if plan.create:
            created = await self._create(seen, plan.create)
            absent = {name: child for name, child in children.items() if child.standing is Standing.ABSENT}
            plan = self._plan(seen, self._world.cache.children(seen) | absent)
            self._look_again(key, created, more=bool(plan.create))
        elif seen.memory.trouble is not None:
            seen.memory.trouble = None
            plan = self._plan(seen, children)
        written = plan.status is None or await self._write(key, seen, plan.status)
        return created and written

    def _look_again(self, key: Key, created: bool, *, more: bool) -> None:
        if not created:
            self._queue.add_after_failure(key)
        elif more:
            self._queue.add(key)

    def _plan(self, seen: SeenJob, children: Children) -> JoinPlan:
        return plan_job(
            seen.job,
            children,
            now=self._world.server_clock.text(),
            batch_due=seen.memory.spacing.due(self._clock()) or _spec_has_changed(seen.job),
            trouble=seen.memory.trouble,
        )

    async def _looked_up(self, job: Job, branches: Iterable[Branch]) -> Children:
        """What uncached reads, begun now, say of the tasks of these branches."""
        found = await each([self._read_child(job, branch) for branch in branches])
        return {child.branch.name: child for child in found}

    async def _read_child(self, job: Job, branch: Branch) -> Child:
        wanted = fanout.child_task(job, branch)
        await self._world.read_task(wanted.key)
        child = self._world.cache.child(job, branch)
        return replace(child, standing=Standing.ABSENT) if child.standing is Standing.UNSEEN else child

    async def _create(self, seen: SeenJob, branches: tuple[Branch, ...]) -> bool:
        """Make the tasks of these branches. True if nothing stood in the way."""
        whole = await self._world.read_job(seen.job.key)
        if whole is None or whole.job.uid != seen.uid or whole.job.deleting:
            return True  # the event about it is on the way
        by_name = {branch.name: branch for branch in whole.job.spec.branches}
        wanted = [by_name[branch.name] for branch in branches[:CREATES_OF_ONE_LOOK]]
        answers = await each([self._create_child(whole.job, branch) for branch in wanted])
        problems = [answer for answer in answers if not isinstance(answer, Applied)]
        for_a_person = [p for p in problems if isinstance(p, Refused) and p.cause in FOR_A_PERSON]
        seen.memory.trouble = _refused_children(len(problems), for_a_person[0]) if for_a_person else None
        if problems and self._repeats.is_news(seen.uid, "create"):
            note = about(seen.job.key.namespace, seen.job.key.name, uid=seen.uid)
            logger.warning("%d tasks were not created: %s", len(problems), problems[0].message, extra=note)
        return not problems

    async def _create_child(self, job: Job, branch: Branch) -> Answer:
        child = fanout.child_task(job, branch)
        answer = await self._writer.create_child(child)
        if isinstance(answer, Refused) and answer.cause is Cause.EXISTS:
            task = await self._world.read_task(child.key)
            if task is not None:  # ours or a stranger: the next plan tells, by owner, branch and spec
                return Applied(task=task)
        return answer

    async def _retire(self, plan: JoinPlan) -> None:
        """Suspend and delete tasks under branches that are recorded without them."""
        ends = await each([self._writer.retire(task) for task in plan.retire])
        for task, end in zip(plan.retire, ends, strict=True):
            note = about(task.key.namespace, task.key.name, uid=task.uid)
            if isinstance(end, Written):
                logger.info("a late task of a recorded branch was deleted", extra=note)
            else:
                await self._world.read_task(task.key)  # not as it was seen: the next look decides

    async def _write(self, key: Key, seen: SeenJob, status: JobStatus) -> bool:
        end = await self._writer.write_status(seen.job, status, conditions=seen.conditions)
        if isinstance(end, Written):
            self._wrote(seen, status)
            return True
        await self._world.read_job(key.object_key)
        for_a_person = isinstance(end, Refused) and end.cause in FOR_A_PERSON
        if for_a_person and self._repeats.is_news(seen.uid, "status"):
            # No condition can tell of it, for that would be a status write too: the log has to.
            note = about(key.namespace, key.name, uid=seen.uid)
            logger.error("the status was refused: %s", end.message, extra=note)
        self._queue.add_after_failure(key)
        return False

    def _wrote(self, seen: SeenJob, status: JobStatus) -> None:
        if status.snapshot is None:
            seen.memory.spacing.wrote(self._clock())
            return
        if seen.memory.settled_at is not None:
            self._metrics.join_seconds.observe(self._clock() - seen.memory.settled_at)
        note = about(seen.job.key.namespace, seen.job.key.name, uid=seen.uid)
        logger.info("joined: %s, digest %s", status.state.value, status.snapshot.digest, extra=note)


async def each(work: Sequence[Awaitable[Result]], *, at_once: int = CREATES_AT_ONCE) -> list[Result]:
    """The results in order, with at most so many under way; raises the first error when all have ended."""
    free = asyncio.Semaphore(at_once)

    async def one(awaited: Awaitable[Result]) -> Result:
        async with free:
            return await awaited

    ends = await asyncio.gather(*(one(awaited) for awaited in work), return_exceptions=True)
    results: list[Result] = []
    for end in ends:
        if isinstance(end, BaseException):
            raise end
        results.append(end)
    return results


def _spec_has_changed(job: Job) -> bool:
    """Since the status was written: a person who suspends a job wants to see that it was noticed."""
    if job.status.observed_generation is None:
        return job.spec.suspend
    return job.status.observed_generation != job.generation


def _refused_children(count: int, first: Refused) -> Trouble:
    message = f"{count} tasks cannot be created; the API server says: {first.message}"
    return Trouble(reason=StallReason.CREATE_REFUSED, message=message)
