"""What a continuation is given: the joined snapshot, whole, with every value compared with its hash.

Small snapshots come inside `request.snapshot`. Larger ones are a reference to the job, and large values a
reference to the task whose receipt has them: both are read here, so that the handler sees one form.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from fencepost.ports import StoreRefused, StoreUnavailable, TaskStore
from fencepost.protocol.job import BranchRecord
from fencepost.protocol.join import snapshot_digest
from fencepost.protocol.payload import sha256_hex
from fencepost.protocol.task import ObjectKey, Outcome, Reason, Task

_READS_AT_ONCE: Final = 8


class SnapshotUnavailable(Exception):  # noqa: N818 - what a handler meets, not a failure of ours
    """The snapshot cannot be read, or what is read is not what was joined; the message says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledBranch:
    """How one branch settled. `value` is the text of its result; empty where the operator settled it."""

    name: str
    outcome: Outcome
    value: str
    payload_sha256: str
    receipt_sha256: str
    reason: Reason | None = None

    @property
    def data(self) -> Any:
        """The value as JSON; raises `json.JSONDecodeError` where the result was plain text."""
        return json.loads(self.value)


async def branches_of(store: TaskStore, task: Task) -> Mapping[str, SettledBranch]:
    """The branches of the snapshot in the task's request. Raises `SnapshotUnavailable`."""
    snapshot = json.loads(task.spec.request).get("snapshot")
    if not isinstance(snapshot, dict):
        raise SnapshotUnavailable(f"the request of {task.key} has no snapshot: it is no continuation")
    try:
        records = await _records(store, task.key.namespace, snapshot)
        return await _resolved(store, task.key.namespace, records)
    except (StoreUnavailable, StoreRefused) as error:
        raise SnapshotUnavailable(f"the snapshot of {task.key} could not be read: {error}") from error


async def _records(store: TaskStore, namespace: str, snapshot: Mapping[str, Any]) -> dict[str, BranchRecord]:
    inline = snapshot.get("branches")
    if inline is not None:
        records = {name: _record(entry) for name, entry in inline.items()}
    else:
        key = ObjectKey(namespace=namespace, name=snapshot["job"])
        job = await store.job(key)
        if job is None or job.uid != snapshot["jobUid"]:
            raise SnapshotUnavailable(f"the job {key} that has the snapshot is gone")
        records = dict(job.status.branches)
    digest = snapshot_digest(records)
    if digest != snapshot.get("digest"):
        raise SnapshotUnavailable(
            f"the snapshot's digest is {snapshot.get('digest')}, its branches have {digest}"
        )
    return records


def _record(entry: Mapping[str, str]) -> BranchRecord:
    return BranchRecord(
        outcome=Outcome(entry["outcome"]),
        payload_sha256=entry["payloadSha256"],
        receipt_sha256=entry["receiptSha256"],
        value=entry.get("value"),
        value_ref=entry.get("valueRef"),
        reason=Reason(entry["reason"]) if entry.get("reason") else None,
    )


async def _resolved(
    store: TaskStore, namespace: str, records: Mapping[str, BranchRecord]
) -> dict[str, SettledBranch]:
    gate = asyncio.Semaphore(_READS_AT_ONCE)

    async def one(name: str) -> SettledBranch:
        async with gate:
            return await _branch(store, namespace, name, records[name])

    names = sorted(records)
    return dict(zip(names, await asyncio.gather(*(one(name) for name in names)), strict=True))


async def _branch(store: TaskStore, namespace: str, name: str, record: BranchRecord) -> SettledBranch:
    value = record.value
    if value is None and record.value_ref:
        value = await _value_of(store, ObjectKey(namespace=namespace, name=record.value_ref), record)
    if value is None or sha256_hex(value) != record.payload_sha256:
        raise SnapshotUnavailable(f"the value of branch {name!r} is missing or does not match its hash")
    return SettledBranch(
        name=name,
        outcome=record.outcome,
        value=value,
        payload_sha256=record.payload_sha256,
        receipt_sha256=record.receipt_sha256,
        reason=record.reason,
    )


async def _value_of(store: TaskStore, key: ObjectKey, record: BranchRecord) -> str | None:
    task = await store.task(key)
    receipts = task.receipts if task else ()
    for receipt in receipts:
        if receipt.receipt_sha256 == record.receipt_sha256:
            return receipt.value
    return None
