"""Jobs in an embedded store: the join happens in the transaction that settles the last branch."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from fencepost.local.jobs import JobApplied
from fencepost.ports import Applied, Cause, NewTask, Refused
from fencepost.protocol.fanout import child_name, continuation_name, owner_of_children
from fencepost.protocol.job import (
    Branch,
    Continuation,
    ContinuationKind,
    ContinuationWhen,
    Job,
    JobSpec,
    JobState,
)
from fencepost.protocol.join import snapshot_digest
from fencepost.protocol.payload import canonical_json
from fencepost.protocol.task import (
    LeaseEnd,
    ObjectKey,
    Outcome,
    Reason,
    RetryPolicy,
    TaskSpec,
    UnknownPolicy,
)
from tests.contract.acting import Actor, release_of
from tests.local.conftest import Embedded

TEMPLATE = TaskSpec(queue="feeds", retry_policy=RetryPolicy(max_failures=0))
NAMES = ("north", "south", "west")
SPEC = JobSpec(
    branches=tuple(Branch(name=name, request=f'{{"of":"{name}"}}') for name in NAMES), template=TEMPLATE
)


def then(kind: str, spec: dict[str, Any], when: ContinuationWhen = ContinuationWhen.SETTLED) -> Continuation:
    api = "batch/v1" if kind == "Job" else "fencepost.dev/v1alpha1"
    template = canonical_json({"apiVersion": api, "kind": kind, "spec": spec})
    return Continuation(when=when, kind=ContinuationKind(kind), template=template)


async def create(embedded: Embedded, spec: JobSpec = SPEC, name: str = "feed") -> Job:
    answer = await embedded.store.create_job(name, spec)
    assert isinstance(answer, JobApplied), answer
    assert not answer.replay
    return answer.job


async def job_now(embedded: Embedded, name: str = "feed") -> Job:
    job = await embedded.store.job(ObjectKey(namespace="default", name=name))
    assert job is not None
    return job


def child_key(job: Job, branch: str) -> ObjectKey:
    return ObjectKey(namespace="default", name=child_name(job, branch))


async def settle(embedded: Embedded, job: Job, branch: str, outcome: Outcome = Outcome.OK) -> None:
    worker = await Actor.of(embedded.store)
    held = await worker.claim(child_key(job, branch))
    await worker.submit(held, f"{branch} done", outcome=outcome)


async def test_a_job_and_its_tasks_are_made_in_one_step(embedded: Embedded) -> None:
    job = await create(embedded)
    assert job.status.created == 3
    tasks = await embedded.store.tasks()
    assert {task.key.name for task in tasks} == {child_name(job, name) for name in NAMES}
    assert {task.branch for task in tasks} == set(NAMES)
    assert all(task.owner is not None and task.owner.uid == job.uid for task in tasks)


async def test_the_last_submit_joins_and_the_snapshot_never_changes(embedded: Embedded) -> None:
    job = await create(embedded)
    for branch in ("west", "north"):
        await settle(embedded, job, branch)
        assert not (await job_now(embedded)).joined
    await settle(embedded, job, "south")
    joined = await job_now(embedded)
    assert joined.status.state is JobState.SUCCEEDED
    assert joined.status.snapshot is not None
    assert joined.status.snapshot.digest == snapshot_digest(joined.status.branches)
    assert list(joined.status.branches) == sorted(NAMES)
    await embedded.advance(3600)
    await embedded.store.keep_up()
    assert await job_now(embedded) == joined


async def test_one_rejection_fails_the_job_and_cancels_nothing(embedded: Embedded) -> None:
    job = await create(embedded)
    await settle(embedded, job, "north", Outcome.REJECTED)
    assert len(await embedded.store.claimable("feeds", 10)) == 2
    for branch in ("south", "west"):
        await settle(embedded, job, branch)
    joined = await job_now(embedded)
    assert joined.status.state is JobState.FAILED
    outcomes = {name: record.outcome for name, record in joined.status.branches.items()}
    assert outcomes == {"north": Outcome.REJECTED, "south": Outcome.OK, "west": Outcome.OK}


async def test_an_exhausted_branch_is_recorded_with_its_reason(embedded: Embedded) -> None:
    job = await create(embedded)
    worker = await Actor.of(embedded.store)
    held = await worker.claim(child_key(job, "north"))
    assert isinstance(await worker.store.write(release_of(held, LeaseEnd.ERROR)), Applied)
    await embedded.store.keep_up()
    for branch in ("south", "west"):
        await settle(embedded, job, branch)
    joined = await job_now(embedded)
    assert joined.status.branches["north"].reason is Reason.FAILURES_EXHAUSTED


async def test_an_unknown_branch_keeps_the_job_open(embedded: Embedded) -> None:
    spec = replace(SPEC, template=replace(TEMPLATE, unknown_policy=UnknownPolicy.HOLD))
    job = await create(embedded, spec)
    await settle(embedded, job, "north", Outcome.UNKNOWN)
    for branch in ("south", "west"):
        await settle(embedded, job, branch)
    assert not (await job_now(embedded)).joined


async def test_the_same_content_is_a_replay_whatever_the_order(embedded: Embedded) -> None:
    job = await create(embedded)
    turned = replace(SPEC, branches=tuple(reversed(SPEC.branches)))
    answer = await embedded.store.create_job("feed", turned)
    assert isinstance(answer, JobApplied)
    assert answer.replay
    assert answer.job == job
    assert len(await embedded.store.tasks()) == 3


@pytest.mark.parametrize(
    "changed",
    [
        replace(SPEC, branches=SPEC.branches[:2]),
        replace(SPEC, branches=(*SPEC.branches[:2], Branch(name="west", request="{}"))),
        replace(SPEC, template=replace(TEMPLATE, queue="mails")),
        replace(SPEC, continuation=then("LeasedTask", {"queue": "total"})),
    ],
)
async def test_other_content_under_the_name_is_a_conflict(embedded: Embedded, changed: JobSpec) -> None:
    job = await create(embedded)
    answer = await embedded.store.create_job("feed", changed)
    assert isinstance(answer, Refused)
    assert answer.cause is Cause.EXISTS
    assert await job_now(embedded) == job


@pytest.mark.parametrize(
    ("branches", "says"),
    [
        ((), "spec.branches: expected a list of 1 to 1024 entries, got a list of 0"),
        ((Branch(name="", request="{}"),), "spec.branches[0].name: expected text"),
        ((Branch(name="ü" * 129, request="{}"),), "258 bytes"),
        (
            (Branch(name="a", request="{}"), Branch(name="a", request='{"n":1}')),
            "'a' is the name of branches[0] too",
        ),
    ],
)
async def test_what_is_no_set_of_branches_is_refused(
    embedded: Embedded, branches: tuple[Branch, ...], says: str
) -> None:
    answer = await embedded.store.create_job("feed", replace(SPEC, branches=branches))
    assert isinstance(answer, Refused)
    assert says in answer.message
    assert await embedded.store.jobs() == []


async def test_branch_names_of_any_script_get_tasks_of_their_own(embedded: Embedded) -> None:
    """(B15, B37)"""
    names = ('"test"', '\\"test\\"', "test", "Test", "あ", "い", "a/b", "a b", "a" * 256, "é" * 128)
    spec = replace(SPEC, branches=tuple(Branch(name=name, request="{}") for name in names))
    job = await create(embedded, spec)
    for name in names:
        await settle(embedded, job, name)
    assert set((await job_now(embedded)).status.branches) == set(names)


async def test_parallelism_bounds_the_tasks_that_exist_unsettled(embedded: Embedded) -> None:
    job = await create(embedded, replace(SPEC, parallelism=1))
    seen = []
    for _ in NAMES:
        [candidate] = await embedded.store.claimable("feeds", 10)
        assert candidate.branch is not None
        seen.append(candidate.branch)
        await settle(embedded, job, candidate.branch)
    assert seen == sorted(NAMES)
    assert (await job_now(embedded)).joined


async def test_a_deleted_task_is_recorded_and_never_run_again(embedded: Embedded) -> None:
    job = await create(embedded)
    await embedded.store.delete_task(child_name(job, "west"))
    await embedded.store.keep_up()
    record = (await job_now(embedded)).status.branches["west"]
    assert (record.outcome, record.reason) == (Outcome.REJECTED, Reason.TASK_DELETED)
    for branch in ("north", "south"):
        await settle(embedded, job, branch)
    assert (await job_now(embedded)).status.state is JobState.FAILED
    assert len(await embedded.store.tasks()) == 2


async def test_a_stranger_under_a_childs_name_stalls_the_job_and_is_left_alone(embedded: Embedded) -> None:
    job = await create(embedded, replace(SPEC, suspend=True))
    assert await embedded.store.tasks() == []
    stranger = NewTask(key=child_key(job, "north"), spec=TaskSpec(queue="else"))
    assert isinstance(await embedded.store.create(stranger), Applied)
    await embedded.store.resume_job("feed")
    await embedded.store.keep_up()
    stalled = {c.type: c for c in (await job_now(embedded)).status.conditions}["Stalled"]
    assert (stalled.status.value, stalled.reason) == ("True", "NameConflict")
    found = await embedded.store.task(child_key(job, "north"))
    assert found is not None
    assert found.spec.queue == "else"


async def test_the_continuation_gets_the_snapshot_and_starts_once(embedded: Embedded) -> None:
    planned = then("LeasedTask", {"queue": "total", "request": {"unit": "m"}})
    job = await create(embedded, replace(SPEC, continuation=planned))
    for branch in NAMES:
        assert await embedded.store.claimable("total", 10) == []
        await settle(embedded, job, branch)
    joined = await job_now(embedded)
    [candidate] = await embedded.store.claimable("total", 10)
    task = await embedded.store.task(candidate.key)
    assert task is not None
    request = json.loads(task.spec.request)
    assert request["unit"] == "m"
    assert request["snapshot"]["digest"] == joined.status.snapshot.digest  # type: ignore[union-attr]
    assert request["snapshot"]["branches"]["north"]["value"] == "north done"
    record = joined.status.continuation
    assert record is not None
    assert (record.uid, record.started) == (task.uid, True)
    await embedded.store.keep_up()
    assert await job_now(embedded) == joined


@pytest.mark.parametrize(
    ("when", "outcome", "wanted"),
    [
        (ContinuationWhen.SUCCEEDED, Outcome.OK, True),
        (ContinuationWhen.SUCCEEDED, Outcome.REJECTED, False),
        (ContinuationWhen.FAILED, Outcome.REJECTED, True),
        (ContinuationWhen.SETTLED, Outcome.REJECTED, True),
    ],
)
async def test_a_continuation_runs_after_the_end_that_it_asks_for(
    embedded: Embedded, when: ContinuationWhen, outcome: Outcome, wanted: bool
) -> None:
    job = await create(embedded, replace(SPEC, continuation=then("LeasedTask", {"queue": "total"}, when)))
    for branch in NAMES:
        await settle(embedded, job, branch, outcome)
    assert bool(await embedded.store.claimable("total", 10)) is wanted


async def test_a_job_may_continue_a_job(embedded: Embedded) -> None:
    planned = then(
        "FanOutJob",
        {"branches": [{"name": "sum", "request": {"n": 1}}], "template": {"spec": {"queue": "total"}}},
    )
    job = await create(embedded, replace(SPEC, continuation=planned))
    for branch in NAMES:
        await settle(embedded, job, branch)
    second = await job_now(embedded, continuation_name(job))
    assert second.owner is not None
    assert second.owner.uid == job.uid
    request = json.loads(second.spec.branches[0].request)
    assert request["snapshot"]["job"] == "feed"
    await settle(embedded, second, "sum")
    assert (await job_now(embedded, second.key.name)).joined


async def test_a_stranger_under_the_continuations_name_is_a_conflict(embedded: Embedded) -> None:
    job = await create(embedded, replace(SPEC, continuation=then("LeasedTask", {"queue": "total"})))
    key = ObjectKey(namespace="default", name=continuation_name(job))
    assert isinstance(await embedded.store.create(NewTask(key=key, spec=TaskSpec(queue="else"))), Applied)
    for branch in NAMES:
        await settle(embedded, job, branch)
    joined = await job_now(embedded)
    assert joined.joined
    assert joined.status.continuation is None
    stalled = {c.type: c for c in joined.status.conditions}["Stalled"]
    assert stalled.reason == "NameConflict"
    await embedded.store.delete_task(key.name)
    await embedded.store.keep_up()
    going_on = await job_now(embedded)
    assert going_on.status.continuation is not None
    assert {c.type: c for c in going_on.status.conditions}["Stalled"].status.value == "False"
    assert (await embedded.store.task(key)) is not None


@pytest.mark.parametrize("suspend", [False, True])
async def test_a_task_that_only_says_it_is_the_continuation_is_a_conflict(
    embedded: Embedded, suspend: bool
) -> None:
    job = await create(embedded, replace(SPEC, continuation=then("LeasedTask", {"queue": "total"})))
    key = ObjectKey(namespace="default", name=continuation_name(job))
    forged = NewTask(key=key, spec=TaskSpec(queue="total", suspend=suspend), owner=owner_of_children(job))
    assert isinstance(await embedded.store.create(forged), Applied)
    for branch in NAMES:
        await settle(embedded, job, branch)
    await embedded.store.keep_up()
    joined = await job_now(embedded)
    assert joined.joined
    assert joined.status.continuation is None
    assert {c.type: c for c in joined.status.conditions}["Stalled"].reason == "NameConflict"


async def test_a_continuation_that_needs_pods_says_so(embedded: Embedded) -> None:
    job = await create(
        embedded,
        replace(SPEC, continuation=then("Job", {"template": {"spec": {"containers": [{"name": "c"}]}}})),
    )
    for branch in NAMES:
        await settle(embedded, job, branch)
    stalled = {c.type: c for c in (await job_now(embedded)).status.conditions}["Stalled"]
    assert "needs a cluster" in stalled.message
