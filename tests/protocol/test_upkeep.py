from __future__ import annotations

from dataclasses import replace

import pytest

from fencepost.protocol import lease, limits
from fencepost.protocol.backoff import backoff_seconds, spread_of
from fencepost.protocol.mutation import Requeue, Revoke, Settle, apply
from fencepost.protocol.payload import sha256_hex
from fencepost.protocol.receipt import key_problem, verify_chain
from fencepost.protocol.submission import judge
from fencepost.protocol.task import LeaseEnd, Outcome, Reason, RetryPolicy, State, Task, UnknownPolicy
from fencepost.protocol.upkeep import (
    JUST_AFTER_SECONDS,
    Act,
    Ages,
    Decision,
    Rest,
    Wait,
    decide,
    lease_is_over,
    revoke,
    settle,
)
from tests.protocol.given import (
    OPERATOR_ACCOUNT,
    after,
    held_task,
    open_task,
    row,
    settled_task,
    submission,
    unknown,
    with_spec,
    write_of,
)

HELD = with_spec(held_task(), lease_duration_seconds=60)
BACKOFF = lease.ended(HELD, end=LeaseEnd.ERROR)
UNKNOWN = lease.ended(after(HELD, unknown(HELD)), end=LeaseEnd.AFTER_UNKNOWN)
RECLAIM = with_spec(UNKNOWN, unknown_policy=UnknownPolicy.RECLAIM)
LONG = 1e9


def due(task: Task, /, **ages: float) -> Decision:
    return decide(task, Ages(**ages), recorded_by=OPERATOR_ACCOUNT)


def mutation_of(decision: Decision) -> Revoke | Requeue | Settle:
    assert isinstance(decision, Act)
    return decision.mutation


def first_wait(task: Task) -> float:
    return backoff_seconds(task.spec.retry_policy, failures=1, spread=spread_of(task))


@pytest.mark.parametrize(
    "task", [settled_task(), replace(HELD, deleting=True), open_task(failures=99), UNKNOWN]
)
def test_there_is_nothing_to_do_for_what_is_settled_free_waiting_or_going(task: Task) -> None:
    assert due(task, lease_unchanged=LONG, hold_unchanged=LONG, task=LONG) == Rest()


@pytest.mark.parametrize(("unchanged", "over"), [(0.0, False), (60.0, False), (60.001, True)])
def test_a_lease_is_over_after_more_than_its_duration(unchanged: float, over: bool) -> None:
    assert lease_is_over(HELD, unchanged) is over
    decision = due(HELD, lease_unchanged=unchanged)
    if over:
        assert mutation_of(decision) == revoke(HELD, LeaseEnd.EXPIRED)
        assert apply(HELD, mutation_of(decision)).last_lease is not None
    else:
        assert decision == Wait(seconds=60 - unchanged + JUST_AFTER_SECONDS)


def test_the_wait_for_a_lease_ends_when_it_is_over() -> None:
    decision = due(HELD, lease_unchanged=12.5)
    assert isinstance(decision, Wait)
    assert lease_is_over(HELD, 12.5 + decision.seconds)


def test_a_heartbeat_that_got_in_before_makes_the_revoke_fail() -> None:
    mutation = mutation_of(due(HELD, lease_unchanged=61))
    with pytest.raises(Exception, match="renewed meanwhile"):
        apply(lease.renewed(HELD, at="now", progress=None), mutation)


def test_a_backoff_is_requeued_when_it_is_over() -> None:
    wait = first_wait(BACKOFF)
    assert due(BACKOFF, hold_unchanged=0) == Wait(seconds=wait)
    assert due(BACKOFF, hold_unchanged=wait - 1) == Wait(seconds=wait - (wait - 1))
    mutation = mutation_of(due(BACKOFF, hold_unchanged=wait))
    assert lease.why_not_claimable(apply(BACKOFF, mutation)) is None


def test_a_suspended_task_in_backoff_is_freed_and_stays_unclaimable() -> None:
    task = with_spec(BACKOFF, suspend=True)
    freed = apply(task, mutation_of(due(task, hold_unchanged=LONG)))
    assert lease.why_not_claimable(freed) is lease.NotClaimable.SUSPENDED


@pytest.mark.parametrize("most", [0, 2])
def test_a_task_is_tried_once_more_than_max_failures_and_then_settled(most: int) -> None:
    policy = RetryPolicy(max_failures=most)
    left = with_spec(replace(BACKOFF, failures=most), retry_policy=policy)
    assert isinstance(mutation_of(due(left, hold_unchanged=LONG)), Requeue)
    none_left = replace(left, failures=most + 1)
    settled = apply(none_left, mutation_of(due(none_left)))
    assert settled.state is State.FAILED
    receipt = settled.receipts[-1]
    assert (receipt.outcome, receipt.reason) == (Outcome.REJECTED, Reason.FAILURES_EXHAUSTED)
    assert (receipt.holder, receipt.recorded_by) == ("operator", OPERATOR_ACCOUNT)
    verify_chain(settled)


def test_a_held_task_whose_failures_are_exhausted_may_still_finish() -> None:
    task = replace(HELD, failures=limits.FAILURES_MAX + 1)
    assert isinstance(due(task, lease_unchanged=1), Wait)


def test_an_unknown_waits_for_a_report_or_is_reclaimed_as_its_policy_says() -> None:
    assert due(UNKNOWN, hold_unchanged=LONG) == Rest()
    mutation = mutation_of(due(RECLAIM, hold_unchanged=LONG))
    assert lease.why_not_claimable(apply(RECLAIM, mutation)) is None


def test_an_unknown_is_not_reclaimed_at_once() -> None:
    assert RECLAIM.failures == 0
    assert due(RECLAIM, hold_unchanged=0) == Wait(seconds=first_wait(RECLAIM))


def test_an_unknown_without_failures_left_stays_and_is_never_settled() -> None:
    task = with_spec(replace(RECLAIM, failures=1), retry_policy=RetryPolicy(max_failures=0))
    assert due(task, hold_unchanged=LONG) == Rest()


# The deadline -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("age", "passed"), [(99.9, False), (100.0, True), (LONG, True)])
def test_a_deadline_revokes_and_then_settles(age: float, passed: bool) -> None:
    held = with_spec(HELD, active_deadline_seconds=100)
    free = with_spec(open_task(), active_deadline_seconds=100)
    if not passed:
        assert due(free, task=age) == Wait(seconds=100 - age)
        return
    revoked = apply(held, mutation_of(due(held, task=age)))
    assert revoked.last_lease is not None
    assert revoked.last_lease.end is LeaseEnd.DEADLINE
    for task in (revoked, free):
        settled = apply(task, mutation_of(due(task, task=age)))
        assert (settled.state, settled.receipts[-1].reason) == (State.FAILED, Reason.DEADLINE_EXCEEDED)


def test_a_deadline_beats_failures_and_backoff() -> None:
    task = with_spec(replace(BACKOFF, failures=99), active_deadline_seconds=5)
    mutation = mutation_of(due(task, task=5, hold_unchanged=LONG))
    assert isinstance(mutation, Settle)
    assert mutation.receipt.reason is Reason.DEADLINE_EXCEEDED


@pytest.mark.parametrize(("age", "seconds"), [(0.0, 60 + JUST_AFTER_SECONDS), (70.0, 30.0)])
def test_the_earlier_of_lease_and_deadline_is_waited_for(age: float, seconds: float) -> None:
    task = with_spec(HELD, active_deadline_seconds=100)
    assert due(task, task=age) == Wait(seconds=seconds)


def test_a_lease_that_ran_out_before_the_deadline_is_revoked_as_such() -> None:
    task = with_spec(HELD, active_deadline_seconds=100)
    assert mutation_of(due(task, lease_unchanged=61, task=70)) == revoke(task, LeaseEnd.EXPIRED)


def test_a_deadline_neither_revokes_nor_settles_nor_reruns_an_unknown() -> None:
    held = with_spec(after(HELD, unknown(HELD)), active_deadline_seconds=5)
    assert due(held, task=LONG) == Wait(seconds=60 + JUST_AFTER_SECONDS)
    assert mutation_of(due(held, task=LONG, lease_unchanged=61)) == revoke(held, LeaseEnd.EXPIRED)
    reclaim = with_spec(RECLAIM, active_deadline_seconds=5)
    assert due(reclaim, task=5, hold_unchanged=LONG) == Rest()
    assert isinstance(mutation_of(due(reclaim, task=4.9, hold_unchanged=LONG)), Requeue)


# The operator's own receipt ---------------------------------------------------------------------------


def test_a_settle_repeated_is_the_same_settle() -> None:
    one = settle(BACKOFF, Reason.FAILURES_EXHAUSTED, recorded_by="a")
    assert (
        one.receipt.idempotency_key
        == settle(BACKOFF, Reason.FAILURES_EXHAUSTED, recorded_by="b").receipt.idempotency_key
    )
    assert key_problem(one.receipt.idempotency_key) is None
    assert one.receipt.value == ""
    assert one.receipt.payload_sha256 == sha256_hex("")
    for other in (
        settle(BACKOFF, Reason.CANCELLED, recorded_by="a"),
        settle(replace(BACKOFF, token=2), Reason.FAILURES_EXHAUSTED, recorded_by="a"),
        settle(replace(BACKOFF, uid="uid-2"), Reason.FAILURES_EXHAUSTED, recorded_by="a"),
    ):
        assert other.receipt.idempotency_key != one.receipt.idempotency_key


def test_a_terminal_receipt_fits_a_task_full_of_rows() -> None:
    task = held_task()
    task = after(task, *(row(task, f"r{n}", f"row {n}") for n in range(limits.ROW_SEQUENCE_MAX)))
    task = lease.ended(task, end=LeaseEnd.EXPIRED)
    settled = apply(task, settle(task, Reason.FAILURES_EXHAUSTED, recorded_by=OPERATOR_ACCOUNT))
    assert (settled.state, settled.count) == (State.FAILED, limits.ROW_SEQUENCE_MAX + 1)


def test_a_worker_that_comes_back_late_loses_to_the_settle_and_the_settle_to_a_submit_in_time() -> None:
    late = submission(HELD)
    settled = apply(BACKOFF, settle(BACKOFF, Reason.CANCELLED, recorded_by=OPERATOR_ACCOUNT))
    assert settled.state is State.CANCELLED
    assert not judge(settled, late).append
    mutation = mutation_of(due(HELD, lease_unchanged=61))
    in_time = apply(HELD, write_of(HELD, judge(HELD, late)))
    with pytest.raises(Exception, match="is Succeeded now"):
        apply(in_time, mutation)
