"""A row whose task is gone: was it deleted after it had settled, with our result recorded?

It may have been settled by this very row, and only the answer was lost. The job's records keep each branch's
receipt hash, and a receipt can be computed again from the row, so the question has an answer for as long as
the job lives.
"""

from __future__ import annotations

from dataclasses import dataclass

from fencepost.outbox import Row
from fencepost.ports import StoreRefused
from fencepost.protocol.job import BranchRecord, Job
from fencepost.protocol.receipt import sealed
from fencepost.protocol.task import GENESIS, Kind, ObjectKey, Receipt
from fencepost.worker.workplace import Workplace


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Our receipt, or the reason why the row is a dead letter."""

    receipt: Receipt | None
    reason: str


async def receipt_in_job(place: Workplace, row: Row) -> Found:
    """Look for the row's receipt in the records of its job. Raises `StoreUnavailable`."""
    gone = f"unresolved: the task {row.task_key} is gone, or another has its name"
    if row.job is None or row.branch is None or row.kind is not Kind.RESULT:
        return Found(receipt=None, reason=gone)
    try:
        job = await place.store.job(ObjectKey(namespace=row.task_key.namespace, name=row.job.name))
    except StoreRefused as refused:
        return Found(receipt=None, reason=f"{gone}; its job could not be read: {refused}")
    record = _record(job, row)
    if record is None:
        return Found(receipt=None, reason=f"{gone}; its job is gone too, or has not recorded the branch")
    receipt = _receipt(place, row)
    if receipt.receipt_sha256 == record.receipt_sha256:
        return Found(receipt=receipt, reason="")
    same = (record.outcome, record.payload_sha256) == (row.outcome, row.payload_sha256)
    what = "the same result under another receipt" if same else f"another result ({record.outcome.value})"
    return Found(
        receipt=None, reason=f"the task is gone; its job has recorded {what} for branch {row.branch!r}"
    )


def _record(job: Job | None, row: Row) -> BranchRecord | None:
    if job is None or row.job is None or row.branch is None or job.uid != row.job.uid:
        return None
    return job.status.branches.get(row.branch)


def _receipt(place: Workplace, row: Row) -> Receipt:
    """The receipt that this row made, if it followed the rows that this outbox had in before it."""
    before = [
        known.receipt for known in place.outbox.rows_of(row.uid) if known.receipt and known.id != row.id
    ]
    last = max(before, key=lambda receipt: receipt.sequence, default=None)
    receipt = Receipt(
        idempotency_key=row.idempotency_key,
        fencing_token=row.token,
        holder=row.holder,
        kind=row.kind,
        outcome=row.outcome,
        value=row.value,
        payload_sha256=row.payload_sha256,
        sequence=last.sequence + 1 if last else 1,
        previous=last.receipt_sha256 if last else GENESIS,
        receipt_sha256="",
        recorded_by=place.account,
        device_time=row.device_time,
    )
    return sealed(row.uid, receipt)
