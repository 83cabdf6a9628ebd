"""A lease in force: what is known of the task, until when we may believe that we hold it, and its renewal.

The worker has a deadline of its own, counted on a clock that nobody sets from *before* the claim or the last
heartbeat that succeeded was sent. Past it, `lost` is set and the handler has to stop; whether the lease is
over, the server alone says. Until it says so the renewals go on, because nobody else may start the work
while this handler is still winding down.

A heartbeat whose answer was lost may have renewed the lease, so the next one may be refused because of it.
That refusal ends nothing: the task is read, and if it is still ours its count of renewals is taken over. Our
deadline then counts from before the *first* heartbeat of that count was sent, as any of them may be it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from fencepost.ports import Applied, Cause, Refused, StoreRefused, StoreUnavailable
from fencepost.protocol import limits
from fencepost.protocol.fencing import is_current
from fencepost.protocol.mutation import Heartbeat
from fencepost.protocol.task import Task, cut_to_bytes
from fencepost.worker.stopping import Flag
from fencepost.worker.workplace import LOG, Workplace

HEARTBEATS_IN_A_ROW_MAX: Final = 3  # one that was lost, one to catch up with it, one to be sure
RETRIES_A_PERIOD: Final = (
    4  # a heartbeat that did not get through is sent again this much sooner than the next
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LostHeartbeats:
    """Heartbeats of one count whose fate is unknown. `began`: the moment before the first one was sent."""

    renewals: int
    began: float


class Holding:
    """One task under one token. `began`: the moment, by the workplace's clock, before the claim was sent."""

    def __init__(self, place: Workplace, task: Task, *, began: float) -> None:
        self.task = task
        self.previous_progress = task.progress
        self.lost = Flag()
        self.over = False  # the server said so
        self.rows_may_wait = False  # rows of this lease may have to be handed in before its result
        self._place = place
        self._renewals = task.renewals
        self._unanswered: LostHeartbeats | None = None
        self._turn = asyncio.Lock()
        self._lost_in_loop = asyncio.Event()
        self._duration = float(task.spec.lease_duration_seconds)
        self._deadline = began + self._duration

    def learned(self, task: Task) -> None:
        """Take in a newer read of the task; under one lease, receipts and renewals only grow.

        A read that shows another lease is not taken in: what is sent from here on is sent under ours, and
        is refused if that is over.
        """
        if not self._is_ours(task):
            return
        if task.count >= self.task.count:
            self.task = task
        self._renewals = max(self._renewals, task.renewals)
        lost = self._unanswered
        if lost is not None and self._renewals > lost.renewals:
            self._deadline = max(self._deadline, lost.began + self._duration)
            self._unanswered = None

    def _is_ours(self, task: Task | None) -> bool:
        if task is None or task.uid != self.task.uid:
            return False
        return is_current(task, token=self.task.token, holder=self.task.holder)

    def lose(self, why: str, *, over: bool) -> None:
        """From now on the handler must stop. `over`: the server has ended the lease."""
        self.over = self.over or over
        if not self.lost:
            LOG.warning("lost the lease of %s (token %s): %s", self.task.key, self.task.token, why)
            self._place.tally["leases lost"] += 1
        self.lost.set()
        self._lost_in_loop.set()

    @property
    def is_past_deadline(self) -> bool:
        """Whether our own deadline has passed: only the server can tell now whether we still hold it."""
        return self._place.clock() >= self._deadline

    async def until_lost(self) -> None:
        await self._lost_in_loop.wait()

    async def renew(self, progress: str | None = None) -> bool:
        """Send a heartbeat; whether the lease is known to be ours after it."""
        async with self._turn:
            for _ in range(HEARTBEATS_IN_A_ROW_MAX):
                if self.over:
                    return False
                renewed = await self._heartbeat(progress)
                if renewed is not None:
                    return renewed
            return False

    async def _heartbeat(self, progress: str | None) -> bool | None:
        """One heartbeat: whether it renewed the lease; None if another one has to be sent to know."""
        began = self._place.clock()
        sent = self._next_heartbeat(progress)
        answer = await self._place.write(sent, until=max(self._deadline, began + self._duration / 2))
        if isinstance(answer, Applied):
            return self._renewed(answer.task, began)
        if not isinstance(answer, Refused):
            if self._unanswered is None:
                self._unanswered = LostHeartbeats(renewals=sent.renewals, began=began)
        elif answer.cause in (Cause.PRECONDITION, Cause.MISSING):
            return await self._ask_the_server()
        LOG.warning("a heartbeat of %s did not get through: %s", self.task.key, answer)
        return False

    def _next_heartbeat(self, progress: str | None) -> Heartbeat:
        return Heartbeat(
            key=self.task.key,
            uid=self.task.uid,
            token=self.task.token,
            holder=self.task.holder,
            renewals=self._renewals,
            at=self._place.now(),
            progress=None if progress is None else cut_to_bytes(progress, limits.PROGRESS_BYTES_MAX),
        )

    def _renewed(self, task: Task, began: float) -> bool | None:
        """What was applied may be the heartbeat of the same count that was lost before: then once more."""
        sure = self._unanswered is None
        self.learned(task)
        if not sure:
            return None
        self._deadline = began + self._duration
        return True

    async def _ask_the_server(self) -> bool | None:
        """Is it over? False if so, or if nobody can tell now; None if the task is still ours."""
        try:
            task = await self._place.store.task(self.task.key)
        except (StoreUnavailable, StoreRefused) as error:
            LOG.warning("%s could not be read to see whether its lease is over: %s", self.task.key, error)
            return False
        if task is None or not self._is_ours(task) or task.settled:
            self.lose("the server says that it is over", over=True)
            return False
        self.learned(task)
        return None

    @contextmanager
    def kept_alive(self) -> Iterator[None]:
        """Renew every third of the lease, and watch the deadline, while the block runs.

        Work that is shorter than that costs one timer.
        """
        keepers: list[asyncio.Task[None]] = []

        def begin() -> None:
            keepers.append(asyncio.create_task(self._renew_for_ever()))
            keepers.append(asyncio.create_task(self._watch_deadline()))

        pause = self._deadline - self._place.clock() - self._duration * (1 - 1 / limits.HEARTBEAT_FRACTION)
        timer = asyncio.get_running_loop().call_later(max(0.0, pause), begin)
        try:
            yield
        finally:
            timer.cancel()
            for keeper in keepers:
                keeper.cancel()

    async def _renew_for_ever(self) -> None:
        period = self._duration / limits.HEARTBEAT_FRACTION
        while not self.over:
            renewed = await self.renew()
            await asyncio.sleep(period if renewed else period / RETRIES_A_PERIOD)

    async def _watch_deadline(self) -> None:
        while not self.over:
            left = self._deadline - self._place.clock()
            if left > 0:
                await asyncio.sleep(left)
                continue
            self.lose("no heartbeat succeeded within the lease, by our own clock", over=False)
            await self._ask_the_server()
            await asyncio.sleep(self._duration / limits.HEARTBEAT_FRACTION)
