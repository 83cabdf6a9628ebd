"""A lease by the worker's own clock: what a lost heartbeat may have done to it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from fencepost.ports import Answer, StoreUnavailable, Unanswered
from fencepost.protocol.mutation import Heartbeat, Mutation
from fencepost.protocol.task import ObjectKey, Task
from fencepost.testing.memory import MemoryStore
from fencepost.worker.holding import Holding
from fencepost.worker.stopping import Stopping
from fencepost.worker.workplace import Workplace
from tests.worker.scene import QUICK, Scene

LEASE_SECONDS = 30


class Held:
    """A task claimed at 0 s of a clock that the test sets, and a network that it can take away."""

    def __init__(self, scene: Scene, place: Workplace, task: Task) -> None:
        self.now = 0.0
        self.store = scene.store
        self.reads_fail = False
        place.clock = lambda: self.now
        self.holding = Holding(place, task, began=0.0)
        self._read = scene.store.task
        scene.store.task = self._task  # type: ignore[method-assign]

    async def _task(self, key: ObjectKey) -> Task | None:
        if self.reads_fail:
            raise StoreUnavailable("away")
        return await self._read(key)

    async def lose_heartbeat(self, *, applied: bool) -> None:
        """One heartbeat, sent now and never answered; nobody can read until the lease's own deadline."""
        sent, self.reads_fail = self.now, True

        async def lose(mutation: Mutation) -> Answer:
            if applied:
                await MemoryStore.write(self.store, mutation)
            self.now = sent + 2 * LEASE_SECONDS
            return Unanswered(message="away")

        self.store.write = lose  # type: ignore[method-assign]
        assert not await self.holding.renew()
        del self.store.write  # type: ignore[method-assign]
        self.now, self.reads_fail = sent, False

    def ends_at(self) -> float:
        """The moment, on whole seconds, from which the lease is past its deadline."""
        now = self.now
        for second in range(10 * LEASE_SECONDS):
            self.now = float(second)
            if self.holding.is_past_deadline:
                self.now = now
                return second
        raise AssertionError("it never ends")


@pytest.fixture
async def held(scene: Scene) -> AsyncIterator[Held]:
    with scene.outbox() as outbox:
        stopping = Stopping(grace_seconds=60)
        place = Workplace(
            store=scene.store, outbox=outbox, account="tester", settings=QUICK, stopping=stopping
        )
        task = scene.store.put("q", name="t", lease_duration_seconds=LEASE_SECONDS)
        yield Held(scene, place, await scene.claimed(task, outbox))


async def test_a_heartbeat_counts_from_before_it_was_sent(held: Held) -> None:
    held.now = 10
    assert await held.holding.renew()
    assert held.ends_at() == 40


async def test_after_a_lost_heartbeat_that_was_applied_the_renewals_go_on(held: Held) -> None:
    held.now = 10
    await held.lose_heartbeat(applied=True)
    assert held.ends_at() == 30  # nobody knows yet
    held.now = 32
    assert await held.holding.renew()
    assert (held.holding.over, bool(held.holding.lost)) == (False, False)
    assert (held.store.look("t").renewals, held.ends_at()) == (2, 62)


async def test_a_read_that_shows_a_lost_heartbeat_counts_from_before_the_first_that_may_be_it(
    held: Held,
) -> None:
    for now, applied in ((5, False), (10, True), (15, False)):
        held.now = now
        await held.lose_heartbeat(applied=applied)
    held.holding.learned(held.store.look("t"))
    assert held.ends_at() == 35


async def test_a_heartbeat_that_may_be_the_lost_one_is_followed_by_one_that_is_sure(held: Held) -> None:
    held.now = 10
    await held.lose_heartbeat(applied=False)
    held.now = 20
    assert await held.holding.renew("half of it")
    assert [write.renewals for write in held.store.of_kind(Heartbeat)] == [0, 1]  # type: ignore[union-attr]
    assert (held.store.look("t").progress, held.ends_at()) == ("half of it", 50)


async def test_a_refused_heartbeat_of_a_lease_that_is_over_ends_it(held: Held) -> None:
    held.store.expire_lease("t")
    assert not await held.holding.renew()
    assert held.holding.over


async def test_a_refusal_that_nobody_can_explain_ends_nothing_yet(held: Held) -> None:
    held.store.expire_lease("t")
    held.reads_fail = True
    assert not await held.holding.renew()
    assert not held.holding.over
    held.reads_fail = False
    assert not await held.holding.renew()
    assert held.holding.over


async def test_a_read_of_another_lease_is_not_taken_in(held: Held, scene: Scene) -> None:
    held.store.expire_lease("t")
    held.store.advance(3600)
    held.holding.learned(await scene.claimed_as(held.store.look("t"), held.holding.task.holder))
    assert (held.holding.task.token, held.store.look("t").token) == (1, 2)
