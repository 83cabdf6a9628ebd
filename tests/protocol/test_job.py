from __future__ import annotations

from dataclasses import replace

import pytest

from fencepost.protocol.job import ConditionStatus as Status
from fencepost.protocol.job import (
    ContinuationKind,
    ContinuationWhen,
    JobState,
    JobStatus,
    JoinPolicy,
    Snapshot,
)
from tests.protocol.given import NOW, a_job


def test_the_words_on_the_wire_never_change() -> None:
    assert [*JobState] == ["Running", "Succeeded", "Failed"]
    assert [*JoinPolicy] == ["AllSettled"]
    assert [*ContinuationWhen] == ["Settled", "Succeeded", "Failed"]
    assert [*ContinuationKind] == ["LeasedTask", "FanOutJob", "Job"]
    assert [*Status] == ["True", "False", "Unknown"]


def test_a_job_is_joined_by_its_snapshot_alone() -> None:
    job = a_job()
    assert not job.joined
    assert not replace(job, status=JobStatus(state=JobState.SUCCEEDED, created=3)).joined
    snapshot = Snapshot(generation=1, digest="d", committed_time=NOW)
    assert replace(job, status=JobStatus(snapshot=snapshot)).joined


def test_branches_are_sorted_as_their_bytes_of_utf8() -> None:
    names = ["b", "a", "B", "é", "😂", "\ufb33", "a b", "a/b", "aa"]
    ordered = [branch.name for branch in a_job(names).sorted_branches]
    assert ordered == sorted(names, key=lambda name: name.encode())
    assert ordered != sorted(names, key=lambda name: name.encode("utf-16-be"))


def test_a_new_job_has_no_records_and_nobody_can_add_one() -> None:
    status = a_job().status
    assert (status, len(status.branches)) == (JobStatus(), 0)
    with pytest.raises(TypeError):
        status.branches["north"] = None  # type: ignore[index]
