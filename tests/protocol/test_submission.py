from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fencepost.protocol import limits
from fencepost.protocol.lease import ended
from fencepost.protocol.mutation import apply
from fencepost.protocol.receipt import verify_chain
from fencepost.protocol.submission import (
    HOW_IT_ENDED,
    NEXT_STEP,
    NextStep,
    Submission,
    SubmissionTooLarge,
    Verdict,
    judge,
    new_receipt,
    refuse_what_does_not_fit,
    same_body,
)
from fencepost.protocol.task import Kind, LeaseEnd, ObjectKey, Outcome, Reason, State, Task
from tests.protocol.given import (
    HOLDER,
    NEXT_HOLDER,
    OTHER_HOLDER,
    after,
    held_task,
    open_task,
    reported,
    row,
    settled_task,
    submission,
    unknown,
    write_of,
)

ELSEWHERE = "e" * 64


def verdict(task: Task | None, asked: Submission, elsewhere: str = "") -> Verdict:
    return judge(task, asked, elsewhere=elsewhere).verdict


def test_a_first_result_is_accepted_and_says_what_to_append() -> None:
    task = held_task()
    judgement = judge(task, submission(task))
    assert (judgement.verdict, judgement.append, judgement.next_step) == (
        Verdict.ACCEPTED,
        True,
        NextStep.DONE,
    )
    settled = apply(task, write_of(task, judgement))
    assert (settled.state, settled.receipts) == (State.SUCCEEDED, (judgement.receipt,))
    verify_chain(settled)


@pytest.mark.parametrize(
    ("outcome", "state"),
    [(Outcome.OK, State.SUCCEEDED), (Outcome.REJECTED, State.FAILED), (Outcome.UNKNOWN, State.UNKNOWN)],
)
def test_the_outcome_decides_the_state(outcome: Outcome, state: State) -> None:
    task = held_task()
    value = "" if outcome is Outcome.UNKNOWN else "v"
    assert after(task, submission(task, outcome=outcome, value=value)).state is state


def test_the_sample_ledger_has_its_four_outcomes() -> None:
    first = held_task()
    stale = submission(first, idempotency_key="key-001", value="alpha work product v1")
    task = held_task(ended(first, end=LeaseEnd.SHUTDOWN), holder=OTHER_HOLDER)
    assert verdict(task, stale) is Verdict.REJECTED_STALE_TOKEN
    current = replace(stale, token=task.token, holder=task.holder)
    accepted = judge(task, current)
    assert accepted.verdict is Verdict.ACCEPTED
    task = apply(task, write_of(task, accepted))
    again = judge(task, current)
    assert (again.verdict, again.receipt, again.append) == (Verdict.DUPLICATE, accepted.receipt, False)
    assert verdict(task, replace(current, value="alpha work product v2 CHANGED")) is Verdict.CONFLICT


def test_the_shelter_feed_has_its_verdicts() -> None:
    """One task for the feed, a claim for each of its snapshots, every payload a row under a fresh key."""
    keys = iter(range(99))

    def sent(task: Task, payload: str, under: Task | None = None, **how: Any) -> tuple[Task, Verdict]:
        asked = row(under or task, f"key-{next(keys)}", payload, **how)
        judgement = judge(task, asked)
        return (apply(task, write_of(task, judgement)) if judgement.append else task), judgement.verdict

    verdicts: list[Verdict] = []

    def submits(task: Task, payload: str, under: Task | None = None, **how: Any) -> Task:
        task, said = sent(task, payload, under, **how)
        verdicts.append(said)
        return task

    def next_snapshot(task: Task) -> Task:
        return held_task(replace(task, hold=None), holder=HOLDER)

    first = held_task()
    task = submits(ended(first, end=LeaseEnd.EXPIRED), "feed-row-A", first, device_time="behind")
    second = next_snapshot(task)
    task = submits(second, "feed-row-A", device_time="ahead")
    third = next_snapshot(ended(task, end=LeaseEnd.SHUTDOWN))
    task = submits(third, "feed-row-B", second)
    task = submits(task, "feed-row-B", after_crash=True)
    task = submits(task, "feed-row-B")
    task = submits(task, "feed-row-C")
    task = next_snapshot(ended(task, end=LeaseEnd.SHUTDOWN))
    task = submits(task, "feed-row-A")
    task = submits(task, "feed-row-D")
    task = submits(task, "feed-row-E")
    task = submits(task, "feed-row-E")
    assert verdicts == [
        Verdict.REJECTED_EXPIRED_LEASE,
        Verdict.ACCEPTED,
        Verdict.REJECTED_STALE_TOKEN,
        Verdict.RECOVERED,
        Verdict.REJECTED_DUPLICATE,
        Verdict.ACCEPTED,
        Verdict.REJECTED_DUPLICATE,
        Verdict.ACCEPTED,
        Verdict.ACCEPTED,
        Verdict.REJECTED_DUPLICATE,
    ]
    assert (task.token, task.count) == (4, 5)
    assert [receipt.fencing_token for receipt in task.receipts] == [2, 3, 3, 4, 4]


# Step 1: the stored key, before everything else -------------------------------------------------------


def test_a_replay_beats_the_fence() -> None:
    task = held_task()
    asked = row(task, "r1", "one")
    task = held_task(ended(after(task, asked), end=LeaseEnd.ERROR), holder=OTHER_HOLDER)
    replayed = judge(task, asked)
    assert (replayed.verdict, replayed.receipt) == (Verdict.DUPLICATE, task.receipts[0])


def test_a_replay_beats_the_settled_task() -> None:
    task = held_task()
    task = after(task, row(task, "r1", "one"))
    settled = after(task, submission(task))
    assert verdict(settled, submission(settled)) is Verdict.DUPLICATE
    assert verdict(settled, row(settled, "r1", "one")) is Verdict.DUPLICATE


def test_a_replay_beats_the_accepted_payload() -> None:
    task = held_task()
    asked = row(task, "r1", "one")
    assert verdict(after(task, asked), asked, ELSEWHERE) is Verdict.DUPLICATE


def test_a_conflict_beats_the_fence_and_leaves_the_first() -> None:
    task = held_task()
    task = ended(after(task, row(task, "r1", "one")), end=LeaseEnd.EXPIRED)
    judgement = judge(task, row(task, "r1", "two", token=1, holder=HOLDER))
    assert (judgement.verdict, judgement.append, judgement.receipt) == (
        Verdict.CONFLICT,
        False,
        task.receipts[0],
    )
    assert judgement.message == "the key has a receipt of another body; the first stands"
    assert judgement.next_step is NextStep.DEAD_LETTER


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({}, True),
        ({"device_time": "2099", "after_crash": True}, True),
        ({"value": "other"}, False),
        ({"outcome": Outcome.REJECTED}, False),
        ({"kind": Kind.ROW}, False),
    ],
)
def test_a_body_is_kind_outcome_and_payload(change: dict[str, object], same: bool) -> None:
    task = settled_task()
    asked = submission(task, **change)
    assert same_body(task.receipts[0], asked) is same
    assert verdict(task, asked) is (Verdict.DUPLICATE if same else Verdict.CONFLICT)


# Step 2: the fence ------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [end for end in LeaseEnd if end is not LeaseEnd.AFTER_UNKNOWN])
def test_only_a_lease_that_ran_out_is_an_expired_one(end: LeaseEnd) -> None:
    task = held_task()
    expected = Verdict.REJECTED_EXPIRED_LEASE if end is LeaseEnd.EXPIRED else Verdict.REJECTED_STALE_TOKEN
    judgement = judge(ended(task, end=end), submission(task))
    assert (judgement.verdict, judgement.next_step, judgement.append) == (expected, NextStep.RECLAIM, False)
    how = HOW_IT_ENDED[end]
    assert judgement.message == f"the lease with token 1 has ended ({how}): nobody holds the task now"


def test_every_end_of_a_lease_has_its_words() -> None:
    assert set(HOW_IT_ENDED) == set(LeaseEnd)
    revoked = {end for end, words in HOW_IT_ENDED.items() if words.startswith("revoked")}
    assert revoked == {LeaseEnd.EXPIRED, LeaseEnd.DEADLINE, LeaseEnd.CANCELLED}


def test_an_older_lease_of_a_task_that_nobody_holds_is_told_as_such() -> None:
    first = held_task()
    second = held_task(ended(first, end=LeaseEnd.ERROR), holder=OTHER_HOLDER)
    judgement = judge(ended(second, end=LeaseEnd.ERROR), submission(first))
    assert judgement.verdict is Verdict.REJECTED_STALE_TOKEN
    assert judgement.message == "token 1 is over: the current token is 2, and nobody holds the task now"


@pytest.mark.parametrize(
    ("token", "holder", "says"),
    [
        (1, OTHER_HOLDER, f"token 1 is not of {OTHER_HOLDER}: it is the current one, held by {HOLDER}"),
        (2, HOLDER, f"token 2 was never given out: the current token is 1, held by {HOLDER}"),
        (0, HOLDER, f"token 0 is over: the current token is 1, held by {HOLDER}"),
    ],
)
def test_a_stale_submit_is_told_in_what(token: int, holder: str, says: str) -> None:
    task = held_task()
    assert judge(task, submission(task, token=token, holder=holder)).message == says


def test_an_expired_lease_is_a_stale_token_once_somebody_has_claimed() -> None:
    first = held_task()
    task = held_task(ended(first, end=LeaseEnd.EXPIRED), holder=OTHER_HOLDER)
    judgement = judge(task, submission(first))
    assert judgement.verdict is Verdict.REJECTED_STALE_TOKEN
    assert f"the current token is 2, held by {OTHER_HOLDER}" in judgement.message


@pytest.mark.parametrize(("token", "holder"), [(1, NEXT_HOLDER), (1, OTHER_HOLDER), (0, HOLDER), (2, HOLDER)])
def test_token_and_holder_both_count(token: int, holder: str) -> None:
    task = held_task()
    assert verdict(task, submission(task, token=token, holder=holder)) is Verdict.REJECTED_STALE_TOKEN
    expired = ended(task, end=LeaseEnd.EXPIRED)
    assert verdict(expired, submission(task, token=token, holder=holder)) is Verdict.REJECTED_STALE_TOKEN


def test_the_fence_beats_the_settled_task() -> None:
    first = held_task()
    task = held_task(ended(first, end=LeaseEnd.ERROR), holder=OTHER_HOLDER)
    settled = after(task, submission(task))
    assert verdict(settled, submission(first, idempotency_key="k2")) is Verdict.REJECTED_STALE_TOKEN


def test_the_fence_beats_the_accepted_payload() -> None:
    task = held_task()
    task = after(task, row(task, "r1", "one"))
    assert verdict(task, row(task, "r2", "one", holder=OTHER_HOLDER)) is Verdict.REJECTED_STALE_TOKEN


def test_a_late_submit_under_a_lease_that_was_not_revoked_is_accepted() -> None:
    task = held_task(renewals=3)
    assert verdict(task, submission(task, device_time="1970-01-01T00:00:00Z")) is Verdict.ACCEPTED


# Step 3: the settled task -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, Verdict.ALREADY_TERMINAL),
        ({"kind": Kind.ROW}, Verdict.ALREADY_TERMINAL),
        ({"value": "other"}, Verdict.TERMINAL_CONFLICT),
        ({"outcome": Outcome.REJECTED}, Verdict.TERMINAL_CONFLICT),
        ({"outcome": Outcome.UNKNOWN, "value": ""}, Verdict.TERMINAL_CONFLICT),
    ],
)
def test_a_settled_task_takes_nothing_more(change: dict[str, object], expected: Verdict) -> None:
    task = settled_task()
    for asked in (
        submission(task, idempotency_key="k2", **change),
        submission(task, idempotency_key="k2", token=None, holder=None, **change),
    ):
        judgement = judge(task, asked)
        assert (judgement.verdict, judgement.append, judgement.receipt) == (expected, False, task.receipts[0])
        assert judgement.message == "the task is Succeeded"


def test_the_settled_task_beats_the_accepted_payload() -> None:
    task = settled_task()
    other = submission(task, idempotency_key="k2", value="elsewhere")
    assert verdict(task, other, ELSEWHERE) is Verdict.TERMINAL_CONFLICT
    assert verdict(task, submission(task, idempotency_key="k2"), ELSEWHERE) is Verdict.ALREADY_TERMINAL


def test_a_settled_task_without_a_receipt_still_takes_nothing() -> None:
    task = replace(settled_task(), receipts=())
    assert verdict(task, submission(task)) is Verdict.TERMINAL_CONFLICT


# Step 4: the accepted payload -------------------------------------------------------------------------


def test_a_row_of_an_accepted_payload_leaves_nothing() -> None:
    task = held_task()
    task = after(task, row(task, "r1", "one"))
    judgement = judge(task, row(task, "r2", "one"))
    assert (judgement.verdict, judgement.append) == (Verdict.REJECTED_DUPLICATE, False)
    assert (judgement.receipt, judgement.next_step) == (task.receipts[0], NextStep.DONE)


def test_a_row_of_a_payload_accepted_elsewhere_leaves_nothing() -> None:
    task = held_task()
    judgement = judge(task, row(task, "r1", "one"), elsewhere=ELSEWHERE)
    assert (judgement.verdict, judgement.append, judgement.receipt) == (
        Verdict.REJECTED_DUPLICATE,
        False,
        None,
    )
    assert ELSEWHERE in judgement.message


@pytest.mark.parametrize("elsewhere", ["", ELSEWHERE])
def test_a_result_of_an_accepted_payload_settles_and_names_the_first(elsewhere: str) -> None:
    task = held_task()
    if not elsewhere:
        task = after(task, row(task, "r1", "one"))
    judgement = judge(task, submission(task, value="one"), elsewhere=elsewhere)
    assert (judgement.verdict, judgement.append) == (Verdict.REJECTED_DUPLICATE, True)
    settled = apply(task, write_of(task, judgement))
    assert settled.state is State.SUCCEEDED
    assert settled.receipts[-1].duplicate_of == (elsewhere or task.receipts[0].receipt_sha256)
    verify_chain(settled)


def test_the_accepted_payload_beats_acceptance_after_a_crash() -> None:
    task = held_task()
    task = after(task, row(task, "r1", "one"))
    assert verdict(task, row(task, "r2", "one", after_crash=True)) is Verdict.REJECTED_DUPLICATE


def test_rejected_and_unknown_are_never_duplicates() -> None:
    task = held_task()
    task = after(task, unknown(task))
    assert verdict(task, unknown(task, "again"), ELSEWHERE) is Verdict.ACCEPTED
    rejected = submission(task, outcome=Outcome.REJECTED, value="no")
    assert verdict(task, rejected, ELSEWHERE) is Verdict.ACCEPTED


# Step 5, and what no task is there for ----------------------------------------------------------------


def test_a_row_from_before_a_crash_is_recovered() -> None:
    task = held_task()
    assert verdict(task, submission(task, after_crash=True)) is Verdict.RECOVERED
    assert judge(task, submission(task, after_crash=True)).receipt == judge(task, submission(task)).receipt


@pytest.mark.parametrize("task", [None, held_task(uid="uid-2"), settled_task(uid="uid-2")])
def test_a_task_that_is_gone_or_another_is_unknown(task: Task | None) -> None:
    judgement = judge(task, submission(settled_task()))
    assert (judgement.verdict, judgement.append) == (Verdict.UNKNOWN_TASK, False)


def test_the_same_key_in_another_task_is_another_key() -> None:
    """Two tasks, two namespaces, and a task that was deleted and made again under its name."""
    first = settled_task()
    for other in (
        held_task(uid="uid-2"),
        held_task(uid="uid-3", key=ObjectKey(namespace="elsewhere", name=first.key.name)),
    ):
        assert verdict(other, submission(other)) is Verdict.ACCEPTED
        assert verdict(other, submission(first)) is Verdict.UNKNOWN_TASK
        assert after(other, submission(other)).receipts[0].receipt_sha256 != first.receipts[0].receipt_sha256


def test_a_report_needs_no_lease_and_is_the_operators_receipt() -> None:
    for task in (open_task(), ended(held_task(), end=LeaseEnd.EXPIRED)):
        judgement = judge(task, reported(task, "event-1", Outcome.OK, "done"))
        assert judgement.verdict is Verdict.ACCEPTED
        assert judgement.receipt is not None
        assert (judgement.receipt.holder, judgement.receipt.fencing_token) == ("operator", task.token)
        assert judgement.receipt.recorded_by == "person"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"outcome": Outcome.UNKNOWN, "value": "x"}, "an Unknown outcome has an empty value"),
        ({"kind": Kind.ROW, "outcome": Outcome.REJECTED}, "a row has the outcome Ok"),
        ({"kind": Kind.ROW, "outcome": Outcome.UNKNOWN, "value": ""}, "a row has the outcome Ok"),
        ({"token": None}, "names token and holder"),
        ({"holder": None}, "names token and holder"),
        ({"idempotency_key": ""}, "an idempotency key takes 1 to 256 bytes"),
        ({"idempotency_key": "k" * 257}, "an idempotency key takes 1 to 256 bytes"),
        ({"device_time": "t" * 65}, "a device time takes at most 64 characters"),
    ],
)
@pytest.mark.parametrize("task", [held_task(), settled_task(), None])
def test_a_submission_that_contradicts_itself_is_refused(
    task: Task | None, change: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        judge(task, submission(held_task(), **change))


def test_a_receipt_records_what_was_handed_in() -> None:
    task = held_task()
    task = after(task, row(task, "r1", "one"))
    asked = submission(task, device_time="2099-01-01T00:00:00Z".ljust(64))
    assert verdict(task, asked) is Verdict.ACCEPTED
    receipt = new_receipt(task, asked, reason=Reason.CANCELLED)
    assert (receipt.sequence, receipt.previous) == (2, task.head)
    assert (receipt.fencing_token, receipt.holder) == (1, HOLDER)
    assert (receipt.device_time, receipt.reason) == (asked.device_time, Reason.CANCELLED)
    assert (receipt.value, receipt.payload_sha256) == ("the work", asked.payload_sha256)


def test_every_verdict_says_what_to_do_next() -> None:
    assert set(NEXT_STEP) == set(Verdict)
    done = {verdict for verdict, step in NEXT_STEP.items() if step is NextStep.DONE}
    assert done == {Verdict.ACCEPTED, Verdict.RECOVERED, Verdict.DUPLICATE, Verdict.REJECTED_DUPLICATE}
    reclaim = {verdict for verdict, step in NEXT_STEP.items() if step is NextStep.RECLAIM}
    assert reclaim == {Verdict.REJECTED_EXPIRED_LEASE, Verdict.REJECTED_STALE_TOKEN}
    assert [verdict for verdict, step in NEXT_STEP.items() if step is NextStep.RETRY] == [Verdict.RETRY_LATER]


# Limits -----------------------------------------------------------------------------------------------


def with_receipts(count: int) -> Task:
    task = held_task()
    return after(task, *(row(task, f"r{n}", f"row {n}") for n in range(count)))


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        ("x" * limits.VALUE_BYTES_MAX, True),
        ("x" * (limits.VALUE_BYTES_MAX + 1), False),
        ("<" * (limits.VALUE_BYTES_MAX // 6), True),
        ("<" * (limits.VALUE_BYTES_MAX // 6 + 1), False),
    ],
)
def test_a_value_fits_as_it_is_stored(value: str, fits: bool) -> None:
    task = held_task()
    if fits:
        assert verdict(task, submission(task, value=value)) is Verdict.ACCEPTED
        return
    with pytest.raises(SubmissionTooLarge, match="over the limit of 16384"):
        judge(task, submission(task, value=value))


@pytest.mark.parametrize("make", [lambda task: row(task, "one-more", "x"), unknown])
def test_four_receipts_are_kept_for_settling(make: Callable[[Task], Submission]) -> None:
    last_room = with_receipts(limits.ROW_SEQUENCE_MAX - 1)
    assert verdict(last_room, make(last_room)) is Verdict.ACCEPTED
    full = with_receipts(limits.ROW_SEQUENCE_MAX)
    with pytest.raises(SubmissionTooLarge, match="28 receipts; 28 is the limit for one that does not settle"):
        judge(full, make(full))
    assert verdict(full, submission(full)) is Verdict.ACCEPTED


def test_the_number_of_receipts_is_bounded() -> None:
    full = with_receipts(limits.ROW_SEQUENCE_MAX)
    thirty_one = replace(full, receipts=(*full.receipts, *full.receipts[:3]))
    refuse_what_does_not_fit(thirty_one, submission(full))
    thirty_two = replace(full, receipts=(*full.receipts, *full.receipts[:4]))
    with pytest.raises(SubmissionTooLarge, match="the task has 32 receipts, the limit is 32"):
        refuse_what_does_not_fit(thirty_two, submission(full))


def test_all_rows_together_are_bounded_and_the_result_is_not_one_of_them() -> None:
    task = held_task()
    each = limits.VALUE_BYTES_MAX
    full = after(task, *(row(task, f"r{n}", f"{n}" * each) for n in range(limits.ROWS_BYTES_MAX // each)))
    with pytest.raises(SubmissionTooLarge, match="take 114689 bytes, over the limit of 114688"):
        judge(full, row(full, "one-more", "x"))
    assert verdict(full, submission(full, value="x" * each)) is Verdict.ACCEPTED


def test_a_replay_of_a_full_task_is_still_answered() -> None:
    full = with_receipts(limits.ROW_SEQUENCE_MAX)
    assert verdict(full, row(full, "r0", "row 0")) is Verdict.DUPLICATE
