"""The durable outbox of a worker: one SQLite file. `outbox` says what it guarantees."""

from fencepost.outbox.looking import OutboxView
from fencepost.outbox.outbox import Outbox
from fencepost.outbox.refusals import (
    DeferredStatementFailed,
    OutboxConflict,
    OutboxFailed,
    OutboxFull,
    OutboxRefused,
    OutboxUnreadable,
    OutboxWriteFailed,
    ReceiptMismatch,
    RefusalCode,
    RowRefused,
)
from fencepost.outbox.rows import NewRow, Row, Statement

__all__ = [
    "DeferredStatementFailed",
    "NewRow",
    "Outbox",
    "OutboxConflict",
    "OutboxFailed",
    "OutboxFull",
    "OutboxRefused",
    "OutboxUnreadable",
    "OutboxView",
    "OutboxWriteFailed",
    "ReceiptMismatch",
    "RefusalCode",
    "Row",
    "RowRefused",
    "Statement",
]
