"""Leases that are ours and that nobody works on: after a crash, after a late claim, after a lost answer."""

from __future__ import annotations

import shutil
import time
from itertools import pairwise

import pytest

from fencepost import Worker
from fencepost.outbox.audit import FindingKind, audit_report
from fencepost.ports import Answer, StoreUnavailable, Unanswered
from fencepost.protocol.drain import RowStatus
from fencepost.protocol.mutation import Claim, Mutation, Release, Submit
from fencepost.protocol.task import Hold, Kind, LeaseEnd, Outcome, State
from tests.worker.scene import Scene, echo, forbidden, result_row


async def test_a_result_of_the_dead_process_is_handed_in_under_its_own_lease(scene: Scene) -> None:
    task = scene.store.put("q", name="t")
    with scene.outbox() as outbox:
        held = await scene.claimed(task, outbox)
        outbox.store_result(result_row(held, "done"))
    tally = await scene.work(forbidden())
    (receipt,) = scene.store.look("t").receipts
    assert tally == {"RECOVERED": 1}
    assert (receipt.holder, receipt.fencing_token) == (held.holder, 1)


async def test_rows_that_the_dead_process_emitted_are_handed_in_before_its_lease_is_released(
    scene: Scene,
) -> None:
    task = scene.store.put("q", name="t")
    with scene.outbox() as outbox:
        held = await scene.claimed(task, outbox)
        outbox.store_result(result_row(held, "row", kind=Kind.ROW))
    tally = await scene.work(forbidden())
    task = scene.store.look("t")
    assert tally == {"RECOVERED": 1, "released, start": 1}
    assert [receipt.kind for receipt in task.receipts] == [Kind.ROW]
    assert (task.hold, task.failures) == (Hold.BACKOFF, 1)


async def test_a_parked_row_is_handed_in_under_a_claim_that_came_late(scene: Scene) -> None:
    """The row was emitted under token 1, which ran out; token 2 is a claim that the dead process had sent."""
    task = scene.store.put("q", name="t")
    with scene.outbox() as outbox:
        row = outbox.store_result(result_row(await scene.claimed(task, outbox), "row", kind=Kind.ROW))
        outbox.park(row.id, "stale")
        scene.store.expire_lease("t")
        scene.store.advance(3600)
        await scene.claimed(task, outbox)
    assert await scene.work(forbidden()) == {"RECOVERED": 1, "released, start": 1}
    (receipt,) = scene.store.look("t").receipts
    assert (receipt.value, receipt.fencing_token) == ("row", 2)


async def test_a_lease_of_the_dead_process_without_a_result_is_released_and_counts(scene: Scene) -> None:
    """Or a task that kills its worker would loop for ever."""
    task = scene.store.put("q", name="t")
    with scene.outbox() as outbox:
        await scene.claimed(task, outbox)
    assert await scene.work(forbidden()) == {"released, start": 1}
    task = scene.store.look("t")
    assert (task.hold, task.failures) == (Hold.BACKOFF, 1)
    assert task.last_lease is not None
    assert task.last_lease.end is LeaseEnd.START


async def test_a_claim_of_the_dead_process_may_be_applied_late(scene: Scene) -> None:
    """It comes while the new process runs: the next turn of the loop finds it."""
    task = scene.store.put("other", name="late")
    scene.store.put("q", name="t")
    with scene.outbox() as outbox:
        earlier = outbox.holder
    worker = Worker(queue="q")

    @worker.task
    async def handle(request: dict) -> None:  # type: ignore[type-arg]
        await scene.claimed_as(task, earlier)

    await scene.work(worker)
    assert scene.store.look("late").hold is Hold.BACKOFF


async def test_a_claim_whose_answer_never_comes_is_let_go_of_without_a_failure(scene: Scene) -> None:
    away = False

    def lose(mutation: Mutation) -> Answer | None:
        nonlocal away
        if isinstance(mutation, Claim) and not away:
            away = True
            scene.store.lose_next_answer()
            return None
        return Unanswered(message="away") if isinstance(mutation, Claim) else None

    read = scene.store.task

    async def unreadable(key):  # type: ignore[no-untyped-def]
        if away:
            raise StoreUnavailable("away")
        return await read(key)

    scene.store.before, scene.store.task = lose, unreadable  # type: ignore[method-assign]
    scene.store.put("q", name="t", lease_duration_seconds=60)

    async def come_back(queue: str, limit: int):  # type: ignore[no-untyped-def]
        nonlocal away
        if away:
            away, scene.store.before = False, lambda mutation: None
        return await type(scene.store).claimable(scene.store, queue, limit)

    scene.store.claimable = come_back  # type: ignore[method-assign]
    tally = await scene.work(echo(), patience_seconds=0.05)
    task = scene.store.look("t")
    assert (task.state, task.token, task.failures) == (State.SUCCEEDED, 2, 0)
    assert tally["released, shutdown"] == 1


async def test_an_accepted_unknown_that_was_not_released_is_released_after_the_crash(scene: Scene) -> None:
    from tests.worker.test_delivery import _submit

    task = scene.store.put("q", name="t")
    with scene.outbox() as outbox:
        held = await scene.claimed(task, outbox)
        row = outbox.store_result(result_row(held, "", outcome=Outcome.UNKNOWN))
        await _submit(scene, held, row)
    tally = await scene.work(forbidden())
    assert tally == {"DUPLICATE": 1, "released, after-unknown": 1}
    assert scene.store.look("t").hold is Hold.UNKNOWN


async def test_a_result_that_the_server_lost_is_handed_in_again(scene: Scene) -> None:
    """A store restored from a backup shows our lease again, and the row here is acknowledged."""
    scene.store.put("q", {"n": 1}, name="t")
    backup = None

    def keep_backup(mutation: Mutation) -> None:
        nonlocal backup
        if isinstance(mutation, Submit) and backup is None:
            backup = scene.store._drawers.copy()

    scene.store.before = keep_backup
    await scene.work(echo())
    assert backup is not None
    scene.store._drawers = backup
    assert scene.store.look("t").state is State.OPEN
    await scene.work(forbidden())
    assert scene.store.look("t").receipts[0].value == '{"n":1}'


async def test_another_outboxs_lease_is_left_alone(scene: Scene) -> None:
    from tests.worker.scene import other_holder

    task = scene.store.put("q", name="t")
    await scene.claimed_as(task, other_holder())
    assert await scene.work(forbidden()) == {}
    assert scene.store.of_kind(Release) == []


async def test_a_lost_outbox_file_is_noticed_at_the_next_start(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    task = scene.store.put("q", name="t")
    with scene.outbox() as outbox:
        await scene.claimed_as(task, outbox.holder, mark="17 " + "ab" * 32)
    await scene.work(forbidden())
    assert any("rolled back or replaced" in record.message for record in caplog.records)


async def test_an_older_copy_of_the_outbox_is_noticed_at_the_start_and_by_the_audit(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """All of its work is settled, and the last claim carries no step that the copy lacks."""
    scene.store.put("q", name="a")
    await scene.work(echo())
    shutil.copy(scene.folder / "outbox.db", scene.folder / "older.db")
    scene.store.put("q", name="b")
    await scene.work(echo())
    assert caplog.records == []
    shutil.copy(scene.folder / "older.db", scene.folder / "outbox.db")

    await scene.work(forbidden())
    [told] = [record.getMessage() for record in caplog.records]
    assert told.startswith("default/b: the receipt ")
    assert told.endswith(" has no row here (see `fencepost audit`)")
    with scene.outbox() as outbox:
        report = audit_report(outbox, await scene.store.claimed_by_outbox(outbox.uuid))
    assert (FindingKind.ROW_MISSING, report.ok) in {(finding.kind, report.ok) for finding in report.findings}


async def test_of_many_rows_that_are_gone_the_log_tells_a_few_and_how_many_more(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.store.put("q", name="first")
    await scene.work(echo())
    shutil.copy(scene.folder / "outbox.db", scene.folder / "older.db")
    for number in range(9):
        scene.store.put("q", name=f"t{number}")
    await scene.work(echo())
    shutil.copy(scene.folder / "older.db", scene.folder / "outbox.db")
    await scene.work(forbidden())
    assert len(caplog.records) == 6
    assert " more of its own" in caplog.messages[-1]


async def test_rows_of_the_outbox_wait_for_their_turn_while_put_off(scene: Scene) -> None:
    from fencepost.ports import Cause, Refused

    times: list[float] = []

    def refuse(mutation: Mutation) -> Answer | None:
        if not isinstance(mutation, Submit):
            return None
        times.append(time.monotonic())
        refused = Refused(cause=Cause.OVERLOADED, message="429", retry_after_seconds=0.05)
        return refused if len(times) <= 2 else None

    scene.store.before = refuse
    scene.store.put("q", name="t")
    await scene.work(echo())
    assert len(times) == 3
    assert min(later - earlier for earlier, later in pairwise(times)) >= 0.05
    assert [row.status for row in scene.rows()] == [RowStatus.ACKNOWLEDGED]
