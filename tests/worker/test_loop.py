"""The loop on the common path, and every way in which a handler can end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from fencepost import Lease, OutcomeUnknown, Rejected, Worker
from fencepost.protocol.drain import RowStatus
from fencepost.protocol.mutation import Claim, Heartbeat, Mutation, Release, Submit
from fencepost.protocol.receipt import verify_chain
from fencepost.protocol.task import Hold, LeaseEnd, Outcome, State, UnknownPolicy
from fencepost.worker.failures import AppUnusable
from tests.worker.scene import Scene, echo


async def test_a_task_costs_a_claim_and_a_submit_and_no_further_read(scene: Scene) -> None:
    for number in range(3):
        scene.store.put("q", {"n": number}, name=f"t{number}")
    tally = await scene.work(echo())
    assert [type(write) for write in scene.store.writes] == [Claim, Submit] * 3
    assert scene.store.reads == {"claimable": 2}
    assert tally == {"claims": 3, "ACCEPTED": 3}


async def test_the_result_is_settled_with_one_receipt_that_the_outbox_has_too(scene: Scene) -> None:
    scene.store.put("q", {"n": 1}, name="t")
    await scene.work(echo())
    task = scene.store.look("t")
    verify_chain(task)
    (row,) = scene.rows()
    assert (task.state, task.receipts[0].value, task.token) == (State.SUCCEEDED, '{"n":1}', 1)
    assert (row.status, row.receipt) == (RowStatus.ACKNOWLEDGED, task.receipts[0])
    assert task.holder.startswith(task.receipts[0].holder)


async def test_once_with_nothing_to_do_ends(scene: Scene) -> None:
    assert await scene.work(echo()) == {}


async def test_an_async_handler_runs_on_the_loop(scene: Scene) -> None:
    worker = Worker(queue="q")

    @worker.task
    async def handle(request: dict, lease: Lease) -> str:  # type: ignore[type-arg]
        emitted = await lease.emit_async("a row")
        return f"after {emitted.verdict}"

    scene.store.put("q", name="t")
    await scene.work(worker)
    assert [receipt.value for receipt in scene.store.look("t").receipts] == ["a row", "after ACCEPTED"]


async def test_queues_are_a_waterfall(scene: Scene) -> None:
    worker = Worker(queues=["urgent", "usual"])
    order: list[str] = []

    @worker.task(queue="urgent")
    def urgent(request: dict) -> None:  # type: ignore[type-arg]
        order.append("urgent")

    @worker.task(queue="usual")
    def usual(request: dict) -> None:  # type: ignore[type-arg]
        order.append("usual")
        if len(order) == 1:
            raise AssertionError("the first queue had something")

    scene.store.put("usual")
    scene.store.put("urgent")
    scene.store.put("urgent")
    await scene.work(worker)
    assert order == ["urgent", "urgent", "usual"]


async def test_higher_priority_first_while_nobody_is_in_the_way(scene: Scene) -> None:
    worker, seen = Worker(queue="q"), list[int]()

    @worker.task
    def handle(request: dict) -> None:  # type: ignore[type-arg]
        seen.append(request["p"])

    for priority in (1, 9, 5):
        scene.store.put("q", {"p": priority}, priority=priority)
    await scene.work(worker)
    assert seen == [9, 5, 1]


async def test_rejected_is_final_and_keeps_its_value(scene: Scene) -> None:
    worker = Worker(queue="q")

    @worker.task
    def handle(request: dict) -> None:  # type: ignore[type-arg]
        raise Rejected({"why": "no such feed"})

    scene.store.put("q", name="t")
    await scene.work(worker)
    task = scene.store.look("t")
    assert (task.state, task.receipts[0].outcome) == (State.FAILED, Outcome.REJECTED)
    assert task.receipts[0].value == '{"why":"no such feed"}'


async def test_an_unknown_settles_nothing_is_released_and_counts_no_failure(scene: Scene) -> None:
    worker = Worker(queue="q")

    @worker.task
    def handle(request: dict) -> None:  # type: ignore[type-arg]
        raise OutcomeUnknown

    scene.store.put("q", name="t")
    await scene.work(worker)
    task = scene.store.look("t")
    assert (task.state, task.hold, task.failures) == (State.UNKNOWN, Hold.UNKNOWN, 0)
    assert [write.end for write in scene.store.of_kind(Release)] == [LeaseEnd.AFTER_UNKNOWN]  # type: ignore[union-attr]


async def test_an_acknowledged_unknown_is_no_result_the_next_claim_executes(scene: Scene) -> None:
    worker, runs = Worker(queue="q"), list[int]()

    @worker.task
    def handle(request: dict, lease: Lease) -> str:  # type: ignore[type-arg]
        runs.append(lease.token)
        if lease.token == 1:
            raise OutcomeUnknown
        return "done"

    scene.store.put("q", name="t", unknown_policy=UnknownPolicy.RECLAIM)
    await scene.work(worker)
    scene.store.advance(3600)
    await scene.work(worker)
    outcomes = [receipt.outcome for receipt in scene.store.look("t").receipts]
    assert (runs, outcomes) == ([1, 2], [Outcome.UNKNOWN, Outcome.OK])


async def test_any_other_exception_is_released_with_its_message_cut(scene: Scene) -> None:
    worker = Worker(queue="q")

    @worker.task
    def handle(request: dict) -> None:  # type: ignore[type-arg]
        raise ConnectionError("x" * 1_000_000)

    scene.store.put("q", name="t")
    await scene.work(worker)
    task = scene.store.look("t")
    assert (task.state, task.hold, task.failures) == (State.OPEN, Hold.BACKOFF, 1)
    assert task.last_lease is not None
    assert task.last_lease.end is LeaseEnd.ERROR
    assert task.last_lease.message.startswith("ConnectionError: xxx")
    assert len(task.last_lease.text().encode()) <= 1024


@pytest.mark.parametrize("leaving", [SystemExit(3), StopIteration(), KeyboardInterrupt(), MemoryError()])
async def test_no_exception_of_a_handler_ends_the_worker(scene: Scene, leaving: BaseException) -> None:
    worker = Worker(queue="q")

    @worker.task
    def handle(request: dict) -> None:  # type: ignore[type-arg]
        raise leaving

    scene.store.put("q", name="t")
    await scene.work(worker)
    task = scene.store.look("t")
    assert task.last_lease is not None
    assert task.last_lease.message.startswith(type(leaving).__name__)


class Feed(BaseModel):
    url: str
    limit: int = 10


class Summary(BaseModel):
    rows: int


class Typed(TypedDict):
    rows: int


@dataclass
class Plain:
    rows: int


async def test_requests_and_results_are_typed(scene: Scene) -> None:
    worker = Worker(queue="q")

    @worker.task
    def handle(request: Feed, lease: Lease) -> Summary:
        return Summary(rows=request.limit)

    scene.store.put("q", {"url": "u", "limit": 3}, name="t")
    await scene.work(worker)
    assert scene.store.look("t").receipts[0].value == '{"rows":3}'


async def test_a_request_that_does_not_fit_names_its_fields_and_is_retried(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker(queue="q")

    @worker.task
    def handle(request: Feed) -> Summary:
        raise AssertionError("executed")

    scene.store.put("q", {"limit": "many"}, name="t")
    await scene.work(worker)
    last = scene.store.look("t").last_lease
    assert last is not None
    assert "does not fit Feed: url: Field required; limit: " in last.message
    [told] = [record for record in caplog.records if record.levelname == "WARNING"]
    assert told.getMessage().startswith(
        "default/t came to no result (failure 1 of 7): the request does not fit Feed: url: "
    )


@pytest.mark.parametrize(
    "annotation", [dict[str, int], Mapping[str, int], Annotated[dict, Field(min_length=2)]]
)
async def test_a_dictionary_with_a_type_inside_is_checked(scene: Scene, annotation: object) -> None:
    worker = Worker(queue="q")

    def handle(request: dict) -> dict:  # type: ignore[type-arg]
        raise AssertionError("executed")

    handle.__annotations__["request"] = annotation
    worker.task(handle)
    scene.store.put("q", {"n": "many"}, name="t")
    await scene.work(worker)
    last = scene.store.look("t").last_lease
    assert last is not None
    assert "the request does not fit" in last.message


async def test_an_error_of_the_handler_is_one_line_with_the_traceback_beside_it(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker(queue="q")

    @worker.task
    def handle(request: dict) -> None:  # type: ignore[type-arg]
        raise ConnectionError("the feed\nis away " + "x" * 10_000)

    scene.store.put("q", name="t")
    await scene.work(worker)
    [told] = [record for record in caplog.records if record.levelname == "WARNING"]
    said = told.getMessage()
    assert "default/t came to no result (failure 1 of 7): ConnectionError: the feed is away x" in said
    assert len(said) < 500
    assert told.exc_info is not None


async def test_the_last_line_says_in_words_what_was_done(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    worker = Worker(queue="q")

    @worker.task
    def handle(request: dict[str, int]) -> int:
        return 1 // request["n"]

    for number in (0, 0, 1):
        scene.store.put("q", {"n": number})
    await scene.work(worker)
    assert caplog.messages[-1] == "ended: 3 claims, 1 accepted, 2 released after an error"
    caplog.clear()
    await scene.work(echo("other"))
    assert caplog.messages[-1] == "ended: there was nothing to do"


@pytest.mark.parametrize(
    ("returned", "annotation", "text"),
    [
        ("as it is ", str, "as it is "),
        ({"b": 1, "a": 1.0}, dict, '{"a":1,"b":1}'),
        (None, None, "null"),
        ([1, "x"], list, '[1,"x"]'),
        (Plain(rows=1), Plain, '{"rows":1}'),
        ({"rows": 2}, Typed, '{"rows":2}'),
        (Summary(rows=3), dict, '{"rows":3}'),
    ],
)
async def test_results_of_every_sort(scene: Scene, returned: object, annotation: object, text: str) -> None:
    worker = Worker(queue="q")

    def handle(request: dict) -> object:  # type: ignore[type-arg]
        return returned

    handle.__annotations__["return"] = annotation
    worker.task(handle)
    scene.store.put("q", name="t")
    await scene.work(worker)
    assert scene.store.look("t").receipts[0].value == text


@pytest.mark.parametrize(
    ("returned", "annotation", "complaint"),
    [
        (float("nan"), float, "RFC 8785"),
        (2**53, int, "RFC 8785"),
        ("\ud800", str, "surrogate"),
        ("x" * 20_000, str, "over the limit of 16384"),
        ({"rows": "many"}, Summary, "does not fit Summary: rows"),
        ({"rows": "many"}, dict[str, int], "does not fit dict[str, int]: rows: Input should be a valid int"),
        ({"rows": float("nan")}, dict[str, float], "RFC 8785"),
        ([1], dict, "does not fit dict: the handler returned list"),
        ({"rows": 1}, None, "does not fit None: the handler returned dict"),
        (None, dict, "does not fit dict: the handler returned NoneType"),
        (object(), dict, "does not fit object: Unable to serialize"),
    ],
)
async def test_a_result_that_cannot_be_kept_is_told_and_nothing_is_stored(
    scene: Scene, returned: object, annotation: object, complaint: str
) -> None:
    worker = Worker(queue="q")

    def handle(request: dict) -> object:  # type: ignore[type-arg]
        return returned

    handle.__annotations__["return"] = annotation
    worker.task(handle)
    scene.store.put("q", name="t")
    await scene.work(worker)
    task = scene.store.look("t")
    assert task.last_lease is not None
    assert complaint in task.last_lease.message
    assert (task.receipts, scene.rows()) == ((), [])


async def test_defer_runs_in_the_transaction_of_the_result(scene: Scene) -> None:
    import sqlite3

    worker = Worker(queue="q")

    @worker.task
    def handle(request: dict, lease: Lease) -> str:  # type: ignore[type-arg]
        lease.defer("CREATE TABLE IF NOT EXISTS effects (task TEXT)")
        lease.defer("INSERT INTO effects VALUES (?)", (lease.task.name,))
        return "done"

    scene.store.put("q", name="t")
    await scene.work(worker)
    with sqlite3.connect(scene.folder / "outbox.db") as file:
        assert file.execute("SELECT task FROM effects").fetchall() == [("t",)]


async def test_a_deferred_statement_that_fails_stores_nothing_and_is_a_retryable_error(scene: Scene) -> None:
    worker = Worker(queue="q")

    @worker.task
    def handle(request: dict, lease: Lease) -> str:  # type: ignore[type-arg]
        lease.defer("INSERT INTO nothing VALUES (1)")
        return "done"

    scene.store.put("q", name="t")
    await scene.work(worker)
    task = scene.store.look("t")
    assert (task.hold, task.receipts, scene.rows()) == (Hold.BACKOFF, (), [])
    assert task.last_lease is not None
    assert "nothing" in task.last_lease.message


@pytest.mark.slow
async def test_heartbeats_go_on_while_the_handler_works(scene: Scene) -> None:
    worker, enough = Worker(queue="q"), asyncio.Event()

    @worker.task
    async def handle(request: dict, lease: Lease) -> str:  # type: ignore[type-arg]
        await enough.wait()
        return "done"

    def count(mutation: Mutation) -> None:
        if len(scene.store.of_kind(Heartbeat)) == 4:
            enough.set()

    scene.store.before = count
    scene.store.put("q", name="t", lease_duration_seconds=1)
    await scene.work(worker)
    task = scene.store.look("t")
    assert (task.state, task.renewals >= 3) == (State.SUCCEEDED, True)


async def test_work_that_is_short_has_no_heartbeat(scene: Scene) -> None:
    scene.store.put("q", lease_duration_seconds=3600)
    await scene.work(echo())
    assert scene.store.of_kind(Heartbeat) == []


class Strange:
    """Nothing that pydantic knows."""


def _with_strange_request(request: Strange) -> None: ...


def test_a_worker_says_what_is_wrong_with_it() -> None:
    with pytest.raises(ValueError, match="either queue= or queues="):
        Worker()
    with pytest.raises(ValueError, match="1 to 63 characters"):
        Worker(queue="q" * 64)
    with pytest.raises(ValueError, match="each once"):
        Worker(queues=["a", "a"])
    worker = Worker(queues=["a", "b"])
    with pytest.raises(AppUnusable, match="say which queue"):
        worker.task(lambda request: None)
    with pytest.raises(AppUnusable, match="no queue c; it has a, b"):
        worker.task(queue="c")(lambda request: None)
    worker.task(queue="a")(lambda request: None)
    with pytest.raises(AppUnusable, match="has a handler already"):
        worker.task(queue="a")(lambda request: None)
    with pytest.raises(AppUnusable, match="no handler for the queue b"):
        _ = worker.handlers
    with pytest.raises(AppUnusable, match="is no type that pydantic knows"):
        worker.task(queue="b")(_with_strange_request)
    with pytest.raises(AppUnusable, match="takes the request and, if it wants, a parameter `lease`"):
        worker.task(queue="b")(lambda request, other, lease: None)
