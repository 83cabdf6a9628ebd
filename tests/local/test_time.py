"""The one clock of an embedded store: every transaction judges leases, backoffs and deadlines by it (I3)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fencepost.ports import Applied, NewTask, Refused
from fencepost.protocol.submission import Verdict
from fencepost.protocol.task import (
    Hold,
    LeaseEnd,
    ObjectKey,
    Outcome,
    Reason,
    RetryPolicy,
    State,
    Task,
    TaskSpec,
    UnknownPolicy,
)
from tests.contract.acting import Actor, heartbeat_of, release_of, submission_of, submit_of
from tests.local.conftest import Embedded

LEASE = 60
SOON = RetryPolicy(max_failures=1, backoff_base_seconds=1, backoff_max_seconds=1)
SPEC = TaskSpec(
    queue="feeds", lease_duration_seconds=LEASE, retry_policy=RetryPolicy(backoff_base_seconds=10)
)


async def put(embedded: Embedded, spec: TaskSpec = SPEC, name: str = "a") -> Task:
    answer = await embedded.store.create(NewTask(key=ObjectKey(namespace="default", name=name), spec=spec))
    assert isinstance(answer, Applied), answer
    return answer.task


@pytest.mark.parametrize(
    ("age", "verdict"), [(LEASE, Verdict.ACCEPTED), (LEASE + 1, Verdict.REJECTED_EXPIRED_LEASE)]
)
async def test_a_submit_counts_up_to_the_end_of_its_lease(
    embedded: Embedded, age: float, verdict: Verdict
) -> None:
    worker = await Actor.of(embedded.store)
    held = await worker.claim((await put(embedded)).key)
    await embedded.advance(age)
    assert (await worker.submit(held)).verdict is verdict


async def test_a_submit_that_was_judged_in_time_and_arrives_late_is_refused(embedded: Embedded) -> None:
    worker = await Actor.of(embedded.store)
    held = await worker.claim((await put(embedded)).key)
    submit = submit_of(held, submission_of(held, account=worker.account))
    await embedded.advance(LEASE + 0.001)
    assert isinstance(await embedded.store.write(submit), Refused)
    task = await worker.read(held.key)
    assert (task.receipts, task.hold, task.failures) == ((), Hold.BACKOFF, 1)
    assert task.last_lease is not None
    assert task.last_lease.end is LeaseEnd.EXPIRED
    assert (await worker.hand_in(held.key, submission_of(held, account=worker.account))).verdict is (
        Verdict.REJECTED_EXPIRED_LEASE
    )


async def test_a_heartbeat_makes_the_lease_last_from_then_on(embedded: Embedded) -> None:
    worker = await Actor.of(embedded.store)
    held = await worker.claim((await put(embedded)).key)
    await embedded.advance(LEASE - 1)
    renewed = await embedded.store.write(heartbeat_of(held))
    assert isinstance(renewed, Applied)
    await embedded.advance(LEASE - 1)
    assert (await worker.submit(renewed.task)).verdict is Verdict.ACCEPTED


async def test_a_late_heartbeat_does_not_bring_a_lease_back(embedded: Embedded) -> None:
    worker = await Actor.of(embedded.store)
    held = await worker.claim((await put(embedded)).key)
    await embedded.advance(LEASE + 1)
    assert isinstance(await embedded.store.write(heartbeat_of(held)), Refused)
    assert (await worker.read(held.key)).holder == ""


async def test_after_its_backoff_a_task_is_claimable_without_a_keeper(embedded: Embedded) -> None:
    worker, other = await Actor.of(embedded.store), await Actor.of(embedded.reopen())
    held = await worker.claim((await put(embedded)).key)
    await embedded.advance(LEASE + 1)
    assert await other.store.claimable("feeds", 10) == []  # the lease ended just now
    await embedded.advance(4.9)
    assert await other.store.claimable("feeds", 10) == []  # the backoff is 5 to 10 seconds
    await embedded.advance(5.2)
    [candidate] = await other.store.claimable("feeds", 10)
    answer = await other.try_claim(candidate)
    assert isinstance(answer, Applied)
    assert answer.task.token == 2
    assert (await worker.submit(held)).verdict is Verdict.REJECTED_STALE_TOKEN


async def test_when_its_failures_are_used_up_a_task_is_settled(embedded: Embedded) -> None:
    worker = await Actor.of(embedded.store)
    key = (await put(embedded, replace(SPEC, retry_policy=SOON))).key
    for _ in range(2):
        held = await worker.claim(key)
        assert isinstance(await worker.store.write(release_of(held, LeaseEnd.ERROR)), Applied)
        await embedded.advance(1)
        await embedded.store.keep_up()
    task = await worker.read(key)
    assert (task.state, task.failures, task.token) == (State.FAILED, 2, 2)
    assert task.receipts[-1].reason is Reason.FAILURES_EXHAUSTED


async def test_a_deadline_ends_the_lease_and_settles(embedded: Embedded) -> None:
    worker = await Actor.of(embedded.store)
    held = await worker.claim((await put(embedded, replace(SPEC, active_deadline_seconds=30))).key)
    await embedded.advance(31)
    assert (await worker.submit(held)).verdict is Verdict.REJECTED_STALE_TOKEN
    task = await worker.read(held.key)
    assert (task.state, task.receipts[-1].reason) == (State.FAILED, Reason.DEADLINE_EXCEEDED)


async def test_a_deadline_does_not_touch_an_unknown(embedded: Embedded) -> None:
    worker = await Actor.of(embedded.store)
    held = await worker.claim((await put(embedded, replace(SPEC, active_deadline_seconds=30))).key)
    await worker.submit(held, outcome=Outcome.UNKNOWN)
    await embedded.advance(31)
    assert (await worker.read(held.key)).state is State.UNKNOWN


@pytest.mark.parametrize(("policy", "claimable"), [(UnknownPolicy.HOLD, 0), (UnknownPolicy.RECLAIM, 1)])
async def test_the_unknown_policy_says_whether_an_unknown_runs_again(
    embedded: Embedded, policy: UnknownPolicy, claimable: int
) -> None:
    worker = await Actor.of(embedded.store)
    held = await worker.claim((await put(embedded, replace(SPEC, unknown_policy=policy))).key)
    await worker.submit(held, outcome=Outcome.UNKNOWN)
    unknown = await worker.read(held.key)
    assert isinstance(await worker.store.write(release_of(unknown, LeaseEnd.AFTER_UNKNOWN)), Applied)
    await embedded.advance(3600)
    assert len(await worker.store.claimable("feeds", 10)) == claimable


async def test_the_clock_never_goes_back(embedded: Embedded) -> None:
    """A machine's clock that is set back gives nobody a longer lease, in this process or the next."""
    worker = await Actor.of(embedded.store)
    held = await worker.claim((await put(embedded)).key)
    await embedded.advance(LEASE + 1)
    await put(embedded, name="witness")  # a write: the time is noted
    await embedded.advance(-3600)
    later = await Actor.of(embedded.reopen())
    assert (await later.submit(held)).verdict is not Verdict.ACCEPTED
    renewed = (await later.read(held.key)).last_lease
    assert renewed is not None
    assert renewed.end is LeaseEnd.EXPIRED
