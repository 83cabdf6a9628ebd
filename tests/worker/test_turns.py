"""The turns of the loop: that they let others go on, and that each of them has an end."""

from __future__ import annotations

import asyncio
import signal

import pytest

from fencepost import Lease, OutcomeUnknown, Worker
from fencepost.ports import Answer, Applied, Cause, NewTask, Refused, Unanswered
from fencepost.protocol.mutation import Claim, Mutation, Release, Submit
from fencepost.protocol.task import (
    Hold,
    LeaseEnd,
    ObjectKey,
    Outcome,
    Owner,
    RetryPolicy,
    State,
    TaskSpec,
    UnknownPolicy,
)
from fencepost.worker.failures import TryAgainLater
from tests.worker.scene import Scene, echo, forbidden, result_row


async def test_every_turn_lets_the_event_loop_go_on(scene: Scene) -> None:
    """Also where nothing in it waits: the store works inline, and the results are in the outbox already."""
    with scene.outbox() as outbox:
        for number in range(10):
            held = await scene.claimed(scene.store.put("q", name=f"t{number}"), outbox)
            row = outbox.store_result(result_row(held, "done"))
            outbox.park(row.id, "stale")
            scene.store.expire_lease(f"t{number}")
    scene.store.advance(3600)
    seen: list[int] = []

    async def look() -> None:
        while True:
            seen.append(sum(task.settled for task in await scene.store.tasks()))
            await asyncio.sleep(0)

    looking = asyncio.create_task(look())
    await scene.work(forbidden(), page=5)
    looking.cancel()
    assert set(seen) == set(range(11))


async def test_a_worker_ends_on_sigterm_though_its_turns_never_wait(scene: Scene) -> None:
    """There is always a task to claim, and none to execute: their job is gone."""
    gone = Owner(kind="FanOutJob", name="gone", uid="gone")

    def put_another() -> None:
        key = ObjectKey(namespace="default", name=f"t{len(scene.store.writes)}")
        new = NewTask(key=key, spec=TaskSpec(queue="q"), owner=gone, branch="a")
        assert isinstance(scene.store._transact(lambda ledger: ledger.create(new)), Applied)

    def another(mutation: Mutation) -> None:
        if isinstance(mutation, Claim):
            put_another()
            if len(scene.store.of_kind(Claim)) == 20:
                signal.raise_signal(signal.SIGTERM)
        assert len(scene.store.of_kind(Claim)) < 60, "it does not hear the signal"

    put_another()
    scene.store.before = another
    await scene.work(forbidden(), page=1)
    assert len(scene.store.of_kind(Claim)) < 30


async def test_an_unknown_that_no_store_takes_counts_and_the_next_claim_executes(scene: Scene) -> None:
    worker, runs = Worker(queue="q"), list[int]()

    @worker.task
    async def handle(request: dict, lease: Lease) -> str:  # type: ignore[type-arg]
        runs.append(lease.token)
        if lease.token < 3:
            raise OutcomeUnknown
        return "known at last"

    def no_unknown(mutation: Mutation) -> Answer | None:
        unknown = isinstance(mutation, Submit) and mutation.receipt.outcome is Outcome.UNKNOWN
        return Refused(cause=Cause.TOO_LARGE, message="no room") if unknown else None

    scene.store.before = no_unknown
    scene.store.put("q", name="t")
    for _ in range(2):
        await scene.work(worker)
        scene.store.advance(3600)
    ended = [(write.end, write.message) for write in scene.store.of_kind(Release)]  # type: ignore[union-attr]
    assert (
        ended == [(LeaseEnd.ERROR, "its outcome Unknown was not taken: too large for the store: no room")] * 2
    )
    assert scene.store.look("t").failures == 2
    await scene.work(worker)
    assert (runs, scene.store.look("t").state) == ([1, 2, 3], State.SUCCEEDED)


async def test_an_unknown_found_in_the_outbox_that_no_store_takes_counts_too(scene: Scene) -> None:
    task = scene.store.put("q", name="t")
    with scene.outbox() as outbox:
        row = outbox.store_result(result_row(await scene.claimed(task, outbox), "", outcome=Outcome.UNKNOWN))
        outbox.park(row.id, "stale")
    scene.store.expire_lease("t")
    scene.store.advance(3600)

    def no_submit(mutation: Mutation) -> Answer | None:
        refused = Refused(cause=Cause.TOO_LARGE, message="no room")
        return refused if isinstance(mutation, Submit) else None

    scene.store.before = no_submit
    tally = await scene.work(forbidden())
    assert tally == {"claims": 1, "not executed again": 1, "unacceptable": 1, "released, error": 1}
    assert scene.store.look("t").failures == 2  # the first lease ran out


@pytest.mark.slow
async def test_a_task_that_comes_back_unknown_for_ever_runs_out_of_room_and_then_of_failures(
    scene: Scene,
) -> None:
    worker, runs = Worker(queue="q"), list[int]()

    @worker.task
    async def handle(request: dict, lease: Lease) -> str:  # type: ignore[type-arg]
        runs.append(lease.token)
        raise OutcomeUnknown

    retry = RetryPolicy(max_failures=2, backoff_base_seconds=1, backoff_max_seconds=1)
    scene.store.put("q", name="t", unknown_policy=UnknownPolicy.RECLAIM, retry_policy=retry)
    for _ in range(40):
        await scene.work(worker)
        scene.store.advance(3600)
    task = scene.store.look("t")
    assert (task.count, task.failures, task.state, task.hold) == (28, 3, State.UNKNOWN, Hold.UNKNOWN)
    assert len(runs) == 28 + 3


async def test_once_gives_up_where_work_is_done_and_nothing_can_be_handed_in(scene: Scene) -> None:
    def away(mutation: Mutation) -> Answer | None:
        return Unanswered(message="away") if isinstance(mutation, Submit) else None

    scene.store.before = away
    for _ in range(200):
        scene.store.put("q")
    with pytest.raises(TryAgainLater, match="gave up after 0 s: rows are left in the outbox"):
        await scene.work(echo(), patience_seconds=0.05)
    assert 0 < len(scene.store.of_kind(Claim)) < 150


async def test_once_does_not_count_the_time_that_a_handler_takes_as_waiting(scene: Scene) -> None:
    worker = Worker(queue="q")

    @worker.task
    async def handle(request: dict) -> None:  # type: ignore[type-arg]
        await asyncio.sleep(0.1)

    def overloaded(mutation: Mutation) -> Answer | None:
        first = isinstance(mutation, Submit) and len(scene.store.of_kind(Submit)) == 1
        return Refused(cause=Cause.OVERLOADED, message="429") if first else None

    scene.store.before = overloaded
    scene.store.put("q")
    scene.store.put("q")
    assert await scene.work(worker, patience_seconds=0.08) == {"claims": 2, "ACCEPTED": 2}
