"""An operator whose cache lags, goes back in time or has missed events: it wastes a request, no more."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from fencepost.protocol.task import Outcome, Reason
from fencepost_operator.keys import job_key
from tests.cluster.cluster import Cluster
from tests.handlers.parts import Parts, parts_at
from tests.handlers.place import AFTER, Place


@pytest.fixture
def place(cluster: Cluster, namespace: str, service_account: Callable[..., str]) -> Place:
    return Place(
        cluster=cluster,
        namespace=namespace,
        operator_token=service_account("operator"),
        worker_token=service_account("worker"),
    )


@pytest.fixture
async def parts(place: Place) -> AsyncIterator[Parts]:
    async with parts_at(place) as parts:
        yield parts


@pytest.fixture
async def stale(place: Place) -> AsyncIterator[Parts]:
    async with parts_at(place) as parts:
        yield parts


def show(parts: Parts, place: Place, job: str, *tasks: Any) -> None:
    """Feed the job as it is now, and those tasks."""
    parts.world.job_event("MODIFIED", place.get("fanoutjobs", job))
    for task in tasks:
        parts.world.task_event("MODIFIED", task)


async def test_children_that_the_cache_has_not_seen_are_not_taken_for_deleted(
    place: Place, parts: Parts, stale: Parts
) -> None:
    job = place.make_job("j", "a", "b")
    show(parts, place, "j")
    await parts.look(job)
    assert place.job("j").status.created == 2
    show(stale, place, "j")  # the mark says that there are two, and the cache has none
    await stale.look(job)
    after = place.job("j").status
    assert not after.branches
    seen = stale.world.cache.job(job.key)
    assert seen is not None
    assert all(child.task for child in stale.world.cache.children(seen).values())


async def test_one_that_is_really_gone_is_recorded_by_the_same_look(place: Place, parts: Parts) -> None:
    job = place.make_job("j", "a", "b")
    show(parts, place, "j")
    await parts.look(job)
    place.delete("leasedtasks", place.child(job, "a").name)
    key = place.child(job, "a")
    last_view = parts.world.cache.task(key)
    assert last_view is not None
    metadata = {"namespace": key.namespace, "name": key.name, "uid": last_view.uid}
    parts.world.task_event("DELETED", {"metadata": metadata})
    await parts.look(job)  # b is open, so nothing is written yet but in a batch
    async with place.worker() as worker:
        await worker.settle(place.child(job, "b"))
    parts.world.task_event("MODIFIED", place.get("leasedtasks", place.child(job, "b").name))
    await parts.look(job)
    records = place.job("j").status.branches
    assert (records["a"].outcome, records["a"].reason) == (Outcome.REJECTED, Reason.TASK_DELETED)
    assert records["b"].outcome is Outcome.OK
    assert place.task(key.name) is None


async def test_a_job_from_the_past_is_refused_by_the_server_and_read_again(
    place: Place, parts: Parts, stale: Parts
) -> None:
    job = place.make_job("j", "a", continuation={"template": AFTER})
    show(parts, place, "j")
    await parts.look(job)
    old = place.get("fanoutjobs", "j")
    async with place.worker() as worker:
        await worker.settle(place.child(job, "a"))
    settled = place.get("leasedtasks", place.child(job, "a").name)
    show(parts, place, "j", settled)
    await parts.look(job)
    joined = place.job("j")
    assert joined.joined
    assert joined.status.continuation is not None
    # Another operator wakes up with what was true before the join, and acts on it.
    stale.world.job_event("MODIFIED", old)
    stale.world.task_event("MODIFIED", settled)
    await stale.look(job)
    assert place.job("j").status == joined.status
    seen = stale.world.cache.job(job.key)
    assert seen is not None
    assert seen.job.joined
    assert len(place.items("leasedtasks")) == 2


async def test_an_old_view_of_a_recorded_task_is_no_late_task(
    place: Place, parts: Parts, stale: Parts
) -> None:
    job = place.make_job("j", "a", "b")
    show(parts, place, "j")
    await parts.look(job)
    open_view = place.get("leasedtasks", place.child(job, "a").name)
    async with place.worker() as worker:
        for name in "ab":
            await worker.settle(place.child(job, name))
    show(parts, place, "j", *place.items("leasedtasks"))
    await parts.look(job)
    assert place.job("j").joined
    stale.world.task_event("ADDED", open_view)  # an open task under a branch that is recorded
    show(stale, place, "j")
    await stale.look(job)
    kept = place.get("leasedtasks", place.child(job, "a").name)
    assert kept is not None
    assert kept["metadata"]["uid"] == open_view["metadata"]["uid"]
    assert kept["spec"]["suspend"] is False


async def test_a_continuation_that_another_operator_has_recorded_is_not_made_again(
    place: Place, parts: Parts, stale: Parts
) -> None:
    job = place.make_job("j", "a", continuation={"template": AFTER})
    show(parts, place, "j")
    await parts.look(job)
    async with place.worker() as worker:
        await worker.settle(place.child(job, "a"))
    settled = place.get("leasedtasks", place.child(job, "a").name)
    show(parts, place, "j", settled)
    await parts.joining.look(job_key(job.key))
    joined_view = place.get("fanoutjobs", "j")
    await parts.look(job)
    record = place.job("j").status.continuation
    assert record is not None
    assert record.started
    place.delete("leasedtasks", record.name)
    stale.world.job_event("MODIFIED", joined_view)  # joined, nothing recorded yet
    stale.world.task_event("MODIFIED", settled)
    await stale.look(job)
    assert place.task(record.name) is None
    assert place.job("j").status.continuation == record


async def test_a_list_finds_what_events_have_missed(place: Place, parts: Parts) -> None:
    job = place.make_job("j", "a", "b")
    show(parts, place, "j")
    await parts.look(job)
    async with place.worker() as worker:
        for name in "ab":
            await worker.settle(place.child(job, name))
    await parts.world.list_all((place.namespace,))
    await parts.look(job)
    assert place.job("j").joined
    place.delete("fanoutjobs", "j")
    await parts.world.list_all((place.namespace,))
    assert parts.world.cache.job(job.key) is None
