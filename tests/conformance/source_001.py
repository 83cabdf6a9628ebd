"""Source 001: the durable fan-out join, its nine bullets in order.

Reports and consume are there on the embedded stores. What the submits of workers can show of the same rules
is tried on all three.
"""

from __future__ import annotations

import asyncio
import sqlite3
from dataclasses import replace
from typing import Any, Final

from fencepost.local import joining, reports
from fencepost.local.embedded import EmbeddedStore
from fencepost.local.jobs import JobApplied
from fencepost.local.ledger import Ledger
from fencepost.local.store import LocalStore
from fencepost.ports import Applied, Cause, Refused
from fencepost.protocol import limits
from fencepost.protocol.consume import ConsumeVerdict
from fencepost.protocol.fanout import child_name
from fencepost.protocol.job import Branch, Job, JobSpec, JobState
from fencepost.protocol.join import snapshot_digest
from fencepost.protocol.report import Report, ReportAnswer
from fencepost.protocol.submission import Verdict
from fencepost.protocol.task import LeaseEnd, ObjectKey, Outcome, State, TaskSpec
from fencepost.testing import MemoryStore
from tests.conformance.checks import EMBEDDED, Suite, expect
from tests.conformance.grounds import Ground
from tests.contract.acting import release_of, requeue_of

SUITE: Final = Suite("001")
BRANCHES: Final = ("north", "south", "west")
KEY: Final = ObjectKey(namespace="default", name="feed")
SPEC: Final = JobSpec(
    branches=tuple(Branch(name=name, request=f'{{"of":"{name}"}}') for name in BRANCHES),
    template=TaskSpec(queue="feeds"),
)


def store_of(ground: Ground) -> EmbeddedStore:
    assert ground.embedded is not None
    return ground.embedded


async def create(ground: Ground, spec: JobSpec = SPEC) -> Job:
    answer = await store_of(ground).create_job("feed", spec)
    assert isinstance(answer, JobApplied), answer
    return answer.job


async def job_now(ground: Ground) -> Job:
    job = await store_of(ground).job(KEY)
    assert job is not None
    return job


async def tell(
    ground: Ground,
    event: str,
    branch: str,
    outcome: Outcome = Outcome.OK,
    value: str = "v",
    job: str = "feed",
) -> ReportAnswer:
    return await store_of(ground).report(report_of(event, branch, outcome, value, job))


def report_of(
    event: str, branch: str, outcome: Outcome = Outcome.OK, value: str = "v", job: str = "feed"
) -> Report:
    said = "" if outcome is Outcome.UNKNOWN else value
    return Report(event_id=event, job=job, branch=branch, outcome=outcome, value=said, recorded_by="desk")


async def join_all(ground: Ground) -> Job:
    await create(ground)
    for branch in BRANCHES:
        await tell(ground, f"e-{branch}", branch)
    return await job_now(ground)


@SUITE.check(
    "JOIN-01", "create persists a fixed set at once; same content replays, other conflicts", stores=EMBEDDED
)
async def the_set_of_branches_is_fixed(ground: Ground) -> None:
    store = store_of(ground)
    job = await create(ground)
    expect(len(await store.tasks()), len(BRANCHES), "tasks after create")
    turned = await store.create_job("feed", replace(SPEC, branches=SPEC.branches[::-1]))
    assert isinstance(turned, JobApplied)
    expect((turned.replay, turned.job), (True, job), "the same branches in another order")
    changed = replace(SPEC, branches=(*SPEC.branches[1:], Branch(name="north", request="{}")))
    fewer = replace(SPEC, branches=SPEC.branches[1:])
    for other in (changed, fewer, replace(SPEC, branches=())):
        answer = await store.create_job("feed", other)
        expect(type(answer), Refused, "other members or requests")
    for branch in BRANCHES:
        await tell(ground, f"e-{branch}", branch)
    await consume(store, lambda: None)
    again = await store.create_job("feed", SPEC)
    expect(isinstance(again, JobApplied) and again.replay, True, "the same content after it was consumed")
    late = await store.create_job("feed", changed)
    expect(isinstance(late, Refused) and late.cause, Cause.EXISTS, "other content after it was consumed")
    too_many = tuple(Branch(name=f"b{n}", request="{}") for n in range(limits.BRANCHES_MAX + 1))
    for wrong in ((), too_many):
        refused = await store.create_job("other", replace(SPEC, branches=wrong))
        expect(isinstance(refused, Refused) and refused.cause, Cause.ADMISSION, f"{len(wrong)} branches")


async def consume(store: EmbeddedStore, effect: Any) -> ConsumeVerdict:
    if isinstance(store, LocalStore):
        return await store.consume(KEY, lambda _: effect())
    assert isinstance(store, MemoryStore)
    return await store.consume(KEY, effect)


@SUITE.check("JOIN-02", "an open branch is no proof that its work never started", stores=EMBEDDED)
async def an_open_branch_may_have_been_worked_on(ground: Ground) -> None:
    job = await create(ground)
    worker = await ground.worker()
    held = await worker.claim(child_key(job, "north"))
    await worker.store.write(release_of(held, LeaseEnd.SHUTDOWN))
    task = await worker.read(held.key)
    expect((task.state, task.receipts, task.token), (State.OPEN, (), 1), "an open branch that was begun")
    expect((await job_now(ground)).status.branches, {}, "what the job records of it")


def child_key(job: Job, branch: str) -> ObjectKey:
    return ObjectKey(namespace=job.key.namespace, name=child_name(job, branch))


@SUITE.check(
    "JOIN-03", "a report is Unknown, Ok or Rejected; Unknown is empty and not final", stores=EMBEDDED
)
async def outcomes_of_reports(ground: Ground) -> None:
    job = await create(ground)
    expect((await tell(ground, "e1", "north", Outcome.UNKNOWN)).verdict, Verdict.ACCEPTED, "Unknown")
    task = await store_of(ground).task(child_key(job, "north"))
    expect(task is not None and (task.state, task.settled), (State.UNKNOWN, False), "after Unknown")
    expect(
        (await tell(ground, "e2", "north", Outcome.REJECTED)).verdict,
        Verdict.ACCEPTED,
        "Unknown, then Rejected",
    )
    expect((await tell(ground, "e3", "south", Outcome.OK)).verdict, Verdict.ACCEPTED, "pending, then Ok")
    try:
        await store_of(ground).report(replace(report_of("e4", "west"), outcome=Outcome.UNKNOWN))
    except ValueError:
        return
    raise AssertionError("an Unknown with a value was taken")


@SUITE.check(
    "JOIN-04",
    "all settled: it waits for every branch, fails if one is rejected, cancels none",
    stores=EMBEDDED,
)
async def it_waits_for_all(ground: Ground) -> None:
    await create(ground)
    await tell(ground, "e1", "north", Outcome.REJECTED)
    await tell(ground, "e2", "south", Outcome.UNKNOWN)
    states = sorted(task.state.value for task in await store_of(ground).tasks())
    expect(states, ["Failed", "Open", "Unknown"], "the branches after a rejection")
    await tell(ground, "e3", "west")
    expect((await job_now(ground)).joined, False, "joined while one is Unknown")
    await tell(ground, "e4", "south")
    job = await job_now(ground)
    expect((job.joined, job.status.state), (True, JobState.FAILED), "the join")


@SUITE.check(
    "JOIN-05",
    "an event id is unique: same body replays, changed conflicts, unknown ones are kept",
    stores=EMBEDDED,
)
async def answers_are_kept(ground: Ground) -> None:
    early = await tell(ground, "e0", "north")
    expect(early.verdict, Verdict.UNKNOWN_JOB, "a job that is not there")
    await create(ground)
    strange = await tell(ground, "e1", "nowhere")
    expect(strange.verdict, Verdict.UNKNOWN_BRANCH, "a branch that is not there")
    first = await tell(ground, "e2", "north")
    ground.embedded = reopened(ground)
    expect(await tell(ground, "e0", "north"), early, "the first answer, though the job is there now")
    expect(await tell(ground, "e1", "nowhere"), strange, "the answer for the unknown branch")
    expect(await tell(ground, "e2", "north"), first, "the answer that accepted")
    for changed in (
        await tell(ground, "e2", "north", value="other"),
        await tell(ground, "e2", "south"),
        await tell(ground, "e2", "north", Outcome.REJECTED),
        await tell(ground, "e0", "south"),
    ):
        expect(changed.verdict, Verdict.CONFLICT, "a changed body")


def reopened(ground: Ground) -> EmbeddedStore:
    store = ground.client()
    assert isinstance(store, EmbeddedStore)
    return store


@SUITE.check("JOIN-06", "a new event on a settled branch counts nothing twice", stores=EMBEDDED)
async def a_settled_branch_stays(ground: Ground) -> None:
    job = await create(ground)
    await tell(ground, "e1", "north")
    before = await store_of(ground).task(child_key(job, "north"))
    for event, outcome, value, verdict in (
        ("e2", Outcome.OK, "v", Verdict.ALREADY_TERMINAL),
        ("e3", Outcome.OK, "w", Verdict.TERMINAL_CONFLICT),
        ("e4", Outcome.REJECTED, "v", Verdict.TERMINAL_CONFLICT),
        ("e5", Outcome.UNKNOWN, "", Verdict.TERMINAL_CONFLICT),
    ):
        expect((await tell(ground, event, "north", outcome, value)).verdict, verdict, event)
    expect(await store_of(ground).task(child_key(job, "north")), before, "the branch afterwards")
    expect((await job_now(ground)).joined, False, "joined")


@SUITE.check(
    "JOIN-07", "an Unknown is reconciled by a new event; its own answer stays what it was", stores=EMBEDDED
)
async def unknown_is_reconciled(ground: Ground) -> None:
    job = await create(ground)
    first = await tell(ground, "e1", "north", Outcome.UNKNOWN)
    second = await tell(ground, "e2", "north")
    expect(second.verdict, Verdict.ACCEPTED, "the new event")
    expect(await tell(ground, "e1", "north", Outcome.UNKNOWN), first, "the old event again")
    expect(first.receipt is not None and first.receipt.outcome, Outcome.UNKNOWN, "the old receipt")
    task = await store_of(ground).task(child_key(job, "north"))
    outcomes = [receipt.outcome for receipt in task.receipts] if task else []
    expect(outcomes, [Outcome.UNKNOWN, Outcome.OK], "the receipts of the branch")


class PowerCut(Exception):  # noqa: N818 - what happens, not a failure of ours
    """The transaction does not reach its commit."""


@SUITE.check("JOIN-08", "last result, state, sorted snapshot and receipt are one commit", stores=EMBEDDED)
async def the_join_is_one_commit(ground: Ground) -> None:
    await create(ground)
    for branch in BRANCHES[:-1]:
        await tell(ground, f"e-{branch}", branch)
    last = report_of("e-last", BRANCHES[-1])
    before = await everything(ground)

    def cut_off(ledger: Ledger) -> None:
        answer = reports.take_report(ledger, "default", last)
        joining.follow_up(ledger)
        seen = ledger.shelf.job(KEY)
        expect(answer.verdict, Verdict.ACCEPTED, "the last report inside the transaction")
        expect(seen is not None and seen.joined, True, "the join inside the transaction")
        raise PowerCut

    try:
        await store_of(ground)._run(cut_off)
    except PowerCut:
        pass
    ground.embedded = reopened(ground)
    expect(await everything(ground), before, "everything after the cut")
    await store_of(ground).report(last)
    job = await job_now(ground)
    assert job.status.snapshot is not None
    expect(job.status.snapshot.digest, snapshot_digest(job.status.branches), "the digest")
    expect(list(job.status.branches), sorted(BRANCHES), "the branches of the snapshot")
    await tell(ground, "e-late", "north", value="other")
    await store_of(ground).keep_up()
    expect(await job_now(ground), job, "the snapshot afterwards")


async def everything(ground: Ground) -> object:
    return (await store_of(ground).tasks(), await store_of(ground).jobs())


@SUITE.check(
    "JOIN-09",
    "consume carries out one effect and marks it in one transaction, once for ever",
    stores=EMBEDDED,
)
async def it_is_consumed_once(ground: Ground) -> None:
    await create(ground)
    effects: list[str] = []
    expect(
        await consume(store_of(ground), lambda: effects.append("x")), ConsumeVerdict.NOT_JOINED, "too early"
    )
    for branch in BRANCHES:
        await tell(ground, f"e-{branch}", branch)

    def fail() -> None:
        raise PowerCut

    try:
        await consume(store_of(ground), fail)
    except PowerCut:
        pass
    stores = [reopened(ground) for _ in range(8)]
    verdicts = await asyncio.gather(*(consume(store, lambda: effects.append("x")) for store in stores))
    expect(verdicts.count(ConsumeVerdict.CONSUME), 1, "consumers that were told to carry it out")
    expect(effects, ["x"], "effects")
    expect(await consume(reopened(ground), fail), ConsumeVerdict.ALREADY_CONSUMED, "once more")


@SUITE.check("JOIN-09-SQL", "an effect in the store's own file is undone with its mark", stores=["sqlite"])
async def the_effect_is_in_the_transaction(ground: Ground) -> None:
    store = store_of(ground)
    assert isinstance(store, LocalStore)
    await join_all(ground)

    def half(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE effects (what TEXT)")
        raise PowerCut

    def whole(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE effects (what TEXT)")
        connection.execute("INSERT INTO effects VALUES ('done')")

    try:
        await store.consume(KEY, half)
    except PowerCut:
        pass
    expect(await store.consume(KEY, whole), ConsumeVerdict.CONSUME, "after the cut")
    with sqlite3.connect(store.path) as connection:
        expect(connection.execute("SELECT count(*) FROM effects").fetchone(), (1,), "effects")


@SUITE.check("JOIN-03-SUBMIT", "a submit of Unknown is not final; a later Ok or Rejected is")
async def outcomes_of_submits(ground: Ground) -> None:
    worker = await ground.worker()
    for base, final, state in (("a", Outcome.OK, State.SUCCEEDED), ("b", Outcome.REJECTED, State.FAILED)):
        held = await worker.claim((await ground.put(base)).key)
        await worker.submit(held, outcome=Outcome.UNKNOWN)
        expect((await ground.task(base)).settled, False, "settled by Unknown")
        await worker.submit(held, outcome=final)
        expect((await ground.task(base)).state, state, "the state after the final outcome")


@SUITE.check("JOIN-05-SUBMIT", "the same key and body replay the original receipt, a changed body conflicts")
async def keys_of_submits(ground: Ground) -> None:
    worker = await ground.worker()
    held = await worker.claim((await ground.put("a")).key)
    first = await worker.submit(held, "v", key="e1")
    again = await worker.submit(held, "v", key="e1")
    expect((again.verdict, again.receipt), (Verdict.DUPLICATE, first.receipt), "the replay")
    changed = await worker.submit(held, "w", key="e1")
    expect((changed.verdict, changed.receipt), (Verdict.CONFLICT, first.receipt), "the changed body")


@SUITE.check("JOIN-06-SUBMIT", "a new key on a settled task: the same is ALREADY_TERMINAL, other conflicts")
async def a_settled_task_stays(ground: Ground) -> None:
    worker = await ground.worker()
    held = await worker.claim((await ground.put("a")).key)
    await worker.submit(held, "v")
    before = await ground.task("a")
    for outcome, value, verdict in (
        (Outcome.OK, "v", Verdict.ALREADY_TERMINAL),
        (Outcome.OK, "w", Verdict.TERMINAL_CONFLICT),
        (Outcome.REJECTED, "v", Verdict.TERMINAL_CONFLICT),
        (Outcome.UNKNOWN, "", Verdict.TERMINAL_CONFLICT),
    ):
        expect((await worker.submit(held, value, outcome=outcome)).verdict, verdict, outcome.value)
    expect(await ground.task("a"), before, "the task afterwards")


@SUITE.check("JOIN-07-SUBMIT", "a new key reconciles an Unknown; its own receipt stays what it was")
async def an_unknown_submit_is_reconciled(ground: Ground) -> None:
    worker, other = await ground.worker(), await ground.worker()
    held = await worker.claim((await ground.put("a")).key)
    first = await worker.submit(held, outcome=Outcome.UNKNOWN, key="e1")
    released = await worker.store.write(release_of(await ground.task("a"), LeaseEnd.AFTER_UNKNOWN))
    assert isinstance(released, Applied)
    assert isinstance(await ground.place.server.write(requeue_of(released.task)), Applied)
    again = await other.claim(held.key)
    expect((await other.submit(again, "v")).verdict, Verdict.ACCEPTED, "the later attempt")
    replay = await worker.submit(held, outcome=Outcome.UNKNOWN, key="e1")
    expect((replay.verdict, replay.receipt), (Verdict.DUPLICATE, first.receipt), "the old submit again")
