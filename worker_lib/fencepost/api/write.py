"""From the frozen values of the protocol to objects as they travel; what `read` reads comes back the same.

Fields that say no more than the schema's default are left out where that keeps objects small (annotations,
empty texts of a receipt); in a spec everything is written, so that a person sees what was asked for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, Protocol

from fencepost.api import names
from fencepost.api.wire import NEVER, NOT_SETTLED
from fencepost.protocol.job import (
    BranchRecord,
    Condition,
    ContinuationRecord,
    Job,
    JobSpec,
    JobStatus,
    Snapshot,
)
from fencepost.protocol.task import ObjectKey, Owner, Receipt, State, Task, TaskSpec

Object = dict[str, Any]

OWNER_VERSIONS: Final = {"Job": "batch/v1", "ConfigMap": "v1"}
"""The API version of owners that are none of ours."""


class TaskToCreate(Protocol):
    """A task that is not there yet: a `ports.NewTask`, or the `ChildTask` of a branch."""

    @property
    def key(self) -> ObjectKey: ...
    @property
    def spec(self) -> TaskSpec: ...
    @property
    def owner(self) -> Owner | None: ...
    @property
    def branch(self) -> str | None: ...


def task_object(new: TaskToCreate) -> Object:
    """The LeasedTask to create. It carries no lease and no status: nobody may create those."""
    metadata: Object = {"name": new.key.name, "namespace": new.key.namespace}
    if new.branch is not None:
        metadata["annotations"] = {names.BRANCH: new.branch}
    if new.owner is not None:
        if new.owner.kind == names.FAN_OUT_JOB:
            metadata["labels"] = {names.JOB_UID: new.owner.uid}
        metadata["ownerReferences"] = [owner_reference(new.owner)]
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.LEASED_TASK,
        "metadata": metadata,
        "spec": task_spec_object(new.spec),
    }


def owner_reference(owner: Owner) -> Object:
    """The reference by which the garbage collector deletes a child with its owner."""
    return {
        "apiVersion": OWNER_VERSIONS.get(owner.kind, names.API_VERSION),
        "kind": owner.kind,
        "name": owner.name,
        "uid": owner.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def task_spec_object(spec: TaskSpec) -> Object:
    """The spec of a LeasedTask."""
    return _template_spec_object(spec) | {
        "request": json.loads(spec.request),
        "suspend": spec.suspend,
        **_present(ttlSecondsAfterFinished=spec.ttl_seconds_after_finished),
    }


def _template_spec_object(spec: TaskSpec) -> Object:
    return {
        "queue": spec.queue,
        "priority": spec.priority,
        "leaseDurationSeconds": spec.lease_duration_seconds,
        "retryPolicy": {
            "maxFailures": spec.retry_policy.max_failures,
            "backoffBaseSeconds": spec.retry_policy.backoff_base_seconds,
            "backoffMaxSeconds": spec.retry_policy.backoff_max_seconds,
        },
        "unknownPolicy": spec.unknown_policy.value,
        "dedupScope": spec.dedup_scope.value,
        "external": spec.external,
        **_present(activeDeadlineSeconds=spec.active_deadline_seconds),
    }


def task_view(task: Task) -> Object:
    """The whole object, as `kubectl get -o json` would show it; without a request that cannot be read."""
    view = task_object(task)
    if task.spec.request_problem:
        del view["spec"]["request"]
    metadata = view["metadata"]
    metadata |= _metadata_of_stored(task)
    if annotations := metadata.get("annotations", {}) | _lease_annotations(task):
        metadata["annotations"] = annotations
    if labels := metadata.get("labels", {}) | _lease_labels(task):
        metadata["labels"] = labels
    return view | {"status": _task_status_object(task)}


def _metadata_of_stored(stored: Task | Job) -> Object:
    metadata: Object = {"uid": stored.uid, "resourceVersion": stored.version}
    if stored.created_at:
        metadata["creationTimestamp"] = stored.created_at
    if stored.deleting:
        metadata["deletionTimestamp"] = stored.created_at or NEVER
    return metadata


def _lease_annotations(task: Task) -> dict[str, str]:
    whole = {
        names.FENCING_TOKEN: str(task.token) if task.token else "",
        names.HOLDER: task.holder,
        names.HOLDER_ACCOUNT: task.account,
        names.RENEWALS: str(task.renewals) if task.holder or task.renewals else "",
        names.ACQUIRED_AT: task.acquired_at,
        names.RENEWED_AT: task.renewed_at,
        names.PROGRESS: task.progress,
        names.FAILURES: str(task.failures) if task.failures else "",
        names.OUTBOX_MARK: task.outbox_mark,
        names.LAST_LEASE: task.last_lease.text() if task.last_lease else "",
    }
    return {name: text for name, text in whole.items() if text}


def _lease_labels(task: Task) -> dict[str, str]:
    whole = {names.HOLD: task.hold.value if task.hold else "", names.OUTBOX: task.outbox}
    return {name: text for name, text in whole.items() if text}


def _task_status_object(task: Task) -> Object:
    return {
        "state": task.state.value,
        "settled": task.settled,
        "receipts": [receipt_object(receipt) for receipt in task.receipts],
        "head": task.head,
        "count": task.count,
        "conditions": [succeeded_condition(task.state, now=task.created_at or NEVER)],
    }


def succeeded_condition(state: State, *, now: str) -> Object:
    """The condition `Succeeded` of a task in this state, which `kubectl wait` waits for."""
    match state:
        case State.OPEN | State.UNKNOWN:
            return NOT_SETTLED.model_dump(by_alias=True, exclude_none=True)
        case State.SUCCEEDED:
            status, message = "True", "the task succeeded"
        case State.FAILED:
            status, message = "False", "the task failed"
        case State.CANCELLED:
            status, message = "False", "the task was cancelled"
    return {
        "type": "Succeeded",
        "status": status,
        "reason": state.value,
        "message": message,
        "lastTransitionTime": now,
    }


def receipt_object(receipt: Receipt) -> Object:
    """An entry of `status.receipts`; an empty optional text is left out."""
    return {
        "idempotencyKey": receipt.idempotency_key,
        "fencingToken": receipt.fencing_token,
        "holder": receipt.holder,
        "kind": receipt.kind.value,
        "outcome": receipt.outcome.value,
        "value": receipt.value,
        "payloadSha256": receipt.payload_sha256,
        "sequence": receipt.sequence,
        "previous": receipt.previous,
        "receiptSha256": receipt.receipt_sha256,
        "recordedBy": receipt.recorded_by,
        **_present(
            reason=receipt.reason.value if receipt.reason else None,
            duplicateOf=receipt.duplicate_of or None,
            deviceTime=receipt.device_time or None,
        ),
    }


def job_view(job: Job) -> Object:
    """The whole object, as `kubectl get -o json` would show it."""
    metadata: Object = {"name": job.key.name, "namespace": job.key.namespace, "generation": job.generation}
    if job.owner is not None:
        metadata["ownerReferences"] = [owner_reference(job.owner)]
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.FAN_OUT_JOB,
        "metadata": metadata | _metadata_of_stored(job),
        "spec": job_spec_object(job.spec),
        "status": job_status_object(job.status, now=job.created_at or NEVER, previous=None),
    }


def job_spec_object(spec: JobSpec) -> Object:
    """The spec of a FanOutJob."""
    after = spec.continuation
    return {
        "branches": [
            {"name": branch.name, "request": json.loads(branch.request)} for branch in spec.branches
        ],
        "template": {"spec": _template_spec_object(spec.template)},
        "joinPolicy": spec.join_policy.value,
        "suspend": spec.suspend,
        **_present(
            continuation={"when": after.when.value, "template": json.loads(after.template)}
            if after
            else None,
            parallelism=spec.parallelism,
            activeDeadlineSeconds=spec.active_deadline_seconds,
            ttlSecondsAfterFinished=spec.ttl_seconds_after_finished,
        ),
    }


def job_status_object(status: JobStatus, *, now: str, previous: Mapping[str, Any] | None) -> Object:
    """The whole status of a FanOutJob.

    `previous` is the status object that it replaces: a condition that has not turned keeps its transition
    time, the others get `now` (RFC 3339, by the server's clock).
    """
    before = {entry["type"]: entry for entry in (previous or {}).get("conditions", ())}
    return {
        "state": status.state.value,
        "created": status.created,
        "branches": {name: _record_object(record) for name, record in status.branches.items()},
        "conditions": [
            _condition_object(condition, before.get(condition.type), status, now)
            for condition in status.conditions
        ],
        **_present(
            observedGeneration=status.observed_generation,
            snapshot=_snapshot_object(status.snapshot) if status.snapshot else None,
            continuation=_continuation_object(status.continuation) if status.continuation else None,
        ),
    }


def _condition_object(
    condition: Condition, before: Mapping[str, Any] | None, status: JobStatus, now: str
) -> Object:
    turned = before is None or before.get("status") != condition.status.value
    return {
        "type": condition.type,
        "status": condition.status.value,
        "reason": condition.reason,
        "message": condition.message,
        "lastTransitionTime": now if turned or before is None else before["lastTransitionTime"],
        **_present(observedGeneration=status.observed_generation),
    }


def _record_object(record: BranchRecord) -> Object:
    return {
        "outcome": record.outcome.value,
        "payloadSha256": record.payload_sha256,
        "receiptSha256": record.receipt_sha256,
        **_present(
            value=record.value,
            valueRef=record.value_ref,
            reason=record.reason.value if record.reason else None,
        ),
    }


def _snapshot_object(snapshot: Snapshot) -> Object:
    return {
        "generation": snapshot.generation,
        "digest": snapshot.digest,
        "committedTime": snapshot.committed_time,
    }


def _continuation_object(record: ContinuationRecord) -> Object:
    return {
        "kind": record.kind.value,
        "name": record.name,
        "uid": record.uid,
        "started": record.started,
    }


def _present(**fields: Any) -> Object:
    return {name: value for name, value in fields.items() if value is not None}
