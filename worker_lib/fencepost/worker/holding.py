"""A lease in force: what is known of the task, until when we may believe that we hold it, and its renewal.

The worker has a deadline of its own, counted on a clock that nobody sets from *before* the claim or the last
heartbeat that succeeded was sent. Past it, `lost` is set and the handler has to stop; whether the lease is
over, the server alone says. Until it says so the renewals go on, because nobody else may start the work
while this handler is still winding down.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from fencepost.ports import Applied, Cause, Refused, StoreRefused, StoreUnavailable
from fencepost.protocol import limits
from fencepost.protocol.fencing import is_current
from fencepost.protocol.mutation import Heartbeat
from fencepost.protocol.task import Task, cut_to_bytes
from fencepost.worker.stopping import Flag
from fencepost.worker.workplace import LOG, Workplace


class Holding:
    """One task under one token. `began`: the moment, by the workplace's clock, before the claim was sent."""

    def __init__(self, place: Workplace, task: Task, *, began: float) -> None:
        self.task = task
        self.previous_progress = task.progress
        self.lost = Flag()
        self.over = False  # the server said so
        self.rows_emitted = 0
        self._place = place
        self._renewals = task.renewals
        self._turn = asyncio.Lock()
        self._lost_in_loop = asyncio.Event()
        self._duration = float(task.spec.lease_duration_seconds)
        self._deadline = began + self._duration

    def learned(self, task: Task) -> None:
        """Take in a newer read of the task; receipts and renewals only grow."""
        if task.count >= self.task.count:
            self.task = task
        self._renewals = max(self._renewals, task.renewals)

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
        """Send one heartbeat; whether the lease is known to be ours after it."""
        async with self._turn:
            if self.over:
                return False
            began = self._place.clock()
            answer = await self._place.write(
                Heartbeat(
                    key=self.task.key,
                    uid=self.task.uid,
                    token=self.task.token,
                    holder=self.task.holder,
                    renewals=self._renewals,
                    at=self._place.now(),
                    progress=None if progress is None else cut_to_bytes(progress, limits.PROGRESS_BYTES_MAX),
                ),
                until=max(self._deadline, began + self._duration / 2),
            )
            return self._after_heartbeat(answer, began)

    def _after_heartbeat(self, answer: Applied | Refused | object, began: float) -> bool:
        if isinstance(answer, Applied):
            self.learned(answer.task)
            self._deadline = began + self._duration
            return True
        if isinstance(answer, Refused) and answer.cause in (Cause.PRECONDITION, Cause.MISSING):
            self.lose(answer.message, over=True)
            return False
        LOG.warning("a heartbeat of %s did not get through: %s", self.task.key, answer)
        return False

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
        while not self.over:
            await self.renew()
            await asyncio.sleep(self._duration / limits.HEARTBEAT_FRACTION)

    async def _watch_deadline(self) -> None:
        while not self.over:
            left = self._deadline - self._place.clock()
            if left > 0:
                await asyncio.sleep(left)
                continue
            self.lose("no heartbeat succeeded within the lease, by our own clock", over=False)
            await self._ask_the_server()
            await asyncio.sleep(self._duration / limits.HEARTBEAT_FRACTION)

    async def _ask_the_server(self) -> None:
        try:
            task = await self._place.store.task(self.task.key)
        except (StoreUnavailable, StoreRefused) as error:
            LOG.warning("%s could not be read to see whether its lease is over: %s", self.task.key, error)
            return
        ours = task is not None and task.uid == self.task.uid
        if task is None or not ours or not is_current(task, token=self.task.token, holder=self.task.holder):
            self.lose("the server says that it is over", over=True)
