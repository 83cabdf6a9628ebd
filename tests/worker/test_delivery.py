"""What becomes of a row: lost answers, refusals, parking, dead letters, and the order of a task's rows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fencepost import Lease, Verdict, Worker
from fencepost.outbox import Row
from fencepost.ports import Answer, Cause, Refused, StoreRefused, StoreUnavailable, Unanswered
from fencepost.protocol.drain import RowStatus
from fencepost.protocol.mutation import Claim, Mutation, Release, Submit
from fencepost.protocol.task import Hold, Kind, Outcome, State
from fencepost.testing.memory import MemoryStore
from fencepost.worker.failures import SchemaTooOld, TryAgainLater
from tests.worker.scene import Scene, echo, forbidden, other_holder, result_row


@pytest.mark.parametrize("kind", [Claim, Submit])
async def test_a_lost_answer_is_found_out_and_nothing_is_done_twice(
    scene: Scene, kind: type[Mutation]
) -> None:
    def lose(mutation: Mutation) -> None:
        if isinstance(mutation, kind) and len(scene.store.of_kind(kind)) == 1:
            scene.store.lose_next_answer()

    scene.store.before = lose
    scene.store.put("q", name="t")
    tally = await scene.work(echo())
    task = scene.store.look("t")
    assert (task.state, task.token, task.count) == (State.SUCCEEDED, 1, 1)
    assert tally == {"claims": 1, "ACCEPTED": 1}


@pytest.mark.parametrize("kind", [Claim, Submit])
async def test_a_lost_request_is_sent_again_identical(scene: Scene, kind: type[Mutation]) -> None:
    def lose(mutation: Mutation) -> None:
        if isinstance(mutation, kind) and len(scene.store.of_kind(kind)) == 1:
            scene.store.lose_next_request()

    scene.store.before = lose
    scene.store.put("q", name="t")
    await scene.work(echo())
    first, second = scene.store.of_kind(kind)
    assert first == second
    assert scene.store.look("t").count == 1


async def test_a_submit_whose_fate_stays_unknown_is_drained_later_as_a_duplicate(scene: Scene) -> None:
    """The write is applied, every answer and every read after it is lost, then the store is back."""
    away = False

    def lose(mutation: Mutation) -> Answer | None:
        nonlocal away
        if isinstance(mutation, Submit) and not away:
            away = True
            scene.store.lose_next_answer()
            return None
        return Unanswered(message="away") if away else None

    read = scene.store.task

    async def unreadable(key):  # type: ignore[no-untyped-def]
        if away:
            raise StoreUnavailable("away")
        return await read(key)

    scene.store.before, scene.store.task = lose, unreadable  # type: ignore[method-assign]
    scene.store.put("q", name="t")
    with pytest.raises(TryAgainLater, match="rows are left in the outbox"):
        await scene.work(echo(), patience_seconds=0.05)
    assert [row.status for row in scene.rows()] == [RowStatus.PENDING]
    away, scene.store.before = False, lambda mutation: None
    tally = await scene.work(forbidden())
    assert tally == {"DUPLICATE": 1}
    assert scene.store.look("t").count == 1


async def test_a_stale_row_is_parked_and_dies_when_another_settles_the_task(scene: Scene) -> None:
    told: list[tuple[RowStatus, Verdict | None]] = []
    worker = forbidden()
    worker.on_refused(lambda row, verdict: told.append((row.status, verdict)))
    task = scene.store.put("q", name="t")
    with scene.outbox() as outbox:
        outbox.store_result(result_row(await scene.claimed(task, outbox), "ours"))
    scene.store.expire_lease("t")
    scene.store.advance(60)
    theirs = await scene.claimed_as(task, other_holder())
    tally = await scene.work(worker)
    assert tally == {"REJECTED_STALE_TOKEN": 1}
    assert [row.status for row in scene.rows()] == [RowStatus.PARKED]
    await _settle(scene, theirs, "theirs")
    await scene.work(worker)
    (row,) = scene.rows()
    assert (row.status, scene.store.look("t").receipts[-1].value) == (RowStatus.DEAD, "theirs")
    assert told == [
        (RowStatus.PARKED, Verdict.REJECTED_STALE_TOKEN),
        (RowStatus.DEAD, Verdict.REJECTED_STALE_TOKEN),
    ]


async def test_an_expired_lease_has_a_verdict_of_its_own(scene: Scene) -> None:
    task = scene.store.put("q", name="t")
    with scene.outbox() as outbox:
        outbox.store_result(result_row(await scene.claimed(task, outbox), "ours"))
    scene.store.expire_lease("t")
    assert await scene.work(forbidden()) == {"REJECTED_EXPIRED_LEASE": 1}
    assert [row.status for row in scene.rows()] == [RowStatus.PARKED]


async def test_a_parked_row_is_handed_in_when_the_task_is_claimed_again_and_not_executed(
    scene: Scene,
) -> None:
    task = scene.store.put("q", name="t")
    with scene.outbox() as outbox:
        row = outbox.store_result(result_row(await scene.claimed(task, outbox), "ours"))
        outbox.park(row.id, "stale")
    scene.store.expire_lease("t")
    scene.store.advance(3600)
    tally = await scene.work(forbidden())
    receipt = scene.store.look("t").receipts[0]
    assert tally == {"claims": 1, "not executed again": 1, "RECOVERED": 1}
    assert (receipt.value, receipt.fencing_token) == ("ours", 2)


async def test_a_replay_comes_before_the_fence(scene: Scene) -> None:
    """The submit was stored, its answer lost, the worker died, another one holds the task now."""
    task = scene.store.put("q", name="t")
    with scene.outbox() as outbox:
        held = await scene.claimed(task, outbox)
        row = outbox.store_result(result_row(held, "", outcome=Outcome.UNKNOWN))
        await _submit(scene, held, row)
    assert scene.store.look("t").state is State.UNKNOWN
    scene.store.expire_lease("t")
    assert await scene.work(forbidden()) == {"DUPLICATE": 1}
    assert [row.status for row in scene.rows()] == [RowStatus.ACKNOWLEDGED]


async def test_poison_rows_become_dead_letters_and_the_others_are_delivered(scene: Scene) -> None:
    scene.store.put("q", {"n": 1}, name="good")
    gone, taken, large = (scene.store.put("q", name=name) for name in ("gone", "taken", "large"))
    with scene.outbox() as outbox:
        outbox.store_result(result_row(await scene.claimed(gone, outbox), "x"))
        conflicting = await scene.claimed(taken, outbox)
        row = outbox.store_result(
            replace(result_row(conflicting, "one", kind=Kind.ROW), idempotency_key="key")
        )
        other = replace(row, value="another", payload_sha256="0" * 64)
        await _submit(scene, conflicting, other)
        outbox.store_result(result_row(await scene.claimed(large, outbox), "y" * 100))
    await scene.store.delete_task("gone")
    scene.store.put("q", name="gone")  # another object under the name
    scene.store.before = _too_large_for_the_store
    tally = await scene.work(echo())
    reasons = {row.task_key.name: row.reason for row in scene.rows() if row.status is RowStatus.DEAD}
    assert set(reasons) == {"gone", "taken", "large"}
    assert "unresolved: the task default/gone is gone" in reasons["gone"]
    assert "the key has a receipt of another body" in reasons["taken"]
    assert reasons["large"] == "too large for the store: over a limit"
    assert scene.store.look("good").state is State.SUCCEEDED
    assert (tally["UNKNOWN_TASK"], tally["CONFLICT"], tally["unacceptable"]) == (1, 1, 1)


def _too_large_for_the_store(mutation: Mutation) -> Answer | None:
    large = isinstance(mutation, Submit) and mutation.receipt.value == "y" * 100
    return Refused(cause=Cause.TOO_LARGE, message="over a limit") if large else None


async def test_a_row_that_the_task_has_no_room_for_is_a_dead_letter_at_once(scene: Scene) -> None:
    with scene.outbox() as outbox:
        held = await scene.claimed(scene.store.put("q", name="t"), outbox)
        row = outbox.store_result(result_row(held, "one too many", kind=Kind.ROW))
        for number in range(28):
            other = replace(row, value=str(number), idempotency_key=f"key {number}")
            held = await _submit(scene, held, other)
    tally = await scene.work(forbidden())
    assert tally == {"unacceptable": 1, "released, start": 1}
    assert scene.store.of_kind(Submit) == []
    assert "28 is the limit for one that does not settle it" in scene.rows()[0].reason


async def test_an_error_of_a_megabyte_is_cut_and_the_row_is_sent_again(scene: Scene) -> None:
    def refuse(mutation: Mutation) -> Answer | None:
        first = isinstance(mutation, Submit) and len(scene.store.of_kind(Submit)) == 1
        return Refused(cause=Cause.OVERLOADED, message="e" * 1_000_000) if first else None

    scene.store.before = refuse
    scene.store.put("q", name="t")
    assert await scene.work(echo()) == {"claims": 1, "ACCEPTED": 1}
    assert len(scene.rows()[0].last_error) <= 1024


async def test_dead_letters_are_not_sent_again(scene: Scene) -> None:
    task = scene.store.put("q", name="t")
    with scene.outbox() as outbox:
        outbox.store_result(result_row(await scene.claimed(task, outbox), "x"))
    await scene.store.delete_task("t")
    await scene.work(forbidden())
    scene.store.writes.clear()
    scene.store.reads.clear()
    await scene.work(forbidden())
    assert (scene.store.writes, scene.store.reads["task"]) == ([], 0)


async def test_refused_by_admission_twice_is_reported_and_not_tried_for_ever(scene: Scene) -> None:
    worker, told = echo(), list[Row]()
    worker.on_refused(lambda row, verdict: told.append(row))

    def refuse(mutation: Mutation) -> Answer | None:
        refused = Refused(cause=Cause.ADMISSION, message="no receipts today")
        return refused if isinstance(mutation, Submit) else None

    scene.store.before = refuse
    scene.store.put("q", name="t")
    await scene.work(worker)
    assert len(scene.store.of_kind(Submit)) == 2 + 2  # once more when the lease is adopted, then given up
    assert told[-1].reason == "refused by admission: no receipts today"


async def test_refused_by_admission_once_may_be_a_race(scene: Scene) -> None:
    def refuse(mutation: Mutation) -> Answer | None:
        first = isinstance(mutation, Submit) and len(scene.store.of_kind(Submit)) == 1
        return Refused(cause=Cause.ADMISSION, message="not yet") if first else None

    scene.store.before = refuse
    scene.store.put("q", name="t")
    assert await scene.work(echo()) == {"claims": 1, "ACCEPTED": 1}


@pytest.mark.parametrize("cause", [Cause.FORBIDDEN, Cause.OVERLOADED])
async def test_what_may_pass_stays_pending_and_is_sent_again(scene: Scene, cause: Cause) -> None:
    def refuse(mutation: Mutation) -> Answer | None:
        first = isinstance(mutation, Submit) and len(scene.store.of_kind(Submit)) == 1
        return Refused(cause=cause, message="not now") if first else None

    scene.store.before = refuse
    scene.store.put("q", name="t")
    assert await scene.work(echo()) == {"claims": 1, "ACCEPTED": 1}
    assert [row.tries for row in scene.rows()] == [1]


async def test_an_older_schema_ends_the_worker_and_the_row_stays(scene: Scene) -> None:
    def drop(mutation: Mutation) -> Answer | None:
        refused = Refused(cause=Cause.SCHEMA, message="receipts[0].fencingToken was dropped")
        return refused if isinstance(mutation, Submit) else None

    scene.store.before = drop
    scene.store.put("q", name="t")
    with pytest.raises(SchemaTooOld, match=r"fencingToken was dropped; install the CRDs"):
        await scene.work(echo())
    assert [row.status for row in scene.rows()] == [RowStatus.PENDING]
    scene.store.before = lambda mutation: None
    assert await scene.work(forbidden()) == {"RECOVERED": 1}
    assert scene.store.look("t").count == 1


async def test_one_row_that_cannot_be_read_does_not_hold_up_the_rest(scene: Scene) -> None:
    with scene.outbox() as outbox:
        for name in ("a", "b"):
            held = await scene.claimed(scene.store.put("q", name=name), outbox)
            outbox.store_result(result_row(held, name))
    read, order = scene.store.task, list[str]()

    async def once_unavailable(key):  # type: ignore[no-untyped-def]
        order.append(key.name)
        if len(order) == 1:
            raise StoreUnavailable("a 500")
        return await read(key)

    async def not_adopted(outbox: str) -> list[object]:
        return []

    scene.store.task, scene.store.unsettled_of_outbox = once_unavailable, not_adopted  # type: ignore
    await scene.work(forbidden())
    assert order == ["a", "b", "a"]
    assert {scene.store.look(name).state for name in "ab"} == {State.SUCCEEDED}


async def test_a_task_that_nobody_can_read_holds_up_its_own_row_only(scene: Scene) -> None:
    with scene.outbox() as outbox:
        for name in ("broken", "fine"):
            held = await scene.claimed(scene.store.put("q", name=name), outbox)
            outbox.store_result(result_row(held, name))
    read, tries = scene.store.task, list[str]()

    async def unreadable_at_first(key):  # type: ignore[no-untyped-def]
        tries.append(key.name)
        if tries.count("broken") == 1 and key.name == "broken":
            raise StoreRefused("LeasedTask default/broken: spec.queue: 7 is no text", Cause.SCHEMA)
        return await read(key)

    async def not_adopted(outbox: str) -> list[object]:
        return []

    scene.store.task, scene.store.unsettled_of_outbox = unreadable_at_first, not_adopted  # type: ignore
    await scene.work(forbidden())
    assert tries == ["broken", "fine", "broken"]
    assert {row.status for row in scene.rows()} == {RowStatus.ACKNOWLEDGED}


async def test_the_drain_keeps_the_order_of_the_rows_of_a_task(scene: Scene) -> None:
    with scene.outbox() as outbox:
        held = await scene.claimed(scene.store.put("q", name="t"), outbox)
        outbox.store_result(result_row(held, "row", kind=Kind.ROW))
        outbox.store_result(result_row(held, "result"))

    async def not_adopted(outbox: str) -> list[object]:
        return []

    def overloaded(mutation: Mutation) -> Answer | None:
        first = isinstance(mutation, Submit) and len(scene.store.of_kind(Submit)) == 1
        return Refused(cause=Cause.OVERLOADED, message="429") if first else None

    scene.store.before = overloaded
    scene.store.unsettled_of_outbox = not_adopted  # type: ignore
    await scene.work(forbidden())
    assert [receipt.value for receipt in scene.store.look("t").receipts] == ["row", "result"]


async def test_a_result_waits_for_the_rows_that_were_emitted_before_it(scene: Scene) -> None:
    """Else the result settles the task, and the row finds it settled and is lost."""
    worker = Worker(queue="q")

    @worker.task
    def handle(request: dict, lease: Lease) -> str:  # type: ignore[type-arg]
        return f"after {lease.emit('row').verdict}"

    def overloaded(mutation: Mutation) -> Answer | None:
        first = isinstance(mutation, Submit) and len(scene.store.of_kind(Submit)) == 1
        return Refused(cause=Cause.OVERLOADED, message="429") if first else None

    scene.store.before = overloaded
    scene.store.put("q", name="t")
    await scene.work(worker)
    assert [receipt.value for receipt in scene.store.look("t").receipts] == ["row", "after RETRY_LATER"]


async def test_a_task_that_its_job_deleted_is_resolved_by_the_jobs_record(scene: Scene) -> None:
    """The submit was applied, the answer lost, then the branch was recorded and its task deleted."""
    await scene.job("job", "a")
    (task,) = await scene.store.tasks()
    with scene.outbox() as outbox:
        held = await scene.claimed(task, outbox)
        for kind, value in ((Kind.ROW, "row"), (Kind.RESULT, "done")):
            row = outbox.store_result(result_row(held, value, kind=kind))
            held = await _submit(scene, held, row)
            if kind is Kind.ROW:
                outbox.acknowledge(row.id, held.receipts[-1], Verdict.ACCEPTED)
    scene.store.keep()
    await scene.store.delete_task(task.key.name)
    assert await scene.work(forbidden()) == {"DUPLICATE": 1}
    assert {row.status for row in scene.rows()} == {RowStatus.ACKNOWLEDGED}


async def test_a_task_that_is_gone_with_another_result_recorded_is_a_dead_letter(scene: Scene) -> None:
    await scene.job("job", "a")
    (task,) = await scene.store.tasks()
    with scene.outbox() as outbox:
        outbox.store_result(result_row(await scene.claimed(task, outbox), "ours"))
    scene.store.expire_lease(task.key.name)
    scene.store.advance(3600)
    await _settle(scene, await scene.claimed_as(task, other_holder()), "theirs")
    scene.store.keep()
    await scene.store.delete_task(task.key.name)
    await scene.work(forbidden())
    (row,) = scene.rows()
    assert row.status is RowStatus.DEAD
    assert row.reason == "the task is gone; its job has recorded another result (Ok) for branch 'a'"


async def test_what_on_refused_raises_does_not_end_the_worker(scene: Scene) -> None:
    worker = forbidden()

    @worker.on_refused
    def explode(row: Row, verdict: Verdict | None) -> None:
        raise RuntimeError("the user's own")

    task = scene.store.put("q", name="t")
    with scene.outbox() as outbox:
        outbox.store_result(result_row(await scene.claimed(task, outbox), "x"))
    await scene.store.delete_task("t")
    assert await scene.work(worker) == {"UNKNOWN_TASK": 1}


async def test_a_release_whose_answer_is_lost_keeps_its_reason(scene: Scene) -> None:
    """The release never arrives within our patience; the next turn sends it again, as the error it was."""
    worker = Worker(queue="q")

    @worker.task
    def handle(request: dict) -> None:  # type: ignore[type-arg]
        raise ValueError("the feed is broken")

    def unanswered(mutation: Mutation) -> Answer | None:
        first = isinstance(mutation, Release) and len(scene.store.of_kind(Release)) == 1
        return Refused(cause=Cause.OVERLOADED, message="429") if first else None

    scene.store.before = unanswered
    scene.store.put("q", name="t")
    await scene.work(worker)
    task = scene.store.look("t")
    assert task.last_lease is not None
    assert (task.last_lease.end.value, task.last_lease.message) == (
        "error",
        "ValueError: the feed is broken",
    )
    assert (task.token, task.failures, task.hold) == (1, 1, Hold.BACKOFF)


async def _submit(scene: Scene, held: object, row: Row):  # type: ignore[no-untyped-def]
    from fencepost.protocol.submission import judge
    from fencepost.worker.handing_in import submit_of

    judgement = judge(held, row.submission(recorded_by=await scene.store.account()))  # type: ignore[arg-type]
    assert judgement.append and judgement.receipt
    answer = await MemoryStore.write(scene.store, submit_of(held, judgement.receipt))  # type: ignore[arg-type]
    return answer.task  # type: ignore[union-attr]


async def _settle(scene: Scene, held, value: str) -> None:  # type: ignore[no-untyped-def]
    from fencepost.worker import bare_lease

    lease = bare_lease.BareLease(key=held.key, uid=held.uid, token=held.token, holder=held.holder)
    await bare_lease.submit(scene.store, lease, kind=Kind.RESULT, outcome=Outcome.OK, value=value)
