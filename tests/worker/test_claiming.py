"""Which candidates are tried, what a refused claim leads to, and the job check before the work."""

from __future__ import annotations

import pytest

from fencepost import Worker
from fencepost.ports import Answer, Cause, Refused, StoreRefused, StoreUnavailable
from fencepost.protocol.drain import RowStatus
from fencepost.protocol.job import Job
from fencepost.protocol.mutation import Claim, Mutation, Release
from fencepost.protocol.task import Hold, LeaseEnd, Outcome, State
from fencepost.testing.memory import MemoryStore
from fencepost.worker.bare_lease import claim_one
from fencepost.worker.failures import NoAccess, SchemaTooOld, TryAgainLater
from tests.worker.scene import (
    EXECUTED_ALTHOUGH_FORBIDDEN,
    Scene,
    WatchedStore,
    echo,
    forbidden,
    other_holder,
)


async def test_a_claim_that_another_won_goes_on_with_the_next_candidate(scene: Scene) -> None:
    tasks = {name: scene.store.put("q", {"n": name}, name=name) for name in "abcd"}

    async def steal(claim: Claim) -> None:
        await scene.claimed_as(tasks[claim.key.name], other_holder())

    stolen: list[str] = []

    async def write(mutation: Mutation) -> Answer:
        if isinstance(mutation, Claim) and not stolen:
            stolen.append(mutation.key.name)
            await steal(mutation)
        return await MemoryStore.write(scene.store, mutation)

    scene.store.write = write  # type: ignore[method-assign]
    tally = await scene.work(echo())
    assert (tally["claims"], tally["claims lost"]) == (3, 1)
    assert {task.state for task in await scene.store.tasks() if task.key.name not in stolen} == {
        State.SUCCEEDED
    }


async def test_a_page_is_used_up_before_the_next_list(scene: Scene) -> None:
    for number in range(10):
        scene.store.put("q", {"n": number})
    await scene.work(echo(), page=4)
    assert scene.store.reads["claimable"] == 4  # 4 + 4 + 2, and one that shows nothing


async def test_a_page_is_given_up_when_others_won_too_many_of_it(scene: Scene) -> None:
    for number in range(10):
        scene.store.put("q", {"n": number})

    def lost(mutation: Mutation) -> Answer | None:
        refused = Refused(cause=Cause.PRECONDITION, message="another was first")
        return refused if isinstance(mutation, Claim) and len(scene.store.of_kind(Claim)) <= 3 else None

    scene.store.before = lost
    await scene.work(echo())
    assert scene.store.reads["claimable"] == 3
    assert len(scene.store.of_kind(Claim)) == 13


async def test_a_claim_that_admission_refuses_is_not_tried_for_ever(scene: Scene) -> None:
    def refuse(mutation: Mutation) -> Answer | None:
        refused = isinstance(mutation, Claim) and mutation.key.name == "bad"
        return Refused(cause=Cause.ADMISSION, message="not this one") if refused else None

    scene.store.before = refuse
    scene.store.put("q", name="bad")
    scene.store.put("q", name="good")
    await scene.work(echo())
    assert [c.key.name for c in scene.store.of_kind(Claim)].count("bad") == 1  # type: ignore[union-attr]
    assert scene.store.look("good").state is State.SUCCEEDED


async def test_an_overloaded_store_is_asked_again_after_what_it_says(scene: Scene) -> None:
    def overloaded(mutation: Mutation) -> Answer | None:
        first = isinstance(mutation, Claim) and len(scene.store.of_kind(Claim)) == 1
        return Refused(cause=Cause.OVERLOADED, message="429", retry_after_seconds=0.01) if first else None

    scene.store.before = overloaded
    scene.store.put("q", name="t")
    await scene.work(echo())
    assert scene.store.look("t").state is State.SUCCEEDED


@pytest.mark.parametrize(("cause", "failure"), [(Cause.FORBIDDEN, NoAccess), (Cause.SCHEMA, SchemaTooOld)])
async def test_what_a_person_has_to_see_to_ends_a_run_of_once(
    scene: Scene, cause: Cause, failure: type[Exception]
) -> None:
    scene.store.before = lambda mutation: Refused(cause=cause, message="the store's own sentence")
    scene.store.put("q")
    with pytest.raises(failure, match="the store's own sentence"):
        await scene.work(forbidden())


async def test_a_store_that_stays_away_ends_a_run_of_once_after_its_patience(scene: Scene) -> None:
    async def away(queue: str, limit: int) -> list[object]:
        raise StoreUnavailable("connection refused")

    scene.store.claimable = away  # type: ignore[method-assign]
    with pytest.raises(TryAgainLater, match="connection refused"):
        await scene.work(forbidden(), patience_seconds=0.01)


async def test_a_store_that_is_away_for_a_moment_is_waited_for(scene: Scene) -> None:
    calls = 0

    async def flaky(queue: str, limit: int) -> object:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise StoreUnavailable("connection refused")
        return await MemoryStore.claimable(scene.store, queue, limit)

    scene.store.claimable = flaky  # type: ignore[method-assign, assignment]
    scene.store.put("q", name="t")
    await scene.work(echo())
    assert scene.store.look("t").state is State.SUCCEEDED


async def test_one_read_of_the_job_is_shared_by_the_tasks_of_a_page(scene: Scene) -> None:
    await scene.job("job", "a", "b", "c")
    await scene.work(echo())
    assert scene.store.reads["job"] == 1
    assert {task.state for task in await scene.store.tasks()} == {State.SUCCEEDED}


async def test_a_read_of_the_job_from_before_the_list_is_not_shared(scene: Scene) -> None:
    """A task that the list shows may have been made after that read: its branch may be recorded since."""
    await scene.job("job", "a", "b", "c")
    await scene.work(echo(), page=1)
    assert scene.store.reads["job"] == 3


async def test_a_task_whose_branch_is_recorded_is_not_executed(scene: Scene) -> None:
    """A child that was deleted and comes back late: its branch says TaskDeleted already."""
    await scene.job("job", "a", "b")
    by_branch = {task.branch: task for task in await scene.store.tasks()}
    task = by_branch["a"]
    job = await MemoryStore.job(scene.store, task.key.__class__(namespace="default", name="job"))
    assert job is not None

    async def recorded(key: object) -> object:
        from dataclasses import replace

        from fencepost.protocol.join import TASK_DELETED

        return replace(job, status=replace(job.status, branches={"a": TASK_DELETED}))

    scene.store.job = recorded  # type: ignore[method-assign, assignment]
    await scene.work(echo())
    left = scene.store.look(task.key.name)
    assert (left.state, left.hold, left.token) == (State.OPEN, Hold.BACKOFF, 1)
    assert left.last_lease is not None
    assert left.last_lease.end is LeaseEnd.UNWANTED
    assert scene.store.look(by_branch["b"].key.name).state is State.SUCCEEDED


@pytest.mark.parametrize("gone", ["gone", "another UID"])
async def test_a_task_whose_job_is_gone_is_not_executed(scene: Scene, gone: str) -> None:
    await scene.job("job", "a")
    (task,) = await scene.store.tasks()
    found = await MemoryStore.job(scene.store, task.key.__class__(namespace="default", name="job"))
    assert found is not None

    async def job(key: object) -> object:
        from dataclasses import replace

        return None if gone == "gone" else replace(found, uid="another")

    scene.store.job = job  # type: ignore[method-assign, assignment]
    await scene.work(forbidden())
    assert scene.store.look(task.key.name).hold is Hold.BACKOFF


async def test_a_job_that_cannot_be_read_costs_no_failure_and_nothing_is_executed(scene: Scene) -> None:
    await scene.job("job", "a")
    (task,) = await scene.store.tasks()

    async def unreadable(key: object) -> object:
        raise StoreRefused("may not get fanoutjobs", Cause.FORBIDDEN)

    scene.store.job = unreadable  # type: ignore[method-assign, assignment]
    with pytest.raises(NoAccess, match="may not get fanoutjobs"):
        await scene.work(forbidden())
    left = scene.store.look(task.key.name)
    assert (left.hold, left.failures, left.token) == (None, 0, 1)
    assert len(scene.store.of_kind(Release)) == 1


async def test_a_claim_that_was_answered_after_its_own_lease_is_proved_before_the_work(
    scene: Scene,
) -> None:
    """The answer took longer than the lease: a heartbeat says whether it is still ours."""
    from fencepost.protocol.mutation import Heartbeat

    now = 0.0

    async def slow(mutation: Mutation) -> Answer:
        nonlocal now
        answer = await WatchedStore.write(scene.store, mutation)
        if isinstance(mutation, Claim) and now == 0.0:
            now = 61.0
            scene.store.expire_lease("t")
        return answer

    scene.store.write = slow  # type: ignore[method-assign]
    scene.store.put("q", name="t", lease_duration_seconds=60)
    await _worked_with_clock(scene, forbidden(), lambda: now)
    assert [type(write) for write in scene.store.writes] == [Claim, Heartbeat]
    assert scene.store.look("t").last_lease.end is LeaseEnd.EXPIRED  # type: ignore[union-attr]


async def test_a_worker_that_is_told_to_stop_during_its_claim_does_not_begin_the_work(scene: Scene) -> None:
    import os
    import signal

    def stop(mutation: Mutation) -> None:
        if isinstance(mutation, Claim):
            os.kill(os.getpid(), signal.SIGTERM)

    scene.store.before = stop
    scene.store.put("q", name="t")
    write = scene.store.write

    async def write_and_let_the_signal_in(mutation: Mutation) -> Answer:
        import asyncio

        answer = await write(mutation)
        await asyncio.sleep(0.01)
        return answer

    scene.store.write = write_and_let_the_signal_in  # type: ignore[method-assign]
    await scene.work(forbidden())
    task = scene.store.look("t")
    assert (task.hold, task.failures, task.token) == (None, 0, 1)


async def _worked_with_clock(scene: Scene, worker: Worker, clock: object) -> None:
    from fencepost.worker.loop import Loop
    from fencepost.worker.stopping import Stopping
    from fencepost.worker.workplace import Workplace
    from tests.worker.scene import QUICK

    with scene.outbox(incarnation="clocked") as outbox:
        place = Workplace(
            store=scene.store,
            outbox=outbox,
            account=await scene.store.account(),
            settings=QUICK,
            stopping=Stopping(grace_seconds=1),
            clock=clock,  # type: ignore[arg-type]
        )
        await Loop(place, worker.handlers).run()
        assert EXECUTED_ALTHOUGH_FORBIDDEN == []


async def test_a_task_whose_request_cannot_be_read_is_rejected_and_not_executed(scene: Scene) -> None:
    scene.store.put("q", name="odd", request_problem="nested deeper than 64 levels")
    tally = await scene.work(forbidden())
    odd = scene.store.look("odd")
    assert (odd.state, odd.token, odd.failures) == (State.FAILED, 1, 0)
    value = "the request cannot be read: nested deeper than 64 levels"
    assert odd.settling_receipt is not None and odd.settling_receipt.value == value
    assert [(row.outcome, row.value, row.status) for row in scene.rows()] == [
        (Outcome.REJECTED, value, RowStatus.ACKNOWLEDGED)
    ]
    assert tally["ACCEPTED"] == 1


async def test_a_bare_claim_rejects_it_on_the_way_to_the_next(scene: Scene) -> None:
    scene.store.put("q", name="odd", request_problem="it is over the limit")
    scene.store.put("q", name="plain")
    claimed = await claim_one(scene.store, "q", holder=other_holder())
    assert claimed is not None and claimed.key.name == "plain"
    assert scene.store.look("odd").state is State.FAILED


async def test_a_job_that_cannot_be_read_stops_no_other_task(scene: Scene) -> None:
    await scene.job("job", "a")
    plain = scene.store.put("q", name="plain")

    async def unreadable(key: object) -> Job | None:
        raise StoreRefused(f"FanOutJob {key}: spec.branches[0].request: nested deeper", Cause.SCHEMA)

    scene.store.job = unreadable  # type: ignore[method-assign, assignment]
    await scene.work(echo())
    assert scene.store.look(plain.key.name).state is State.SUCCEEDED
    (child,) = (task for task in await scene.store.tasks() if task.owner)
    assert child.last_lease is not None and child.last_lease.end is LeaseEnd.UNWANTED
    assert (child.hold, child.failures) == (Hold.BACKOFF, 1)
