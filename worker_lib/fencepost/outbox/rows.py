"""The values of an outbox: what is stored, and how a row stands.

A row is written once. What changes afterwards is only how it stands: its status, the lease it is to be sent
under, and the receipt it was answered with. Its idempotency key never changes: whatever is sent again is
sent under the stored key, which is why sending twice is safe.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fencepost.outbox.refusals import ReceiptMismatch, RowRefused
from fencepost.protocol import limits
from fencepost.protocol.drain import RowStatus
from fencepost.protocol.payload import refuse_unencodable, sha256_hex
from fencepost.protocol.receipt import default_idempotency_key, receipt_hash
from fencepost.protocol.submission import Submission, Verdict, refuse_contradiction
from fencepost.protocol.task import Kind, ObjectKey, Outcome, Owner, Reason, Receipt


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One statement of a handler's own, run in the transaction that stores its result."""

    sql: str
    parameters: Sequence[object] | Mapping[str, object] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRow:
    """A result, or a row that a handler emitted. `token` and `holder` are the lease it was made under.

    Without an idempotency key the default one is computed. `value` is the payload's text, empty for Unknown.
    `device_time` is recorded and never trusted (I3).
    """

    task_key: ObjectKey
    uid: str
    token: int
    holder: str
    kind: Kind
    outcome: Outcome
    value: str
    idempotency_key: str | None = None
    job: Owner | None = None
    branch: str | None = None
    device_time: str = ""

    @property
    def payload_sha256(self) -> str:
        return sha256_hex(self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row as it stands. `after_crash` says that an earlier life of the worker stored it.

    `reason` is why it was parked or given up, `last_error` what the last try that failed said; both are cut
    to 1 KiB. `receipt_text` is the receipt as it was answered (JSON), empty before.
    """

    id: int
    task_key: ObjectKey
    uid: str
    token: int
    holder: str
    kind: Kind
    outcome: Outcome
    value: str
    payload_sha256: str
    idempotency_key: str
    job: Owner | None
    branch: str | None
    device_time: str
    stored_at: str
    row_step: int
    covered_step: int | None
    status: RowStatus
    reason: str
    tries: int
    last_error: str
    verdict: Verdict | None
    receipt_text: str
    receipt_sha256: str
    acknowledged_at: str
    after_crash: bool

    @property
    def receipt(self) -> Receipt | None:
        """The receipt that acknowledged the row, if there is one."""
        return receipt_from_text(self.receipt_text) if self.receipt_text else None

    def submission(self, *, recorded_by: str) -> Submission:
        """What is handed in for this row, under the lease it stands for now."""
        return Submission(
            uid=self.uid,
            idempotency_key=self.idempotency_key,
            kind=self.kind,
            outcome=self.outcome,
            value=self.value,
            recorded_by=recorded_by,
            token=self.token,
            holder=self.holder,
            device_time=self.device_time,
            after_crash=self.after_crash,
        )


def deliverable_key(new: NewRow, *, outbox: str) -> str:
    """The row's idempotency key: the caller's, or the default one of the outbox with this UUID.

    Raises `RowRefused` for a row that no server would ever take; it must not block the others later.
    """
    try:
        for text in (new.value, new.device_time):
            refuse_unencodable(text)
        key = _default_key(new, outbox) if new.idempotency_key is None else new.idempotency_key
        refuse_contradiction(_as_submission(new, key))
        _refuse_too_large(new.value)
    except ValueError as error:
        what = f"the {new.kind.value.lower()} of task {new.task_key}"
        raise RowRefused(f"{what} cannot be stored: {error}") from None
    return key


def _default_key(new: NewRow, outbox: str) -> str:
    return default_idempotency_key(
        outbox=outbox,
        uid=new.uid,
        kind=new.kind,
        outcome=new.outcome,
        payload_sha256=new.payload_sha256,
        token=new.token,
    )


def _refuse_too_large(value: str) -> None:
    size = limits.stored_size(value)
    if size > limits.VALUE_BYTES_MAX:
        limit = limits.VALUE_BYTES_MAX
        raise ValueError(f"the value takes {size} bytes as stored JSON text, over the limit of {limit}")


def _as_submission(new: NewRow, key: str) -> Submission:
    return Submission(
        uid=new.uid,
        idempotency_key=key,
        kind=new.kind,
        outcome=new.outcome,
        value=new.value,
        recorded_by="",
        token=new.token,
        holder=new.holder,
        device_time=new.device_time,
    )


def same_body(row: Row, new: NewRow) -> bool:
    """Same kind, outcome and payload: storing it again is a replay."""
    return (row.kind, row.outcome, row.payload_sha256) == (new.kind, new.outcome, new.payload_sha256)


def refuse_foreign_receipt(row: Row, receipt: Receipt | None, verdict: Verdict) -> None:
    """Raises `ReceiptMismatch` unless the receipt proves this very row (OUTBOX-01).

    The payload must be the row's own and the receipt's hash must cover its content. The key must be the row's
    too, except where the payload had been accepted under another key before (REJECTED_DUPLICATE).
    """
    where = f"row {row.id} of task {row.task_key}"
    if receipt is None:
        if row.kind is Kind.ROW and verdict is Verdict.REJECTED_DUPLICATE:
            return
        raise ReceiptMismatch(f"{where} cannot be acknowledged as {verdict.value} without a receipt")
    if receipt.receipt_sha256 != receipt_hash(row.uid, receipt):
        raise ReceiptMismatch(f"{where}: receiptSha256 does not match the receipt's content")
    if receipt.payload_sha256 != row.payload_sha256:
        raise ReceiptMismatch(f"{where}: the receipt is of another payload")
    if receipt.idempotency_key != row.idempotency_key and verdict is not Verdict.REJECTED_DUPLICATE:
        raise ReceiptMismatch(f"{where}: the receipt is of the key {receipt.idempotency_key}")


def receipt_text(receipt: Receipt) -> str:
    """The receipt as canonical JSON, in the names that it has on the server.

    It is flat, and has only text and whole numbers that are in range, under ASCII names: for those, Python's
    own encoder writes what RFC 8785 says, in a tenth of the time.
    """
    fields: dict[str, object] = {
        "idempotencyKey": receipt.idempotency_key,
        "fencingToken": receipt.fencing_token,
        "holder": receipt.holder,
        "kind": receipt.kind.value,
        "outcome": receipt.outcome.value,
        "value": receipt.value,
        "payloadSha256": receipt.payload_sha256,
        "sequence": receipt.sequence,
        "previous": receipt.previous,
        "receiptSha256": receipt.receipt_sha256,
        "recordedBy": receipt.recorded_by,
        "reason": receipt.reason.value if receipt.reason else "",
        "duplicateOf": receipt.duplicate_of,
        "deviceTime": receipt.device_time,
    }
    said = {name: value for name, value in fields.items() if value or name == "value"}
    return json.dumps(said, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def receipt_from_text(text: str) -> Receipt:
    """The receipt that `receipt_text` wrote."""
    fields = json.loads(text)
    reason = fields.get("reason")
    return Receipt(
        idempotency_key=fields["idempotencyKey"],
        fencing_token=fields["fencingToken"],
        holder=fields["holder"],
        kind=Kind(fields["kind"]),
        outcome=Outcome(fields["outcome"]),
        value=fields["value"],
        payload_sha256=fields["payloadSha256"],
        sequence=fields["sequence"],
        previous=fields["previous"],
        receipt_sha256=fields["receiptSha256"],
        recorded_by=fields.get("recordedBy", ""),
        reason=Reason(reason) if reason else None,
        duplicate_of=fields.get("duplicateOf", ""),
        device_time=fields.get("deviceTime", ""),
    )


def columns_of_new_row(new: NewRow, *, key: str, at: str, incarnation: str) -> dict[str, object]:
    """What the statement `store_row` takes, but for the step."""
    return {
        "namespace": new.task_key.namespace,
        "name": new.task_key.name,
        "uid": new.uid,
        "token": new.token,
        "holder": new.holder,
        "kind": new.kind.value,
        "outcome": new.outcome.value,
        "value": new.value,
        "payload_sha256": new.payload_sha256,
        "idempotency_key": key,
        "job_kind": new.job.kind if new.job else None,
        "job_name": new.job.name if new.job else None,
        "job_uid": new.job.uid if new.job else None,
        "branch": new.branch,
        "device_time": new.device_time,
        "stored_at": at,
        "incarnation": incarnation,
    }


def columns_of_standing(row: Row) -> dict[str, object]:
    """What the statement `mark_row` takes."""
    return {
        "id": row.id,
        "token": row.token,
        "holder": row.holder,
        "status": row.status.value,
        "reason": row.reason,
        "tries": row.tries,
        "last_error": row.last_error,
        "verdict": row.verdict.value if row.verdict else None,
        "receipt": row.receipt_text,
        "receipt_sha256": row.receipt_sha256,
        "acknowledged_at": row.acknowledged_at,
    }


def row_from_columns(columns: sqlite3.Row, *, newest_of_before: int) -> Row:
    """A row as the file has it; `newest_of_before` is the last id that an earlier life gave out."""
    job = columns["job_uid"]
    return Row(
        id=columns["id"],
        task_key=ObjectKey(namespace=columns["namespace"], name=columns["name"]),
        uid=columns["uid"],
        token=columns["token"],
        holder=columns["holder"],
        kind=Kind(columns["kind"]),
        outcome=Outcome(columns["outcome"]),
        value=columns["value"],
        payload_sha256=columns["payload_sha256"],
        idempotency_key=columns["idempotency_key"],
        job=Owner(kind=columns["job_kind"], name=columns["job_name"], uid=job) if job else None,
        branch=columns["branch"],
        device_time=columns["device_time"],
        stored_at=columns["stored_at"],
        row_step=columns["row_step"],
        covered_step=columns["covered_step"],
        status=RowStatus(columns["status"]),
        reason=columns["reason"],
        tries=columns["tries"],
        last_error=columns["last_error"],
        verdict=Verdict(columns["verdict"]) if columns["verdict"] else None,
        receipt_text=columns["receipt"],
        receipt_sha256=columns["receipt_sha256"],
        acknowledged_at=columns["acknowledged_at"],
        after_crash=columns["id"] <= newest_of_before,
    )
