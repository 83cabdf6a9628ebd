"""Jobs as they are stored: made once with a fixed content, changed under a version that only rises."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fencepost.local.admission import refusal_of_job
from fencepost.local.ledger import Ledger, rfc3339
from fencepost.ports import Cause, Refused
from fencepost.protocol.continuation import is_wanted
from fencepost.protocol.job import Job, JobSpec
from fencepost.protocol.task import ObjectKey, Owner


@dataclass(frozen=True, slots=True, kw_only=True)
class JobApplied:
    """The job is stored; `replay` says that it had been before, with this very content."""

    job: Job
    replay: bool


def put_job(
    ledger: Ledger, key: ObjectKey, spec: JobSpec, owner: Owner | None = None
) -> JobApplied | Refused:
    """A job with its fixed branches (JOIN-01); its tasks are made by `joining.reconcile`.

    The same content again is a replay, whatever the order of the branches and whether or not the job is
    finished or consumed; other content under the name is `Refused(EXISTS)`, a spec that is none
    `Refused(ADMISSION)`.
    """
    known = ledger.shelf.job(key)
    if known is not None:
        return _replayed(known, spec, owner)
    refusal = refusal_of_job(key, spec)
    if refusal is not None:
        return refusal
    job = Job(
        key=key, uid=ledger.new_uid(), version="1", spec=spec, owner=owner, created_at=rfc3339(ledger.now)
    )
    ledger.shelf.keep_job(job)
    return JobApplied(job=job, replay=False)


def keep_job(ledger: Ledger, job: Job) -> Job:
    """Store the new form of a job: version +1."""
    stored = replace(job, version=str(int(job.version) + 1))
    ledger.shelf.keep_job(stored)
    return stored


def content(spec: JobSpec) -> JobSpec:
    """What makes two specs the same job: all that never changes, with the branches sorted by name."""
    branches = tuple(sorted(spec.branches, key=lambda branch: branch.name))
    return replace(spec, branches=branches, suspend=False, parallelism=None)


def _replayed(known: Job, spec: JobSpec, owner: Owner | None) -> JobApplied | Refused:
    if content(known.spec) == content(spec) and known.owner == owner:
        return JobApplied(job=known, replay=True)
    return Refused(
        cause=Cause.EXISTS,
        message=f"there is a job {known.key} of other content: branches and template never change",
    )


def all_made(job: Job) -> bool:
    """Every branch has had its task."""
    return job.status.created >= len(job.spec.branches)


def is_finished(job: Job) -> bool:
    """Joined, and its continuation started if there is to be one."""
    if not job.joined:
        return False
    record = job.status.continuation
    return not is_wanted(job) or (record is not None and record.started)
