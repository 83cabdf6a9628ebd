"""What an earlier lease of a task left in the outbox, once the same worker claims the task again."""

from __future__ import annotations

from fencepost import Lease, Verdict, Worker
from fencepost.ports import Answer, Cause, Refused, Unanswered
from fencepost.protocol.drain import RowStatus
from fencepost.protocol.mutation import Mutation, Submit
from fencepost.protocol.task import Kind, State
from tests.worker.scene import Scene, result_row


def values(scene: Scene) -> list[str]:
    return [receipt.value for receipt in scene.store.look("t").receipts]


async def test_rows_of_an_earlier_lease_are_handed_in_before_the_handler_runs_again(scene: Scene) -> None:
    """In the order they were made, whether they still wait or are parked."""
    task = scene.store.put("q", name="t")
    with scene.outbox() as outbox:
        held = await scene.claimed(task, outbox)
        parked, _, dead = (
            outbox.store_result(result_row(held, value, kind=Kind.ROW)) for value in ("1", "2", "dead")
        )
        outbox.park(parked.id, "stale")
        outbox.kill(dead.id, "poison")
    scene.store.expire_lease("t")
    scene.store.advance(3600)
    worker, before = Worker(queue="q"), list[list[str]]()

    @worker.task
    def handle(request: dict, lease: Lease) -> str:  # type: ignore[type-arg]
        before.append(values(scene))
        return "done"

    await scene.work(worker)
    assert before == [["1", "2"]]
    assert values(scene) == ["1", "2", "done"]
    assert [receipt.fencing_token for receipt in scene.store.look("t").receipts] == [2, 2, 2]
    assert [row.status for row in scene.rows()].count(RowStatus.DEAD) == 1


async def test_a_row_that_was_emitted_while_the_store_was_away_is_not_left_behind(scene: Scene) -> None:
    worker, away = Worker(queue="q"), True
    verdicts: list[Verdict | None] = []

    @worker.task
    def handle(request: dict, lease: Lease) -> str:  # type: ignore[type-arg]
        verdicts.append(lease.emit(f"page {lease.token}").verdict)
        if lease.token == 1:
            raise ConnectionError("the feed is away too")
        return "done"

    def no_submit(mutation: Mutation) -> Answer | None:
        return Unanswered(message="away") if away and isinstance(mutation, Submit) else None

    scene.store.before = no_submit
    scene.store.put("q", name="t")
    await scene.work(worker, patience_seconds=0.05)
    away = False
    scene.store.advance(3600)
    await scene.work(worker)
    assert verdicts == [Verdict.RETRY_LATER, Verdict.ACCEPTED]
    assert values(scene) == ["page 1", "page 2", "done"]
    assert {row.status for row in scene.rows()} == {RowStatus.ACKNOWLEDGED}


async def test_rows_of_before_that_still_have_to_wait_go_before_the_result(scene: Scene) -> None:
    """All of them: the second waits under the new lease, although the first could not be sent."""
    task = scene.store.put("q", name="t")
    with scene.outbox() as outbox:
        held = await scene.claimed(task, outbox)
        for value in ("1", "2"):
            outbox.park(outbox.store_result(result_row(held, value, kind=Kind.ROW)).id, "stale")
    scene.store.expire_lease("t")
    scene.store.advance(3600)
    worker, before = Worker(queue="q"), list[list[str]]()

    @worker.task
    def handle(request: dict, lease: Lease) -> str:  # type: ignore[type-arg]
        before.append(values(scene))
        return "done"

    def overloaded(mutation: Mutation) -> Answer | None:
        first = isinstance(mutation, Submit) and len(scene.store.of_kind(Submit)) == 1
        return Refused(cause=Cause.OVERLOADED, message="429") if first else None

    scene.store.before = overloaded
    await scene.work(worker)
    assert before == [[]]
    assert (values(scene), scene.store.look("t").state) == (["1", "2", "done"], State.SUCCEEDED)


async def test_a_lease_that_is_over_while_rows_of_before_are_handed_in_is_not_worked_on(scene: Scene) -> None:
    task = scene.store.put("q", name="t")
    with scene.outbox() as outbox:
        row = outbox.store_result(result_row(await scene.claimed(task, outbox), "row", kind=Kind.ROW))
        outbox.park(row.id, "stale")
    scene.store.expire_lease("t")
    scene.store.advance(3600)
    worker, runs = Worker(queue="q"), list[int]()

    @worker.task
    def handle(request: dict, lease: Lease) -> None:  # type: ignore[type-arg]
        runs.append(lease.token)

    def run_out(mutation: Mutation) -> None:
        if isinstance(mutation, Submit) and len(scene.store.of_kind(Submit)) == 1:
            scene.store.expire_lease("t")

    scene.store.before = run_out
    tally = await scene.work(worker)
    assert (runs, tally["REJECTED_EXPIRED_LEASE"], tally["leases lost"]) == ([], 1, 1)
    assert [row.status for row in scene.rows()] == [RowStatus.PARKED]
