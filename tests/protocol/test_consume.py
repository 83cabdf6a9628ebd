from __future__ import annotations

from dataclasses import replace

import pytest

from fencepost.protocol.consume import ConsumeVerdict, judge_consume
from fencepost.protocol.job import Job, JobStatus, Snapshot
from tests.protocol.given import NOW, a_job

JOINED = replace(
    a_job(), status=JobStatus(snapshot=Snapshot(generation=1, digest="d" * 64, committed_time=NOW))
)


@pytest.mark.parametrize(
    ("job", "consumed", "verdict"),
    [
        (None, None, ConsumeVerdict.UNKNOWN_JOB),
        (None, "d" * 64, ConsumeVerdict.UNKNOWN_JOB),
        (a_job(), None, ConsumeVerdict.NOT_JOINED),
        (JOINED, None, ConsumeVerdict.CONSUME),
        (JOINED, "d" * 64, ConsumeVerdict.ALREADY_CONSUMED),
    ],
)
def test_a_joined_job_is_consumed_once(
    job: Job | None, consumed: str | None, verdict: ConsumeVerdict
) -> None:
    assert judge_consume(job, consumed_digest=consumed) is verdict
