"""The two kinds as they travel: the one source of the CRDs, of their bounds and of `kubectl explain`.

Guarantees: what these models accept, the API server accepts, and the other way round, but for what no
schema can say (`manifest` has that). Every field has a description and every text, list and map a bound,
taken from `protocol.limits`. Rules over more than one field are in `rules`.

They are for people's input and for the generator. Objects that come from the API server are read by `read`,
which is many times faster and trusts the schema.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from fencepost.api.wire import (
    ATOMIC_LIST,
    ATOMIC_MAP,
    BY_TYPE,
    CONDITIONS_MAX,
    NOT_SETTLED,
    PRESERVE,
    QUEUE_PATTERN,
    Condition,
    FreeForm,
    ResultOutcome,
    Seconds,
    Sha256,
    Short,
    Time,
    Ttl,
    Wire,
)
from fencepost.protocol import job, limits, task


class RetryPolicy(Wire):
    """How often a lease may end without a result, and how long to wait after each time."""

    max_failures: int = Field(
        default=limits.MAX_FAILURES_DEFAULT,
        ge=0,
        le=limits.FAILURES_MAX,
        description="How many leases may end without a result and still be followed by another try; the "
        "failure after that settles the task as Failed, reason FailuresExhausted.",
    )
    backoff_base_seconds: int = Field(
        default=limits.BACKOFF_BASE_SECONDS_DEFAULT,
        ge=1,
        le=limits.BACKOFF_BASE_SECONDS_MAX,
        description="Wait after the first failure; it doubles with each further one. Between half and all "
        "of it is waited.",
    )
    backoff_max_seconds: int = Field(
        default=limits.BACKOFF_MAX_SECONDS_DEFAULT,
        ge=1,
        le=limits.BACKOFF_MAX_SECONDS_MAX,
        description="The longest wait after a failure.",
    )


class TaskTemplateSpec(Wire):
    """What every branch's task has in common."""

    queue: str = Field(
        default="default",
        min_length=1,
        max_length=limits.QUEUE_CHARACTERS_MAX,
        pattern=QUEUE_PATTERN,
        description="The queue that workers claim the task from; a DNS label.",
    )
    priority: int = Field(
        default=limits.PRIORITY_DEFAULT,
        ge=limits.PRIORITY_MIN,
        le=limits.PRIORITY_MAX,
        description="Tasks of a higher priority are claimed first. No order is promised inside a priority. "
        "May be changed while the task is open.",
    )
    lease_duration_seconds: int = Field(
        default=limits.LEASE_SECONDS_DEFAULT,
        ge=limits.LEASE_SECONDS_MIN,
        le=limits.LEASE_SECONDS_MAX,
        description="A lease that is not renewed for this long is revoked, measured by the operator's clock "
        "alone. Workers renew after a third of it.",
    )
    retry_policy: RetryPolicy = Field(
        default=RetryPolicy(),
        description="How often a lease may end without a result, and how long to wait after each time.",
    )
    active_deadline_seconds: Seconds | None = Field(
        default=None,
        description="Seconds after its creation at which an open task is settled as Failed, reason "
        "DeadlineExceeded. A task whose outcome is Unknown is left alone.",
    )
    unknown_policy: Annotated[task.UnknownPolicy, Field(strict=False)] = Field(
        default=task.UnknownPolicy.HOLD,
        description="What happens to a task whose outcome is Unknown: Hold waits for a report, Reclaim lets "
        "another worker run it again.",
    )
    dedup_scope: Literal[task.DedupScope.TASK] = Field(
        default=task.DedupScope.TASK,
        description="Where an Ok payload is accepted at most once: among the receipts of this task.",
    )
    external: bool = Field(
        default=False, description="The outcome is reported from outside; no worker can claim the task."
    )


class LeasedTaskSpec(TaskTemplateSpec):
    """What is asked for. Immutable, but for suspend and priority."""

    request: dict[str, Any] = Field(
        default={},
        json_schema_extra=PRESERVE,
        description="What the worker's handler is given: any JSON object of at most "
        f"{limits.REQUEST_BYTES_MAX // 1024} KiB. Integers beyond 2^53 - 1 are refused by the library.",
    )
    suspend: bool = Field(
        default=False,
        description="Whether the task may not be claimed for now. A lease that is there goes on. May be "
        "changed at any time.",
    )
    ttl_seconds_after_finished: Ttl | None = Field(
        default=None, description="Seconds after it settled at which the task is deleted. Absent: never."
    )


class Receipt(Wire):
    """The proof of one accepted submit. Never changed once it is there."""

    idempotency_key: str = Field(
        min_length=1,
        max_length=limits.IDEMPOTENCY_KEY_BYTES_MAX,
        description="Unique in the task: the same key with the same body is answered with this receipt.",
    )
    fencing_token: int = Field(
        ge=0, le=limits.FENCING_TOKEN_MAX, description="The token of the lease that it was written under."
    )
    holder: str = Field(
        min_length=1,
        max_length=limits.HOLDER_BYTES_MAX,
        description="Who wrote it: OUTBOX-UUID/INCARNATION of a worker, or operator.",
    )
    kind: Annotated[task.Kind, Field(strict=False)] = Field(
        description="Result: of the whole task. Row: one that was emitted on the way."
    )
    outcome: ResultOutcome = Field(
        description="What the work came to. Ok and Rejected are final for a result, Unknown is not."
    )
    reason: Annotated[task.Reason, Field(strict=False)] | None = Field(
        default=None,
        description="Why the operator settled the task without a worker's result; its receipts only.",
    )
    value: str = Field(
        max_length=limits.VALUE_BYTES_MAX,
        description="The payload: UTF-8 text, canonical JSON (RFC 8785) where the handler returned no text.",
    )
    payload_sha256: Sha256 = Field(description="SHA-256 of exactly the bytes of value.")
    duplicate_of: Short | None = Field(
        default=None,
        description="receiptSha256 of the receipt that has the same payload; this one is no row.",
    )
    sequence: int = Field(ge=1, le=limits.RECEIPTS_MAX, description="Its place in the list, from 1.")
    previous: Annotated[str, Field(min_length=1, max_length=64)] = Field(
        description="receiptSha256 of the receipt before; GENESIS for the first."
    )
    receipt_sha256: Sha256 = Field(
        description="SHA-256 over the task's UID and all other fields but value (its hash is in it)."
    )
    device_time: Annotated[str, Field(max_length=limits.DEVICE_TIME_CHARACTERS_MAX)] | None = Field(
        default=None, description="The time by the worker's clock. Recorded, never trusted."
    )
    recorded_by: str = Field(
        min_length=1,
        max_length=limits.ACCOUNT_BYTES_MAX,
        description="The account that wrote it, checked by the API server.",
    )


class LeasedTaskStatus(Wire):
    """The receipts and what follows from them. Written by whoever holds the lease, and by the operator."""

    state: Annotated[task.State, Field(strict=False)] = Field(
        default=task.State.OPEN,
        description="Open, Unknown, or settled for ever: Succeeded, Failed, Cancelled.",
    )
    settled: bool = Field(default=False, description="true exactly in Succeeded, Failed and Cancelled.")
    receipts: list[Receipt] = Field(
        default=[],
        max_length=limits.RECEIPTS_MAX,
        json_schema_extra=ATOMIC_LIST,
        description="One for each accepted submit, oldest first. Append-only.",
    )
    head: Short = Field(
        default=task.GENESIS, description="receiptSha256 of the newest receipt; GENESIS before the first."
    )
    count: int = Field(default=0, ge=0, le=limits.RECEIPTS_MAX, description="How many receipts there are.")
    conditions: list[Condition] = Field(
        default=[NOT_SETTLED],
        max_length=CONDITIONS_MAX,
        json_schema_extra=BY_TYPE,
        description="Succeeded: Unknown until the task is settled, then True or False.",
    )
    completion_time: Time | None = Field(
        default=None, description="When it was settled, by the clock of who settled it. Informative."
    )


class Branch(Wire):
    """One branch of the fixed set."""

    name: str = Field(
        min_length=1,
        max_length=limits.BRANCH_NAME_BYTES_MAX,
        description=f"Unique in the job: any text of up to {limits.BRANCH_NAME_BYTES_MAX} bytes of UTF-8.",
    )
    request: dict[str, Any] = Field(
        default_factory=dict,  # no default in the schema: inside a list kubectl would see a change
        json_schema_extra=PRESERVE,
        description="What the branch's task asks for: any JSON object of at most "
        f"{limits.REQUEST_BYTES_MAX // 1024} KiB.",
    )


class TaskTemplate(Wire):
    """What each branch's LeasedTask is made from."""

    spec: TaskTemplateSpec = Field(
        default=TaskTemplateSpec(), description="The spec of each branch's task, but for its request."
    )


class ContinuationTemplate(Wire):
    """The object to make. Its own schema is checked when it is made."""

    model_config = ConfigDict(extra="allow")

    api_version: Short = Field(description="fencepost.dev/v1alpha1, or batch/v1 for a Job.")
    kind: Short = Field(description="LeasedTask, FanOutJob or Job.")
    metadata: FreeForm | None = Field(default=None, description="Its labels and annotations are kept.")
    spec: FreeForm | None = Field(default=None, description="The spec of the object. Required.")


class Continuation(Wire):
    """What runs once after the join."""

    when: Annotated[job.ContinuationWhen, Field(strict=False)] = Field(
        default=job.ContinuationWhen.SETTLED,
        description="After which end of the join it runs: Settled (any), Succeeded or Failed.",
    )
    template: ContinuationTemplate = Field(
        json_schema_extra=PRESERVE,
        description="The object to make: a LeasedTask, a FanOutJob or a batch/v1 Job. The operator sets its "
        "name, namespace and owner, and gives it the snapshot.",
    )


class FanOutJobSpec(Wire):
    """The branches and what to do when all have settled. Immutable, but for suspend and parallelism."""

    branches: list[Branch] = Field(
        min_length=1,
        max_length=limits.BRANCHES_MAX,
        json_schema_extra=ATOMIC_LIST,
        description="The branches, compared by name: their order means nothing. Immutable. The whole spec is "
        f"at most {limits.JOB_SPEC_BYTES_MAX // 1024} KiB of JSON, "
        f"{limits.JOB_SPEC_BYTES_MAX_CLIENT_SIDE // 1024} KiB with client-side kubectl apply.",
    )
    template: TaskTemplate = Field(
        default=TaskTemplate(), description="What each branch's LeasedTask is made from. Immutable."
    )
    join_policy: Annotated[job.JoinPolicy, Field(strict=False)] = Field(
        default=job.JoinPolicy.ALL_SETTLED,
        description="AllSettled: the job is joined when every branch is Ok or Rejected; it Succeeded if "
        "every branch is Ok.",
    )
    continuation: Continuation | None = Field(
        default=None, description="What runs once after the join. Immutable."
    )
    parallelism: Annotated[int, Field(ge=1, le=limits.BRANCHES_MAX)] | None = Field(
        default=None, description="How many branches may have an unsettled task at once. Absent: all."
    )
    suspend: bool = Field(default=False, description="Whether no further tasks are made for now.")
    active_deadline_seconds: Seconds | None = Field(
        default=None,
        description="Seconds after its creation at which the branches that are open are settled as "
        "Rejected, reason DeadlineExceeded.",
    )
    ttl_seconds_after_finished: Ttl | None = Field(
        default=None,
        description="Seconds after the join, and after the continuation has finished, at which the job and "
        "its tasks are deleted. Absent: never.",
    )


class BranchRecord(Wire):
    """How one branch settled. Never changed once it is there."""

    outcome: ResultOutcome = Field(description="What the work came to.")
    payload_sha256: Sha256 = Field(description="SHA-256 of the bytes of the branch's value.")
    receipt_sha256: Short = Field(
        description="The receipt that settled the branch's task; empty where the task was deleted."
    )
    value: Annotated[str, Field(max_length=limits.INLINE_VALUE_BYTES_MAX)] | None = Field(
        default=None, description="The value, where it is small enough to stand here."
    )
    value_ref: Annotated[str, Field(max_length=limits.OBJECT_NAME_CHARACTERS_MAX)] | None = Field(
        default=None, description="Else the name of the LeasedTask whose receipt has the value."
    )
    reason: Annotated[task.Reason, Field(strict=False)] | None = Field(
        default=None, description="Why it was settled without a worker's result."
    )


class Snapshot(Wire):
    """The result of the join. Never changed once it is there."""

    generation: int = Field(ge=1, description="Of the join: 1, and one more after each redrive.")
    digest: Sha256 = Field(
        description="SHA-256 over the sorted [name, outcome, payloadSha256] of all branches."
    )
    committed_time: Time = Field(description="When it was written, by the API server's clock.")


class ContinuationRecord(Wire):
    """Which object the continuation is. Its UID is written once, before it may run."""

    kind: Annotated[job.ContinuationKind, Field(strict=False)] = Field(description="Its kind.")
    name: str = Field(min_length=1, max_length=limits.OBJECT_NAME_CHARACTERS_MAX, description="Its name.")
    uid: Short = Field(min_length=1, description="Its UID: no other object of the name is started.")
    started: bool = Field(
        default=False, description="Whether it was unsuspended: from then on it is left alone."
    )


class FanOutJobStatus(Wire):
    """What has settled, and the join. Written by the operator alone."""

    state: Annotated[job.JobState, Field(strict=False)] = Field(
        default=job.JobState.RUNNING,
        description="Running until the snapshot is there, then Succeeded or Failed.",
    )
    created: int = Field(
        default=0,
        ge=0,
        le=limits.BRANCHES_MAX,
        description="How many branches, in sorted order, have had their task. Never falls.",
    )
    observed_generation: int | None = Field(
        default=None, description="metadata.generation that the operator has acted on."
    )
    branches: dict[str, BranchRecord] = Field(
        default={},
        max_length=limits.BRANCHES_MAX,
        json_schema_extra=ATOMIC_MAP,
        description="How each branch settled, by its name. Append-only.",
    )
    snapshot: Snapshot | None = Field(
        default=None, description="The result of the join, in the same write as state and the last branches."
    )
    continuation: ContinuationRecord | None = Field(
        default=None, description="Which object the continuation is, once it exists."
    )
    conditions: list[Condition] = Field(
        default=[NOT_SETTLED],
        max_length=CONDITIONS_MAX,
        json_schema_extra=BY_TYPE,
        description="Succeeded (Unknown while running), Reconciling and Stalled.",
    )


class LeasedTask(Wire):
    """A task that exactly one worker's result can settle. Who holds it is in its annotations."""

    api_version: Literal["fencepost.dev/v1alpha1"] = Field(description="fencepost.dev/v1alpha1.")
    kind: Literal["LeasedTask"] = Field(description="LeasedTask.")
    metadata: dict[str, Any] = Field(description="Name, namespace, labels, annotations.")
    spec: LeasedTaskSpec = Field(description="What is asked for. Immutable, but for suspend and priority.")
    status: LeasedTaskStatus = Field(
        default=LeasedTaskStatus(), description="The receipts and what follows from them."
    )


class FanOutJob(Wire):
    """A fixed set of branches, one LeasedTask each, whose join survives every crash."""

    api_version: Literal["fencepost.dev/v1alpha1"] = Field(description="fencepost.dev/v1alpha1.")
    kind: Literal["FanOutJob"] = Field(description="FanOutJob.")
    metadata: dict[str, Any] = Field(description="Name, namespace, labels, annotations.")
    spec: FanOutJobSpec = Field(
        description="The branches and what to do when all have settled. Immutable, but for suspend and "
        "parallelism."
    )
    status: FanOutJobStatus = Field(
        default=FanOutJobStatus(),
        description="What has settled, and the join. Written by the operator alone.",
    )
