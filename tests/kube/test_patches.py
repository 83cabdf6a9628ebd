"""The patches do what the core says: the same writes are accepted, and the same task comes out.

Random walks through the life of a task carry out each mutation twice, by `mutation.apply` on the frozen
value and by the patch on the JSON object, many of them decided on a state that is no longer the current one.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from fencepost.api import names
from fencepost.api.read import task_from_object
from fencepost.api.write import task_view
from fencepost.kube.client import MERGE_PATCH
from fencepost.kube.patches import Part, alternatives_of, annotation, patch_of
from fencepost.kube.stored import what_was_not_kept
from fencepost.protocol import lease, upkeep
from fencepost.protocol.mutation import (
    Claim,
    Mutation,
    MutationRefused,
    Settle,
    Submit,
    apply,
)
from fencepost.protocol.task import Kind, LeaseEnd, ObjectKey, Outcome, Reason, State, Task, TaskSpec
from tests.kube.deciding import NOW, OUTBOXES, claim_of, heartbeat_of, release_of, requeue_of, submit_of
from tests.kube.patching import Json, NotApplicable, patched

KEY = ObjectKey(namespace="n", name="t")
ACCOUNT = "system:serviceaccount:n:w"
FRESH = Task(key=KEY, uid="u-1", version="1", spec=TaskSpec(), created_at=NOW)
SUBMITS = [
    (Kind.ROW, Outcome.OK),
    (Kind.ROW, Outcome.OK),
    (Kind.RESULT, Outcome.UNKNOWN),
    (Kind.RESULT, Outcome.UNKNOWN),
    (Kind.RESULT, Outcome.OK),
    (Kind.RESULT, Outcome.REJECTED),
]


def claim(task: Task, chance: random.Random) -> Mutation | None:
    if lease.why_not_claimable(task) is not None:
        return None
    return claim_of(task, account=ACCOUNT, holder=f"{chance.choice(OUTBOXES[:2])}/{chance.choice('ab')}")


def heartbeat(task: Task, chance: random.Random) -> Mutation | None:
    return heartbeat_of(task, progress=chance.choice([None, "half way", ""])) if task.held else None


def release(task: Task, chance: random.Random) -> Mutation | None:
    end = chance.choice(sorted(lease.ENDED_BY_WORKER))
    return release_of(task, end, message=chance.choice(["", "it broke ~ / here"])) if task.held else None


def revoke(task: Task, chance: random.Random) -> Mutation | None:
    return upkeep.revoke(task, chance.choice(sorted(lease.ENDED_BY_OPERATOR))) if task.held else None


def submit(task: Task, chance: random.Random) -> Mutation | None:
    if not task.held or task.settled or task.count > 20:
        return None
    kind, outcome = chance.choice(SUBMITS)
    return submit_of(task, kind=kind, outcome=outcome, device_time=chance.choice(["", NOW]))


def requeue(task: Task, chance: random.Random) -> Mutation | None:
    return requeue_of(task) if task.hold is not None else None


def settle(task: Task, chance: random.Random) -> Mutation | None:
    if task.settled or task.held or chance.random() < 0.7:
        return None
    reason = chance.choice([Reason.CANCELLED, Reason.DEADLINE_EXCEEDED, Reason.FAILURES_EXHAUSTED])
    return upkeep.settle(task, reason, recorded_by="operator-account")


MOVES: list[Callable[[Task, random.Random], Mutation | None]] = [
    claim,
    claim,
    heartbeat,
    release,
    revoke,
    submit,
    submit,
    requeue,
    settle,
]


def by_patch(stored: Json, mutation: Mutation) -> Json:
    """The object after the first alternative that applies; None if none does."""
    try:
        patches = alternatives_of(mutation, now=NOW)
    except MutationRefused:
        return None
    for patch in patches:
        try:
            after = patched(stored, patch)
        except NotApplicable:
            continue
        assert what_was_not_kept(patch, after) is None
        return after
    return None


def by_core(task: Task, mutation: Mutation) -> Task | None:
    try:
        return apply(task, mutation)
    except MutationRefused:
        return None


def decision(history: list[Task], chance: random.Random) -> Mutation | None:
    """Made on the task as it is, or, one time in three, on what it was shortly before."""
    decided_on = history[-1] if chance.random() < 0.65 else chance.choice(history[-5:])
    return chance.choice(MOVES)(decided_on, chance)


@pytest.mark.parametrize("seed", range(40))
def test_a_patch_changes_what_the_core_changes_and_is_refused_where_it_refuses(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(4):
        fresh = replace(FRESH, branch=chance.choice([None, "b"]))
        history, stored = [fresh], task_view(fresh)
        for _ in range(30):
            mutation = decision(history, chance)
            if mutation is None:
                continue
            task, after = by_core(history[-1], mutation), by_patch(stored, mutation)
            assert (task is None) == (after is None), (history[-1], mutation)
            if task is not None:
                found = task_from_object(after)
                assert found == replace(task, version=found.version)
                history.append(found)
                stored = after


def held(**changes: object) -> Task:
    mutation = claim(FRESH, random.Random(1))
    assert isinstance(mutation, Claim)
    return replace(apply(FRESH, mutation), **changes)  # type: ignore[arg-type]


def test_a_claim_names_the_version_it_was_decided_on_and_needs_no_annotations() -> None:
    mutation = claim(FRESH, random.Random(1))
    assert isinstance(mutation, Claim)
    patch = patch_of(mutation, now=NOW)
    assert (patch.part, patch.content_type) == (Part.MAIN, MERGE_PATCH)
    assert patch.body["metadata"]["resourceVersion"] == FRESH.version
    assert patch.body["metadata"]["uid"] == FRESH.uid
    assert "annotations" not in task_view(FRESH)["metadata"]
    assert patched(task_view(FRESH), patch)["metadata"]["annotations"][names.FENCING_TOKEN] == "1"


@pytest.mark.parametrize("move", [heartbeat, release, revoke, submit])
def test_every_later_write_tests_uid_token_and_holder(
    move: Callable[[Task, random.Random], Mutation | None],
) -> None:
    task = held()
    mutation = next(made for seed in range(9) if (made := move(task, random.Random(seed))))
    tested = {operation["path"]: operation["value"] for operation in _operations(mutation, "test")}
    assert tested["/metadata/uid"] == task.uid
    assert tested[annotation(names.FENCING_TOKEN)] == "1"
    assert tested[annotation(names.HOLDER)] == task.holder


def test_the_tests_come_before_what_they_guard() -> None:
    for move in (heartbeat, revoke, submit):
        mutation = move(held(), random.Random(3))
        assert mutation is not None
        kinds = [operation["op"] == "test" for operation in patch_of(mutation, now=NOW).body]
        assert kinds == sorted(kinds, reverse=True)


def test_the_end_of_a_lease_leaves_what_is_the_record_and_removes_the_rest() -> None:
    task = held(progress="half way", failures=2)
    mutation = upkeep.revoke(task, LeaseEnd.EXPIRED)
    metadata = patched(task_view(task), patch_of(mutation, now=NOW))["metadata"]
    assert metadata["annotations"] == {
        names.FENCING_TOKEN: "1",
        names.PROGRESS: "half way",
        names.FAILURES: "3",
        names.LAST_LEASE: f"1 {task.holder} expired",
    }
    assert metadata["labels"] == {names.HOLD: "Backoff"}


def test_a_lease_that_other_hands_claimed_can_be_ended() -> None:
    task = held(outbox_mark="", acquired_at="", renewed_at="")
    assert "outbox-mark" not in str(task_view(task))
    after = patched(task_view(task), patch_of(upkeep.revoke(task, LeaseEnd.EXPIRED), now=NOW))
    assert task_from_object(after).holder == ""


def test_a_settling_receipt_sets_all_that_follows_from_it_in_one_write() -> None:
    mutation = upkeep.settle(FRESH, Reason.CANCELLED, recorded_by="operator-account")
    status = patched(task_view(FRESH), alternatives_of(mutation, now=NOW)[1])["status"]
    assert (status["state"], status["settled"], status["count"]) == ("Cancelled", True, 1)
    assert status["head"] == status["receipts"][-1]["receiptSha256"]
    assert status["completionTime"] == NOW
    [condition] = status["conditions"]
    assert (condition["status"], condition["reason"]) == ("False", "Cancelled")


def test_a_row_changes_no_state() -> None:
    mutation = submit(held(), random.Random(2))
    assert isinstance(mutation, Submit)
    row = replace(mutation, receipt=replace(mutation.receipt, kind=Kind.ROW, outcome=Outcome.OK))
    changed = {operation["path"] for operation in _operations(row, "add")}
    assert changed == {"/status/receipts/-", "/status/head", "/status/count"}


@pytest.mark.parametrize(
    "mutation",
    [
        replace(upkeep.revoke(held(), LeaseEnd.EXPIRED), end=LeaseEnd.ERROR),
        upkeep.revoke(held(state=State.UNKNOWN), LeaseEnd.DEADLINE),
        replace(upkeep.settle(FRESH, Reason.CANCELLED, recorded_by="o"), state=State.FAILED),
    ],
)
def test_what_no_table_allows_is_not_sent(mutation: Mutation) -> None:
    with pytest.raises(MutationRefused):
        patch_of(mutation, now=NOW)


def _operations(mutation: Mutation, name: str) -> list[Json]:
    return [operation for operation in patch_of(mutation, now=NOW).body if operation["op"] == name]


def test_a_settle_of_a_task_that_was_claimed_has_one_form() -> None:
    claimed = held(token=4, holder="", hold=None)
    mutation = upkeep.settle(claimed, Reason.CANCELLED, recorded_by="o")
    assert isinstance(mutation, Settle)
    assert len(alternatives_of(mutation, now=NOW)) == 1
