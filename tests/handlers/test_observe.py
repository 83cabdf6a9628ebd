"""From events to keys: what is looked at when, so that a job is not planned as often as it has branches."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import pytest

from fencepost.api.write import job_view, task_view
from fencepost.kube.client import ApiClient
from fencepost.kube.connection import explicit
from fencepost.protocol import fanout, join
from fencepost.protocol.job import ContinuationKind as Kinds
from fencepost.protocol.job import ContinuationRecord, Job, Snapshot
from fencepost.protocol.task import Task
from fencepost_operator.cache import Cache
from fencepost_operator.clock import ServerClock
from fencepost_operator.keys import Key, job_key, task_key
from fencepost_operator.leases import LeaseObserver
from fencepost_operator.logs import Repeats
from fencepost_operator.observe import World
from fencepost_operator.queue import WorkQueue
from tests.handlers.values import MovableClock, a_job, a_task, child_of, claimed, in_backoff, settled


@dataclass
class Scene:
    world: World
    queue: WorkQueue[Key]
    clock: MovableClock

    async def asked_for(self) -> list[Key]:
        """What was put on the queue since the last time."""
        keys: list[Key] = []

        async def work(key: Key) -> None:
            keys.append(key)

        hand = asyncio.create_task(self.queue.run(work, hands=1))
        for _ in range(20):  # turns of the loop: enough for every key of these tests
            await asyncio.sleep(0)
        hand.cancel()
        await asyncio.gather(hand, return_exceptions=True)
        assert len(self.queue) == 0
        return keys

    async def saw(self, thing: Task | Job, event: str | None = "MODIFIED") -> list[Key]:
        if isinstance(thing, Task):
            self.world.task_event(event, task_view(thing))
        else:
            self.world.job_event(event, job_view(thing))
        return await self.asked_for()


@pytest.fixture
def scene() -> Scene:
    clock = MovableClock()
    queue: WorkQueue[Key] = WorkQueue(clock=clock)
    world = World(
        client=ApiClient(explicit("http://127.0.0.1:1", ca_file=None, token=None)),
        cache=Cache(clock=clock),
        queue=queue,
        leases=LeaseObserver(),
        server_clock=ServerClock(clock=clock),
        clock=clock,
        repeats=Repeats(clock=clock),
    )
    return Scene(world=world, queue=queue, clock=clock)


def joined(job: Job, **status: Any) -> Job:
    children = [
        join.Child(branch=b, standing=join.Standing.OURS, task=settled(child_of(job, b.name)))
        for b in job.spec.branches
    ]
    records = {c.branch.name: join.record_of(c.task, room=100) for c in children if c.task}
    snapshot = Snapshot(generation=1, digest="d" * 64, committed_time="2026-01-01T00:00:00Z")
    whole = replace(
        job.status,
        branches=MappingProxyType(records),
        snapshot=snapshot,
        state=join.job_state(records),
        created=len(records),
        **status,
    )
    return replace(job, version="100", status=whole)


async def test_a_free_task_is_nobodys_business_and_a_held_one_is(scene: Scene) -> None:
    assert await scene.saw(a_task(), "ADDED") == []
    assert await scene.saw(claimed(a_task())) == [task_key(a_task().key)]
    assert await scene.saw(in_backoff(a_task())) == [task_key(a_task().key)]
    assert await scene.saw(settled(a_task(), version="9")) == []


async def test_a_task_with_a_deadline_is_looked_at_though_it_is_free(scene: Scene) -> None:
    task = a_task(active_deadline_seconds=5)
    assert await scene.saw(task, "ADDED") == [task_key(task.key)]


async def test_the_same_event_again_asks_for_nothing(scene: Scene) -> None:
    await scene.saw(claimed(a_task()))
    assert await scene.saw(claimed(a_task())) == []


async def test_a_job_is_looked_at_on_each_of_its_versions(scene: Scene) -> None:
    job = a_job()
    assert await scene.saw(job, "ADDED") == [job_key(job.key)]
    assert await scene.saw(job) == []
    assert await scene.saw(replace(job, version="2")) == [job_key(job.key)]


async def test_a_branch_that_settles_waits_for_the_next_write_and_the_last_one_does_not(scene: Scene) -> None:
    job = a_job("a", "b", "c")
    await scene.saw(job, "ADDED")
    for name in "abc":
        await scene.saw(child_of(job, name), "ADDED")
    assert await scene.saw(settled(child_of(job, "a"))) == []
    assert scene.queue.delayed == 1
    assert await scene.saw(settled(child_of(job, "b"))) == []
    assert scene.queue.delayed == 1
    assert await scene.saw(settled(child_of(job, "c"))) == [job_key(job.key)]


async def test_where_children_are_few_at_a_time_each_one_that_settles_makes_room(scene: Scene) -> None:
    job = a_job("a", "b", "c", parallelism=1)
    await scene.saw(job, "ADDED")
    await scene.saw(child_of(job, "a"), "ADDED")
    assert await scene.saw(settled(child_of(job, "a"))) == [job_key(job.key)]


async def test_a_child_that_is_claimed_is_no_news_for_its_job(scene: Scene) -> None:
    job = a_job("a", "b")
    await scene.saw(job, "ADDED")
    await scene.saw(child_of(job, "a"), "ADDED")
    assert await scene.saw(claimed(child_of(job, "a"))) == [task_key(child_of(job, "a").key)]


async def test_a_child_that_is_deleted_is(scene: Scene) -> None:
    job = a_job("a", "b")
    await scene.saw(job, "ADDED")
    await scene.saw(child_of(job, "a"), "ADDED")
    assert await scene.saw(child_of(job, "a"), "DELETED") == [job_key(job.key)]
    assert await scene.saw(child_of(job, "a"), "DELETED") == []


async def test_a_late_child_of_a_joined_job_is_and_the_recorded_one_is_not(scene: Scene) -> None:
    job = a_job("a")
    await scene.saw(joined(job), "ADDED")
    assert await scene.saw(settled(child_of(job, "a")), None) == []
    assert await scene.saw(child_of(job, "a", uid="late"), "ADDED") == [job_key(job.key)]


async def test_what_has_the_name_of_a_started_continuation_matters_if_it_is_another(
    scene: Scene,
) -> None:
    job = a_job("a")
    name = fanout.continuation_name(job)
    record = ContinuationRecord(kind=Kinds.LEASED_TASK, name=name, uid="the-one", started=True)
    await scene.saw(joined(job, continuation=record), "ADDED")
    assert job_key(job.key) not in await scene.saw(a_task(name, uid="the-one"), "ADDED")
    assert job_key(job.key) in await scene.saw(a_task(name, uid="late", version="2"), "ADDED")


async def test_what_cannot_be_read_is_named_once_and_left_alone(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    broken = task_view(a_task())
    broken["metadata"]["annotations"] = {"fencepost.dev/fencing-token": "007"}
    with caplog.at_level(logging.ERROR, logger="fencepost_operator"):
        scene.world.task_event("ADDED", broken)
        scene.world.task_event("MODIFIED", broken)
    assert await scene.asked_for() == []
    assert len(caplog.messages) == 1
    assert "ns/task" in caplog.messages[0]


async def test_a_gone_task_leaves_no_date_behind(scene: Scene) -> None:
    task = claimed(a_task())
    await scene.saw(task)
    scene.queue.add_after(task_key(task.key), 50)
    await scene.saw(task, "DELETED")
    assert scene.queue.delayed == 0
