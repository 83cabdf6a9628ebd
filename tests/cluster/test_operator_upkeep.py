"""Upkeep on the real API server: leases that run out, backoff, failures, deadlines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from fencepost.protocol.task import Hold, LeaseEnd, Outcome, Reason, State, Task
from tests.cluster.cluster import Cluster
from tests.handlers.place import Place

QUICK = {"maxFailures": 1, "backoffBaseSeconds": 1, "backoffMaxSeconds": 1}


@pytest.fixture
def place(cluster: Cluster, namespace: str, service_account: Callable[..., str]) -> Place:
    return Place(
        cluster=cluster,
        namespace=namespace,
        operator_token=service_account("operator"),
        worker_token=service_account("worker"),
    )


def there(place: Place, name: str) -> Task:
    task = place.task(name)
    assert task is not None
    return task


async def test_a_lease_that_runs_out_is_revoked_and_the_task_freed_after_its_backoff(place: Place) -> None:
    task = place.make_task("t", leaseDurationSeconds=2, retryPolicy=QUICK)
    with place.operator():
        async with place.worker() as worker, place.worker() as other:
            held = await worker.claim(task.key)
            began = time.monotonic()
            await place.until(lambda: there(place, "t").hold is Hold.BACKOFF, "the lease is revoked")
            assert time.monotonic() - began >= 2
            revoked = there(place, "t")
            assert (revoked.token, revoked.holder, revoked.failures) == (1, "", 1)
            assert revoked.last_lease is not None
            assert (revoked.last_lease.holder, revoked.last_lease.end) == (worker.holder, LeaseEnd.EXPIRED)
            with pytest.raises(AssertionError, match="REJECTED_EXPIRED_LEASE"):
                await worker.submit(revoked)
            await place.until(lambda: there(place, "t").hold is None, "it is freed")
            again = await other.claim(task.key)
            assert again.token == held.token + 1
            await other.submit(again)
    assert there(place, "t").state is State.SUCCEEDED


async def test_heartbeats_keep_a_lease_for_as_long_as_they_come(place: Place) -> None:
    task = place.make_task("t", leaseDurationSeconds=2)
    with place.operator():
        async with place.worker() as worker:
            held = await worker.claim(task.key)
            for _ in range(8):
                await asyncio.sleep(0.6)
                held = await worker.heartbeat(held)
            assert there(place, "t").holder == worker.holder
            await worker.submit(held)
    assert there(place, "t").token == 1


async def test_a_restarted_operator_starts_every_lease_afresh_and_still_ends_it(place: Place) -> None:
    task = place.make_task("t", leaseDurationSeconds=3)
    async with place.worker() as worker:
        await worker.claim(task.key)
        with place.operator():
            await asyncio.sleep(1.5)
        with place.operator():
            began = time.monotonic()
            await place.until(lambda: there(place, "t").hold is Hold.BACKOFF, "the lease is revoked")
    assert time.monotonic() - began > 2


async def test_failures_are_counted_and_the_one_too_many_settles(place: Place) -> None:
    task = place.make_task("t", retryPolicy=QUICK)
    with place.operator() as operator:
        async with place.worker() as worker:
            await worker.release(await worker.claim(task.key))
            await place.until(lambda: there(place, "t").hold is None, "it is freed")
            await worker.release(await worker.claim(task.key))
            await place.until(lambda: there(place, "t").settled, "it is settled")
            # The server shows it before the operator has heard the answer, and it is killed at the end.
            operator.until(lambda: "settle applied" in operator.log(), "the operator has said so")
    settled = there(place, "t")
    assert (settled.state, settled.failures, settled.token) == (State.FAILED, 2, 2)
    receipt = settled.settling_receipt
    assert receipt is not None
    assert (receipt.holder, receipt.reason, receipt.outcome) == (
        "operator",
        Reason.FAILURES_EXHAUSTED,
        Outcome.REJECTED,
    )
    said = [line for line in operator.lines() if line["msg"] == "settle applied"]
    assert [(line["name"], line["uid"], line["token"]) for line in said] == [("t", task.uid, 2)]


async def test_a_deadline_settles_what_was_never_claimed_and_what_is_held(place: Place) -> None:
    place.make_task("free", activeDeadlineSeconds=2)
    held = place.make_task("held", activeDeadlineSeconds=2)
    async with place.worker() as worker:
        await worker.claim(held.key)
        with place.operator():
            for name in ("free", "held"):
                await place.until(lambda name=name: there(place, name).settled, f"{name} is settled")
    for name in ("free", "held"):
        receipt = there(place, name).settling_receipt
        assert receipt is not None
        assert receipt.reason is Reason.DEADLINE_EXCEEDED


async def test_an_unknown_outcome_is_held_or_reclaimed_as_its_policy_says(place: Place) -> None:
    place.make_task("hold")
    place.make_task("reclaim", unknownPolicy="Reclaim", retryPolicy=QUICK)
    with place.operator():
        async with place.worker() as worker:
            for name in ("hold", "reclaim"):
                unknown = await worker.submit(await worker.claim(there(place, name).key), "", Outcome.UNKNOWN)
                await worker.release(unknown, LeaseEnd.AFTER_UNKNOWN)
            await place.until(lambda: there(place, "reclaim").hold is None, "it may be claimed again")
            assert there(place, "hold").hold is Hold.UNKNOWN
            assert there(place, "hold").state is State.UNKNOWN


async def test_two_operators_do_each_thing_once(place: Place) -> None:
    names = [f"t{number}" for number in range(10)]
    for name in names:
        place.make_task(name, leaseDurationSeconds=1, retryPolicy=QUICK | {"maxFailures": 0})
    with place.operator() as one, place.operator() as other:
        async with place.worker() as worker:
            for name in names:
                await worker.claim(there(place, name).key)
            for name in names:
                await place.until(lambda name=name: there(place, name).settled, f"{name} is settled")
    for name in names:
        task = there(place, name)
        assert (task.failures, len(task.receipts)) == (1, 1)
    said = [line["msg"] for operator in (one, other) for line in operator.lines()]
    assert "defect" not in " ".join(said)


async def test_equal_names_in_two_namespaces_are_two_tasks(
    place: Place, cluster: Cluster, service_account: Callable[..., str]
) -> None:
    """B33: keys, names and jobs of one namespace say nothing about those of another."""
    other = cluster.new_namespace("other")
    second = Place(
        cluster=cluster,
        namespace=other,
        operator_token=cluster.service_account(other, "operator"),
        worker_token=cluster.service_account(other, "worker"),
    )
    try:
        with place.operator(), second.operator():
            jobs = [one.make_job("same", "a", "b") for one in (place, second)]
            await place.settle_all(jobs[0], lambda name: f"here {name}")
            await place.until_joined("same")
            assert not second.job("same").joined
            await second.settle_all(jobs[1], lambda name: f"there {name}")
            await second.until_joined("same")
        snapshots = [one.job("same").status.snapshot for one in (place, second)]
        assert snapshots[0] is not None
        assert snapshots[1] is not None
        assert snapshots[0].digest != snapshots[1].digest
    finally:
        cluster.delete_namespace(other)
