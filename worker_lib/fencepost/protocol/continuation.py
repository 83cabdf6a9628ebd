"""The continuation runs once: which step is next, from what is recorded and what is seen.

It is created *suspended* under a name derived from the job; its UID is recorded by compare-and-swap; then
it is unsuspended with a test on that UID, and `started` is recorded. From then on it is hands off: a person
may suspend it. Whatever else turns up under the name is not ours to start: a late duplicate that the job
owns is deleted while it is suspended, a stranger is a conflict that a person has to solve. That an object
names the job as its owner proves nothing, for anybody can write that: before a UID is recorded, ours is
suspended, because nobody of us unsuspends anything earlier, and it has the content that we create it with.

A crash between any two steps leaves a state from which the same table goes on.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from fencepost.protocol import limits
from fencepost.protocol.job import ContinuationRecord, ContinuationWhen, Job, JobState
from fencepost.protocol.payload import canonical_json


class Found(Enum):
    """What an uncached read finds under the continuation's name.

    While no UID is recorded, whoever looks compares the content too: a suspended object that the job owns and
    that is not what we would create is a STRANGER. Afterwards the UID tells.
    """

    NOTHING = "nothing"
    STRANGER = "an object that the job does not own, or that we did not make"
    SUSPENDED = "an object of ours, suspended"
    RUNNING = "an object of ours, not suspended"


class Step(Enum):
    """The one next thing to do."""

    NOT_WANTED = "the join did not end the way the continuation asks for"
    CREATE = "create it, suspended"
    RECORD = "write its UID into the job's status, by compare-and-swap"
    UNSUSPEND = "unsuspend it, with a test on the recorded UID"
    RECORD_STARTED = "write that it was started"
    DELETE_DUPLICATE = "delete it, with its UID as precondition: a late duplicate"
    CONFLICT = "tell a person: another object has the name"
    LOST = "tell a person: the recorded object was deleted before it started"
    HANDS_OFF = "nothing, for ever"


class Record(Enum):
    """How far the job's status says that it got."""

    NONE = "no UID recorded"
    THIS = "the UID of what was found"
    OTHER = "the UID of another object"
    STARTED = "started"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What is under the name; `uid` is empty exactly for NOTHING."""

    found: Found
    uid: str = ""


STEPS: Final[dict[tuple[Record, Found], Step]] = {
    (Record.NONE, Found.NOTHING): Step.CREATE,
    (Record.NONE, Found.STRANGER): Step.CONFLICT,
    (Record.NONE, Found.SUSPENDED): Step.RECORD,
    (Record.NONE, Found.RUNNING): Step.CONFLICT,  # ours does not run before its UID is recorded
    (Record.THIS, Found.SUSPENDED): Step.UNSUSPEND,
    (Record.THIS, Found.RUNNING): Step.RECORD_STARTED,
    (Record.THIS, Found.STRANGER): Step.CONFLICT,
    (Record.OTHER, Found.NOTHING): Step.LOST,
    (Record.OTHER, Found.STRANGER): Step.LOST,
    (Record.OTHER, Found.SUSPENDED): Step.DELETE_DUPLICATE,
    (Record.OTHER, Found.RUNNING): Step.LOST,
    (Record.STARTED, Found.SUSPENDED): Step.HANDS_OFF,
    (Record.STARTED, Found.RUNNING): Step.HANDS_OFF,
    (Record.STARTED, Found.NOTHING): Step.HANDS_OFF,
    (Record.STARTED, Found.STRANGER): Step.HANDS_OFF,
}

WANTED_AFTER: Final[dict[ContinuationWhen, frozenset[JobState]]] = {
    ContinuationWhen.SETTLED: frozenset({JobState.SUCCEEDED, JobState.FAILED}),
    ContinuationWhen.SUCCEEDED: frozenset({JobState.SUCCEEDED}),
    ContinuationWhen.FAILED: frozenset({JobState.FAILED}),
}


def is_wanted(job: Job) -> bool:
    """Whether the join ended the way the continuation asks for; False before the join."""
    if job.spec.continuation is None or job.status.snapshot is None:
        return False
    return job.status.state in WANTED_AFTER[job.spec.continuation.when]


def next_step(job: Job, seen: Seen) -> Step:
    """What to do next about the continuation of a job that is joined."""
    if not is_wanted(job):
        return Step.NOT_WANTED
    record = job.status.continuation
    if record is not None and record.started:
        late = seen.found is Found.SUSPENDED and seen.uid != record.uid
        return Step.DELETE_DUPLICATE if late else STEPS[Record.STARTED, seen.found]
    return STEPS[_standing(record, seen), seen.found]


def _standing(record: ContinuationRecord | None, seen: Seen) -> Record:
    if record is None:
        return Record.NONE
    return Record.THIS if record.uid == seen.uid else Record.OTHER


def snapshot_request(job: Job) -> str:
    """The canonical JSON of what the continuation is given as `request.snapshot`.

    Up to 32 KiB it has every branch with its outcome, hashes and value (or the name of the task that has
    it); beyond that it is a reference to the job. Raises `ValueError` before the join.
    """
    snapshot = job.status.snapshot
    if snapshot is None:
        raise ValueError(f"{job.key} is not joined")
    reference = {
        "job": job.key.name,
        "jobUid": job.uid,
        "generation": snapshot.generation,
        "digest": snapshot.digest,
        "state": job.status.state.value,
    }
    whole = canonical_json({**reference, "branches": _branches(job)})
    fits = limits.stored_size(whole) <= limits.SNAPSHOT_IN_REQUEST_BYTES_MAX
    return whole if fits else canonical_json(reference)


def _branches(job: Job) -> dict[str, dict[str, str]]:
    return {
        name: {
            key: text
            for key, text in (
                ("outcome", record.outcome.value),
                ("payloadSha256", record.payload_sha256),
                ("receiptSha256", record.receipt_sha256),
                ("value", record.value),
                ("valueRef", record.value_ref),
                ("reason", record.reason.value if record.reason else None),
            )
            if text is not None
        }
        for name, record in sorted(job.status.branches.items())
    }
