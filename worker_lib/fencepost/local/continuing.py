"""The continuation of a joined job, started once, by the table of `protocol.continuation`.

On one machine all of its steps happen in one transaction, so nobody can see a state between them. The table
is walked nevertheless, because somebody else may have made an object under the name.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Final

from fencepost.api import read
from fencepost.local.jobs import keep_job, put_job
from fencepost.local.ledger import Ledger
from fencepost.ports import NewTask, Refused
from fencepost.protocol import continuation, limits
from fencepost.protocol.continuation import Found, Seen, Step
from fencepost.protocol.fanout import continuation_name, owner_of_children
from fencepost.protocol.job import (
    Condition,
    ConditionStatus,
    Continuation,
    ContinuationKind,
    ContinuationRecord,
    Job,
    JobSpec,
)
from fencepost.protocol.payload import PayloadRefused, request_text
from fencepost.protocol.task import ObjectKey, Owner, TaskSpec

STEPS_AT_ONCE_MAX: Final = 8  # the table has five in a row at most
NEEDS_PODS: Final = "a continuation of kind Job needs a cluster: here it is a LeasedTask or a FanOutJob"

Members = dict[str, Any]
NOT_STALLED: Final = Condition(type="Stalled", status=ConditionStatus.FALSE, reason="NotStalled", message="")


class ContinuationRefused(ValueError):  # noqa: N818
    """The continuation cannot be made; the message is for the job's condition."""


def go_on(ledger: Ledger, job: Job) -> ObjectKey | None:
    """Everything that is to be done about the continuation now; the key of a job that was started."""
    planned = job.spec.continuation
    if planned is None or not continuation.is_wanted(job):
        return None
    if planned.kind is ContinuationKind.JOB:
        _stall(ledger, job, "ContinuationNotServed", NEEDS_PODS)
        return None
    key = ObjectKey(namespace=job.key.namespace, name=continuation_name(job))
    started = None
    for _ in range(STEPS_AT_ONCE_MAX):
        seen = _look(ledger, job, planned.kind, key)
        step = continuation.next_step(job, seen)
        if step is Step.UNSUSPEND and planned.kind is ContinuationKind.FAN_OUT_JOB:
            started = key
        after = _carry_out(ledger, job, planned, key, seen, step)
        if after is None:
            break
        job = after
    return started


def _look(ledger: Ledger, job: Job, kind: ContinuationKind, key: ObjectKey) -> Seen:
    found = _task_or_job(ledger, kind, key)
    if found is None:
        return Seen(found=Found.NOTHING)
    uid, owner, spec = found
    if owner != owner_of_children(job) or (job.status.continuation is None and not _is_ours(job, spec)):
        return Seen(found=Found.STRANGER, uid=uid)
    return Seen(found=Found.SUSPENDED if spec.suspend else Found.RUNNING, uid=uid)


def _is_ours(job: Job, spec: TaskSpec | JobSpec) -> bool:
    """Whether it is what would be created: an owner can be written by anybody."""
    if job.spec.continuation is None:
        return False
    try:
        return spec == replace(continuation_spec(job, job.spec.continuation), suspend=True)
    except ContinuationRefused:
        return False


def _task_or_job(
    ledger: Ledger, kind: ContinuationKind, key: ObjectKey
) -> tuple[str, Owner | None, TaskSpec | JobSpec] | None:
    if kind is ContinuationKind.FAN_OUT_JOB:
        job = ledger.shelf.job(key)
        return (job.uid, job.owner, job.spec) if job else None
    kept = ledger.shelf.kept(key)
    return (kept.task.uid, kept.task.owner, kept.task.spec) if kept else None


def _carry_out(
    ledger: Ledger, job: Job, planned: Continuation, key: ObjectKey, seen: Seen, step: Step
) -> Job | None:
    """The job after one step; None where nothing more is to be done by itself."""
    match step:
        case Step.CREATE:
            return _create(ledger, job, planned, key)
        case Step.RECORD:
            record = ContinuationRecord(kind=planned.kind, name=key.name, uid=seen.uid)
            return _record(ledger, job, record)
        case Step.UNSUSPEND:
            _unsuspend(ledger, planned.kind, key)
            return job
        case Step.RECORD_STARTED if job.status.continuation is not None:
            return _record(ledger, job, replace(job.status.continuation, started=True))
        case Step.DELETE_DUPLICATE:
            _drop(ledger, planned.kind, key)
            return job
        case Step.CONFLICT:
            _stall(ledger, job, "NameConflict", f"another object has the name {key.name}: delete it")
        case Step.LOST:
            message = f"the continuation {key.name} was deleted before it was started"
            _stall(ledger, job, "ContinuationLost", message)
    return None


def _create(ledger: Ledger, job: Job, planned: Continuation, key: ObjectKey) -> Job | None:
    try:
        spec = continuation_spec(job, planned)
    except ContinuationRefused as refusal:
        _stall(ledger, job, "ContinuationRefused", str(refusal))
        return None
    owner = owner_of_children(job)
    if isinstance(spec, TaskSpec):
        ledger.create(NewTask(key=key, spec=replace(spec, suspend=True), owner=owner))
        return job
    answer = put_job(ledger, key, replace(spec, suspend=True), owner)
    if isinstance(answer, Refused):
        _stall(ledger, job, "ContinuationRefused", answer.message)
        return None
    return job


def continuation_spec(job: Job, planned: Continuation) -> TaskSpec | JobSpec:
    """What the template asks for, with the snapshot of the joined job as `request.snapshot`.

    A task gets the whole snapshot where there is room for it, each branch of a job where there is room for
    all copies together; else a reference, which names the job. As on a cluster. Raises `ContinuationRefused`.
    """
    spec = template_spec(planned)
    try:
        if isinstance(spec, TaskSpec):
            return _task_with_snapshot(job, spec)
        return _job_with_snapshot(job, spec)
    except PayloadRefused as refusal:
        raise ContinuationRefused(f"the continuation's request: {refusal}") from None


def template_spec(planned: Continuation) -> TaskSpec | JobSpec:
    """The template's own spec, without a snapshot. Raises `ContinuationRefused`."""
    from fencepost.api.manifest import problems_of_template  # with pydantic, which a start can do without

    template: Members = json.loads(planned.template)
    problem = next(problems_of_template(template, "spec.continuation.template"), None)
    if problem is not None:
        raise ContinuationRefused(problem)
    spec = template["spec"]
    try:
        if planned.kind is ContinuationKind.LEASED_TASK:
            return read.task_spec(spec)
        return read.job_spec(spec)
    except read.Unreadable as refusal:
        raise ContinuationRefused(f"the continuation's template: {refusal}") from None


def _task_with_snapshot(job: Job, spec: TaskSpec) -> TaskSpec:
    try:
        return replace(spec, request=with_snapshot(spec.request, _whole(job)))
    except PayloadRefused:
        return replace(spec, request=with_snapshot(spec.request, _reference(job)))


def _job_with_snapshot(job: Job, spec: JobSpec) -> JobSpec:
    copies = limits.stored_size(continuation.snapshot_request(job)) * len(spec.branches)
    fits = copies <= limits.SNAPSHOT_IN_REQUEST_BYTES_MAX
    snapshot = _whole(job) if fits else _reference(job)
    branches = tuple(
        replace(branch, request=with_snapshot(branch.request, snapshot)) for branch in spec.branches
    )
    return replace(spec, branches=branches)


def _whole(job: Job) -> Members:
    members: Members = json.loads(continuation.snapshot_request(job))
    return members


def _reference(job: Job) -> Members:
    return {name: member for name, member in _whole(job).items() if name != "branches"}


def with_snapshot(request: str, snapshot: Members) -> str:
    """The request with the snapshot as its member `snapshot`; raises `PayloadRefused` over 64 KiB."""
    return request_text({**json.loads(request), "snapshot": snapshot})


def _unsuspend(ledger: Ledger, kind: ContinuationKind, key: ObjectKey) -> None:
    if kind is ContinuationKind.LEASED_TASK:
        ledger.set_suspended(key, suspend=False)
        return
    job = ledger.shelf.job(key)
    if job is not None:
        keep_job(ledger, replace(job, spec=replace(job.spec, suspend=False)))


def _drop(ledger: Ledger, kind: ContinuationKind, key: ObjectKey) -> None:
    if kind is ContinuationKind.LEASED_TASK:
        ledger.shelf.drop(key)
    else:
        ledger.shelf.drop_job(key)


def _record(ledger: Ledger, job: Job, record: ContinuationRecord) -> Job:
    """Write how far the continuation got; whatever stood in its way is over."""
    status = replace(job.status, continuation=record, conditions=_with_stalled(job, NOT_STALLED))
    return keep_job(ledger, replace(job, status=status))


def _stall(ledger: Ledger, job: Job, reason: str, message: str) -> None:
    """Say in the job's condition `Stalled` why a person has to act."""
    stalled = Condition(type="Stalled", status=ConditionStatus.TRUE, reason=reason, message=message)
    conditions = _with_stalled(job, stalled)
    if conditions != job.status.conditions:
        keep_job(ledger, replace(job, status=replace(job.status, conditions=conditions)))


def _with_stalled(job: Job, stalled: Condition) -> tuple[Condition, ...]:
    return (*(known for known in job.status.conditions if known.type != stalled.type), stalled)
