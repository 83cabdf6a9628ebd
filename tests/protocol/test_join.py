from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost.protocol import limits
from fencepost.protocol.job import (
    BranchRecord,
    Condition,
    ConditionStatus,
    Job,
    JobState,
    JobStatus,
    Snapshot,
)
from fencepost.protocol.join import (
    TASK_DELETED,
    Child,
    JoinPlan,
    Standing,
    conditions,
    created_mark,
    is_late,
    is_recorded,
    job_state,
    new_records,
    plan,
    progress_sentence,
    record_of,
    snapshot_digest,
    to_create,
)
from fencepost.protocol.lease import ended
from fencepost.protocol.mutation import apply
from fencepost.protocol.payload import sha256_hex
from fencepost.protocol.receipt import ChainBroken
from fencepost.protocol.submission import Verdict, judge
from fencepost.protocol.task import LeaseEnd, Outcome, Reason, State, Task
from fencepost.protocol.upkeep import settle
from tests.protocol.given import (
    NOW,
    OPERATOR_ACCOUNT,
    a_job,
    after,
    child,
    children,
    held_task,
    settled_task_of,
    submission,
    task_of,
    unknown,
)

LETTERS = ("a", "b", "c", "d", "e")
ROOM = limits.INLINE_VALUES_BYTES_MAX


def planned(job: Job, seen: Mapping[str, Child], *, batch_due: bool = True) -> JoinPlan:
    return plan(job, seen, now=NOW, batch_due=batch_due)


def written(job: Job, seen: Mapping[str, Child]) -> Job:
    """The job after the status that the plan asks for was written."""
    status = planned(job, seen).status
    assert status is not None
    return replace(job, status=status)


def with_status(job: Job, **changes: Any) -> Job:
    if "branches" in changes:
        changes["branches"] = MappingProxyType(changes["branches"])
    return replace(job, status=replace(job.status, **changes))


def all_created(job: Job, *settled: Task) -> dict[str, Child]:
    """Every branch has its task; these are settled."""
    done = {task.branch for task in settled}
    still_open = [task_of(job, branch.name) for branch in job.spec.branches if branch.name not in done]
    return children(job, *settled, *still_open)


def exhausted_task_of(job: Job, name: str) -> Task:
    task = ended(held_task(task_of(job, name)), end=LeaseEnd.EXPIRED)
    return apply(task, settle(task, Reason.FAILURES_EXHAUSTED, recorded_by=OPERATOR_ACCOUNT))


def condition(status: JobStatus | None, kind: str) -> Condition:
    assert status is not None
    return next(each for each in status.conditions if each.type == kind)


def names(branches: Any) -> list[str]:
    return [branch.name for branch in branches]


# Creating ---------------------------------------------------------------------------------------------


def test_a_new_job_creates_every_branch_in_sorted_order() -> None:
    job = a_job(["b", "c", "a"])
    step = planned(job, children(job))
    assert names(step.create) == ["a", "b", "c"]
    assert (step.look_up, step.retire) == ((), ())
    assert step.status is not None
    assert (step.status.created, step.status.state, step.status.snapshot) == (0, JobState.RUNNING, None)


def test_a_suspended_job_creates_nothing_and_says_so() -> None:
    job = a_job(suspend=True)
    step = planned(job, children(job))
    assert step.create == ()
    assert condition(step.status, "Succeeded").reason == "Suspended"
    assert condition(step.status, "Reconciling").status is ConditionStatus.FALSE


def test_a_suspended_job_still_joins_what_runs() -> None:
    job = a_job(suspend=True)
    seen = children(job, *(settled_task_of(job, branch.name) for branch in job.spec.branches))
    assert written(job, seen).joined


def test_a_job_that_is_going_is_left_alone() -> None:
    job = replace(a_job(), deleting=True)
    assert planned(job, children(job)) == JoinPlan()


@pytest.mark.parametrize(
    ("stored", "there", "mark"),
    [
        (0, "", 0),
        (0, "a", 1),
        (0, "ab", 2),
        (0, "b", 0),
        (0, "acde", 1),
        (1, "bc", 3),
        (3, "", 3),
        (5, "", 5),
    ],
)
def test_the_mark_rises_in_sorted_order_and_never_falls(stored: int, there: str, mark: int) -> None:
    job = with_status(a_job(LETTERS), created=stored)
    seen = children(job, *(task_of(job, name) for name in there))
    assert created_mark(job, seen) == mark


def test_a_stranger_stops_the_mark_but_not_the_others() -> None:
    job = a_job(LETTERS)
    seen = children(job, task_of(job, "a"), b=Standing.STRANGER)
    step = planned(job, seen)
    assert names(step.create) == ["c", "d", "e"]
    assert step.status is not None
    assert step.status.created == 1
    stalled = condition(step.status, "Stalled")
    assert (stalled.status, stalled.reason) == (ConditionStatus.TRUE, "NameConflict")
    assert "the task of b: delete or rename it" in stalled.message


def test_a_task_below_the_stored_mark_is_never_made_again() -> None:
    job = with_status(a_job(LETTERS), created=3)
    step = planned(job, children(job, task_of(job, "a"), c=Standing.ABSENT))
    assert names(step.create) == ["d", "e"]
    assert names(step.look_up) == ["b"]


def test_the_branch_at_the_mark_has_not_had_its_task() -> None:
    job = with_status(a_job(LETTERS), created=3)
    step = planned(job, children(job, *(task_of(job, name) for name in "abc"), d=Standing.ABSENT))
    assert names(step.create) == ["d", "e"]
    assert step.status is not None
    assert dict(step.status.branches) == {}


def test_a_mark_that_is_only_seen_and_not_stored_decides_nothing() -> None:
    job = a_job(LETTERS)
    step = planned(job, children(job, task_of(job, "a"), b=Standing.ABSENT))
    assert names(step.create) == ["b", "c", "d", "e"]
    assert step.look_up == ()
    assert step.status is not None
    assert (step.status.created, dict(step.status.branches)) == (1, {})


def test_a_recorded_branch_above_the_mark_is_never_made_again_and_the_mark_passes_it() -> None:
    job = a_job(LETTERS)
    job = written(job, children(job, settled_task_of(job, "c")))
    assert (job.status.created, list(job.status.branches)) == (0, ["c"])
    deleted = children(job, c=Standing.ABSENT)
    assert names(planned(job, deleted).create) == ["a", "b", "d", "e"]
    others = [task_of(job, name) for name in "abde"]
    assert created_mark(job, children(job, *others)) == 5


# Parallelism ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parallelism", "there", "created"),
    [
        (1, "", "a"),
        (2, "", "ab"),
        (2, "a", "b"),
        (2, "ab", ""),
        (9, "a", "bcde"),
        (1, "abc", ""),
        (2, "d", "a"),
    ],
)
def test_no_more_than_parallelism_run_at_once(parallelism: int, there: str, created: str) -> None:
    job = a_job(LETTERS, parallelism=parallelism)
    seen = children(job, *(task_of(job, name) for name in there))
    assert names(planned(job, seen).create) == list(created)


def test_a_settled_branch_makes_room_before_it_is_recorded() -> None:
    job = a_job(LETTERS, parallelism=1)
    assert names(planned(job, children(job, settled_task_of(job, "a"))).create) == ["b"]


def test_a_task_below_the_mark_that_is_not_seen_counts_as_running() -> None:
    job = with_status(a_job(LETTERS, parallelism=2), created=2)
    seen = children(job, task_of(job, "a"))
    assert names(planned(job, seen).look_up) == ["b"]
    assert planned(job, seen).create == ()
    found_deleted = children(job, task_of(job, "a"), b=Standing.ABSENT)
    assert names(planned(job, found_deleted).create) == ["c"]


def test_a_stranger_takes_no_place_of_a_task() -> None:
    job = with_status(a_job(LETTERS, parallelism=2), created=2)
    seen = children(job, task_of(job, "a"), b=Standing.STRANGER)
    assert names(planned(job, seen).create) == ["c"]


def test_an_unknown_branch_keeps_its_place_and_the_job_open() -> None:
    job = a_job(["a", "b"], parallelism=1)
    held = held_task(task_of(job, "a"))
    unresolved = ended(after(held, unknown(held)), end=LeaseEnd.AFTER_UNKNOWN)
    step = planned(job, children(job, unresolved))
    assert step.create == ()
    assert step.status is not None
    assert dict(step.status.branches) == {}
    status = planned(job, children(job, unresolved, settled_task_of(job, "b"))).status
    assert status is not None
    assert (status.state, status.snapshot, list(status.branches)) == (JobState.RUNNING, None, ["b"])


@settings(max_examples=25)
@given(st.integers(1, 6), st.data())
def test_every_job_comes_to_its_join_within_its_parallelism(parallelism: int, data: st.DataObject) -> None:
    job = a_job([f"branch {n}" for n in range(data.draw(st.integers(1, 9)))], parallelism=parallelism)
    world: dict[str, Task] = {}
    for _ in range(60):
        step = planned(job, children(job, *world.values()), batch_due=data.draw(st.booleans()))
        for branch in step.create[: data.draw(st.integers(0, 9))]:
            assert branch.name not in world
            world[branch.name] = task_of(job, branch.name)
        if step.status is not None:
            assert step.status.created >= job.status.created
            job = replace(job, status=step.status)
        running = sorted(name for name, task in world.items() if not task.settled)
        assert len(running) <= parallelism
        for name in running[: data.draw(st.integers(0, 3))]:
            world[name] = settled_task_of(job, name)
        if job.joined:
            break
    else:  # faults have stopped: everything that is asked for happens now
        for _ in range(40):
            step = planned(job, children(job, *world.values()))
            world |= {branch.name: settled_task_of(job, branch.name) for branch in step.create}
            world = {
                name: task if task.settled else settled_task_of(job, name) for name, task in world.items()
            }
            job = replace(job, status=step.status or job.status)
    assert job.joined
    assert len(job.status.branches) == len(job.spec.branches)


# Recording --------------------------------------------------------------------------------------------


def test_the_join_waits_for_tasks_that_are_not_made_yet() -> None:
    job = a_job(LETTERS)
    seen = children(job, settled_task_of(job, "a"), settled_task_of(job, "b"))
    step = planned(job, seen)
    assert names(step.create) == ["c", "d", "e"]
    assert step.status is not None
    assert (len(step.status.branches), step.status.snapshot) == (2, None)


def test_the_last_records_state_snapshot_and_conditions_are_one_write() -> None:
    job = a_job()
    seen = children(job, *(settled_task_of(job, name) for name in ("north", "south", "west")))
    status = planned(job, seen, batch_due=False).status
    assert status is not None
    assert list(status.branches) == ["north", "south", "west"]
    assert (status.state, status.created) == (JobState.SUCCEEDED, 3)
    digest = snapshot_digest(status.branches)
    assert status.snapshot == Snapshot(generation=1, digest=digest, committed_time=NOW)
    assert condition(status, "Succeeded") == Condition(
        type="Succeeded",
        status=ConditionStatus.TRUE,
        reason="AllBranchesOk",
        message="3/3 branches settled: 3 ok, 0 rejected",
    )
    assert condition(status, "Reconciling").status is ConditionStatus.FALSE
    assert condition(status, "Stalled").status is ConditionStatus.FALSE
    assert status.observed_generation == job.generation


def test_mixed_ends_give_five_entries_and_wait_for_the_slowest() -> None:
    job = a_job(LETTERS)
    rejected = settled_task_of(job, "b", "no such feed", Outcome.REJECTED)
    retried = held_task(ended(held_task(task_of(job, "e")), end=LeaseEnd.ERROR))
    retried = after(retried, submission(retried, value="result of e"))
    settled = [settled_task_of(job, "a"), rejected, exhausted_task_of(job, "c"), retried]
    waiting = written(job, all_created(job, *settled))
    assert not waiting.joined
    assert (
        progress_sentence(waiting, waiting.status) == "4/5 branches settled: 2 ok, 2 rejected; waiting for d"
    )
    done = written(waiting, all_created(waiting, *settled, settled_task_of(job, "d")))
    assert done.status.state is JobState.FAILED
    assert condition(done.status, "Succeeded").reason == "BranchesRejected"
    ends = {name: (record.outcome, record.reason) for name, record in done.status.branches.items()}
    assert ends == {
        "a": (Outcome.OK, None),
        "b": (Outcome.REJECTED, None),
        "c": (Outcome.REJECTED, Reason.FAILURES_EXHAUSTED),
        "d": (Outcome.OK, None),
        "e": (Outcome.OK, None),
    }


def test_a_branch_that_submits_twice_is_counted_once() -> None:
    """One branch's submit comes twice, then under a new key; another's comes again after the join."""
    job = a_job(["1", "2", "3"])
    held = held_task(task_of(job, "2"))
    second = after(held, submission(held, value="result of 2"))
    assert judge(second, submission(held, value="result of 2")).verdict is Verdict.DUPLICATE
    job = written(job, all_created(job, second))
    fresh = submission(held, idempotency_key="fresh", value="result of 2")
    assert judge(second, fresh).verdict is Verdict.ALREADY_TERMINAL
    job = written(job, all_created(job, second, settled_task_of(job, "1")))
    assert (job.joined, len(job.status.branches)) == (False, 2)
    third = settled_task_of(job, "3")
    job = written(job, all_created(job, second, settled_task_of(job, "1"), third))
    digest = job.status.snapshot
    again = submission(third, idempotency_key="again", value="something else")
    assert judge(third, again).verdict is Verdict.TERMINAL_CONFLICT
    assert planned(job, all_created(job, second, settled_task_of(job, "1"), third)).status is None
    assert job.status.snapshot is digest


def test_nothing_that_comes_after_the_snapshot_changes_it() -> None:
    job = a_job()
    tasks = [settled_task_of(job, name) for name in ("north", "south", "west")]
    done = written(job, children(job, *tasks))
    for seen in (
        children(done, *tasks),
        children(done, settled_task_of(job, "north", "another"), *tasks[1:]),
        children(done),
        children(done, north=Standing.ABSENT, south=Standing.STRANGER),
    ):
        step = planned(done, seen)
        assert (step.create, step.look_up, step.status) == ((), (), None)


def test_a_record_once_written_is_kept_whatever_is_seen_later() -> None:
    job = a_job()
    job = written(job, all_created(job, settled_task_of(job, "north", "first")))
    other = settled_task_of(job, "north", "second")
    status = planned(job, all_created(job, other, settled_task_of(job, "south"))).status
    assert status is not None
    assert status.branches["north"] == job.status.branches["north"]
    assert status.branches["north"].value == "first"


def test_a_deleted_task_below_the_mark_is_rejected_by_proof_alone() -> None:
    job = with_status(a_job(), created=3)
    unseen = children(job, task_of(job, "north"), task_of(job, "west"))
    assert names(planned(job, unseen).look_up) == ["south"]
    assert dict(new_records(job, unseen)) == {}
    gone = children(job, task_of(job, "north"), task_of(job, "west"), south=Standing.ABSENT)
    assert dict(new_records(job, gone)) == {"south": TASK_DELETED}
    assert planned(job, gone).look_up == ()
    assert (TASK_DELETED.outcome, TASK_DELETED.reason) == (Outcome.REJECTED, Reason.TASK_DELETED)
    assert TASK_DELETED.payload_sha256 == sha256_hex("")


def test_a_deleted_task_that_is_recorded_keeps_its_record() -> None:
    job = with_status(a_job(), created=3)
    job = written(job, all_created(job, settled_task_of(job, "north")))
    for standing in (Standing.ABSENT, Standing.UNSEEN):
        gone = children(job, task_of(job, "south"), task_of(job, "west"), north=standing)
        assert dict(new_records(job, gone)) == {}
        assert planned(job, gone).look_up == ()


def test_no_branches_are_joined_at_once_and_one_is_a_snapshot_of_one() -> None:
    none = a_job([])
    status = planned(none, {}).status
    assert status is not None
    assert status.snapshot is not None
    assert status.snapshot.digest == sha256_hex("[]")
    one = a_job(["only"])
    status = planned(one, children(one, settled_task_of(one, "only", "v"))).status
    assert status is not None
    assert status.snapshot is not None
    assert status.snapshot.digest == sha256_hex(f'[["only","Ok","{sha256_hex("v")}"]]')


# What is let in ---------------------------------------------------------------------------------------


def broken(task: Task, **changes: Any) -> Task:
    return replace(task, receipts=(replace(task.receipts[-1], **changes),))


@pytest.mark.parametrize(
    "change", [{"value": "forged"}, {"receipt_sha256": "0" * 64}, {"previous": "f" * 64}, {"sequence": 2}]
)
def test_receipts_that_do_not_verify_keep_their_branch_open_and_are_named(change: dict[str, Any]) -> None:
    job = a_job()
    bad = broken(settled_task_of(job, "south"), **change)
    with pytest.raises(ChainBroken):
        record_of(bad, room=ROOM)
    status = planned(job, all_created(job, settled_task_of(job, "north"), bad)).status
    assert status is not None
    assert list(status.branches) == ["north"]
    stalled = condition(status, "Stalled")
    assert (stalled.status, stalled.reason) == (ConditionStatus.TRUE, "ReceiptsBroken")
    assert "the task of south do not verify" in stalled.message


def test_a_state_that_its_last_receipt_does_not_say_is_not_let_in() -> None:
    job = a_job()
    task = settled_task_of(job, "north")
    held = held_task(task_of(job, "north"))
    for wrong in (
        replace(task, receipts=()),
        replace(task, state=State.FAILED),
        replace(task, state=State.CANCELLED),
        replace(after(held, unknown(held)), state=State.SUCCEEDED),
    ):
        with pytest.raises(ChainBroken, match="without a receipt that says so"):
            record_of(wrong, room=ROOM)


def test_a_cancelled_task_is_a_rejected_branch() -> None:
    job = a_job()
    task = task_of(job, "north")
    cancelled = apply(task, settle(task, Reason.CANCELLED, recorded_by=OPERATOR_ACCOUNT))
    record = record_of(cancelled, room=ROOM)
    assert (record.outcome, record.reason, record.value) == (Outcome.REJECTED, Reason.CANCELLED, "")


@pytest.mark.parametrize(
    ("value", "room", "inline"),
    [
        ("x" * 1024, ROOM, True),
        ("x" * 1025, ROOM, False),
        ("<" * 170, ROOM, True),
        ("<" * 171, ROOM, False),
        ("x" * 10, 10, True),
        ("x" * 11, 10, False),
    ],
)
def test_a_small_value_is_inline_and_a_large_one_is_named(value: str, room: int, inline: bool) -> None:
    job = a_job()
    task = settled_task_of(job, "north", value)
    record = record_of(task, room=room)
    assert (record.value, record.value_ref) == ((value, None) if inline else (None, task.key.name))
    assert record.payload_sha256 == sha256_hex(value)
    assert record.receipt_sha256 == task.receipts[-1].receipt_sha256


def test_all_inline_values_together_are_bounded_over_all_batches() -> None:
    many = [f"{n:03}" for n in range(140)]
    job = a_job(many)
    tasks = [settled_task_of(job, name, name[:1] * (1025 if name == "000" else 1024)) for name in many]
    job = written(job, all_created(job, *tasks[:100]))
    job = written(job, children(job, *tasks))
    inline = [name for name, record in job.status.branches.items() if record.value is not None]
    assert inline == many[1 : 1 + limits.INLINE_VALUES_BYTES_MAX // 1024]
    assert all(record.value_ref for name, record in job.status.branches.items() if name not in inline)


# Late tasks -------------------------------------------------------------------------------------------


def test_a_task_under_a_recorded_branch_that_is_not_the_recorded_one_is_retired() -> None:
    job = with_status(a_job(), branches={"north": TASK_DELETED}, created=3)
    late = task_of(job, "north")
    assert planned(job, all_created(job)).retire == (late,)
    settled_late = settled_task_of(job, "north")
    assert planned(job, all_created(job, settled_late)).retire == (settled_late,)
    others = [settled_task_of(job, "south"), settled_task_of(job, "west")]
    done = written(job, all_created(job, *others))
    assert done.joined
    assert planned(done, all_created(done, *others)).retire == (late,)


def test_the_recorded_task_itself_stays() -> None:
    job = a_job()
    recorded = settled_task_of(job, "north")
    job = written(job, all_created(job, recorded))
    assert not is_late(job, child(job, "north", recorded))
    assert is_late(job, child(job, "north", settled_task_of(job, "north", "another")))
    assert not is_late(job, child(job, "south", task_of(job, "south")))
    assert not is_late(job, child(job, "north", replace(task_of(job, "north"), deleting=True)))
    assert not is_late(job, child(job, "north", standing=Standing.STRANGER))


@pytest.mark.parametrize(
    ("job", "recorded"),
    [
        (None, True),
        (a_job(), False),
        (replace(a_job(), uid="job-uid-2"), True),
        (replace(a_job(), deleting=True), True),
        (with_status(a_job(), branches={"north": TASK_DELETED}), True),
        (with_status(a_job(), branches={"south": TASK_DELETED}), False),
    ],
)
def test_a_worker_executes_no_task_of_a_job_that_is_gone_or_has_the_branch(
    job: Job | None, recorded: bool
) -> None:
    assert is_recorded(job, job_uid="job-uid-1", branch="north") is recorded


# When status is written -------------------------------------------------------------------------------


def test_progress_waits_for_its_batch_and_the_end_does_not() -> None:
    job = a_job()
    job = written(job, all_created(job))
    one = all_created(job, settled_task_of(job, "north"))
    assert planned(job, one, batch_due=False).status is None
    assert planned(job, one, batch_due=True).status is not None
    assert planned(job, all_created(job), batch_due=True).status is None
    every = all_created(job, *(settled_task_of(job, branch.name) for branch in job.spec.branches))
    assert planned(job, every, batch_due=False).status is not None


def test_that_all_tasks_exist_is_written_at_once() -> None:
    job = a_job()
    job = written(job, children(job))
    assert planned(job, children(job, task_of(job, "north")), batch_due=False).status is None
    status = planned(job, all_created(job), batch_due=False).status
    assert status is not None
    assert status.created == 3
    assert condition(status, "Reconciling").reason == "TasksCreated"


def test_what_only_a_person_can_solve_is_written_at_once_and_so_is_its_end() -> None:
    job = a_job()
    job = written(job, children(job))
    taken = children(job, south=Standing.STRANGER)
    assert planned(job, taken, batch_due=False).status is not None
    job = written(job, taken)
    assert planned(job, taken, batch_due=False).status is None
    assert planned(job, children(job), batch_due=False).status is not None


def test_a_new_generation_is_observed() -> None:
    job = a_job()
    job = written(job, all_created(job))
    job = replace(job, generation=2)
    status = planned(job, all_created(job)).status
    assert status is not None
    assert status.observed_generation == 2


def test_a_status_that_came_back_from_a_store_is_not_written_again() -> None:
    job = a_job()
    seen = all_created(job, settled_task_of(job, "north"))
    job = written(job, seen)
    from_the_wire = replace(job, status=replace(job.status, branches=dict(job.status.branches)))
    assert planned(from_the_wire, seen).status is None


# What people read -------------------------------------------------------------------------------------


def test_the_sentence_of_the_design() -> None:
    job = a_job(["north", "south", "west", "1", "2", "3", "4", "5"])
    ok = replace(TASK_DELETED, outcome=Outcome.OK)
    status = with_status(job, branches={"1": ok, "2": ok, "3": ok, "4": ok, "5": TASK_DELETED}).status
    assert progress_sentence(job, status) == (
        "5/8 branches settled: 4 ok, 1 rejected; waiting for north, south, west"
    )


def test_five_names_are_shown_and_the_rest_is_counted() -> None:
    five, six = a_job(LETTERS), a_job([*LETTERS, "f"])
    assert progress_sentence(five, five.status).endswith("waiting for a, b, c, d, e")
    assert progress_sentence(six, six.status).endswith("waiting for a, b, c, d, e and 1 more")


@pytest.mark.parametrize("standing", [Standing.UNSEEN, Standing.STRANGER])
@pytest.mark.parametrize("letter", ["x", "é", "😂"])
def test_the_longest_messages_fit_a_condition(letter: str, standing: Standing) -> None:
    width = limits.BRANCH_NAME_BYTES_MAX // limits.text_size(letter) - 4
    job = a_job([f"{n:04}"[::-1] + letter * width for n in range(limits.BRANCHES_MAX)])
    seen = {branch.name: Child(branch=branch, standing=standing) for branch in job.spec.branches}
    for each in conditions(job, job.status, seen):
        assert limits.text_size(each.message) <= limits.MESSAGE_BYTES_MAX
    assert "and 1019 more" in progress_sentence(job, job.status)


# The digest -------------------------------------------------------------------------------------------

RECORDS = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8),
    st.builds(
        BranchRecord,
        outcome=st.sampled_from([Outcome.OK, Outcome.REJECTED]),
        payload_sha256=st.sampled_from([sha256_hex("x"), sha256_hex("y")]),
        receipt_sha256=st.just("r"),
        value=st.none() | st.text(max_size=3),
        value_ref=st.none() | st.text(max_size=3),
        reason=st.none() | st.sampled_from(Reason),
    ),
    max_size=6,
)


@settings(max_examples=30)
@given(RECORDS, st.randoms(use_true_random=False))
def test_the_digest_knows_no_order_and_nothing_of_the_run(
    records: dict[str, BranchRecord], random: Any
) -> None:
    items = list(records.items())
    random.shuffle(items)
    other_run = {
        name: replace(record, receipt_sha256="s", value=None, value_ref="elsewhere", reason=None)
        for name, record in items
    }
    assert snapshot_digest(other_run) == snapshot_digest(records)


@settings(max_examples=30)
@given(RECORDS, RECORDS)
def test_the_digest_tells_names_outcomes_and_payloads_apart(
    one: dict[str, BranchRecord], other: dict[str, BranchRecord]
) -> None:
    def said(records: dict[str, BranchRecord]) -> set[tuple[str, Outcome, str]]:
        return {(name, record.outcome, record.payload_sha256) for name, record in records.items()}

    assert (snapshot_digest(one) == snapshot_digest(other)) is (said(one) == said(other))


def test_the_digest_is_over_canonical_json_sorted_by_name() -> None:
    record = replace(TASK_DELETED, outcome=Outcome.OK, payload_sha256="p")
    digest = snapshot_digest({"b": record, "a": replace(record, outcome=Outcome.REJECTED)})
    assert digest == sha256_hex('[["a","Rejected","p"],["b","Ok","p"]]')


@settings(max_examples=25)
@given(st.permutations(LETTERS), st.lists(st.booleans(), min_size=5, max_size=5))
def test_the_same_work_gives_the_same_digest_however_it_was_recorded(
    order: list[str], crashed: list[bool]
) -> None:
    """Settled in any order, recorded in any batches, with attempts that were lost on the way."""
    job = a_job(LETTERS)
    done: list[Task] = []
    for name, lost in zip(order, crashed, strict=True):
        task = held_task(task_of(job, name))
        if lost:
            task = held_task(replace(ended(task, end=LeaseEnd.EXPIRED), hold=None))
        done.append(after(task, submission(task, value=f"result of {name}")))
        step = planned(job, all_created(job, *done), batch_due=lost)
        job = replace(job, status=step.status or job.status)
    assert job.status.snapshot is not None
    expected = {name: (Outcome.OK, sha256_hex(f"result of {name}")) for name in LETTERS}
    plain = {
        name: replace(TASK_DELETED, outcome=outcome, payload_sha256=payload)
        for name, (outcome, payload) in expected.items()
    }
    assert job.status.snapshot.digest == snapshot_digest(plain)
    assert list(job.status.branches) == list(LETTERS)


@pytest.mark.parametrize(
    ("outcomes", "state"),
    [
        ([Outcome.OK, Outcome.OK], JobState.SUCCEEDED),
        ([Outcome.OK, Outcome.REJECTED], JobState.FAILED),
        ([Outcome.REJECTED], JobState.FAILED),
        ([], JobState.SUCCEEDED),
    ],
)
def test_all_settled_succeeds_only_if_every_branch_is_ok(outcomes: list[Outcome], state: JobState) -> None:
    records = {str(n): replace(TASK_DELETED, outcome=outcome) for n, outcome in enumerate(outcomes)}
    assert job_state(records) is state


def test_creating_is_asked_for_with_what_is_recorded_now() -> None:
    job = a_job(LETTERS, parallelism=1)
    seen = children(job, task_of(job, "a"))
    assert to_create(job, seen, 1, {}) == ()
    assert names(to_create(job, seen, 1, {"a": TASK_DELETED})) == ["b"]
