"""Submits, receipts and verdicts, the same over every store (FENCE-02, IDEM-01, IDEM-02, I1)."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from fencepost.certainty import write_until_certain
from fencepost.ports import Answer, Applied, Cause, Refused, Unanswered
from fencepost.protocol import limits
from fencepost.protocol.mutation import Mutation
from fencepost.protocol.receipt import verify_chain
from fencepost.protocol.submission import SubmissionTooLarge, Verdict
from fencepost.protocol.task import GENESIS, Hold, Kind, LeaseEnd, Outcome, State
from tests.contract.acting import (
    Actor,
    heartbeat_of,
    release_of,
    requeue_of,
    revoke_of,
    submission_of,
    submit_of,
)
from tests.contract.places import Place


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        (Outcome.OK, State.SUCCEEDED),
        (Outcome.REJECTED, State.FAILED),
        (Outcome.UNKNOWN, State.UNKNOWN),
    ],
)
async def test_a_submit_leaves_a_receipt_and_the_state_it_implies(
    place: Place, worker: Actor, outcome: Outcome, state: State
) -> None:
    held = await worker.claim((await place.put("a")).key)
    submission = submission_of(held, "done: 1 <&> ü", account=worker.account, outcome=outcome, key="key-1")
    answer = await worker.store.write(submit_of(held, submission))
    assert isinstance(answer, Applied)
    assert answer.task.state is state
    [receipt] = answer.task.receipts
    assert (receipt.idempotency_key, receipt.fencing_token, receipt.holder) == ("key-1", 1, worker.holder)
    assert (receipt.kind, receipt.outcome, receipt.value) == (Kind.RESULT, outcome, submission.value)
    assert (receipt.sequence, receipt.previous, receipt.recorded_by) == (1, GENESIS, worker.account)
    verify_chain(answer.task)
    assert answer.task == await worker.read(held.key)


async def test_a_settled_task_keeps_its_lease_as_the_record_and_nothing_changes_it(
    place: Place, worker: Actor, other: Actor
) -> None:
    held = await worker.claim((await place.put("a")).key)
    await worker.submit(held)
    settled = await worker.read(held.key)
    assert (settled.token, settled.holder, settled.hold) == (1, worker.holder, Hold.LEASED)
    assert await worker.store.claimable("feeds", 10) == []
    assert isinstance(await other.try_claim(settled), Refused)
    assert isinstance(await worker.store.write(heartbeat_of(settled)), Refused)
    assert isinstance(await worker.store.write(release_of(held, LeaseEnd.ERROR)), Refused)
    assert isinstance(await place.server.write(revoke_of(held)), Refused)
    assert await worker.read(held.key) == settled


async def test_the_same_key_answers_the_original_receipt_byte_for_byte(place: Place, worker: Actor) -> None:
    held = await worker.claim((await place.put("a")).key)
    submission = submission_of(held, account=worker.account, key="key-1")
    first = await worker.hand_in(held.key, submission)
    assert first.verdict is Verdict.ACCEPTED
    for _ in range(2):
        reopened = await Actor.of(place.client(), holder=worker.holder)
        again = await reopened.hand_in(held.key, submission)
        assert (again.verdict, again.receipt) == (Verdict.DUPLICATE, first.receipt)
    assert (await worker.read(held.key)).count == 1


async def test_a_replay_is_answered_after_the_lease_was_lost(
    place: Place, worker: Actor, other: Actor
) -> None:
    """A worker that lost only the answer can finish its drain, whoever holds the task by then."""
    held = await worker.claim((await place.put("a")).key)
    row = submission_of(held, "row", account=worker.account, kind=Kind.ROW, key="key-1")
    first = await worker.hand_in(held.key, row)
    await end_lease_and_requeue(place, worker, held.key.name)
    await other.claim(held.key)
    again = await worker.hand_in(held.key, row)
    assert (again.verdict, again.receipt) == (Verdict.DUPLICATE, first.receipt)


async def test_the_same_key_with_another_body_is_a_conflict_and_the_first_stands(
    place: Place, worker: Actor
) -> None:
    held = await worker.claim((await place.put("a")).key)
    first = await worker.submit(held, "v1", key="key-1")
    for changed in (
        submission_of(held, "v2", account=worker.account, key="key-1"),
        submission_of(held, "v1", account=worker.account, key="key-1", outcome=Outcome.REJECTED),
    ):
        judgement = await worker.hand_in(held.key, changed)
        assert (judgement.verdict, judgement.receipt) == (Verdict.CONFLICT, first.receipt)
    assert (await worker.read(held.key)).receipts == (first.receipt,)


async def test_a_stale_token_is_refused_and_leaves_no_record(
    place: Place, worker: Actor, other: Actor
) -> None:
    old = await worker.claim((await place.put("a")).key)
    late = submit_of(old, submission_of(old, account=worker.account))
    await end_lease_and_requeue(place, worker, old.key.name)
    current = await other.claim(old.key)
    answer = await worker.store.write(late)
    assert isinstance(answer, Refused)
    assert answer.cause is Cause.PRECONDITION
    assert (await worker.submit(old)).verdict is Verdict.REJECTED_STALE_TOKEN
    assert await worker.read(old.key) == current


async def test_the_token_alone_is_no_lease(place: Place, worker: Actor, other: Actor) -> None:
    held = await worker.claim((await place.put("a")).key)
    stolen = submission_of(held, account=other.account, holder=other.holder)
    assert (await other.hand_in(held.key, stolen)).verdict is Verdict.REJECTED_STALE_TOKEN
    assert await worker.read(held.key) == held


async def test_a_lease_that_the_server_ended_because_it_ran_out_says_so(place: Place, worker: Actor) -> None:
    held = await worker.claim((await place.put("a")).key)
    late = submit_of(held, submission_of(held, account=worker.account))
    assert isinstance(await place.server.write(revoke_of(held)), Applied)
    assert isinstance(await worker.store.write(late), Refused)
    assert (await worker.submit(held)).verdict is Verdict.REJECTED_EXPIRED_LEASE
    assert (await worker.read(held.key)).receipts == ()


async def test_a_submit_decided_on_another_head_is_refused(place: Place, worker: Actor) -> None:
    held = await worker.claim((await place.put("a")).key)
    first = submit_of(held, submission_of(held, "one", account=worker.account, kind=Kind.ROW))
    second = submit_of(held, submission_of(held, "two", account=worker.account, kind=Kind.ROW))
    assert isinstance(await worker.store.write(first), Applied)
    answer = await worker.store.write(second)
    assert isinstance(answer, Refused)
    assert answer.cause is Cause.PRECONDITION
    assert [receipt.value for receipt in (await worker.read(held.key)).receipts] == ["one"]


async def test_a_settled_task_tells_the_same_from_another_end(
    place: Place, worker: Actor, other: Actor
) -> None:
    held = await worker.claim((await place.put("a")).key)
    first = await worker.submit(held, "done")
    same = await worker.submit(held, "done")
    assert (same.verdict, same.receipt) == (Verdict.ALREADY_TERMINAL, first.receipt)
    another = await worker.submit(held, "else")
    assert (another.verdict, another.receipt) == (Verdict.TERMINAL_CONFLICT, first.receipt)
    unknown = await worker.submit(held, outcome=Outcome.UNKNOWN)
    assert unknown.verdict is Verdict.TERMINAL_CONFLICT
    assert (await worker.read(held.key)).receipts == (first.receipt,)


async def test_rows_then_a_result_form_one_chain(place: Place, worker: Actor) -> None:
    held = await worker.claim((await place.put("a")).key)
    for value in ("one", "two"):
        assert (await worker.submit(held, value, kind=Kind.ROW)).verdict is Verdict.ACCEPTED
        assert (await worker.read(held.key)).state is State.OPEN
    await worker.submit(held, "sum")
    task = await worker.read(held.key)
    verify_chain(task)
    assert [receipt.sequence for receipt in task.receipts] == [1, 2, 3]
    assert task.state is State.SUCCEEDED


async def test_a_payload_that_stands_is_no_second_row(place: Place, worker: Actor) -> None:
    held = await worker.claim((await place.put("a")).key)
    first = await worker.submit(held, "row", kind=Kind.ROW)
    again = await worker.submit(held, "row", kind=Kind.ROW)
    assert (again.verdict, again.receipt) == (Verdict.REJECTED_DUPLICATE, first.receipt)
    assert (await worker.read(held.key)).count == 1


async def test_a_result_that_repeats_a_row_settles_and_names_it(place: Place, worker: Actor) -> None:
    held = await worker.claim((await place.put("a")).key)
    first = await worker.submit(held, "row", kind=Kind.ROW)
    assert first.receipt is not None
    assert (await worker.submit(held, "row")).verdict is Verdict.REJECTED_DUPLICATE
    task = await worker.read(held.key)
    assert task.state is State.SUCCEEDED
    assert task.receipts[-1].duplicate_of == first.receipt.receipt_sha256


async def test_an_unknown_is_settled_by_a_later_attempt(place: Place, worker: Actor, other: Actor) -> None:
    held = await worker.claim((await place.put("a")).key)
    await worker.submit(held, outcome=Outcome.UNKNOWN)
    unknown = await worker.read(held.key)
    released = await worker.store.write(release_of(unknown, LeaseEnd.AFTER_UNKNOWN))
    assert isinstance(released, Applied)
    requeued = await place.server.write(requeue_of(released.task))
    assert isinstance(requeued, Applied)
    again = await other.claim(held.key)
    assert (again.state, again.token) == (State.UNKNOWN, 2)
    await other.submit(again)
    task = await worker.read(held.key)
    assert task.state is State.SUCCEEDED
    assert [receipt.outcome for receipt in task.receipts] == [Outcome.UNKNOWN, Outcome.OK]


async def test_a_receipt_that_does_not_follow_is_refused(place: Place, worker: Actor) -> None:
    """Whatever a worker sends: the store keeps nothing that the chain does not bear."""
    held = await worker.claim((await place.put("a")).key)
    submit = submit_of(held, submission_of(held, account=worker.account))
    good = submit.receipt
    for forged in (
        replace(good, sequence=2),
        replace(good, previous="0" * 64),
        replace(good, fencing_token=9),
        replace(good, holder="operator"),
        replace(good, recorded_by="somebody-else"),
    ):
        answer = await worker.store.write(replace(submit, receipt=forged))
        assert isinstance(answer, Refused), forged
    assert await worker.read(held.key) == held
    assert isinstance(await worker.store.write(submit), Applied)


async def test_values_and_keys_at_their_limits_come_back_as_they_were(place: Place, worker: Actor) -> None:
    held = await worker.claim((await place.put("a")).key)
    value = "<" * (limits.VALUE_BYTES_MAX // 6)
    key = "ü" * (limits.IDEMPOTENCY_KEY_BYTES_MAX // 2)
    judgement = await worker.submit(held, value, key=key)
    assert judgement.verdict is Verdict.ACCEPTED
    task = await worker.read(held.key)
    assert (task.receipts[0].value, task.receipts[0].idempotency_key) == (value, key)
    verify_chain(task)


async def test_a_value_over_the_limit_is_refused_before_it_is_sent(place: Place, worker: Actor) -> None:
    held = await worker.claim((await place.put("a")).key)
    with pytest.raises(SubmissionTooLarge):
        await worker.submit(held, "x" * (limits.VALUE_BYTES_MAX + 1))
    assert await worker.read(held.key) == held


async def test_the_same_key_in_two_tasks_is_two_submits(place: Place, worker: Actor) -> None:
    """(B33)"""
    for name in ("a", "b"):
        held = await worker.claim((await place.put(name)).key)
        assert (await worker.submit(held, f"done {name}", key="1")).verdict is Verdict.ACCEPTED


async def test_many_submits_of_one_key_leave_one_receipt(place: Place, worker: Actor) -> None:
    """Two bodies under one key at the same moment: one stands, everybody else is told (B29)."""
    held = await worker.claim((await place.put("a")).key)
    submissions = [
        submission_of(held, f"v{number % 2}", account=worker.account, key="key-1") for number in range(12)
    ]
    judgements = await asyncio.gather(*(worker.hand_in(held.key, one) for one in submissions))
    [receipt] = (await worker.read(held.key)).receipts
    verdicts = Counter(judgement.verdict for judgement in judgements)
    assert verdicts == {Verdict.ACCEPTED: 1, Verdict.DUPLICATE: 5, Verdict.CONFLICT: 6}
    assert {judgement.receipt for judgement in judgements} == {receipt}


async def test_a_write_sent_again_after_a_lost_answer_is_applied_once(place: Place, worker: Actor) -> None:
    held = await worker.claim((await place.put("a")).key)
    submit = submit_of(held, submission_of(held, account=worker.account))
    lossy = LosesTheFirstAnswer(worker)
    answer = await write_until_certain(lossy, submit, pause=lossy.pause)
    assert isinstance(answer, Applied)
    assert answer.task == await worker.read(held.key)
    assert answer.task.count == 1


class LosesTheFirstAnswer:
    """The store of a worker, behind a wire that drops the first answer."""

    def __init__(self, worker: Actor) -> None:
        self._store = worker.store
        self._sent = 0
        self.task = worker.store.task

    async def write(self, mutation: Mutation) -> Answer:
        answer = await self._store.write(mutation)
        self._sent += 1
        return Unanswered(message="reset") if self._sent == 1 else answer

    async def pause(self, tries: int) -> bool:
        return tries < 3


async def end_lease_and_requeue(place: Place, worker: Actor, name: str) -> None:
    held = await worker.read(place.key(name))
    revoked = await place.server.write(revoke_of(held))
    assert isinstance(revoked, Applied)
    assert isinstance(await place.server.write(requeue_of(revoked.task)), Applied)
