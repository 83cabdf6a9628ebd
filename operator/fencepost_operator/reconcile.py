"""One look at one object: observe, decide, apply, and when to look again.

Everything here may be interrupted at any point, done twice, or done by two operators at once: the next look
goes on from what is stored. What a look could not finish puts its key back on the queue, with a pause that
grows; an object that is gone leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fencepost.ports import Applied, Cause, Refused, StoreRefused, StoreUnavailable
from fencepost.protocol import upkeep
from fencepost.protocol.mutation import OperatorMutation
from fencepost.protocol.task import ObjectKey
from fencepost_operator.apply import Writer
from fencepost_operator.continuing import Continuing
from fencepost_operator.joining import Joining
from fencepost_operator.keys import Key, Kind
from fencepost_operator.leases import LeaseObserver
from fencepost_operator.logs import Repeats, about, logger
from fencepost_operator.metrics import Metrics
from fencepost_operator.observe import World
from fencepost_operator.queue import WorkQueue
from fencepost_operator.standstill import Standstill

STEPS_MAX: Final = 4  # of one task in one look: revoke and settle, and room for a surprise


class Reconciler:
    """What the queue's hands do with a key. One event loop owns it."""

    def __init__(
        self,
        *,
        world: World,
        writer: Writer,
        queue: WorkQueue[Key],
        leases: LeaseObserver,
        joining: Joining,
        continuing: Continuing,
        account: str,
        clock: Callable[[], float],
        metrics: Metrics,
        repeats: Repeats,
    ) -> None:
        self._world = world
        self._writer = writer
        self._queue = queue
        self._leases = leases
        self._joining = joining
        self._continuing = continuing
        self._standstill = Standstill(world=world, writer=writer, queue=queue, repeats=repeats)
        self._account = account
        self._clock = clock
        self._metrics = metrics
        self._repeats = repeats

    async def look(self, key: Key) -> None:
        """Bring the object of this key one step further. Never raises but when it is cancelled."""
        try:
            done = await (self._task(key) if key.kind is Kind.TASK else self._job(key))
        except StoreUnavailable as problem:
            self._try_again(key, str(problem), at_least=problem.retry_after_seconds or 0.0)
        except StoreRefused as problem:
            self._try_again(key, str(problem))
        except Exception:
            if self._repeats.is_news(key, "defect"):
                logger.exception("defect: the look at %s failed", key, extra=about(key.namespace, key.name))
            self._count(key, "defect")
            self._queue.add_after_failure(key)
        else:
            self._count(key, "done" if done else "again")
            if done:
                self._queue.succeeded(key)

    async def _task(self, key: Key) -> bool:
        """Upkeep of one task. True if all is done that can be done now."""
        for _ in range(STEPS_MAX):
            task = self._world.cache.task(key.object_key)
            if task is None:
                return True
            unchanged = self._leases.unchanged_seconds(task, now=self._clock())
            ages = upkeep.Ages(
                lease_unchanged=unchanged,
                hold_unchanged=unchanged,
                task=self._world.server_clock.age_seconds(task.created_at),
            )
            match upkeep.decide(task, ages, recorded_by=self._account):
                case upkeep.Rest():
                    return True
                case upkeep.Wait(seconds=seconds):
                    self._queue.add_after(key, seconds)
                    return True
                case upkeep.Act(mutation=mutation):
                    if not await self._mutate(key, mutation):
                        return False
        self._queue.add(key)
        return True

    async def _mutate(self, key: Key, mutation: OperatorMutation) -> bool:
        what = type(mutation).__name__.lower()
        answer = await self._writer.mutate(mutation)
        if isinstance(answer, Applied):
            note = about(key.namespace, key.name, uid=mutation.uid, token=mutation.token)
            logger.info("%s applied", what, extra=note)
            return True
        if isinstance(answer, Refused) and answer.cause in (Cause.PRECONDITION, Cause.MISSING):
            await self._world.read_task(key.object_key)  # somebody was faster: look at what is there now
            self._queue.add_after_failure(key)
            return False
        self._try_again(key, f"{what} was not applied: {answer.message}")
        return False

    async def _job(self, key: Key) -> bool:
        """The join of one job, then its continuation."""
        unfit = self._world.cache.unfit_job(key.object_key)
        if unfit is not None:
            return await self._standstill.look(key, unfit)
        done = await self._joining.look(key)
        seen = self._world.cache.job(key.object_key)
        if seen is None or not seen.job.joined:
            return done
        return await self._continuing.look(key) and done

    def _try_again(self, key: Key, message: str, *, at_least: float = 0.0) -> None:
        self._count(key, "again")
        pause = self._queue.add_after_failure(key, at_least=at_least)
        if self._repeats.is_news(key, message.partition(":")[0]):
            note = about(key.namespace, key.name, uid=self._uid(key))
            logger.warning("%s; next try in %.1f s", message, pause, extra=note)

    def _uid(self, key: Key) -> str:
        place = ObjectKey(namespace=key.namespace, name=key.name)
        if key.kind is Kind.JOB:
            seen = self._world.cache.job(place)
            return seen.uid if seen else ""
        task = self._world.cache.task(place)
        return task.uid if task else ""

    def _count(self, key: Key, end: str) -> None:
        self._metrics.reconciles.labels(key.kind.value, end).inc()
