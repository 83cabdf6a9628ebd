from __future__ import annotations

import json
from dataclasses import replace
from itertools import product

import pytest

from fencepost.protocol import limits
from fencepost.protocol.continuation import (
    STEPS,
    Found,
    Record,
    Seen,
    Step,
    is_wanted,
    next_step,
    snapshot_request,
)
from fencepost.protocol.job import (
    BranchRecord,
    Continuation,
    ContinuationKind,
    ContinuationRecord,
    ContinuationWhen,
    Job,
    JobState,
    JobStatus,
    Snapshot,
)
from fencepost.protocol.payload import sha256_hex
from fencepost.protocol.task import Outcome, Reason
from tests.protocol.given import NOW, a_job

SNAPSHOT = Snapshot(generation=1, digest="d" * 64, committed_time=NOW)
MINE = ContinuationRecord(kind=ContinuationKind.JOB, name="then", uid="uid-mine")

# Record, what is found, whether its UID is the recorded one -> the next step. Written out again, all of it.
NEXT = {
    (None, Found.NOTHING, ""): Step.CREATE,
    (None, Found.STRANGER, "uid-x"): Step.CONFLICT,
    (None, Found.SUSPENDED, "uid-x"): Step.RECORD,
    (None, Found.RUNNING, "uid-x"): Step.CONFLICT,
    (False, Found.NOTHING, ""): Step.LOST,
    (False, Found.STRANGER, "uid-x"): Step.LOST,
    (False, Found.SUSPENDED, "uid-x"): Step.DELETE_DUPLICATE,
    (False, Found.RUNNING, "uid-x"): Step.LOST,
    (False, Found.STRANGER, "uid-mine"): Step.CONFLICT,
    (False, Found.SUSPENDED, "uid-mine"): Step.UNSUSPEND,
    (False, Found.RUNNING, "uid-mine"): Step.RECORD_STARTED,
    (True, Found.NOTHING, ""): Step.HANDS_OFF,
    (True, Found.STRANGER, "uid-x"): Step.HANDS_OFF,
    (True, Found.SUSPENDED, "uid-x"): Step.DELETE_DUPLICATE,
    (True, Found.RUNNING, "uid-x"): Step.HANDS_OFF,
    (True, Found.STRANGER, "uid-mine"): Step.HANDS_OFF,
    (True, Found.SUSPENDED, "uid-mine"): Step.HANDS_OFF,
    (True, Found.RUNNING, "uid-mine"): Step.HANDS_OFF,
}


def joined(
    when: ContinuationWhen = ContinuationWhen.SETTLED,
    state: JobState = JobState.SUCCEEDED,
    record: ContinuationRecord | None = None,
) -> Job:
    continuation = Continuation(when=when, kind=ContinuationKind.JOB, template="{}")
    status = JobStatus(state=state, snapshot=SNAPSHOT, continuation=record)
    return replace(a_job(continuation=continuation), status=status)


@pytest.mark.parametrize(("started", "found", "uid"), NEXT)
def test_the_next_step_of_a_continuation(started: bool | None, found: Found, uid: str) -> None:
    record = None if started is None else replace(MINE, started=started)
    assert next_step(joined(record=record), Seen(found=found, uid=uid)) is NEXT[started, found, uid]


def test_the_table_has_every_pair_but_the_impossible_one() -> None:
    assert set(product(Record, Found)) - set(STEPS) == {(Record.THIS, Found.NOTHING)}
    assert set(STEPS) <= set(product(Record, Found))


def test_only_the_recorded_object_is_ever_started() -> None:
    assert [pair for pair, step in STEPS.items() if step is Step.UNSUSPEND] == [
        (Record.THIS, Found.SUSPENDED)
    ]
    assert {record for (record, _), step in STEPS.items() if step is Step.CREATE} == {Record.NONE}


def test_only_an_object_that_has_not_run_is_ever_recorded() -> None:
    assert [pair for pair, step in STEPS.items() if step is Step.RECORD] == [(Record.NONE, Found.SUSPENDED)]


@pytest.mark.parametrize(
    ("when", "state", "wanted"),
    [
        (ContinuationWhen.SETTLED, JobState.SUCCEEDED, True),
        (ContinuationWhen.SETTLED, JobState.FAILED, True),
        (ContinuationWhen.SUCCEEDED, JobState.SUCCEEDED, True),
        (ContinuationWhen.SUCCEEDED, JobState.FAILED, False),
        (ContinuationWhen.FAILED, JobState.SUCCEEDED, False),
        (ContinuationWhen.FAILED, JobState.FAILED, True),
    ],
)
def test_a_continuation_runs_after_the_end_it_asks_for(
    when: ContinuationWhen, state: JobState, wanted: bool
) -> None:
    assert is_wanted(joined(when, state)) is wanted
    expected = Step.CREATE if wanted else Step.NOT_WANTED
    assert next_step(joined(when, state), Seen(found=Found.NOTHING)) is expected


def test_nothing_is_wanted_before_the_join_or_without_a_continuation() -> None:
    open_job = replace(joined(), status=JobStatus())
    assert not is_wanted(open_job)
    assert not is_wanted(replace(open_job, status=JobStatus(state=JobState.SUCCEEDED)))
    assert not is_wanted(replace(joined(), spec=a_job().spec))
    assert next_step(open_job, Seen(found=Found.SUSPENDED, uid="uid-x")) is Step.NOT_WANTED


# A crash between any two steps: what is there, what is recorded, and the steps from there.
def test_from_every_crash_the_same_table_goes_on_and_starts_one_object_once() -> None:
    for crash_after in range(5):
        world, record, started = Seen(found=Found.NOTHING), None, 0
        for turn in range(12):
            step = next_step(joined(record=record), world)
            lost = turn == crash_after  # the operator died before this step's write was sent
            if lost:
                continue
            if step is Step.CREATE:
                world = Seen(found=Found.SUSPENDED, uid=f"uid-{turn}")
            elif step is Step.RECORD:
                record = replace(MINE, uid=world.uid)
            elif step is Step.UNSUSPEND:
                world, started = replace(world, found=Found.RUNNING), started + 1
            elif step is Step.RECORD_STARTED:
                assert record is not None
                record = replace(record, started=True)
        assert started == 1
        assert next_step(joined(record=record), world) is Step.HANDS_OFF


def record_of_branch(value: str | None, reference: str | None = None) -> BranchRecord:
    return BranchRecord(
        outcome=Outcome.OK,
        payload_sha256=sha256_hex(value or ""),
        receipt_sha256="e" * 64,
        value=value,
        value_ref=reference,
    )


def with_records(**records: BranchRecord) -> Job:
    job = joined()
    return replace(job, status=replace(job.status, branches=records))


def test_a_small_snapshot_is_given_whole() -> None:
    deleted = replace(record_of_branch(""), outcome=Outcome.REJECTED, reason=Reason.TASK_DELETED)
    job = with_records(south=record_of_branch(None, "task-south"), north=record_of_branch("n"), west=deleted)
    assert json.loads(snapshot_request(job)) == {
        "job": "nightly-import",
        "jobUid": "job-uid-1",
        "generation": 1,
        "digest": "d" * 64,
        "state": "Succeeded",
        "branches": {
            "north": {
                "outcome": "Ok",
                "payloadSha256": sha256_hex("n"),
                "receiptSha256": "e" * 64,
                "value": "n",
            },
            "south": {
                "outcome": "Ok",
                "payloadSha256": sha256_hex(""),
                "receiptSha256": "e" * 64,
                "valueRef": "task-south",
            },
            "west": {
                "outcome": "Rejected",
                "payloadSha256": sha256_hex(""),
                "receiptSha256": "e" * 64,
                "value": "",
                "reason": "TaskDeleted",
            },
        },
    }


def test_a_big_snapshot_is_given_by_reference_and_the_limit_is_exact() -> None:
    empty = limits.stored_size(snapshot_request(with_records(north=record_of_branch(""))))
    room = limits.SNAPSHOT_IN_REQUEST_BYTES_MAX - empty
    whole = snapshot_request(with_records(north=record_of_branch("x" * room)))
    assert limits.stored_size(whole) == limits.SNAPSHOT_IN_REQUEST_BYTES_MAX
    assert "branches" in json.loads(whole)
    reference = snapshot_request(with_records(north=record_of_branch("x" * (room + 1))))
    assert set(json.loads(reference)) == {"job", "jobUid", "generation", "digest", "state"}


def test_there_is_no_snapshot_before_the_join() -> None:
    with pytest.raises(ValueError, match="feeds/nightly-import is not joined"):
        snapshot_request(a_job())
