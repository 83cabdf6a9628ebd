"""What an outbox says no to: one class for each thing the caller does next, one exit code for each refusal.

A refusal at start comes before anything is claimed: a worker that could claim but not store its result would
run work and lose it. After the start a write that fails has stored nothing, and says so before the worker
reports success.
"""

from __future__ import annotations

import sqlite3
from enum import IntEnum
from typing import Final


class RefusalCode(IntEnum):
    """Exit codes of a process whose outbox could not be opened; a supervisor can tell them apart."""

    IN_USE = 71  # another process has it: only one may
    NOT_WRITABLE = 72  # no rights, a read-only mount, a missing directory
    NETWORK_FILE_SYSTEM = 73  # locks and fsync mean less there: only on request
    DAMAGED = 74  # no outbox any more (moved aside by the next start of a worker), or it never was one
    FULL = 75  # no room for a new file
    NEWER_SCHEMA = 76  # written by a later version of this library


class OutboxRefused(Exception):  # noqa: N818
    """The outbox cannot be opened; `code` is the exit code, the message says what to do."""

    def __init__(self, code: RefusalCode, message: str) -> None:
        super().__init__(message)
        self.code = code

    @property
    def exit_code(self) -> int:
        """The same code as a plain number, for `sys.exit`."""
        return int(self.code)


class OutboxFailed(Exception):  # noqa: N818
    """The disk failed under an open outbox."""


class OutboxUnreadable(OutboxFailed):
    """A read failed: end the worker; the next start looks through the file."""


class OutboxWriteFailed(OutboxFailed):
    """A write failed: do not rely on any part of it. What was stored before can still be read."""


class OutboxFull(OutboxWriteFailed):
    """No room left: stop claiming, go on draining, try again when there is room."""


class OutboxConflict(ValueError):  # noqa: N818
    """The task or the key has a row of another body here already; the first stands (IDEM-02)."""


class RowRefused(ValueError):  # noqa: N818
    """The row could never be delivered: too large, no lawful key, a body that contradicts itself."""


class DeferredStatementFailed(ValueError):  # noqa: N818
    """A statement of the handler's own failed: nothing of the transaction is stored, the result neither."""


class ReceiptMismatch(ValueError):  # noqa: N818
    """The receipt is not one of this row, or its hash does not cover its content."""


_FULL: Final = frozenset({sqlite3.SQLITE_FULL})
_DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_BUSY: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})


def primary_code(error: sqlite3.Error) -> int:
    """SQLite's primary result code, or 0 where Python's own checks raised."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def is_damage(error: sqlite3.Error) -> bool:
    """Whether the file itself is no database any more."""
    return primary_code(error) in _DAMAGED


def is_in_use(error: sqlite3.Error) -> bool:
    """Whether another program has the file open."""
    return primary_code(error) in _BUSY


def is_full(error: sqlite3.Error) -> bool:
    """Whether there was no room."""
    return primary_code(error) in _FULL


def write_failure(path: object, error: sqlite3.Error) -> OutboxWriteFailed:
    """The typed error of a failed write."""
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    if is_full(error):
        return OutboxFull(f"outbox {path}: no room left on the volume, nothing was stored ({name})")
    return OutboxWriteFailed(f"outbox {path}: the write failed, it cannot be relied on ({name}: {error})")


def read_failure(path: object, error: sqlite3.Error) -> OutboxFailed:
    """The typed error of a failed read. Even a read may need room: to undo a write that was cut off."""
    if is_full(error):
        return OutboxFull(
            f"outbox {path}: no room left on the volume to undo a write that failed for want of it"
        )
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    return OutboxUnreadable(
        f"outbox {path} cannot be read ({name}: {error}): start again, which checks the file"
    )
