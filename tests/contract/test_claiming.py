"""Claim, heartbeat, and the ends of a lease, the same over every store (FENCE-01, FENCE-02)."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import pytest

from fencepost.ports import Answer, Applied, Cause, NewTask, Refused
from fencepost.protocol.task import Hold, LastLease, LeaseEnd, Outcome, Reason, State, Task
from tests.contract.acting import (
    Actor,
    claim_of,
    heartbeat_of,
    release_of,
    requeue_of,
    revoke_of,
    settle_of,
)
from tests.contract.places import PATIENT, Place


def assert_precondition_gone(answer: Answer) -> None:
    assert isinstance(answer, Refused), answer
    assert answer.cause is Cause.PRECONDITION, answer
    assert answer.message


async def test_a_new_task_is_open_free_and_claimable(place: Place, worker: Actor) -> None:
    made = await place.put("a", {"url": "x", "n": 1})
    assert (made.token, made.holder, made.hold, made.state) == (0, "", None, State.OPEN)
    assert made == await worker.read(made.key)
    [candidate] = await worker.store.claimable("feeds", 10)
    assert (candidate.key, candidate.uid, candidate.version, candidate.token) == (
        made.key,
        made.uid,
        made.version,
        0,
    )


async def test_a_claim_raises_the_token_and_names_the_holder(place: Place, worker: Actor) -> None:
    before = await place.put("a", {"url": "x"})
    task = await worker.claim(before.key)
    assert (task.token, task.holder, task.account) == (1, worker.holder, worker.account)
    assert (task.hold, task.renewals, task.outbox_mark) == (Hold.LEASED, 0, "0 GENESIS")
    assert task.version != before.version
    assert task.spec == before.spec
    assert task == await worker.read(before.key)
    assert await worker.store.claimable("feeds", 10) == []


async def test_a_claim_on_an_old_read_is_refused_and_changes_nothing(
    place: Place, worker: Actor, other: Actor
) -> None:
    seen = await place.put("a")
    held = await other.claim(seen.key)
    assert_precondition_gone(await worker.try_claim(seen))
    assert await worker.read(seen.key) == held


async def test_the_same_claim_sent_twice_is_applied_once(place: Place, worker: Actor) -> None:
    seen = await place.put("a")
    claim = claim_of(seen, holder=worker.holder, account=worker.account)
    assert isinstance(await worker.store.write(claim), Applied)
    assert_precondition_gone(await worker.store.write(claim))
    assert (await worker.read(seen.key)).token == 1


async def test_a_claim_that_skips_a_token_is_refused(place: Place, worker: Actor) -> None:
    seen = await place.put("a")
    claim = claim_of(seen, holder=worker.holder, account=worker.account)
    answer = await worker.store.write(replace(claim, token=7))
    assert isinstance(answer, Refused)
    assert await worker.read(seen.key) == seen


async def test_a_claim_for_another_account_is_refused(place: Place, worker: Actor) -> None:
    seen = await place.put("a")
    claim = claim_of(seen, holder=worker.holder, account="somebody-else")
    answer = await worker.store.write(claim)
    assert isinstance(answer, Refused)
    assert answer.cause in (Cause.FORBIDDEN, Cause.ADMISSION)
    assert await worker.read(seen.key) == seen


@pytest.mark.parametrize("barred", [replace(PATIENT, suspend=True), replace(PATIENT, external=True)])
async def test_what_is_not_claimable_is_not_listed_and_not_claimed(
    place: Place, worker: Actor, barred: object
) -> None:
    assert isinstance(barred, type(PATIENT))
    seen = await place.put("a", spec=barred)
    assert await worker.store.claimable("feeds", 10) == []
    assert isinstance(await worker.try_claim(seen), Refused)
    assert await worker.read(seen.key) == seen


async def test_a_suspended_task_keeps_its_lease_and_its_submit_counts(place: Place, worker: Actor) -> None:
    held = await worker.claim((await place.put("a")).key)
    await place.suspend("a")
    suspended = await worker.read(held.key)
    assert (suspended.spec.suspend, suspended.holder) == (True, worker.holder)
    await worker.submit(held)
    assert (await worker.read(held.key)).state is State.SUCCEEDED


async def test_higher_priority_comes_first_and_the_limit_holds(place: Place, worker: Actor) -> None:
    for name, priority in (("low", 1), ("high", 9), ("middle", 5)):
        await place.put(name, spec=replace(PATIENT, priority=priority))
    await place.put("elsewhere", spec=replace(PATIENT, queue="mails"))
    listed = await worker.store.claimable("feeds", 10)
    assert [candidate.key.name for candidate in listed] == ["high", "middle", "low"]
    assert [candidate.key.name for candidate in await worker.store.claimable("feeds", 1)] == ["high"]


CLAIMERS = 20
ROUNDS = 25


async def test_of_many_claims_on_one_read_exactly_one_wins(place: Place) -> None:
    """Threads with clients of their own, held at a barrier each round: one token more, never two (B07)."""
    seen = [await place.put(f"race-{number}") for number in range(ROUNDS)]
    rounds = await asyncio.to_thread(race, place, seen)
    for task, answers in zip(seen, rounds, strict=True):
        [won] = [answer for answer in answers if isinstance(answer, Applied)]
        lost = [answer for answer in answers if isinstance(answer, Refused)]
        assert len(lost) == CLAIMERS - 1
        assert {answer.cause for answer in lost} == {Cause.PRECONDITION}
        now = await place.server.task(task.key)
        assert now == won.task
        assert won.task.token == task.token + 1


def race(place: Place, seen: list[Task]) -> list[list[Answer]]:
    """The answers to the claims of each round."""
    barrier = threading.Barrier(CLAIMERS)
    rounds: list[list[Answer]] = [[] for _ in seen]

    async def claim_all() -> None:
        store = place.open()
        try:
            actor = await Actor.of(store)
            for task, answers in zip(seen, rounds, strict=True):
                await asyncio.to_thread(barrier.wait, 60)
                answers.append(await actor.try_claim(task))
        finally:
            await store.close()

    threads = [threading.Thread(target=lambda: asyncio.run(claim_all())) for _ in range(CLAIMERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return rounds


async def test_a_heartbeat_counts_and_keeps_progress(place: Place, worker: Actor) -> None:
    held = await worker.claim((await place.put("a")).key)
    first = await worker.store.write(heartbeat_of(held, progress="half"))
    assert isinstance(first, Applied)
    assert (first.task.renewals, first.task.progress) == (1, "half")
    second = await worker.store.write(heartbeat_of(first.task))
    assert isinstance(second, Applied)
    assert (second.task.renewals, second.task.progress) == (2, "half")
    assert second.task == await worker.read(held.key)


async def test_a_heartbeat_that_comes_twice_or_late_is_refused(place: Place, worker: Actor) -> None:
    held = await worker.claim((await place.put("a")).key)
    assert isinstance(await worker.store.write(heartbeat_of(held)), Applied)
    assert_precondition_gone(await worker.store.write(heartbeat_of(held)))
    assert (await worker.read(held.key)).renewals == 1


async def test_a_revoke_after_a_heartbeat_is_refused(place: Place, worker: Actor) -> None:
    held = await worker.claim((await place.put("a")).key)
    renewed = await worker.store.write(heartbeat_of(held))
    assert isinstance(renewed, Applied)
    assert_precondition_gone(await place.server.write(revoke_of(held)))
    assert await worker.read(held.key) == renewed.task


async def test_a_revoke_ends_the_lease_and_keeps_the_token(place: Place, worker: Actor) -> None:
    held = await worker.claim((await place.put("a")).key)
    answer = await place.server.write(revoke_of(held))
    assert isinstance(answer, Applied)
    task = answer.task
    assert (task.token, task.holder, task.account, task.hold, task.failures) == (1, "", "", Hold.BACKOFF, 1)
    assert task.last_lease == LastLease(token=1, holder=worker.holder, end=LeaseEnd.EXPIRED)
    assert task == await worker.read(held.key)
    assert_precondition_gone(await worker.store.write(heartbeat_of(held)))
    assert_precondition_gone(await worker.store.write(release_of(held, LeaseEnd.ERROR)))
    assert await worker.read(held.key) == task


@pytest.mark.parametrize(
    ("end", "hold", "failures"),
    [
        (LeaseEnd.SHUTDOWN, None, 0),
        (LeaseEnd.ERROR, Hold.BACKOFF, 1),
        (LeaseEnd.START, Hold.BACKOFF, 1),
        (LeaseEnd.UNWANTED, Hold.BACKOFF, 1),
    ],
)
async def test_what_a_release_leaves(
    place: Place, worker: Actor, end: LeaseEnd, hold: Hold | None, failures: int
) -> None:
    held = await worker.claim((await place.put("a")).key)
    answer = await worker.store.write(release_of(held, end, "it said: no"))
    assert isinstance(answer, Applied)
    task = answer.task
    assert (task.token, task.holder, task.hold, task.failures) == (1, "", hold, failures)
    assert task.last_lease == LastLease(token=1, holder=worker.holder, end=end, message="it said: no")
    assert task == await worker.read(held.key)
    assert len(await worker.store.claimable("feeds", 10)) == (1 if hold is None else 0)


async def test_a_release_decided_on_another_state_is_refused(place: Place, worker: Actor) -> None:
    held = await worker.claim((await place.put("a")).key)
    await worker.submit(held, outcome=Outcome.UNKNOWN)
    assert_precondition_gone(await worker.store.write(release_of(held, LeaseEnd.SHUTDOWN)))
    unknown = await worker.read(held.key)
    answer = await worker.store.write(release_of(unknown, LeaseEnd.AFTER_UNKNOWN))
    assert isinstance(answer, Applied)
    assert (answer.task.hold, answer.task.failures, answer.task.state) == (Hold.UNKNOWN, 0, State.UNKNOWN)


async def test_a_requeued_task_is_claimed_with_the_next_token(
    place: Place, worker: Actor, other: Actor
) -> None:
    held = await worker.claim((await place.put("a")).key)
    revoked = await place.server.write(revoke_of(held))
    assert isinstance(revoked, Applied)
    assert isinstance(await other.try_claim(revoked.task), Refused)
    requeued = await place.server.write(requeue_of(revoked.task))
    assert isinstance(requeued, Applied)
    assert requeued.task.hold is None
    again = await other.claim(held.key)
    assert (again.token, again.holder, again.failures) == (2, other.holder, 1)
    assert_precondition_gone(await place.server.write(requeue_of(revoked.task)))


async def test_the_server_settles_only_what_nobody_holds(place: Place, worker: Actor) -> None:
    account = await place.server.account()
    held = await worker.claim((await place.put("a")).key)
    settle = settle_of(held, Reason.FAILURES_EXHAUSTED, recorded_by=account)
    assert_precondition_gone(await place.server.write(settle))
    revoked = await place.server.write(revoke_of(held))
    assert isinstance(revoked, Applied)
    answer = await place.server.write(settle_of(revoked.task, Reason.FAILURES_EXHAUSTED, recorded_by=account))
    assert isinstance(answer, Applied)
    assert answer.task.state is State.FAILED
    [receipt] = answer.task.receipts
    assert (receipt.holder, receipt.reason, receipt.fencing_token) == (
        "operator",
        Reason.FAILURES_EXHAUSTED,
        1,
    )
    assert answer.task == await worker.read(held.key)


async def test_an_outbox_finds_what_it_holds_whatever_the_incarnation(place: Place, worker: Actor) -> None:
    reborn = await Actor.of(place.client(), holder=f"{worker.outbox}/i2")
    stranger = await Actor.of(place.client())
    await worker.claim((await place.put("old")).key)
    await reborn.claim((await place.put("new")).key)
    await stranger.claim((await place.put("foreign")).key)
    done = await worker.claim((await place.put("done")).key)
    await worker.submit(done)
    unsettled = await reborn.store.unsettled_of_outbox(worker.outbox)
    assert {task.key.name for task in unsettled} == {"old", "new"}
    assert all(task.outbox == worker.outbox for task in unsettled)
    claimed = await reborn.store.claimed_by_outbox(worker.outbox)
    assert {task.key.name for task in claimed} == {"old", "new", "done"}


async def test_a_name_that_is_taken_is_refused(place: Place, worker: Actor) -> None:
    made = await place.put("a", {"n": 1})
    answer = await place.producer.create(NewTask(key=made.key, spec=made.spec))
    assert isinstance(answer, Refused)
    assert answer.cause is Cause.EXISTS
    assert await worker.read(made.key) == made


async def test_what_is_not_there_is_none_or_missing(place: Place, worker: Actor) -> None:
    assert await worker.store.task(place.key("nobody")) is None
    assert await worker.store.job(place.key("nobody")) is None
    made = await place.put("a")
    claim = claim_of(made, holder=worker.holder, account=worker.account)
    answer = await worker.store.write(replace(claim, key=place.key("nobody")))
    assert isinstance(answer, Refused)
    assert answer.cause is Cause.MISSING


async def test_a_task_made_again_under_its_name_is_another_task(place: Place, worker: Actor) -> None:
    """Writes that were decided on the first one do not land on the second (B33)."""
    first = await worker.claim((await place.put("a")).key)
    await place.delete("a")
    second = await place.put("a")
    assert second.uid != first.uid
    for late in (heartbeat_of(first), release_of(first, LeaseEnd.ERROR), revoke_of(first)):
        answer = await (place.server if late.__class__.__name__ == "Revoke" else worker.store).write(late)
        assert isinstance(answer, Refused)
    assert (await worker.submit(first)).verdict.value == "UNKNOWN_TASK"
    assert await worker.read(second.key) == second


async def test_all_tasks_are_listed_for_people(place: Place, worker: Actor) -> None:
    await place.put("a")
    await place.put("b", spec=replace(PATIENT, queue="mails"))
    assert {task.key.name for task in await worker.store.tasks()} == {"a", "b"}
    assert [task.key.name for task in await worker.store.tasks("mails")] == ["b"]


async def test_closing_twice_is_lawful(place: Place) -> None:
    store = place.open()
    await store.account()
    await store.close()
    await store.close()
