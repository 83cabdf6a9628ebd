"""The durable join: what is recorded of each branch, when the job is done, and what the snapshot says.

JOIN-01 to JOIN-09 live here. The number of branches comes from the spec, never from the children that are
seen; what has settled is computed from the children that exist now, never from events counted. The last
records, the state, the snapshot and the conditions are one status write, and nothing of them changes after.

An open branch is no proof that its work never started. One rejection settles or cancels nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import Final

from fencepost.protocol import limits
from fencepost.protocol.fanout import GENERATION
from fencepost.protocol.job import (
    Branch,
    BranchRecord,
    Condition,
    ConditionStatus,
    Job,
    JobState,
    JobStatus,
    Snapshot,
)
from fencepost.protocol.mutation import state_after
from fencepost.protocol.payload import canonical_json, sha256_hex
from fencepost.protocol.receipt import ChainBroken, verify_chain
from fencepost.protocol.task import Outcome, Reason, State, Task

NAMES_IN_MESSAGE_MAX: Final = 5


class Standing(Enum):
    """What is known of a branch's task."""

    OURS = "it exists and is the branch's task"
    UNSEEN = "it was not seen; a lagging view proves nothing"
    ABSENT = "an uncached read, begun after the mark was read, says that it is not there"
    STRANGER = "something else has its name"


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """A branch and what is known of its task; `task` is set exactly when it is ours."""

    branch: Branch
    standing: Standing
    task: Task | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinPlan:
    """What to do for a job: all of it conditional, so that a plan made on an old view does no harm.

    `create`: branches whose task is to be made, in order. `look_up`: branches below the mark whose task was
    not seen: read it uncached, then plan again. `retire`: tasks under a branch that is recorded without
    them: suspend and delete, both only at the *version* that was seen, because an old view of a task that
    has been recorded meanwhile looks just like a late one. `status`: what to write, if anything.
    `wait_seconds`: when to look again.
    """

    create: tuple[Branch, ...] = ()
    look_up: tuple[Branch, ...] = ()
    retire: tuple[Task, ...] = ()
    status: JobStatus | None = None
    wait_seconds: float | None = None


def plan(job: Job, children: Mapping[str, Child], *, now: str, batch_due: bool) -> JoinPlan:
    """The next step of a job that exists. `now` is the committed time, by the server's clock (RFC 3339).

    `batch_due` says whether an intermediate status write may be made now: each costs the API server half a
    second at 1,024 branches, so they are few. The final one never waits.
    """
    if job.deleting:
        return JoinPlan()
    retire = tuple(child.task for child in children.values() if child.task and is_late(job, child))
    if job.joined:
        return JoinPlan(retire=retire)
    branches = job.sorted_branches
    created = created_mark(job, children)
    records = {**job.status.branches, **new_records(job, children)}
    return JoinPlan(
        create=() if job.spec.suspend else to_create(job, children, created, records),
        look_up=to_look_up(branches[:created], children, records),
        retire=retire,
        status=_status_to_write(job, children, created, records, now=now, batch_due=batch_due),
    )


def created_mark(job: Job, children: Mapping[str, Child]) -> int:
    """How many branches, in sorted order, have had their task; it never falls.

    A recorded branch has had its task, whether that is still there or not.
    """
    mark = job.status.created
    for branch in job.sorted_branches[mark:]:
        recorded = branch.name in job.status.branches
        if not recorded and children[branch.name].standing is not Standing.OURS:
            break
        mark += 1
    return mark


def to_create(
    job: Job, children: Mapping[str, Child], created: int, records: Mapping[str, BranchRecord]
) -> tuple[Branch, ...]:
    """The branches whose task is to be made next, in sorted order, within `parallelism`.

    Only above the mark that is *stored*, and never of a branch that is recorded: a task that is gone there
    was deleted, and never runs again. A task below the mark that is not seen counts as running.
    """
    missing = [
        branch
        for branch in job.sorted_branches[job.status.created :]
        if branch.name not in records and children[branch.name].standing in _NOT_THERE
    ]
    if job.spec.parallelism is None:
        return tuple(missing)
    unsettled = sum(
        1
        for position, branch in enumerate(job.sorted_branches)
        if branch.name not in records and _is_running(children[branch.name], position < job.status.created)
    )
    return tuple(missing[: max(0, job.spec.parallelism - unsettled)])


_NOT_THERE: Final = frozenset({Standing.UNSEEN, Standing.ABSENT})


def _is_running(child: Child, below_mark: bool) -> bool:
    return child.standing is Standing.OURS or (below_mark and child.standing is Standing.UNSEEN)


def to_look_up(
    below_mark: tuple[Branch, ...], children: Mapping[str, Child], records: Mapping[str, BranchRecord]
) -> tuple[Branch, ...]:
    """Branches whose task should be there and was not seen."""
    return tuple(
        branch
        for branch in below_mark
        if branch.name not in records and children[branch.name].standing is Standing.UNSEEN
    )


def new_records(job: Job, children: Mapping[str, Child]) -> Mapping[str, BranchRecord]:
    """What has settled and is not recorded yet, in sorted order.

    A task whose receipts do not verify is not let in: its branch stays open, and `conditions` names it.
    """
    room = limits.INLINE_VALUES_BYTES_MAX - sum(
        limits.stored_size(record.value or "") for record in job.status.branches.values()
    )
    records: dict[str, BranchRecord] = {}
    for position, branch in enumerate(job.sorted_branches):
        if branch.name in job.status.branches:
            continue
        record = _record(children[branch.name], below_mark=position < job.status.created, room=room)
        if record is not None:
            records[branch.name] = record
            room -= limits.stored_size(record.value or "")
    return records


def _record(child: Child, *, below_mark: bool, room: int) -> BranchRecord | None:
    if child.standing is Standing.ABSENT and below_mark:
        return TASK_DELETED
    if child.task is None or not child.task.settled:
        return None
    try:
        return record_of(child.task, room=room)
    except ChainBroken:
        return None


def record_of(task: Task, *, room: int) -> BranchRecord:
    """The record of a settled task; its value is inline if it is small and `room` bytes are left for it.

    Raises `ChainBroken` if the receipts do not verify.
    """
    verify_chain(task)
    receipt = task.settling_receipt
    if receipt is None or state_after(State.OPEN, receipt) is not task.state:
        raise ChainBroken(f"{task.key} is {task.state.value} without a receipt that says so")
    size = limits.stored_size(receipt.value)
    inline = size <= min(limits.INLINE_VALUE_BYTES_MAX, room)
    return BranchRecord(
        outcome=receipt.outcome,
        payload_sha256=receipt.payload_sha256,
        receipt_sha256=receipt.receipt_sha256,
        value=receipt.value if inline else None,
        value_ref=None if inline else task.key.name,
        reason=receipt.reason,
    )


TASK_DELETED: Final = BranchRecord(
    outcome=Outcome.REJECTED,
    payload_sha256=sha256_hex(""),
    receipt_sha256="",
    value="",
    reason=Reason.TASK_DELETED,
)


def is_late(job: Job, child: Child) -> bool:
    """A task under a branch that is already recorded, and not the one that was recorded."""
    record = job.status.branches.get(child.branch.name)
    if record is None or child.task is None or child.task.deleting:
        return False
    receipt = child.task.settling_receipt
    return receipt is None or receipt.receipt_sha256 != record.receipt_sha256


def is_recorded(job: Job | None, *, job_uid: str, branch: str) -> bool:
    """Whether a worker must not execute a task of this job: gone, another UID, or the branch is recorded."""
    return job is None or job.uid != job_uid or job.deleting or branch in job.status.branches


def snapshot_digest(records: Mapping[str, BranchRecord]) -> str:
    """SHA-256 of the canonical JSON of the sorted [name, outcome, payload hash].

    Nothing of the run is in it, so the same work gives the same digest however often it crashed, on one
    machine or on a cluster.
    """
    rows = [[name, records[name].outcome.value, records[name].payload_sha256] for name in sorted(records)]
    return sha256_hex(canonical_json(rows))


def job_state(records: Mapping[str, BranchRecord]) -> JobState:
    """AllSettled: Succeeded if every branch is Ok, Failed if any is Rejected."""
    every_ok = all(record.outcome is Outcome.OK for record in records.values())
    return JobState.SUCCEEDED if every_ok else JobState.FAILED


def _status_to_write(
    job: Job,
    children: Mapping[str, Child],
    created: int,
    records: Mapping[str, BranchRecord],
    *,
    now: str,
    batch_due: bool,
) -> JobStatus | None:
    branches = MappingProxyType(dict(sorted(records.items())))
    status = replace(job.status, created=created, branches=branches, observed_generation=job.generation)
    if len(records) == len(job.spec.branches):
        snapshot = Snapshot(generation=GENERATION, digest=snapshot_digest(records), committed_time=now)
        status = replace(status, state=job_state(records), snapshot=snapshot, created=len(job.spec.branches))
        return replace(status, conditions=conditions(job, status, children))
    status = replace(status, conditions=conditions(job, status, children))
    if status == job.status or not (batch_due or _is_urgent(job, status)):
        return None
    return status


def _is_urgent(job: Job, status: JobStatus) -> bool:
    """The mark must be stored as soon as all tasks exist, and a person must be told of what stands still."""
    all_created = status.created == len(job.spec.branches) and job.status.created != status.created
    return all_created or _stalled(status) != _stalled(job.status)


def _stalled(status: JobStatus) -> tuple[ConditionStatus, str] | None:
    for condition in status.conditions:
        if condition.type == "Stalled":
            return condition.status, condition.reason
    return None


def conditions(job: Job, status: JobStatus, children: Mapping[str, Child]) -> tuple[Condition, ...]:
    """`Succeeded`, `Reconciling` and `Stalled`, so that kubectl wait, Helm and GitOps judge it right."""
    message = progress_sentence(job, status)
    done = status.snapshot is not None
    if done:
        ok = status.state is JobState.SUCCEEDED
        succeeded = ConditionStatus.TRUE if ok else ConditionStatus.FALSE
        reason = "AllBranchesOk" if ok else "BranchesRejected"
    else:
        succeeded = ConditionStatus.UNKNOWN
        reason = "Suspended" if job.spec.suspend else "Running"
    creating = not done and not job.spec.suspend and status.created < len(job.spec.branches)
    return (
        Condition(type="Succeeded", status=succeeded, reason=reason, message=message),
        Condition(
            type="Reconciling",
            status=ConditionStatus.TRUE if creating else ConditionStatus.FALSE,
            reason="CreatingTasks" if creating else "TasksCreated",
            message=f"{status.created}/{len(job.spec.branches)} tasks created",
        ),
        _stalled_condition(status, children),
    )


def _stalled_condition(status: JobStatus, children: Mapping[str, Child]) -> Condition:
    """What only a person can solve: a name that is taken, or a settled task whose receipts do not verify."""
    open_names = sorted(name for name in children if name not in status.branches)
    taken = [name for name in open_names if children[name].standing is Standing.STRANGER]
    if taken:
        message = f"another object has the name of the task of {_some(taken)}: delete or rename it"
        return _is_stalled("NameConflict", message)
    broken = [name for name in open_names if (task := children[name].task) and task.settled]
    if broken:
        message = f"the receipts of the task of {_some(broken)} do not verify: delete the task to reject it"
        return _is_stalled("ReceiptsBroken", message)
    return Condition(type="Stalled", status=ConditionStatus.FALSE, reason="NotStalled", message="")


def _is_stalled(reason: str, message: str) -> Condition:
    return Condition(type="Stalled", status=ConditionStatus.TRUE, reason=reason, message=message)


def progress_sentence(job: Job, status: JobStatus) -> str:
    """For example: 5/8 branches settled: 4 ok, 1 rejected; waiting for north, south, west."""
    total = len(job.spec.branches)
    ok = sum(1 for record in status.branches.values() if record.outcome is Outcome.OK)
    sentence = (
        f"{len(status.branches)}/{total} branches settled: {ok} ok, {len(status.branches) - ok} rejected"
    )
    waiting = [branch.name for branch in job.sorted_branches if branch.name not in status.branches]
    return f"{sentence}; waiting for {_some(waiting)}" if waiting else sentence


def _some(names: list[str]) -> str:
    shown = ", ".join(name[:40] for name in names[:NAMES_IN_MESSAGE_MAX])
    more = len(names) - NAMES_IN_MESSAGE_MAX
    return f"{shown} and {more} more" if more > 0 else shown
