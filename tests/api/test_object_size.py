"""A job stays under 1 MiB, which every etcd takes, with each of its limits used up at once."""

from __future__ import annotations

from types import MappingProxyType

import pytest

from fencepost.api.write import job_spec_object, job_view
from fencepost.protocol import fanout, limits
from fencepost.protocol.job import (
    Branch,
    BranchRecord,
    Condition,
    ConditionStatus,
    ContinuationKind,
    ContinuationRecord,
    Job,
    JobSpec,
    JobState,
    JobStatus,
    Snapshot,
)
from fencepost.protocol.payload import canonical_json, stored_json_size
from fencepost.protocol.task import ObjectKey, Outcome, TaskSpec

SHA = "f" * 64
KEY = ObjectKey(namespace="n" * 63, name="j" * limits.OBJECT_NAME_CHARACTERS_MAX)


def branches_of(sign: str, repeats: int) -> list[Branch]:
    return [
        Branch(name=f"{number:04}{sign * repeats}", request="{}") for number in range(limits.BRANCHES_MAX)
    ]


def spec_of(branches: list[Branch]) -> JobSpec:
    return JobSpec(branches=tuple(branches), template=TaskSpec(queue="q" * 63))


def size_of(spec: JobSpec) -> int:
    return stored_json_size(job_spec_object(spec))


def fullest_spec(sign: str) -> JobSpec:
    """As many names as there may be, as long as the spec has room for; a request takes the rest."""
    longest = (limits.BRANCH_NAME_BYTES_MAX - 4) // limits.text_size(sign)
    room = limits.JOB_SPEC_BYTES_MAX - size_of(spec_of(branches_of(sign, 0)))
    branches = branches_of(sign, min(longest, room // limits.BRANCHES_MAX // limits.stored_size(sign)))
    room = limits.JOB_SPEC_BYTES_MAX - size_of(spec_of(branches))
    filled = Branch(name=branches[0].name, request=canonical_json({"t": "x" * (room - len('"t":""'))}))
    return spec_of([filled, *branches[1:]])


def fullest_records(job: Job) -> dict[str, BranchRecord]:
    inline = limits.INLINE_VALUES_BYTES_MAX // limits.INLINE_VALUE_BYTES_MAX
    return {
        branch.name: BranchRecord(
            outcome=Outcome.REJECTED,
            payload_sha256=SHA,
            receipt_sha256=SHA,
            value="x" * limits.INLINE_VALUE_BYTES_MAX if place < inline else None,
            value_ref=None if place < inline else fanout.child_name(job, branch.name),
        )
        for place, branch in enumerate(job.spec.branches)
    }


def fullest_job(sign: str) -> Job:
    job = Job(key=KEY, uid="u" * 36, version="9" * 20, spec=fullest_spec(sign))
    conditions = tuple(
        Condition(type=name, status=ConditionStatus.UNKNOWN, reason="R" * 20, message=sign * 400)
        for name in ("Succeeded", "Reconciling", "Stalled")
    )
    status = JobStatus(
        state=JobState.FAILED,
        created=limits.BRANCHES_MAX,
        branches=MappingProxyType(fullest_records(job)),
        snapshot=Snapshot(generation=1, digest=SHA, committed_time="2026-01-01T00:00:00Z"),
        continuation=ContinuationRecord(kind=ContinuationKind.FAN_OUT_JOB, name="n" * 62, uid="u" * 36),
        conditions=conditions,
        observed_generation=1,
    )
    return Job(key=KEY, uid=job.uid, version=job.version, spec=job.spec, status=status)


@pytest.mark.parametrize("sign", ["x", "<", "€"])
def test_a_job_at_every_limit_at_once_is_an_object_under_1_mib(sign: str) -> None:
    job = fullest_job(sign)
    assert size_of(job.spec) == limits.JOB_SPEC_BYTES_MAX
    assert len(job.status.branches) == limits.BRANCHES_MAX
    assert stored_json_size(job_view(job)) < limits.OBJECT_BYTES_MAX
