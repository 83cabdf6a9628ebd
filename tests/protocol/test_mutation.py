from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from fencepost.protocol import lease
from fencepost.protocol.mutation import (
    Claim,
    Heartbeat,
    Mutation,
    MutationRefused,
    Release,
    Requeue,
    Settle,
    Standing,
    Submit,
    apply,
    standing,
    state_after,
)
from fencepost.protocol.receipt import sealed, verify_chain
from fencepost.protocol.submission import judge
from fencepost.protocol.task import (
    Hold,
    Kind,
    LeaseEnd,
    Outcome,
    Reason,
    RetryPolicy,
    State,
    Task,
    UnknownPolicy,
)
from fencepost.protocol.upkeep import revoke, settle
from tests.protocol.given import (
    ACCOUNT,
    HOLDER,
    KEY,
    NEXT_HOLDER,
    NOW,
    OPERATOR_ACCOUNT,
    OTHER_HOLDER,
    after,
    claim_of,
    held_task,
    open_task,
    reported,
    row,
    submission,
    unknown,
    with_spec,
    write_of,
)

FREE = open_task()
HELD = held_task()
IN_BACKOFF = lease.ended(HELD, end=LeaseEnd.ERROR)
HELD_UNKNOWN = after(HELD, unknown(HELD))
ON_UNKNOWN = lease.ended(HELD_UNKNOWN, end=LeaseEnd.AFTER_UNKNOWN)
SETTLED = after(HELD, submission(HELD))


def heartbeat(task: Task, **changes: Any) -> Heartbeat:
    usual = Heartbeat(
        key=KEY, uid=task.uid, token=task.token, holder=task.holder, renewals=task.renewals, at="later"
    )
    return replace(usual, **changes)


def release(task: Task, end: LeaseEnd = LeaseEnd.ERROR, **changes: Any) -> Release:
    usual = Release(
        key=KEY,
        uid=task.uid,
        token=task.token,
        holder=task.holder,
        state=task.state,
        failures=task.failures,
        end=end,
    )
    return replace(usual, **changes)


def requeue(task: Task, **changes: Any) -> Requeue:
    usual = Requeue(key=KEY, uid=task.uid, token=task.token, hold=task.hold or Hold.BACKOFF, state=task.state)
    return replace(usual, **changes)


def submit(task: Task, **changes: Any) -> Submit:
    write = write_of(task, judge(task, submission(task, **changes)))
    assert isinstance(write, Submit)
    return write


def exhausted(task: Task) -> Settle:
    return settle(task, Reason.FAILURES_EXHAUSTED, recorded_by=OPERATOR_ACCOUNT)


# One lawful mutation of each sort, the task it was decided on, and its effect.
LAWFUL: dict[str, tuple[Task, Mutation, Task]] = {
    "claim": (
        FREE,
        claim_of(FREE),
        replace(
            FREE,
            token=1,
            holder=HOLDER,
            account=ACCOUNT,
            outbox_mark="7 abc",
            hold=Hold.LEASED,
            acquired_at=NOW,
            renewed_at=NOW,
        ),
    ),
    "heartbeat": (
        HELD,
        heartbeat(HELD, progress="half"),
        replace(HELD, renewals=1, renewed_at="later", progress="half"),
    ),
    "release": (HELD, release(HELD), IN_BACKOFF),
    "revoke": (
        HELD,
        revoke(HELD, LeaseEnd.EXPIRED, "silent"),
        lease.ended(HELD, end=LeaseEnd.EXPIRED, message="silent"),
    ),
    "requeue": (IN_BACKOFF, requeue(IN_BACKOFF), replace(IN_BACKOFF, hold=None)),
    "submit": (
        HELD,
        submit(HELD),
        replace(HELD, state=State.SUCCEEDED, receipts=(submit(HELD).receipt,)),
    ),
    "settle": (
        IN_BACKOFF,
        exhausted(IN_BACKOFF),
        replace(IN_BACKOFF, state=State.FAILED, receipts=(exhausted(IN_BACKOFF).receipt,)),
    ),
}


@pytest.mark.parametrize("name", LAWFUL)
def test_a_lawful_mutation_has_its_effect_and_no_other(name: str) -> None:
    task, mutation, expected = LAWFUL[name]
    assert apply(task, mutation) == expected


@pytest.mark.parametrize("name", LAWFUL)
def test_a_mutation_is_applied_once_and_stands(name: str) -> None:
    task, mutation, expected = LAWFUL[name]
    assert standing(task, mutation) is Standing.PENDING
    applied = replace(expected, version="2")
    assert standing(applied, mutation) is Standing.APPLIED
    with pytest.raises(MutationRefused):
        apply(applied, mutation)


@pytest.mark.parametrize("name", LAWFUL)
def test_another_object_of_the_name_is_never_written(name: str) -> None:
    task, mutation, expected = LAWFUL[name]
    for other in (replace(task, uid="uid-2"), replace(expected, uid="uid-2")):
        with pytest.raises(MutationRefused, match=r"feeds/import-north is another object now \(UID uid-2"):
            apply(other, mutation)
        assert standing(other, mutation) is Standing.GONE
    assert standing(None, mutation) is Standing.GONE


# What each compares: the task as it may have become meanwhile, and the sentence of the refusal.
MEANWHILE: list[tuple[str, Task, str]] = [
    ("claim", replace(FREE, version="2"), "has changed since"),
    ("claim", replace(FREE, token=1), "has changed since"),
    ("claim", with_spec(FREE, suspend=True), "not claimable: suspended"),
    ("claim", with_spec(FREE, external=True), "not claimable: external"),
    ("claim", replace(FREE, hold=Hold.BACKOFF), "not claimable: on hold"),
    ("claim", replace(FREE, state=State.CANCELLED), "not claimable: settled"),
    ("heartbeat", replace(HELD, token=2), "the lease of feeds/import-north with token 1 is over"),
    ("heartbeat", replace(HELD, holder=NEXT_HOLDER), "is over"),
    ("heartbeat", IN_BACKOFF, "token 1 held by nobody"),
    ("heartbeat", SETTLED, "settled or was renewed"),
    ("heartbeat", replace(HELD, renewals=-1), "settled or was renewed"),
    ("release", replace(HELD, token=2), "is over"),
    ("release", replace(HELD, holder=NEXT_HOLDER), "is over"),
    ("release", HELD_UNKNOWN, "is Unknown now, not Open"),
    ("release", SETTLED, "is Succeeded now, not Open"),
    ("revoke", replace(HELD, token=2), "is over"),
    ("revoke", replace(HELD, holder=NEXT_HOLDER), "is over"),
    ("revoke", replace(HELD, renewals=1), "was renewed meanwhile"),
    ("revoke", HELD_UNKNOWN, "is Unknown now, not Open"),
    ("revoke", SETTLED, "is Succeeded now, not Open"),
    ("requeue", replace(IN_BACKOFF, token=0), "no longer on hold as it was"),
    ("requeue", replace(IN_BACKOFF, hold=Hold.UNKNOWN), "no longer on hold as it was"),
    ("requeue", replace(IN_BACKOFF, state=State.UNKNOWN), "no longer on hold as it was"),
    ("requeue", replace(IN_BACKOFF, state=State.FAILED), "no longer on hold as it was"),
    ("submit", replace(HELD, token=2), "is over"),
    ("submit", replace(HELD, holder=NEXT_HOLDER), "is over"),
    ("submit", IN_BACKOFF, "is over"),
    ("submit", HELD_UNKNOWN, "has another receipt or is settled"),
    ("submit", after(HELD, row(HELD, "r1", "one")), "has another receipt or is settled"),
    ("submit", after(HELD, submission(HELD, idempotency_key="k2")), "has another receipt or is settled"),
    ("settle", held_task(replace(IN_BACKOFF, hold=None)), "is held, or was claimed"),
    ("settle", replace(IN_BACKOFF, token=2), "is held, or was claimed"),
    ("settle", replace(IN_BACKOFF, hold=Hold.LEASED, holder=HOLDER), "is held, or was claimed"),
    ("settle", replace(IN_BACKOFF, state=State.UNKNOWN), "has another receipt or is settled"),
    ("settle", apply(IN_BACKOFF, settle(IN_BACKOFF, Reason.CANCELLED, recorded_by="x")), "is settled"),
]


@pytest.mark.parametrize(("name", "task", "sentence"), MEANWHILE)
def test_whatever_has_changed_meanwhile_refuses_the_mutation(name: str, task: Task, sentence: str) -> None:
    with pytest.raises(MutationRefused, match=sentence):
        apply(task, LAWFUL[name][1])
    assert standing(task, LAWFUL[name][1]) in (Standing.GONE, Standing.APPLIED)


def test_a_settled_state_refuses_although_its_record_says_the_rest() -> None:
    settled = replace(HELD, state=State.SUCCEEDED)
    for mutation in (
        release(settled),
        revoke(settled, LeaseEnd.EXPIRED),
        replace(submit(HELD), state=State.SUCCEEDED),
        replace(exhausted(IN_BACKOFF), state=State.FAILED),
    ):
        task = replace(IN_BACKOFF, state=State.FAILED) if isinstance(mutation, Settle) else settled
        with pytest.raises(MutationRefused):
            apply(task, mutation)
    with pytest.raises(MutationRefused, match="held or settled"):
        apply(replace(IN_BACKOFF, state=State.FAILED), requeue(replace(IN_BACKOFF, state=State.FAILED)))
    with pytest.raises(MutationRefused, match="held or settled"):
        apply(HELD, requeue(HELD))


@pytest.mark.parametrize("task", [HELD, HELD_UNKNOWN], ids=["Open", "Unknown"])
@pytest.mark.parametrize("end", LeaseEnd)
def test_a_worker_and_the_operator_end_leases_only_by_their_own_reasons(task: Task, end: LeaseEnd) -> None:
    for mutation, allowed in (
        (release(task, end), lease.ENDED_BY_WORKER),
        (revoke(task, end), lease.ENDED_BY_OPERATOR),
    ):
        if end in allowed and (task.state, end) in lease.LEASE_ENDS:
            assert apply(task, mutation) == lease.ended(task, end=end)
        else:
            with pytest.raises(MutationRefused, match="does not end by"):
                apply(task, mutation)


# What the admission rules say of a new receipt, inside the embedded stores too.
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"sequence": 2}, "does not follow"),
        ({"previous": "f" * 64}, "does not follow"),
        ({"fencing_token": 2}, "another token, holder or account"),
        ({"holder": OTHER_HOLDER}, "another token, holder or account"),
        ({"holder": "operator"}, "another token, holder or account"),
        ({"recorded_by": "somebody-else"}, "another token, holder or account"),
        ({"reason": Reason.CANCELLED}, "only the operator gives a reason"),
    ],
)
def test_a_submit_cannot_carry_a_foreign_receipt(change: dict[str, Any], sentence: str) -> None:
    write = submit(HELD)
    forged = replace(write, receipt=sealed(HELD.uid, replace(write.receipt, **change)))
    with pytest.raises(MutationRefused, match=sentence):
        apply(HELD, forged)


def test_a_settle_is_the_operators_and_of_the_current_token() -> None:
    write = exhausted(IN_BACKOFF)
    for change in ({"holder": HOLDER}, {"fencing_token": 0}):
        forged = replace(write, receipt=sealed(IN_BACKOFF.uid, replace(write.receipt, **change)))
        with pytest.raises(MutationRefused, match="another token, holder or account"):
            apply(IN_BACKOFF, forged)


def test_a_key_stands_once_in_the_list() -> None:
    task = after(HELD, row(HELD, "r1", "one"))
    write = submit(task, idempotency_key="other")
    forged = replace(write, receipt=sealed(task.uid, replace(write.receipt, idempotency_key="r1")))
    with pytest.raises(MutationRefused, match="has a receipt of the key r1"):
        apply(task, forged)


def test_a_row_changes_no_state_and_a_cancelled_receipt_cancels() -> None:
    assert after(HELD, row(HELD, "r1", "one")).state is State.OPEN
    assert after(HELD_UNKNOWN, row(HELD_UNKNOWN, "r1", "one")).state is State.UNKNOWN
    cancelled = settle(IN_BACKOFF, Reason.CANCELLED, recorded_by=OPERATOR_ACCOUNT)
    assert apply(IN_BACKOFF, cancelled).state is State.CANCELLED
    assert state_after(State.UNKNOWN, exhausted(IN_BACKOFF).receipt) is State.FAILED
    with pytest.raises(KeyError):
        state_after(State.FAILED, exhausted(IN_BACKOFF).receipt)


@pytest.mark.parametrize("task", [FREE, IN_BACKOFF, replace(IN_BACKOFF, hold=None)])
def test_a_reported_unknown_is_not_claimable_before_its_policy_says_so(task: Task) -> None:
    task = after(task, reported(task, "event-1", Outcome.UNKNOWN))
    assert (task.state, task.hold) == (State.UNKNOWN, Hold.UNKNOWN)
    assert lease.why_not_claimable(task) is lease.NotClaimable.ON_HOLD
    assert not lease.may_requeue(task)
    assert lease.may_requeue(with_spec(task, unknown_policy=UnknownPolicy.RECLAIM))


def test_an_unknown_under_a_lease_keeps_the_lease() -> None:
    assert HELD_UNKNOWN.hold is Hold.LEASED


# What a read says about a write whose answer was lost ---------------------------------------------------


def test_a_claim_that_was_applied_and_revoked_is_gone() -> None:
    assert standing(lease.ended(HELD, end=LeaseEnd.EXPIRED), claim_of(FREE)) is Standing.GONE


def test_a_late_copy_of_a_claim_never_claims_a_second_time() -> None:
    once = replace(apply(FREE, claim_of(FREE)), version="2")
    freed = replace(apply(once, release(once, LeaseEnd.SHUTDOWN)), version="3")
    assert lease.why_not_claimable(freed) is None
    with pytest.raises(MutationRefused, match="has changed"):
        apply(freed, claim_of(FREE))
    assert standing(freed, claim_of(FREE)) is Standing.GONE


def test_somebody_elses_claim_is_not_ours() -> None:
    theirs = replace(apply(FREE, claim_of(FREE, holder=OTHER_HOLDER)), version="2")
    assert standing(theirs, claim_of(FREE)) is Standing.GONE
    assert standing(theirs, claim_of(FREE, holder=OTHER_HOLDER)) is Standing.APPLIED


def test_a_heartbeat_stands_although_a_later_one_came() -> None:
    assert standing(replace(HELD, renewals=5), heartbeat(HELD)) is Standing.APPLIED
    assert standing(replace(HELD, renewals=5, holder=OTHER_HOLDER), heartbeat(HELD)) is Standing.GONE


@pytest.mark.parametrize(
    ("decided", "happened", "said"),
    [
        (LeaseEnd.ERROR, LeaseEnd.ERROR, Standing.APPLIED),
        (LeaseEnd.ERROR, LeaseEnd.EXPIRED, Standing.GONE),
        (LeaseEnd.SHUTDOWN, LeaseEnd.ERROR, Standing.GONE),
    ],
)
def test_the_end_of_a_lease_stands_only_if_it_ended_that_way(
    decided: LeaseEnd, happened: LeaseEnd, said: Standing
) -> None:
    assert standing(lease.ended(HELD, end=happened), release(HELD, decided)) is said


def test_the_end_of_a_lease_stands_after_the_next_claim_and_is_gone_after_the_next_end() -> None:
    mine = release(HELD)
    claimed_again = held_task(replace(IN_BACKOFF, hold=None))
    assert standing(claimed_again, mine) is Standing.APPLIED
    assert standing(lease.ended(claimed_again, end=LeaseEnd.ERROR), mine) is Standing.GONE
    same_holder_other_token = replace(IN_BACKOFF, token=2)
    assert standing(replace(same_holder_other_token, last_lease=None), mine) is Standing.GONE


def test_a_requeue_stands_once_the_task_is_free_or_claimed_and_never_again_on_the_next_hold() -> None:
    mine = requeue(IN_BACKOFF)
    free = replace(IN_BACKOFF, hold=None)
    again = lease.ended(held_task(free), end=LeaseEnd.ERROR)
    assert (again.hold, again.token) == (Hold.BACKOFF, 2)
    for task in (free, held_task(free), again):
        assert standing(task, mine) is Standing.APPLIED
        with pytest.raises(MutationRefused):
            apply(task, mine)
    assert standing(replace(IN_BACKOFF, state=State.FAILED), mine) is Standing.GONE


def test_a_receipt_stands_for_ever_and_another_one_of_its_key_does_not() -> None:
    mine = write_of(HELD, judge(HELD, row(HELD, "r1", "one")))
    stored = apply(HELD, mine)
    later = lease.ended(after(stored, row(stored, "r2", "two")), end=LeaseEnd.ERROR)
    assert standing(later, mine) is Standing.APPLIED
    other = write_of(HELD, judge(HELD, row(HELD, "r1", "other")))
    assert standing(stored, other) is Standing.GONE


# The whole life of a task, with late and doubled writes -------------------------------------------------

HOLDERS = [HOLDER, NEXT_HOLDER, OTHER_HOLDER]


class LifeOfATask(RuleBasedStateMachine):
    """Workers and operators decide on what they see; every write may be lost, late or sent twice."""

    def __init__(self) -> None:
        super().__init__()
        self.task = FREE
        self.sent: list[Mutation] = []
        self.over: set[int] = set()
        self.claims = 0
        self.keys = 0

    @initialize(policy=st.sampled_from(UnknownPolicy), most=st.integers(0, 2))
    def spec(self, policy: UnknownPolicy, most: int) -> None:
        policies = RetryPolicy(max_failures=most)
        self.task = with_spec(FREE, unknown_policy=policy, retry_policy=policies)

    def send(self, mutation: Mutation, *, arrives: bool) -> None:
        self.sent.append(mutation)
        if arrives:
            self.arrive(len(self.sent) - 1)

    def arrive(self, number: int) -> None:
        """Apply, and compare with what a read had said before."""
        mutation, before = self.sent[number], self.task
        said = standing(before, mutation)
        try:
            now = apply(before, mutation)
        except MutationRefused:
            assert said is not Standing.PENDING
            return
        assert said is Standing.PENDING
        assert number not in self.over
        self.check_step(before, now, mutation)
        self.task = replace(now, version=str(int(before.version) + 1))
        assert standing(self.task, mutation) is Standing.APPLIED

    def check_step(self, before: Task, now: Task, mutation: Mutation) -> None:
        assert not before.settled
        assert now.token == before.token + isinstance(mutation, Claim)
        assert now.receipts[: before.count] == before.receipts
        assert now.count == before.count + isinstance(mutation, Submit | Settle)
        assert now.failures in (before.failures, before.failures + 1)
        if isinstance(mutation, Claim):
            self.claims += 1
            assert lease.failures_left(before)
            assert not (before.state is State.UNKNOWN and before.spec.unknown_policy is UnknownPolicy.HOLD)
        if isinstance(mutation, Submit):
            assert (mutation.token, mutation.holder) == (before.token, before.holder)

    @rule(holder=st.sampled_from(HOLDERS), arrives=st.booleans())
    def claim(self, holder: str, arrives: bool) -> None:
        if lease.why_not_claimable(self.task) is None:
            self.send(claim_of(self.task, holder=holder), arrives=arrives)

    @rule(arrives=st.booleans())
    def heartbeat(self, arrives: bool) -> None:
        if self.task.held:
            self.send(heartbeat(self.task), arrives=arrives)

    @rule(end=st.sampled_from(sorted(lease.ENDED_BY_WORKER)), arrives=st.booleans())
    def release(self, end: LeaseEnd, arrives: bool) -> None:
        if self.task.held and (self.task.state, end) in lease.LEASE_ENDS:
            self.send(release(self.task, end), arrives=arrives)

    @rule(end=st.sampled_from(sorted(lease.ENDED_BY_OPERATOR)), arrives=st.booleans())
    def revoke(self, end: LeaseEnd, arrives: bool) -> None:
        if self.task.held and (self.task.state, end) in lease.LEASE_ENDS:
            self.send(revoke(self.task, end), arrives=arrives)

    @rule(arrives=st.booleans())
    def requeue(self, arrives: bool) -> None:
        if lease.may_requeue(self.task) and not self.task.settled:
            self.send(requeue(self.task), arrives=arrives)

    @rule(
        kind=st.sampled_from(Kind),
        outcome=st.sampled_from(Outcome),
        value=st.sampled_from("ab"),
        new_key=st.booleans(),
        arrives=st.booleans(),
    )
    def submit(self, kind: Kind, outcome: Outcome, value: str, new_key: bool, arrives: bool) -> None:
        if not self.task.held:
            return
        outcome = Outcome.OK if kind is Kind.ROW else outcome
        self.keys += new_key
        asked = submission(
            self.task,
            idempotency_key=f"key-{self.keys}",
            kind=kind,
            outcome=outcome,
            value="" if outcome is Outcome.UNKNOWN else value,
        )
        judgement = judge(self.task, asked)
        if judgement.append:
            self.send(write_of(self.task, judgement), arrives=arrives)

    @rule(reason=st.sampled_from(Reason), arrives=st.booleans())
    def settle(self, reason: Reason, arrives: bool) -> None:
        if not self.task.held and not self.task.settled:
            self.send(settle(self.task, reason, recorded_by=OPERATOR_ACCOUNT), arrives=arrives)

    @rule(outcome=st.sampled_from(Outcome), arrives=st.booleans())
    def report(self, outcome: Outcome, arrives: bool) -> None:
        self.keys += 1
        judgement = judge(self.task, reported(self.task, f"event-{self.keys}", outcome))
        if judgement.append and not self.task.held:
            self.send(write_of(self.task, judgement), arrives=arrives)

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def a_late_or_second_copy_arrives(self, data: st.DataObject) -> None:
        self.arrive(data.draw(st.integers(0, len(self.sent) - 1)))

    @invariant()
    def what_a_read_has_settled_stays_so(self) -> None:
        for number, mutation in enumerate(self.sent):
            pending = standing(self.task, mutation) is Standing.PENDING
            assert not (pending and number in self.over)
            if not pending:
                self.over.add(number)

    @invariant()
    def the_task_is_sound(self) -> None:
        task = self.task
        verify_chain(task)
        assert task.token == self.claims
        assert len({receipt.idempotency_key for receipt in task.receipts}) == task.count
        rows = [r.payload_sha256 for r in task.receipts if r.outcome is Outcome.OK and not r.duplicate_of]
        assert len(rows) == len(set(rows))
        final = [r for r in task.receipts if r.kind is Kind.RESULT and r.outcome is not Outcome.UNKNOWN]
        assert len(final) == int(task.settled)
        assert not final or final[0] is task.settling_receipt
        if not task.settled:
            assert (task.holder != "") is task.held
            assert (task.state, task.hold) not in {(State.OPEN, Hold.UNKNOWN), (State.UNKNOWN, Hold.BACKOFF)}


@pytest.mark.slow
def test_no_order_of_late_and_doubled_writes_breaks_a_task() -> None:
    run_state_machine_as_test(LifeOfATask, settings=settings(max_examples=120, stateful_step_count=40))
