"""The values that a FanOutJob is made of: frozen, parsed, free of dictionaries that anybody may change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from fencepost.protocol.task import ObjectKey, Outcome, Owner, Reason, TaskSpec


class JobState(StrEnum):
    """`status.state`: Running until the snapshot is committed, then final."""

    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class JoinPolicy(StrEnum):
    """When the join is decided. `AllSettled`: when every branch has a final outcome."""

    ALL_SETTLED = "AllSettled"


class ContinuationWhen(StrEnum):
    """After which end of the join the continuation runs."""

    SETTLED = "Settled"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class ContinuationKind(StrEnum):
    """What a continuation may be."""

    LEASED_TASK = "LeasedTask"
    FAN_OUT_JOB = "FanOutJob"
    JOB = "Job"


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """One branch of the fixed set: its name and the canonical JSON text of its request."""

    name: str
    request: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """What runs once after the join. `template` is the canonical JSON text of the object to make."""

    when: ContinuationWhen
    kind: ContinuationKind
    template: str


DEFAULT_TASK: Final = TaskSpec()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """`template` is what each branch's task is made of; its request comes from the branch."""

    branches: tuple[Branch, ...]
    template: TaskSpec = DEFAULT_TASK
    join_policy: JoinPolicy = JoinPolicy.ALL_SETTLED
    continuation: Continuation | None = None
    parallelism: int | None = None
    suspend: bool = False
    active_deadline_seconds: int | None = None
    ttl_seconds_after_finished: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchRecord:
    """How one branch settled: written once, never changed.

    The value is inline where it is small, else `value_ref` names the LeasedTask whose receipt has it.
    """

    outcome: Outcome
    payload_sha256: str
    receipt_sha256: str
    value: str | None = None
    value_ref: str | None = None
    reason: Reason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The join's result for ever: `digest` is over the sorted (name, outcome, payload hash) alone."""

    generation: int
    digest: str
    committed_time: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinuationRecord:
    """Which object is the continuation (by UID, written once) and whether it was started."""

    kind: ContinuationKind
    name: str
    uid: str
    started: bool = False


class ConditionStatus(StrEnum):
    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A Kubernetes condition without its transition time, which the writer fills in when `status` turns."""

    type: str
    status: ConditionStatus
    reason: str
    message: str


NO_RECORDS: Final[Mapping[str, BranchRecord]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """`created`: how many branches, in sorted order, have had their task."""

    state: JobState = JobState.RUNNING
    created: int = 0
    branches: Mapping[str, BranchRecord] = field(default_factory=lambda: NO_RECORDS)
    snapshot: Snapshot | None = None
    continuation: ContinuationRecord | None = None
    conditions: tuple[Condition, ...] = ()
    observed_generation: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A FanOutJob as read at one `version`."""

    key: ObjectKey
    uid: str
    version: str
    spec: JobSpec
    status: JobStatus = JobStatus()
    generation: int = 1
    owner: Owner | None = None
    created_at: str = ""
    deleting: bool = False

    @property
    def joined(self) -> bool:
        return self.status.snapshot is not None

    @property
    def sorted_branches(self) -> tuple[Branch, ...]:
        """By name, in the order of code points (which is the order of their UTF-8 bytes)."""
        return tuple(sorted(self.spec.branches, key=lambda branch: branch.name))
