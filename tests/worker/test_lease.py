"""The handle that a handler gets: what it tells, what it does, and when it says that the lease is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fencepost import Lease, LeaseOver, SnapshotUnavailable, SubmissionTooLarge, Verdict, Worker
from fencepost.ports import Answer, Unanswered
from fencepost.protocol.drain import RowStatus
from fencepost.protocol.job import Continuation, ContinuationKind, ContinuationWhen
from fencepost.protocol.mutation import Heartbeat, Mutation, Release
from fencepost.protocol.task import Hold, Kind, LeaseEnd, State
from fencepost.testing.memory import MemoryStore
from tests.worker.scene import Scene, other_holder, result_row


def worker_of(function: object, queue: str = "q") -> Worker:
    worker = Worker(queue=queue)
    worker.task(function)  # type: ignore[type-var]
    return worker


async def test_the_lease_tells_which_task_and_under_which_token(scene: Scene) -> None:
    told: list[object] = []

    def handle(request: dict, lease: Lease) -> str:  # type: ignore[type-arg]
        told.extend([lease.task.name, lease.task.namespace, lease.task.uid, lease.token, lease.attempt])
        told.extend([lease.failures, lease.holder, bool(lease.lost), bool(lease.stopping)])
        lease.check()
        return "done"

    task = scene.store.put("q", name="t")
    await scene.work(worker_of(handle))
    holder = scene.store.look("t").holder
    assert told == ["t", "default", task.uid, 1, 1, 0, holder, False, False]


async def test_a_handler_may_leave_out_the_lease_and_the_request(scene: Scene) -> None:
    scene.store.put("q", name="a")
    await scene.work(worker_of(lambda: "nothing asked"))
    assert scene.store.look("a").receipts[0].value == "nothing asked"


async def test_rows_are_handed_in_like_results_and_each_once(scene: Scene) -> None:
    verdicts: list[Verdict | None] = []

    def handle(request: dict, lease: Lease) -> str:  # type: ignore[type-arg]
        verdicts.extend(lease.emit({"row": number}).verdict for number in (1, 2, 1))
        verdicts.append(lease.emit("x", key="my-key").verdict)
        verdicts.append(lease.emit("x", key="my-other-key").verdict)
        verdicts.append(lease.emit("y", key="my-key").verdict)
        return "done"

    scene.store.put("q", name="t")
    await scene.work(worker_of(handle))
    receipts = scene.store.look("t").receipts
    assert verdicts == ["ACCEPTED", "ACCEPTED", "DUPLICATE", "ACCEPTED", "REJECTED_DUPLICATE", "CONFLICT"]
    assert [receipt.value for receipt in receipts] == ['{"row":1}', '{"row":2}', "x", "done"]
    assert [receipt.kind for receipt in receipts] == [Kind.ROW] * 3 + [Kind.RESULT]


async def test_a_row_that_stood_before_the_crash_is_the_same_row(scene: Scene) -> None:
    """It is handed in before the handler runs, so that what the handler emits again is a replay."""
    task = scene.store.put("q", name="t")
    with scene.outbox() as outbox:
        row = outbox.store_result(result_row(await scene.claimed(task, outbox), "row", kind=Kind.ROW))
        outbox.park(row.id, "its lease was over")
    scene.store.expire_lease("t")
    scene.store.advance(3600)

    def handle(request: dict, lease: Lease) -> str:  # type: ignore[type-arg]
        return f"row: {lease.emit('row').verdict}"

    tally = await scene.work(worker_of(handle))
    assert tally == {"claims": 1, "RECOVERED": 1, "DUPLICATE": 1, "ACCEPTED": 1}
    assert [r.value for r in scene.store.look("t").receipts] == ["row", "row: DUPLICATE"]


async def test_too_many_rows_are_refused_before_anything_is_stored(scene: Scene) -> None:
    def handle(request: dict, lease: Lease) -> str:  # type: ignore[type-arg]
        for number in range(28):
            lease.emit({"row": number})
        assert lease.emit({"row": 3}).verdict == "DUPLICATE"  # a replay needs no room
        with pytest.raises(SubmissionTooLarge, match="28 is the limit"):
            lease.emit("one more")
        return "done"

    scene.store.put("q", name="t")
    await scene.work(worker_of(handle))
    assert (scene.store.look("t").state, len(scene.rows())) == (State.SUCCEEDED, 29)


async def test_a_row_under_a_lease_that_is_over_says_so_and_the_lease_is_lost(scene: Scene) -> None:
    told: list[object] = []

    def handle(request: dict, lease: Lease) -> str:  # type: ignore[type-arg]
        scene.store.expire_lease("t")
        told.append(lease.emit("row").verdict)
        told.append(bool(lease.lost))
        lease.check()
        return "never"

    scene.store.put("q", name="t")
    await scene.work(worker_of(handle))
    assert told == ["REJECTED_EXPIRED_LEASE", True]
    task = scene.store.look("t")
    assert (task.receipts, task.hold) == ((), Hold.BACKOFF)
    assert scene.store.of_kind(Release) == []  # it is not ours to release


async def test_what_comes_after_a_lost_lease_is_not_handed_in_under_the_lease_of_another(
    scene: Scene,
) -> None:
    """FENCE-02: the refused row brings a read that shows the other's token; it must not become ours."""

    async def handle(request: dict, lease: Lease) -> str:  # type: ignore[type-arg]
        scene.store.expire_lease("t")
        scene.store.advance(3600)
        await scene.claimed_as(scene.store.look("t"), other_holder())
        assert (await lease.emit_async("row")).verdict == "REJECTED_STALE_TOKEN"
        assert lease.token == 1
        return "too late"

    scene.store.put("q", name="t")
    await scene.work(worker_of(handle))
    assert (scene.store.look("t").receipts, scene.store.look("t").token) == ((), 2)
    assert [(row.value, row.token, row.status) for row in scene.rows()] == [
        ("row", 1, RowStatus.PARKED),
        ("too late", 1, RowStatus.PARKED),
    ]


async def test_a_key_of_ones_own_is_checked(scene: Scene) -> None:
    def handle(request: dict, lease: Lease) -> str:  # type: ignore[type-arg]
        with pytest.raises(ValueError, match="no control characters"):
            lease.emit("x", key="a\nb")
        return "done"

    scene.store.put("q", name="t")
    await scene.work(worker_of(handle))
    assert scene.store.look("t").state is State.SUCCEEDED


async def test_progress_is_there_for_the_next_attempt(scene: Scene) -> None:
    seen: list[str] = []

    def handle(request: dict, lease: Lease) -> str:  # type: ignore[type-arg]
        seen.append(lease.previous_progress)
        if lease.attempt == 1:
            assert lease.heartbeat("half of it")
            raise ConnectionError("lost")
        return "done"

    scene.store.put("q", name="t")
    await scene.work(worker_of(handle))
    scene.store.advance(3600)
    await scene.work(worker_of(handle))
    assert seen == ["", "half of it"]


async def test_an_async_handler_is_told_to_await(scene: Scene) -> None:
    async def handle(request: dict, lease: Lease) -> str:  # type: ignore[type-arg]
        with pytest.raises(RuntimeError, match=r"await lease\.emit_async"):
            lease.emit("row")
        assert await lease.heartbeat_async()
        return "done"

    scene.store.put("q", name="t")
    await scene.work(worker_of(handle))
    assert scene.store.look("t").state is State.SUCCEEDED


async def test_a_heartbeat_that_finds_the_lease_revoked_loses_it_and_cancels_an_async_handler(
    scene: Scene,
) -> None:
    async def handle(request: dict, lease: Lease) -> str:  # type: ignore[type-arg]
        scene.store.expire_lease("t")
        assert not await lease.heartbeat_async()
        await asyncio.sleep(60)
        return "never"

    scene.store.put("q", name="t")
    tally = await scene.work(worker_of(handle))
    assert tally == {"claims": 1, "leases lost": 1, "ended without a result": 1}
    assert scene.store.of_kind(Release) == []  # there is nothing left to release


async def test_a_heartbeat_that_is_refused_because_an_earlier_one_got_in_ends_nothing(scene: Scene) -> None:
    """The error after it is released, and counts."""

    async def handle(request: dict, lease: Lease) -> str:  # type: ignore[type-arg]
        assert await lease.heartbeat_async()
        assert not lease.lost
        raise ConnectionError("the feed is away")

    def renewed_by_a_copy(mutation: Mutation) -> None:
        if isinstance(mutation, Heartbeat) and len(scene.store.of_kind(Heartbeat)) == 1:
            scene.store._transact(lambda ledger: ledger.write(mutation))

    scene.store.before = renewed_by_a_copy
    scene.store.put("q", name="t")
    tally = await scene.work(worker_of(handle))
    assert tally == {"claims": 1, "ended without a result": 1, "released, error": 1}
    assert scene.store.look("t").failures == 1


@contextmanager
def no_heartbeat_gets_through(store: MemoryStore) -> Iterator[None]:
    def lose(mutation: Mutation) -> Answer | None:
        return Unanswered(message="no network") if isinstance(mutation, Heartbeat) else None

    store.before = lose  # type: ignore[attr-defined]
    yield
    store.before = lambda mutation: None  # type: ignore[attr-defined]


@pytest.mark.slow
async def test_past_its_own_deadline_the_lease_is_lost_though_the_server_still_has_it(scene: Scene) -> None:
    """The handler has to stop; what it returns is handed in all the same, and the server judges."""
    waited: list[bool] = []

    def handle(request: dict, lease: Lease) -> str:  # type: ignore[type-arg]
        waited.append(lease.lost.wait(10))
        return "late, and still ours"

    scene.store.put("q", name="t", lease_duration_seconds=1)
    with no_heartbeat_gets_through(scene.store):
        await scene.work(worker_of(handle))
    assert waited == [True]
    assert scene.store.look("t").receipts[0].value == "late, and still ours"


async def test_a_late_result_of_a_lease_that_is_over_is_parked(scene: Scene) -> None:
    def handle(request: dict, lease: Lease) -> str:  # type: ignore[type-arg]
        scene.store.expire_lease("t")
        return "too late"

    scene.store.put("q", name="t")
    assert (await scene.work(worker_of(handle)))["REJECTED_EXPIRED_LEASE"] == 1
    assert [row.reason for row in scene.rows()] == [
        "the lease with token 1 has ended (revoked: it ran out): nobody holds the task now"
    ]


async def test_a_lease_that_was_left_is_a_retryable_error_with_a_reason(scene: Scene) -> None:
    def handle(request: dict, lease: Lease) -> str:  # type: ignore[type-arg]
        raise LeaseOver("checked")

    scene.store.put("q", name="t")
    await scene.work(worker_of(handle))
    last = scene.store.look("t").last_lease
    assert last is not None
    assert last.end is LeaseEnd.ERROR


CONTINUATION = Continuation(
    when=ContinuationWhen.SETTLED,
    kind=ContinuationKind.LEASED_TASK,
    template='{"apiVersion":"fencepost.dev/v1alpha1","kind":"LeasedTask",'
    '"spec":{"queue":"then","request":{"mode":"check"}}}',
)


async def joined(scene: Scene, value: str, *branches: str) -> None:
    """A job whose branches all came to `value`, with its continuation ready."""
    await scene.job("job", *branches, continuation=CONTINUATION)
    await scene.work(worker_of(lambda: value))
    for _ in range(5):
        scene.store.keep()


@pytest.mark.parametrize("size", [10, 2_000])
async def test_a_continuation_sees_all_branches_small_or_by_reference(scene: Scene, size: int) -> None:
    seen: dict[str, object] = {}

    def then(request: dict, lease: Lease) -> int:  # type: ignore[type-arg]
        seen.update({name: (b.outcome.value, b.value) for name, b in lease.branches().items()})
        return len(seen)

    await joined(scene, "v" * size, "b", "a")
    await scene.work(worker_of(then, "then"))
    assert list(seen) == ["a", "b"]
    assert seen["a"] == ("Ok", "v" * size)


@pytest.mark.slow
async def test_a_continuation_of_a_large_job_reads_the_snapshot_from_the_job(scene: Scene) -> None:
    seen: list[str] = []

    async def then(request: dict, lease: Lease) -> int:  # type: ignore[type-arg]
        assert "branches" not in request["snapshot"]
        seen.extend(await lease.branches_async())
        return len(seen)

    await joined(scene, "v" * 200, *(f"branch {number}" for number in range(100)))
    await scene.work(worker_of(then, "then"))
    assert len(seen) == 100


async def test_a_value_that_is_gone_is_told(scene: Scene) -> None:
    def then(request: dict, lease: Lease) -> None:  # type: ignore[type-arg]
        with pytest.raises(SnapshotUnavailable, match="the value of branch 'a' is missing"):
            lease.branches()

    await joined(scene, "v" * 2_000, "a")
    for task in await scene.store.tasks("q"):
        await scene.store.delete_task(task.key.name)
    await scene.work(worker_of(then, "then"))
    (task,) = await scene.store.tasks("then")
    assert task.state is State.SUCCEEDED


async def test_a_task_that_is_no_continuation_has_no_branches(scene: Scene) -> None:
    def handle(request: dict, lease: Lease) -> None:  # type: ignore[type-arg]
        with pytest.raises(SnapshotUnavailable, match="is no continuation"):
            lease.branches()

    scene.store.put("q", name="t")
    await scene.work(worker_of(handle))
    assert scene.store.look("t").state is State.SUCCEEDED
