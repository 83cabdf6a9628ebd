"""Reads of an outbox: always the rows as they stand now, page by page, so that nothing is held open.

A page is read under the lock and handed out without it: a drain that marks rows while it goes through them
never meets a half-read statement, and threads that store never wait for a reader's network calls.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import RLock
from typing import Final

from fencepost.outbox.buffer import Buffer
from fencepost.outbox.refusals import read_failure
from fencepost.outbox.rows import NewRow, Row, row_from_columns
from fencepost.outbox.statements import query
from fencepost.outbox.writer import step_from_columns
from fencepost.protocol.drain import RowStatus, is_result
from fencepost.protocol.steps import Step
from fencepost.protocol.task import Kind, Outcome

ROWS_A_PAGE: Final = 64
STEPS_A_PAGE: Final = 1024


class Reading:
    """What can be asked of the file, with what waits in the buffer laid over it."""

    def __init__(self, path: Path, connection: sqlite3.Connection, buffer: Buffer, lock: RLock) -> None:
        self._path = path
        self._connection = connection
        self._buffer = buffer
        self._lock = lock
        self._newest_of_before = int(self._fetch("newest_row", {})[0][0])

    def row(self, row_id: int) -> Row:
        """Raises `LookupError`."""
        rows = self._rows("row", {"id": row_id})
        if not rows:
            raise LookupError(f"outbox {self._path} has no row {row_id}")
        return rows[0]

    def rows_of(self, uid: str) -> tuple[Row, ...]:
        """All rows of a task, oldest first."""
        return tuple(self._rows("rows_of", {"uid": uid}))

    def row_of_key(self, uid: str, idempotency_key: str) -> Row | None:
        """The row of this key, if there is one."""
        rows = self._rows("row_of_key", {"uid": uid, "idempotency_key": idempotency_key})
        return rows[0] if rows else None

    def result_of(self, uid: str) -> Row | None:
        """The result that must not be made again: whatever its status, but no Unknown that is over."""
        results = [row for row in self.rows_of(uid) if row.kind is Kind.RESULT]
        standing = [row for row in results if is_result(row.status, row.outcome)]
        return standing[-1] if standing else None

    def standing_row(self, new: NewRow, idempotency_key: str) -> Row | None:
        """What stands where `new` would: same key, the task's result, or the same attempt's Unknown."""
        known = self.row_of_key(new.uid, idempotency_key)
        if known is not None or new.kind is Kind.ROW:
            return known
        return self.result_of(new.uid) or self._same_attempt(new)

    def _same_attempt(self, new: NewRow) -> Row | None:
        if new.outcome is not Outcome.UNKNOWN:
            return None
        attempts = (row for row in self.rows_of(new.uid) if row.outcome is Outcome.UNKNOWN)
        return next((row for row in attempts if row.token == new.token), None)

    def open_rows(self) -> Iterator[Row]:
        """Every row that is not acknowledged, by id."""
        rows = self._pages("open_rows_after")
        return (row for row in rows if row.status is not RowStatus.ACKNOWLEDGED)

    def all_rows(self) -> Iterator[Row]:
        """Every row, by id."""
        return self._pages("rows_after")

    def uncovered_rows(self) -> tuple[Row, ...]:
        """Rows that no step accounts for yet."""
        return tuple(self._rows("uncovered_rows", {}))

    def steps(self, *, after: int) -> Iterator[Step]:
        """The written chain behind a sequence number."""
        while True:
            page = self._fetch("steps_after", {"sequence": after, "page": STEPS_A_PAGE})
            for columns in page:
                after = columns["sequence"]
                yield step_from_columns(columns)
            if len(page) < STEPS_A_PAGE:
                return

    def step_at(self, sequence: int) -> Step | None:
        """The step of this number, if it is in the file."""
        found = self._fetch("step_at", {"sequence": sequence})
        return step_from_columns(found[0]) if found else None

    def inconsistencies(self) -> Iterator[str]:
        """What the file says about itself that cannot be: pages, and local marks without their rows."""
        answer = self._pages_are_whole()
        if answer != "ok":
            yield f"SQLite's own check: {answer}"
        for columns in self._fetch("done_without_result", {}):
            task = f"{columns['namespace']}/{columns['name']} (UID {columns['uid']})"
            yield f"task {task} is marked done, and its result is not here"
        for row in self._rows("results_not_done", {}):
            yield f"row {row.id} is the result of task {row.task_key}, which is not marked done"

    def _pages_are_whole(self) -> str:
        """`ok`, or what SQLite's own check finds first."""
        with self._lock:
            try:
                (answer,) = self._connection.execute("PRAGMA integrity_check(1)").fetchone()
            except sqlite3.Error as error:
                raise read_failure(self._path, error) from error
        return str(answer)

    def _pages(self, name: str) -> Iterator[Row]:
        last = 0
        while True:
            page = self._rows(name, {"id": last, "page": ROWS_A_PAGE})
            for row in page:
                last = row.id
                # Asked again: it may have been marked since the page was read.
                yield self._buffer.standing(row)
            if len(page) < ROWS_A_PAGE:
                return

    def _rows(self, name: str, parameters: Mapping[str, object]) -> list[Row]:
        with self._lock:
            found = self._fetch(name, parameters)
            rows = (row_from_columns(columns, newest_of_before=self._newest_of_before) for columns in found)
            return [self._buffer.standing(row) for row in rows]

    def _fetch(self, name: str, parameters: Mapping[str, object]) -> list[sqlite3.Row]:
        with self._lock:
            try:
                return self._connection.execute(query(name), parameters).fetchall()
            except OverflowError:  # a number that no row or step has
                return []
            except sqlite3.Error as error:
                raise read_failure(self._path, error) from error
