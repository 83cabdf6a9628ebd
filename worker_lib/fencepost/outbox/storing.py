"""Storing a row: everything that belongs to it in one transaction, or the one that stands already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fencepost.outbox.chain import row_state
from fencepost.outbox.deferred import run_deferred
from fencepost.outbox.refusals import OutboxConflict, ReceiptMismatch
from fencepost.outbox.rows import NewRow, Row, Statement, columns_of_new_row, columns_of_standing, same_body
from fencepost.outbox.statements import query
from fencepost.outbox.writer import Writer
from fencepost.protocol.steps import StepKind
from fencepost.protocol.task import Kind, Task


def store_row(
    writer: Writer, *, row: NewRow, key: str, deferred: Sequence[Statement], at: str, incarnation: str
) -> int:
    """The id of the row, stored with its step, the mark that the task is done, and the handler's own."""
    run_deferred(writer.connection, deferred)
    columns = columns_of_new_row(row, key=key, at=at, incarnation=incarnation)
    state = row_state(
        uid=row.uid,
        kind=row.kind.value,
        outcome=row.outcome.value,
        idempotency_key=key,
        payload_sha256=row.payload_sha256,
    )
    columns["row_step"] = writer.append(StepKind.ROW, state, at=at).sequence
    row_id = int(writer.execute(query("store_row"), columns).lastrowid or 0)
    if row.kind is Kind.RESULT:
        writer.execute(query("mark_done"), {**columns, "at": at, "row": row_id})
    return row_id


def columns_of_lease(task: Task, *, at: str) -> dict[str, object]:
    """What the statement `record_lease` takes."""
    return {
        "uid": task.uid,
        "namespace": task.key.namespace,
        "name": task.key.name,
        "token": task.token,
        "holder": task.holder,
        "at": at,
    }


def uncover(writer: Writer, *, row: Row) -> Row:
    """Make an acknowledged row open again: its next receipt gets a step of its own."""
    opened = replace(row, acknowledged_at="", verdict=None, covered_step=None)
    writer.execute(query("mark_row"), columns_of_standing(opened))
    writer.execute(query("cover_row"), {"id": row.id, "step": None})
    return opened


def replayed(known: Row, new: NewRow) -> Row:
    """The row that stands, if `new` says the same; raises `OutboxConflict` if not (IDEM-02)."""
    if same_body(known, new):
        return known
    raise OutboxConflict(
        f"task {new.task_key} has another {known.kind.value.lower()} here (row {known.id}, "
        f"{known.outcome.value}, key {known.idempotency_key}): the first stands"
    )


def acknowledged_alike(row: Row, digest: str) -> Row:
    """The row, if its receipt is the one with this hash; raises `ReceiptMismatch` if not."""
    if row.receipt_sha256 == digest:
        return row
    raise ReceiptMismatch(f"row {row.id} has the receipt {row.receipt_sha256} already, not {digest}")
