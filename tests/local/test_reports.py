"""Reports from outside and the one consumption, on the embedded stores (JOIN-03, JOIN-05 to JOIN-09)."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from fencepost.local.jobs import JobApplied
from fencepost.local.store import LocalStore
from fencepost.protocol import limits
from fencepost.protocol.consume import ConsumeVerdict
from fencepost.protocol.fanout import child_name
from fencepost.protocol.job import Branch, JobSpec
from fencepost.protocol.report import Report
from fencepost.protocol.submission import Verdict
from fencepost.protocol.task import DedupScope, ObjectKey, Outcome, TaskSpec
from fencepost.testing import MemoryStore
from tests.contract.acting import Actor
from tests.local.conftest import Embedded

KEY = ObjectKey(namespace="default", name="feed")
SPEC = JobSpec(
    branches=tuple(Branch(name=name, request="{}") for name in ("north", "south")),
    template=TaskSpec(queue="feeds", external=True),
)


def report(event: str, branch: str = "north", outcome: Outcome = Outcome.OK, value: str = "v") -> Report:
    said = "" if outcome is Outcome.UNKNOWN else value
    return Report(event_id=event, job="feed", branch=branch, outcome=outcome, value=said, recorded_by="desk")


async def test_reports_settle_branches_and_the_last_one_joins(embedded: Embedded) -> None:
    assert isinstance(await embedded.store.create_job("feed", SPEC), JobApplied)
    assert (await embedded.store.report(report("e1"))).verdict is Verdict.ACCEPTED
    assert (await embedded.store.report(report("e2", "south"))).verdict is Verdict.ACCEPTED
    job = await embedded.store.job(KEY)
    assert job is not None
    assert job.joined
    assert job.status.branches["north"].value == "v"


async def test_an_answer_is_kept_for_every_event_also_across_a_restart(embedded: Embedded) -> None:
    lost = report("e0")
    first = await embedded.store.report(lost)
    assert first.verdict is Verdict.UNKNOWN_JOB
    assert isinstance(await embedded.store.create_job("feed", SPEC), JobApplied)
    strange = await embedded.store.report(report("e1", "nowhere"))
    assert strange.verdict is Verdict.UNKNOWN_BRANCH
    good = await embedded.store.report(report("e2"))
    again = embedded.reopen()
    assert await again.report(lost) == first
    assert await again.report(report("e1", "nowhere")) == strange
    assert await again.report(report("e2")) == good
    assert (await again.report(report("e2", value="other"))).verdict is Verdict.CONFLICT


async def test_a_report_on_a_task_that_somebody_holds_comes_too_early(embedded: Embedded) -> None:
    claimable = replace(SPEC, template=TaskSpec(queue="feeds"))
    answer = await embedded.store.create_job("feed", claimable)
    assert isinstance(answer, JobApplied)
    worker = await Actor.of(embedded.store)
    held = await worker.claim(ObjectKey(namespace="default", name=child_name(answer.job, "north")))
    assert (await embedded.store.report(report("e1"))).verdict is Verdict.RETRY_LATER
    await worker.submit(held, "v")
    assert (await embedded.store.report(report("e1"))).verdict is Verdict.ALREADY_TERMINAL


async def test_a_payload_stands_once_in_a_wider_scope_whoever_reports_it(embedded: Embedded) -> None:
    scoped = TaskSpec(queue="feeds", external=True, dedup_scope=DedupScope.QUEUE)
    assert isinstance(await embedded.store.create_job("feed", replace(SPEC, template=scoped)), JobApplied)
    first = await embedded.store.report(report("e1", "north", value="row"))
    second = await embedded.store.report(report("e2", "south", value="row"))
    assert first.receipt is not None
    assert second.receipt is not None
    assert second.verdict is Verdict.REJECTED_DUPLICATE
    assert second.receipt.duplicate_of == first.receipt.receipt_sha256


@pytest.mark.parametrize(
    "wrong",
    [
        report(""),
        report("x" * 257),
        replace(report("e"), branch=""),
        replace(report("e"), job="j" * 257),
        report("e", value="x" * (limits.VALUE_BYTES_MAX + 1)),
        replace(report("e", outcome=Outcome.UNKNOWN), value="something"),
    ],
)
async def test_what_is_no_report_is_refused_and_not_kept(embedded: Embedded, wrong: Report) -> None:
    with pytest.raises(ValueError):
        await embedded.store.report(wrong)


async def joined_store(folder: Path) -> LocalStore:
    store = LocalStore(folder / "store.db")
    assert isinstance(await store.create_job("feed", SPEC), JobApplied)
    for number, branch in enumerate(("north", "south")):
        await store.report(report(f"e{number}", branch))
    return store


def count(store: LocalStore) -> int:
    with sqlite3.connect(store.path) as connection:
        return int(connection.execute("SELECT count(*) FROM effects").fetchone()[0])


async def test_the_effect_and_the_mark_are_one_transaction(tmp_path: Path) -> None:
    store = await joined_store(tmp_path)

    def prepare(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE IF NOT EXISTS effects (what TEXT)")
        connection.execute("INSERT INTO effects VALUES ('done')")

    def fail(connection: sqlite3.Connection) -> None:
        prepare(connection)
        raise RuntimeError("the power went")

    with pytest.raises(RuntimeError):
        await store.consume(KEY, fail)
    assert await store.consume(KEY, prepare) is ConsumeVerdict.CONSUME
    assert count(store) == 1
    assert await store.consume(KEY, prepare) is ConsumeVerdict.ALREADY_CONSUMED
    store.close_now()
    reopened = LocalStore(tmp_path / "store.db")
    assert await reopened.consume(KEY, prepare) is ConsumeVerdict.ALREADY_CONSUMED
    assert count(reopened) == 1
    reopened.close_now()


@pytest.mark.parametrize("statement", ["COMMIT", "ROLLBACK", "ATTACH ':memory:' AS other"])
async def test_an_effect_cannot_end_the_transaction(tmp_path: Path, statement: str) -> None:
    store = await joined_store(tmp_path)
    with pytest.raises(Exception, match="not authorized"):
        await store.consume(KEY, lambda connection: connection.execute(statement))
    assert await store.consume(KEY, lambda _: None) is ConsumeVerdict.CONSUME
    store.close_now()


async def test_what_is_not_joined_is_not_consumed() -> None:
    store = MemoryStore()
    calls: list[str] = []
    assert await store.consume(KEY, lambda: calls.append("x")) is ConsumeVerdict.UNKNOWN_JOB
    assert isinstance(await store.create_job("feed", SPEC), JobApplied)
    assert await store.consume(KEY, lambda: calls.append("x")) is ConsumeVerdict.NOT_JOINED
    assert calls == []
