"""From objects of the API server to the frozen values of the protocol.

This is the hot path of worker and operator: plain look-ups, no models. The schema and the policies have
checked what is stored, so a field that is absent has its default; what they cannot have let through is
refused as `Unreadable`, in a sentence that names the object and the field. Nothing is guessed. But a stored
task whose request cannot be kept exactly (no schema looks into it) is read without it, with
`request_problem`: it has to be claimed, revoked and settled as any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from fencepost.api import names
from fencepost.api.fields import (
    NOTHING,
    Fields,
    UnfitRequest,
    Value,
    Wrong,
    canonical,
    entries_of,
    flag_of,
    number_of,
    object_of,
    optional_number_of,
    optional_text_of,
    optional_word_of,
    request_of,
    text_of,
    word_of,
)
from fencepost.protocol import fencing, limits
from fencepost.protocol.job import (
    Branch,
    BranchRecord,
    Condition,
    ConditionStatus,
    Continuation,
    ContinuationKind,
    ContinuationRecord,
    ContinuationWhen,
    Job,
    JobSpec,
    JobState,
    JobStatus,
    JoinPolicy,
    Snapshot,
)
from fencepost.protocol.payload import canonical_json
from fencepost.protocol.task import (
    Candidate,
    DedupScope,
    Hold,
    Kind,
    LastLease,
    LeaseEnd,
    ObjectKey,
    Outcome,
    Owner,
    Reason,
    Receipt,
    RetryPolicy,
    State,
    Task,
    TaskSpec,
    UnknownPolicy,
    cut_to_bytes,
)

DEFAULT: Final = TaskSpec()
DEFAULT_RETRY: Final = RetryPolicy()


class Unreadable(ValueError):  # noqa: N818 - the sentence a reader sees
    """An object that no lawful writer can have left so; the message names it and the field."""


def task_from_object(whole: Fields) -> Task:
    """The task that a LeasedTask object is. Raises `Unreadable`, but for its request (`request_problem`)."""
    return _read(_task, names.LEASED_TASK, whole)


def candidate_from_metadata(whole: Fields) -> Candidate:
    """What a LeasedTask's metadata shows of it; a PartialObjectMetadata will do. Raises `Unreadable`."""
    return _read(_candidate, names.LEASED_TASK, whole)


def job_from_object(whole: Fields, *, known: Job | None = None) -> Job:
    """The job that a FanOutJob object is. Raises `Unreadable`.

    If `known` is the same job at the same generation, its spec is taken over: the API server raises the
    generation with every change of a spec, and the spec of a large job takes the most time to read.
    """
    return _read(lambda fields: _job(fields, known), names.FAN_OUT_JOB, whole)


def task_spec(spec: Fields) -> TaskSpec:
    """The spec of a LeasedTask, or of a job's template, which has no request. Raises `Unreadable`."""
    return _read(_task_spec, "", spec)


def job_spec(spec: Fields) -> JobSpec:
    """The spec of a FanOutJob. Raises `Unreadable`."""
    return _read(_job_spec, "", spec)


def last_lease(text: str) -> LastLease:
    """What the annotation `fencepost.dev/last-lease` says. Raises `Unreadable`."""
    return _read(_last_lease, "", {"text": text})


def _read(reader: Callable[[Fields], Value], kind: str, whole: Fields) -> Value:
    """The one place where what is wrong with a field becomes a sentence about the object."""
    try:
        return reader(whole)
    except Wrong as wrong:
        raise Unreadable(f"{_name_of(kind, whole)}: {wrong}" if kind else str(wrong)) from None


def _name_of(kind: str, whole: Any) -> str:
    metadata = whole.get("metadata") if isinstance(whole, Mapping) else None
    if not isinstance(metadata, Mapping):
        return kind
    return f"{kind} {metadata.get('namespace', '?')}/{metadata.get('name', '?')}"


def _task(whole: Fields) -> Task:
    metadata = object_of(whole, "metadata", "metadata")
    annotations = object_of(metadata, "annotations", "metadata.annotations", NOTHING)
    labels = object_of(metadata, "labels", "metadata.labels", NOTHING)
    status = object_of(whole, "status", "status", NOTHING)
    last = text_of(annotations, names.LAST_LEASE, names.LAST_LEASE, "")
    return Task(
        key=_key(metadata),
        uid=text_of(metadata, "uid", "metadata.uid"),
        version=text_of(metadata, "resourceVersion", "metadata.resourceVersion"),
        spec=_stored_task_spec(object_of(whole, "spec", "spec")),
        token=_token(annotations),
        holder=text_of(annotations, names.HOLDER, names.HOLDER, ""),
        account=text_of(annotations, names.HOLDER_ACCOUNT, names.HOLDER_ACCOUNT, ""),
        renewals=_counter(annotations, names.RENEWALS),
        hold=optional_word_of(labels, names.HOLD, names.HOLD, Hold),
        failures=_counter(annotations, names.FAILURES),
        last_lease=_last_lease({"text": last}) if last else None,
        outbox_mark=text_of(annotations, names.OUTBOX_MARK, names.OUTBOX_MARK, ""),
        acquired_at=text_of(annotations, names.ACQUIRED_AT, names.ACQUIRED_AT, ""),
        renewed_at=text_of(annotations, names.RENEWED_AT, names.RENEWED_AT, ""),
        progress=text_of(annotations, names.PROGRESS, names.PROGRESS, ""),
        state=word_of(status, "state", "status.state", State, State.OPEN),
        receipts=_receipts(status),
        owner=_owner(metadata),
        branch=optional_text_of(annotations, names.BRANCH, names.BRANCH),
        created_at=text_of(metadata, "creationTimestamp", "metadata.creationTimestamp", ""),
        deleting="deletionTimestamp" in metadata,
    )


def _candidate(whole: Fields) -> Candidate:
    metadata = object_of(whole, "metadata", "metadata")
    annotations = object_of(metadata, "annotations", "metadata.annotations", NOTHING)
    return Candidate(
        key=_key(metadata),
        uid=text_of(metadata, "uid", "metadata.uid"),
        version=text_of(metadata, "resourceVersion", "metadata.resourceVersion"),
        token=_token(annotations),
        failures=_counter(annotations, names.FAILURES),
        owner=_owner(metadata),
        branch=optional_text_of(annotations, names.BRANCH, names.BRANCH),
    )


def _stored_task_spec(spec: Fields) -> TaskSpec:
    try:
        return _task_spec(spec)
    except UnfitRequest as unfit:
        readable = _task_spec({**spec, "request": NOTHING})
        return replace(readable, request_problem=cut_to_bytes(unfit.problem, limits.ERROR_TEXT_BYTES_MAX))


def _task_spec(spec: Fields) -> TaskSpec:
    retry = object_of(spec, "retryPolicy", "spec.retryPolicy", NOTHING)
    return TaskSpec(
        queue=text_of(spec, "queue", "spec.queue", DEFAULT.queue),
        request=request_of(spec, "spec.request"),
        priority=number_of(spec, "priority", "spec.priority", DEFAULT.priority),
        suspend=flag_of(spec, "suspend", "spec.suspend"),
        lease_duration_seconds=number_of(
            spec, "leaseDurationSeconds", "spec.leaseDurationSeconds", DEFAULT.lease_duration_seconds
        ),
        retry_policy=_retry_policy(retry) if retry else DEFAULT_RETRY,
        active_deadline_seconds=optional_number_of(
            spec, "activeDeadlineSeconds", "spec.activeDeadlineSeconds"
        ),
        ttl_seconds_after_finished=optional_number_of(
            spec, "ttlSecondsAfterFinished", "spec.ttlSecondsAfterFinished"
        ),
        unknown_policy=word_of(
            spec, "unknownPolicy", "spec.unknownPolicy", UnknownPolicy, DEFAULT.unknown_policy
        ),
        dedup_scope=word_of(spec, "dedupScope", "spec.dedupScope", DedupScope, DEFAULT.dedup_scope),
        external=flag_of(spec, "external", "spec.external"),
    )


def _retry_policy(retry: Fields) -> RetryPolicy:
    where = "spec.retryPolicy."
    return RetryPolicy(
        max_failures=number_of(retry, "maxFailures", f"{where}maxFailures", DEFAULT_RETRY.max_failures),
        backoff_base_seconds=number_of(
            retry, "backoffBaseSeconds", f"{where}backoffBaseSeconds", DEFAULT_RETRY.backoff_base_seconds
        ),
        backoff_max_seconds=number_of(
            retry, "backoffMaxSeconds", f"{where}backoffMaxSeconds", DEFAULT_RETRY.backoff_max_seconds
        ),
    )


def _receipts(status: Fields) -> tuple[Receipt, ...]:
    return tuple(
        _receipt(entry, f"status.receipts[{place}]")
        for place, entry in enumerate(entries_of(status, "receipts", "status.receipts"))
    )


def _receipt(entry: Fields, where: str) -> Receipt:
    return Receipt(
        idempotency_key=text_of(entry, "idempotencyKey", where),
        fencing_token=number_of(entry, "fencingToken", where),
        holder=text_of(entry, "holder", where),
        kind=word_of(entry, "kind", where, Kind),
        outcome=word_of(entry, "outcome", where, Outcome),
        value=text_of(entry, "value", where),
        payload_sha256=text_of(entry, "payloadSha256", where),
        sequence=number_of(entry, "sequence", where),
        previous=text_of(entry, "previous", where),
        receipt_sha256=text_of(entry, "receiptSha256", where),
        recorded_by=text_of(entry, "recordedBy", where),
        reason=optional_word_of(entry, "reason", where, Reason),
        duplicate_of=text_of(entry, "duplicateOf", where, ""),
        device_time=text_of(entry, "deviceTime", where, ""),
    )


def _last_lease(fields: Fields) -> LastLease:
    """`TOKEN HOLDER END[ message]`."""
    token, _, rest = fields["text"].partition(" ")
    holder, _, rest = rest.partition(" ")
    end, _, message = rest.partition(" ")
    try:
        return LastLease(token=fencing.token_of(token), holder=holder, end=LeaseEnd(end), message=message)
    except ValueError:
        raise Wrong(names.LAST_LEASE, f"expected TOKEN HOLDER END, got {fields['text'][:80]!r}") from None


def _job(whole: Fields, known: Job | None) -> Job:
    metadata = object_of(whole, "metadata", "metadata")
    uid = text_of(metadata, "uid", "metadata.uid")
    generation = optional_number_of(metadata, "generation", "metadata.generation")
    same_spec = known is not None and (known.uid, known.generation) == (uid, generation)
    return Job(
        key=_key(metadata),
        uid=uid,
        version=text_of(metadata, "resourceVersion", "metadata.resourceVersion"),
        spec=known.spec if known and same_spec else _job_spec(object_of(whole, "spec", "spec")),
        status=_job_status(object_of(whole, "status", "status", NOTHING)),
        generation=1 if generation is None else generation,
        owner=_owner(metadata),
        created_at=text_of(metadata, "creationTimestamp", "metadata.creationTimestamp", ""),
        deleting="deletionTimestamp" in metadata,
    )


def _job_spec(spec: Fields) -> JobSpec:
    template = object_of(spec, "template", "spec.template", NOTHING)
    return JobSpec(
        branches=tuple(
            _branch(entry, f"spec.branches[{place}]")
            for place, entry in enumerate(entries_of(spec, "branches", "spec.branches"))
        ),
        template=_task_spec(object_of(template, "spec", "spec.template.spec", NOTHING)),
        join_policy=word_of(spec, "joinPolicy", "spec.joinPolicy", JoinPolicy, JoinPolicy.ALL_SETTLED),
        continuation=_continuation(spec),
        parallelism=optional_number_of(spec, "parallelism", "spec.parallelism"),
        suspend=flag_of(spec, "suspend", "spec.suspend"),
        active_deadline_seconds=optional_number_of(
            spec, "activeDeadlineSeconds", "spec.activeDeadlineSeconds"
        ),
        ttl_seconds_after_finished=optional_number_of(
            spec, "ttlSecondsAfterFinished", "spec.ttlSecondsAfterFinished"
        ),
    )


def _branch(entry: Fields, where: str) -> Branch:
    return Branch(name=text_of(entry, "name", where), request=request_of(entry, f"{where}.request"))


def _continuation(spec: Fields) -> Continuation | None:
    found = spec.get("continuation")
    if found is None:
        return None
    template = object_of(found, "template", "spec.continuation.template")
    return Continuation(
        when=word_of(found, "when", "spec.continuation.when", ContinuationWhen, ContinuationWhen.SETTLED),
        kind=word_of(template, "kind", "spec.continuation.template.kind", ContinuationKind),
        template=canonical(canonical_json, template, "spec.continuation.template"),
    )


def _job_status(status: Fields) -> JobStatus:
    records = object_of(status, "branches", "status.branches", NOTHING)
    where = "status.branches"
    return JobStatus(
        state=word_of(status, "state", "status.state", JobState, JobState.RUNNING),
        created=number_of(status, "created", "status.created", 0),
        branches=MappingProxyType({name: _record(object_of(records, name, where), name) for name in records}),
        snapshot=_snapshot(status),
        continuation=_continuation_record(status),
        conditions=tuple(
            _condition(entry) for entry in entries_of(status, "conditions", "status.conditions")
        ),
        observed_generation=optional_number_of(status, "observedGeneration", "status.observedGeneration"),
    )


def _record(entry: Fields, name: str) -> BranchRecord:
    where = f"status.branches[{name[:40]!r}]"
    return BranchRecord(
        outcome=word_of(entry, "outcome", where, Outcome),
        payload_sha256=text_of(entry, "payloadSha256", where),
        receipt_sha256=text_of(entry, "receiptSha256", where),
        value=optional_text_of(entry, "value", where),
        value_ref=optional_text_of(entry, "valueRef", where),
        reason=optional_word_of(entry, "reason", where, Reason),
    )


def _snapshot(status: Fields) -> Snapshot | None:
    found = status.get("snapshot")
    if found is None:
        return None
    return Snapshot(
        generation=number_of(found, "generation", "status.snapshot"),
        digest=text_of(found, "digest", "status.snapshot"),
        committed_time=text_of(found, "committedTime", "status.snapshot"),
    )


def _continuation_record(status: Fields) -> ContinuationRecord | None:
    found = status.get("continuation")
    if found is None:
        return None
    return ContinuationRecord(
        kind=word_of(found, "kind", "status.continuation", ContinuationKind),
        name=text_of(found, "name", "status.continuation"),
        uid=text_of(found, "uid", "status.continuation"),
        started=flag_of(found, "started", "status.continuation"),
    )


def _condition(entry: Fields) -> Condition:
    return Condition(
        type=text_of(entry, "type", "status.conditions"),
        status=word_of(entry, "status", "status.conditions", ConditionStatus),
        reason=text_of(entry, "reason", "status.conditions"),
        message=text_of(entry, "message", "status.conditions"),
    )


def _key(metadata: Fields) -> ObjectKey:
    return ObjectKey(
        namespace=text_of(metadata, "namespace", "metadata.namespace"),
        name=text_of(metadata, "name", "metadata.name"),
    )


def _owner(metadata: Fields) -> Owner | None:
    """The owner that controls it; the others are only there for the garbage collector."""
    for reference in entries_of(metadata, "ownerReferences", "metadata.ownerReferences"):
        if reference.get("controller"):
            return Owner(
                kind=text_of(reference, "kind", "metadata.ownerReferences"),
                name=text_of(reference, "name", "metadata.ownerReferences"),
                uid=text_of(reference, "uid", "metadata.ownerReferences"),
            )
    return None


def _token(annotations: Fields) -> int:
    text = annotations.get(names.FENCING_TOKEN)
    return 0 if text is None else canonical(fencing.token_of, text, names.FENCING_TOKEN)


def _counter(annotations: Fields, name: str) -> int:
    text = annotations.get(name)
    return 0 if text is None else canonical(fencing.counter_of, text, name)
