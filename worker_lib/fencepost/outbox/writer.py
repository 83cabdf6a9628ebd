"""The one way into the file: a transaction that carries what waits, and the chain that grows in it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from fencepost.outbox.refusals import is_full, write_failure
from fencepost.outbox.statements import query
from fencepost.protocol.steps import Step, StepKind, next_step

if TYPE_CHECKING:
    from fencepost.outbox.buffer import Buffer

Result = TypeVar("Result")


class Writer:
    """What a transaction may do. The head of the chain is its own until the commit."""

    def __init__(self, connection: sqlite3.Connection, newest: Step | None) -> None:
        self.connection = connection
        self.newest = newest

    def execute(self, statement: str, parameters: Mapping[str, object]) -> sqlite3.Cursor:
        """Run one statement."""
        return self.connection.execute(statement, parameters)

    def append(self, kind: StepKind, state: str, *, at: str, row_id: int | None = None) -> Step:
        """Append a step to the chain; `row_id` is the row it accounts for."""
        step = next_step(self.newest, kind.value, state)
        columns = {"sequence": step.sequence, "kind": step.kind, "state": state, "hash": step.hash, "at": at}
        self.execute(query("append_step"), columns)
        if row_id is not None:
            self.execute(query("cover_row"), {"id": row_id, "step": step.sequence})
        self.newest = step
        return step


class Transactions:
    """All writes, one after the other; the caller has the lock.

    `newest` is the head of the chain that is durable. A failed write leaves it where it was, and what waited
    still waits. A commit may fail *after* it took effect (its last sync failed): so after a failure the head
    is read again before anything else is written, and what is found written is not written twice.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, buffer: Buffer) -> None:
        self.path = path
        self.newest = newest_step(connection)
        self.full = False
        self.unsure = False
        """A write failed and none has landed since: what a read finds may not be on the disk yet."""
        self._connection = connection
        self._buffer = buffer
        self._attempted: Step | None = None
        self._uncertain = False

    def run(self, body: Callable[[Writer], Result]) -> Result:
        """Everything that waits, then `body`, then the commit. Raises `OutboxWriteFailed` or `OutboxFull`."""
        try:
            self._become_certain()
            writer, result = self._commit(body)
        except sqlite3.Error as error:
            self.full, self.unsure = is_full(error), True
            with suppress(sqlite3.Error):  # else the next transaction begins with it
                self._become_certain()
            raise write_failure(self.path, error) from error
        self.newest = writer.newest
        self.full = self.unsure = False
        self._buffer.clear()
        return result

    def _commit(self, body: Callable[[Writer], Result]) -> tuple[Writer, Result]:
        self._connection.execute("BEGIN IMMEDIATE")
        writer = Writer(self._connection, self.newest)
        try:
            self._buffer.write_into(writer)
            result = body(writer)
            self._attempted, self._uncertain = writer.newest, True
            self._connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):  # the failure that led here is the one to report
                self._connection.execute("ROLLBACK")
            raise
        self._uncertain = False
        return writer, result

    def _become_certain(self) -> None:
        if not self._uncertain:
            return
        found = newest_step(self._connection)
        if found != self.newest and found == self._attempted:
            self._buffer.clear()
        self.newest, self._uncertain = found, False


def newest_step(connection: sqlite3.Connection) -> Step | None:
    """The head of the chain in the file."""
    row = connection.execute(query("newest_step")).fetchone()
    return step_from_columns(row) if row else None


def step_from_columns(row: sqlite3.Row) -> Step:
    """A step as the file has it."""
    return Step(sequence=row["sequence"], kind=row["kind"], state=row["state"], hash=row["hash"])


def nothing_more(_writer: Writer) -> None:
    """What waits is all there is to write."""


def begin_incarnation(writer: Writer, *, owner: str, incarnation: str) -> None:
    """Say who has the file now, and that it is not closed."""
    writer.execute(query("begin_incarnation"), {"owner": owner, "incarnation": incarnation})


def end_incarnation(writer: Writer) -> None:
    """Closed in order: the next start need not look through every page."""
    writer.execute(query("end_incarnation"), {})
