"""The keeper of an embedded store: what is due is done although nobody looks, and records are few."""

from __future__ import annotations

import asyncio

from fencepost.local.keeper import BATCH_SECONDS_MAX, Keeper
from fencepost.protocol.fanout import child_name
from fencepost.protocol.job import Branch, JobSpec
from fencepost.protocol.task import Hold, ObjectKey, TaskSpec
from fencepost.testing import MemoryStore
from tests.contract.acting import Actor
from tests.local.conftest import Embedded
from tests.local.test_time import LEASE, put


async def test_a_lease_that_ran_out_is_revoked_although_nobody_looks(embedded: Embedded) -> None:
    worker = await Actor.of(embedded.store)
    held = await worker.claim((await put(embedded)).key)
    await embedded.advance(LEASE + 1)
    keeper = Keeper(store=embedded.store)
    assert await keeper.run_once() == 1
    assert await keeper.run_once() == 0
    listed = await raw_tasks(embedded)
    assert listed[held.key.name] is Hold.BACKOFF


async def raw_tasks(embedded: Embedded) -> dict[str, Hold | None]:
    """As they lie there: a list does nothing about what is due."""
    return {task.key.name: task.hold for task in await embedded.store.tasks()}


async def test_records_of_a_running_job_are_written_a_dozen_times_at_most() -> None:
    store = MemoryStore()
    now = [0.0]
    branches = tuple(Branch(name=f"b{number}", request="{}") for number in range(200))
    answer = await store.create_job("feed", JobSpec(branches=branches, template=TaskSpec(queue="feeds")))
    keeper = Keeper(store=store, monotonic=lambda: now[0])
    worker = await Actor.of(store)
    versions = set()
    for branch in branches:
        held = await worker.claim(ObjectKey(namespace="default", name=child_name(answer.job, branch.name)))  # type: ignore[union-attr]
        await worker.submit(held)
        now[0] += 10.0
        await keeper.run_once()
        job = await store.job(ObjectKey(namespace="default", name="feed"))
        assert job is not None
        versions.add(job.version)
    assert job.joined
    assert 3 <= len(versions) <= 12


async def test_a_deleted_branch_is_recorded_in_the_end() -> None:
    store = MemoryStore()
    now = [0.0]
    spec = JobSpec(branches=(Branch(name="a", request="{}"),), template=TaskSpec(queue="feeds"))
    answer = await store.create_job("feed", spec)
    await store.delete_task(child_name(answer.job, "a"))  # type: ignore[union-attr]
    keeper = Keeper(store=store, monotonic=lambda: now[0])
    await keeper.run_once()
    now[0] += BATCH_SECONDS_MAX
    await keeper.run_once()
    job = await store.job(ObjectKey(namespace="default", name="feed"))
    assert job is not None
    assert job.joined


async def test_a_keeper_ends_when_it_is_told_to() -> None:
    store = MemoryStore()
    stop = asyncio.Event()
    running = asyncio.create_task(Keeper(store=store).run(stop))
    stop.set()
    await asyncio.wait_for(running, 5)
