from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from fencepost.protocol import limits
from fencepost.protocol.lease import (
    ENDED_BY_OPERATOR,
    ENDED_BY_WORKER,
    LEASE_ENDS,
    REQUEUES,
    SUBMITS,
    EndEffect,
    NotClaimable,
    claimed,
    ended,
    failures_after,
    failures_left,
    may_requeue,
    renewed,
    requeued,
    why_not_claimable,
)
from fencepost.protocol.task import (
    SETTLED_STATES,
    Hold,
    LastLease,
    LeaseEnd,
    Outcome,
    RetryPolicy,
    State,
    Task,
    UnknownPolicy,
)
from tests.protocol.given import (
    ACCOUNT,
    HOLDER,
    NOW,
    OTHER_HOLDER,
    held_task,
    open_task,
    settled_task,
    with_spec,
)

# The whole table, written out again: what the end of a lease leaves. Every other pair is refused.
LEFT_BEHIND = {
    (State.OPEN, LeaseEnd.SHUTDOWN): (None, 0),
    (State.OPEN, LeaseEnd.ERROR): (Hold.BACKOFF, 1),
    (State.OPEN, LeaseEnd.START): (Hold.BACKOFF, 1),
    (State.OPEN, LeaseEnd.UNWANTED): (Hold.BACKOFF, 1),
    (State.OPEN, LeaseEnd.EXPIRED): (Hold.BACKOFF, 1),
    (State.OPEN, LeaseEnd.DEADLINE): (Hold.BACKOFF, 1),
    (State.OPEN, LeaseEnd.CANCELLED): (Hold.BACKOFF, 1),
    (State.UNKNOWN, LeaseEnd.SHUTDOWN): (Hold.UNKNOWN, 0),
    (State.UNKNOWN, LeaseEnd.AFTER_UNKNOWN): (Hold.UNKNOWN, 0),
    (State.UNKNOWN, LeaseEnd.ERROR): (Hold.UNKNOWN, 1),
    (State.UNKNOWN, LeaseEnd.START): (Hold.UNKNOWN, 1),
    (State.UNKNOWN, LeaseEnd.UNWANTED): (Hold.UNKNOWN, 1),
    (State.UNKNOWN, LeaseEnd.EXPIRED): (Hold.UNKNOWN, 1),
    (State.UNKNOWN, LeaseEnd.CANCELLED): (Hold.UNKNOWN, 1),
}


@pytest.mark.parametrize(("state", "end"), [*product(State, LeaseEnd)])
def test_the_end_of_a_lease_leaves_what_the_table_says(state: State, end: LeaseEnd) -> None:
    task = held_task(open_task(failures=2), state=state)
    if (state, end) not in LEFT_BEHIND:
        assert (state, end) not in LEASE_ENDS
        with pytest.raises(KeyError):
            ended(task, end=end)
        return
    hold, failures = LEFT_BEHIND[state, end]
    after = ended(task, end=end, message="why")
    assert (after.hold, after.failures) == (hold, 2 + failures)
    assert (after.token, after.state) == (task.token, state)
    assert (after.holder, after.account, after.renewals, after.outbox_mark) == ("", "", 0, "")
    assert after.last_lease == LastLease(token=1, holder=HOLDER, end=end, message="why")


def test_from_unknown_the_hold_is_always_unknown_and_from_open_never() -> None:
    for (state, _), effect in LEASE_ENDS.items():
        assert (effect.hold is Hold.UNKNOWN) is (state is State.UNKNOWN)


def test_a_deadline_ends_no_lease_of_an_unknown_and_no_lease_of_a_settled_task_ends() -> None:
    assert (State.UNKNOWN, LeaseEnd.DEADLINE) not in LEASE_ENDS
    assert not {state for state, _ in LEASE_ENDS} & SETTLED_STATES


def test_every_end_is_said_by_the_worker_or_by_the_server() -> None:
    assert set(LeaseEnd) == ENDED_BY_WORKER | ENDED_BY_OPERATOR
    assert not ENDED_BY_WORKER & ENDED_BY_OPERATOR
    assert {LeaseEnd.EXPIRED, LeaseEnd.DEADLINE, LeaseEnd.CANCELLED} == ENDED_BY_OPERATOR


@pytest.mark.parametrize(("state", "outcome"), [*product(State, Outcome)])
def test_a_submit_settles_by_its_outcome_and_settled_is_final(state: State, outcome: Outcome) -> None:
    result = {Outcome.OK: State.SUCCEEDED, Outcome.REJECTED: State.FAILED, Outcome.UNKNOWN: State.UNKNOWN}
    expected = None if state in SETTLED_STATES else result[outcome]
    assert SUBMITS.get((state, outcome)) is expected


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        (open_task(), None),
        (open_task(state=State.UNKNOWN), None),
        (open_task(token=limits.FENCING_TOKEN_MAX - 1), None),
        (open_task(token=limits.FENCING_TOKEN_MAX), NotClaimable.TOKENS_EXHAUSTED),
        (held_task(), NotClaimable.HELD),
        (open_task(hold=Hold.BACKOFF), NotClaimable.ON_HOLD),
        (open_task(hold=Hold.UNKNOWN), NotClaimable.ON_HOLD),
        (with_spec(open_task(), suspend=True), NotClaimable.SUSPENDED),
        (with_spec(open_task(), external=True), NotClaimable.EXTERNAL),
        (settled_task(), NotClaimable.SETTLED),
        (open_task(state=State.FAILED), NotClaimable.SETTLED),
        (open_task(state=State.CANCELLED), NotClaimable.SETTLED),
    ],
)
def test_what_may_be_claimed(task: Task, reason: NotClaimable | None) -> None:
    assert why_not_claimable(task) is reason


def test_a_claim_raises_the_token_and_starts_afresh() -> None:
    task = open_task(token=4, renewals=9, failures=2)
    after = claimed(task, holder=OTHER_HOLDER, account=ACCOUNT, outbox_mark="3 abc", at=NOW)
    assert (after.token, after.holder, after.account, after.outbox_mark) == (
        5,
        OTHER_HOLDER,
        ACCOUNT,
        "3 abc",
    )
    assert (after.hold, after.renewals, after.failures) == (Hold.LEASED, 0, 2)
    assert (after.acquired_at, after.renewed_at) == (NOW, NOW)


def test_a_heartbeat_counts_and_keeps_progress_unless_told() -> None:
    task = held_task(renewals=3, progress="half")
    kept = renewed(task, at="later", progress=None)
    assert (kept.renewals, kept.renewed_at, kept.progress, kept.token) == (4, "later", "half", 1)
    assert renewed(task, at="later", progress="").progress == ""


def test_the_count_of_failures_stops_at_its_maximum() -> None:
    counts = EndEffect(hold=Hold.BACKOFF, counts=True)
    assert failures_after(limits.COUNTER_MAX - 1, counts) == limits.COUNTER_MAX
    assert failures_after(limits.COUNTER_MAX, counts) == limits.COUNTER_MAX
    assert failures_after(3, replace(counts, counts=False)) == 3


@pytest.mark.parametrize(("failures", "left"), [(0, True), (2, True), (3, False)])
def test_the_failure_after_max_failures_is_the_last(failures: int, left: bool) -> None:
    task = with_spec(open_task(failures=failures), retry_policy=RetryPolicy(max_failures=2))
    assert failures_left(task) is left


@pytest.mark.parametrize(("state", "hold"), [*product(State, [None, *Hold])])
@pytest.mark.parametrize("policy", UnknownPolicy)
def test_only_backoff_and_a_reclaimed_unknown_are_requeued(
    state: State, hold: Hold | None, policy: UnknownPolicy
) -> None:
    task = with_spec(open_task(state=state, hold=hold), unknown_policy=policy)
    lawful = {(State.OPEN, Hold.BACKOFF)}
    if policy is UnknownPolicy.RECLAIM:
        lawful.add((State.UNKNOWN, Hold.UNKNOWN))
    assert may_requeue(task) is ((state, hold) in lawful)
    exhausted = with_spec(replace(task, failures=1), retry_policy=RetryPolicy(max_failures=0))
    assert not may_requeue(exhausted)


def test_the_requeue_table_never_frees_a_lease() -> None:
    assert {(State.OPEN, Hold.BACKOFF), (State.UNKNOWN, Hold.UNKNOWN)} == REQUEUES


def test_a_requeue_takes_the_hold_away_and_nothing_else() -> None:
    task = ended(held_task(), end=LeaseEnd.ERROR)
    assert requeued(task) == replace(task, hold=None)
