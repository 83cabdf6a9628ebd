"""The durable outbox of a worker: what a task came to is here before anybody is told.

What it guarantees (OUTBOX-01, I2, I4):

* `store_result` is one durable transaction: the row, the local mark that the task is done, the handler's own
  deferred statements and the step of the chain. When it has returned, no crash can lose any of them; when it
  has not, none is there.
* A task whose result lies here has one row for it, whatever happens; storing it again is a replay, storing
  another body is a conflict and the first stands.
* A row leaves only with a receipt that proves it, and is then kept until it is pruned by age.
* Every row is accounted for in the chain of steps: `row` when it was stored, then `submit` with its receipt,
  or `recover` when a new life of the worker finds it standing without one.

One process has it (see `lock`), any number of threads in that process may use it. The place is probed and the
file checked before a worker claims anything (`probe`, `file`). A common task costs one commit: what need not
be durable at once waits in `buffer` and goes along with the next one.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from threading import RLock
from typing import Final, TypeVar

from fencepost.outbox.audit import Verification, verify_ledger
from fencepost.outbox.buffer import Buffer, BufferedStep
from fencepost.outbox.chain import base_step, lease_state, recover_state, submit_state
from fencepost.outbox.opening import OpenPlace, open_place, refuse_damaged_content
from fencepost.outbox.probe import FileSystemType, has_room_again, statfs_type
from fencepost.outbox.prune import prune_older, time_before
from fencepost.outbox.reading import Reading
from fencepost.outbox.refusals import (
    OutboxFailed,
    OutboxFull,
    OutboxRefused,
    OutboxWriteFailed,
    ReceiptMismatch,
    RefusalCode,
)
from fencepost.outbox.rows import (
    NewRow,
    Row,
    Statement,
    deliverable_key,
    receipt_text,
    refuse_foreign_receipt,
)
from fencepost.outbox.storing import acknowledged_alike, columns_of_lease, replayed, store_row, uncover
from fencepost.outbox.writer import Transactions, Writer, begin_incarnation, end_incarnation, nothing_more
from fencepost.protocol import limits
from fencepost.protocol.drain import RowStatus
from fencepost.protocol.steps import Step, StepKind, mark_text
from fencepost.protocol.submission import Verdict
from fencepost.protocol.task import GENESIS, Receipt, Task, cut_to_bytes

PRUNE_DAYS_DEFAULT: Final = 30.0

Result = TypeVar("Result")
log = logging.getLogger("fencepost.outbox")


class Outbox:
    """One SQLite file, open in this process alone. Make it with `open`; it is a context manager too."""

    def __init__(self, opened: OpenPlace, *, incarnation: str, owner: str, now: Callable[[], str]) -> None:
        self.path = opened.path
        self.uuid = opened.identity.uuid
        self.incarnation = incarnation
        self.warnings = opened.warnings
        self._opened = opened
        self._owner = owner
        self._now = now
        self._process = os.getpid()
        self._announced = False
        self._mutex = RLock()
        self._buffer = Buffer()
        self._transactions = Transactions(self.path, opened.connection, self._buffer)
        self._reading = Reading(self.path, opened.connection, self._buffer, self._mutex)

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        owner: str,
        incarnation: str,
        new_uuid: Callable[[], str],
        now: Callable[[], str],
        allow_network: bool = False,
        file_system_type: FileSystemType = statfs_type,
    ) -> Outbox:
        """Open the outbox at `path`, or make it; raises `OutboxRefused` with the exit code and what to do.

        `owner` says to people who has it (a pod's name). `incarnation` is random for each start. `now` gives
        RFC 3339 text in UTC of one width; it is informative, and the age that `prune` goes by.
        """
        opened = open_place(
            Path(path),
            owner=owner,
            incarnation=incarnation,
            new_uuid=new_uuid,
            now=now,
            allow_network=allow_network,
            file_system_type=file_system_type,
        )
        try:
            outbox = cls(opened, incarnation=incarnation, owner=owner, now=now)
            outbox._begin()
        except OutboxFailed as error:
            opened.close()
            raise OutboxRefused(RefusalCode.NOT_WRITABLE, str(error)) from error
        except BaseException:
            opened.close()
            raise
        return outbox

    @property
    def holder(self) -> str:
        """Who claims: the outbox and this life of it."""
        return f"{self.uuid}/{self.incarnation}"

    @property
    def mark(self) -> str:
        """The position of the chain that a claim carries: the last one that is durable."""
        newest = self._transactions.newest
        return mark_text(newest.sequence, newest.hash) if newest else mark_text(0, GENESIS)

    @property
    def full(self) -> bool:
        """There was no room. Stop claiming, go on draining; a `flush` that finds room ends it."""
        return self._transactions.full

    @property
    def base(self) -> Step | None:
        """Where a replay of the chain starts: the newest step that was pruned."""
        identity = self._opened.identity
        return base_step(identity.base_sequence, identity.base_hash)

    @property
    def pruned_before(self) -> str:
        """Acknowledged rows from before this time may have been pruned; empty if none were."""
        return self._opened.identity.pruned_before

    def record_lease(self, *, task: Task) -> None:
        """Remember a claim that was applied. Written with the next transaction."""
        at = self._now()
        state = lease_state(uid=task.uid, token=task.token, holder=task.holder)
        step = BufferedStep(kind=StepKind.LEASE, state=state, at=at)
        with self._lock():
            self._buffer.add_lease(columns_of_lease(task, at=at), step)
            self._write_if_long()

    def store_result(self, row: NewRow, *, deferred: Sequence[Statement] = ()) -> Row:
        """Store a result (or an emitted row) durably, with everything that belongs to it, or raise.

        A result marks the task done. The same body again answers the row that is stored and runs no deferred
        statement a second time. Raises `OutboxFull` and `OutboxWriteFailed` (do not report success),
        `OutboxConflict` (another body stands), `RowRefused` (undeliverable), `DeferredStatementFailed`.
        """
        key = deliverable_key(row, outbox=self.uuid)
        with self._lock():
            known = self._reading.standing_row(row, key)
            if known is not None:
                self._make_sure()
                return replayed(known, row)
            row_id = self._run(
                partial(
                    store_row,
                    row=row,
                    key=key,
                    deferred=deferred,
                    at=self._now(),
                    incarnation=self.incarnation,
                )
            )
            return self._reading.row(row_id)

    def result_of(self, uid: str) -> Row | None:
        """The result of a task that must not be executed again, whatever its row's status.

        An Unknown that was acknowledged or is dead is no result: the next claim executes.
        """
        with self._lock():
            return self._reading.result_of(uid)

    def rows_of(self, uid: str) -> tuple[Row, ...]:
        """All rows of a task, oldest first."""
        with self._lock():
            return self._reading.rows_of(uid)

    def row(self, row_id: int) -> Row:
        """The row as it stands; raises `LookupError`."""
        with self._lock():
            return self._reading.row(row_id)

    def pending(self) -> Iterator[Row]:
        """What is to be sent, oldest first. Rows may be marked while it is gone through."""
        return (row for row in self._reading.open_rows() if row.status is RowStatus.PENDING)

    def parked(self) -> tuple[Row, ...]:
        """What waits for a re-claim, or for somebody else to settle its task."""
        return tuple(row for row in self._reading.open_rows() if row.status is RowStatus.PARKED)

    def dead(self) -> tuple[Row, ...]:
        """The dead letters, each with its reason."""
        return tuple(row for row in self._reading.open_rows() if row.status is RowStatus.DEAD)

    def all(self) -> Iterator[Row]:
        """Everything, oldest first."""
        return self._reading.all_rows()

    def rearm(self, row_id: int, *, token: int, holder: str) -> Row:
        """Make the row pending again under another lease; its idempotency key stays.

        A row that was acknowledged is re-armed only if the server has forgotten its receipt (a restored
        backup): that is written at once, so it may raise `OutboxFull`.
        """
        with self._lock():
            row = self._reading.row(row_id)
            armed = replace(row, token=token, holder=holder, status=RowStatus.PENDING, reason="")
            if row.status is RowStatus.ACKNOWLEDGED:
                return self._run(partial(uncover, row=armed))
            return self._mark(armed)

    def acknowledge(self, row_id: int, receipt: Receipt | None, verdict: Verdict) -> Row:
        """Keep the receipt that answers the row. The same receipt again changes nothing.

        Raises `ReceiptMismatch` for a receipt that does not prove this row, or another one than it has. Only
        an emitted row whose payload stands elsewhere (REJECTED_DUPLICATE) may have none.
        """
        with self._lock():
            row = self._reading.row(row_id)
            refuse_foreign_receipt(row, receipt, verdict)
            digest = receipt.receipt_sha256 if receipt else ""
            if row.status is RowStatus.ACKNOWLEDGED:
                return acknowledged_alike(row, digest)
            text = receipt_text(receipt) if receipt else ""
            answered = replace(row, status=RowStatus.ACKNOWLEDGED, verdict=verdict, reason="")
            answered = replace(
                answered, receipt_text=text, receipt_sha256=digest, acknowledged_at=self._now()
            )
            self._cover(answered, StepKind.SUBMIT, submit_state(answered))
            return self._mark(answered)

    def park(self, row_id: int, reason: str) -> Row:
        """Its lease is over: not sent by itself any more."""
        return self._give(row_id, RowStatus.PARKED, reason)

    def kill(self, row_id: int, reason: str) -> Row:
        """A dead letter: no retry can change it. The reason is cut to 1 KiB."""
        return self._give(row_id, RowStatus.DEAD, reason)

    def note_try(self, row_id: int, message: str) -> int:
        """Count a try that failed; how many there were. The message is cut to 1 KiB."""
        with self._lock():
            row = self._reading.row(row_id)
            return self._mark(replace(row, tries=row.tries + 1, last_error=_cut(message))).tries

    def flush(self) -> None:
        """Write what waits. Raises `OutboxFull` or `OutboxWriteFailed`; then it still waits.

        After a full disk it asks first whether there is room for a result of any size, and ends `full` if so.
        """
        with self._lock():
            was_full = self.full
            if was_full and not has_room_again(self.path):
                raise OutboxFull(f"outbox {self.path}: still no room on the volume for a result")
            if was_full or len(self._buffer) or not self._announced:
                self._run(nothing_more)

    def prune(self, older_than_days: float = PRUNE_DAYS_DEFAULT, *, dead: bool = False) -> int:
        """Remove acknowledged rows (and with `dead` the dead letters) older than that; how many went.

        Pending and parked rows never go. The chain keeps its newest steps and the hash before them, so it
        can still be replayed. Raises `ValueError` for a negative age, `OutboxWriteFailed`.
        """
        if not 0 <= older_than_days <= timedelta.max.days:
            raise ValueError(f"the age of a prune is 0 days or more, got {older_than_days}")
        with self._lock():
            self.flush()
            removed = self._run(
                partial(prune_older, before=time_before(self._now(), older_than_days), dead=dead)
            )
            self._opened.reread()
            return removed

    def verify(self) -> Verification:
        """Replay the chain and compare it with the rows, their hashes and their receipts."""
        with self._lock():
            self.flush()
            return verify_ledger(self)

    def steps(self) -> Iterator[Step]:
        """The chain from `base` on, as far as it is written."""
        return self._reading.steps(after=self.base.sequence if self.base else 0)

    def step_at(self, sequence: int) -> Step | None:
        """The written step of this number."""
        with self._lock():
            return self._reading.step_at(sequence)

    def inconsistencies(self) -> Iterator[str]:
        """What the file says about itself that cannot be: pages, and local marks without their rows."""
        return self._reading.inconsistencies()

    def close(self) -> None:
        """Write what waits and let go of the file; may be called twice.

        A write that fails here loses nothing: what was not marked is sent again and answered DUPLICATE.
        """
        with self._mutex:
            if self._opened.closed or self._process != os.getpid():
                return
            try:
                self._run(end_incarnation)
            except OutboxWriteFailed as error:
                log.warning("closing: %s; what could not be marked is sent again at the next start", error)
            finally:
                self._opened.close()

    def __enter__(self) -> Outbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self) -> None:
        """Account for what an earlier life left, and say who has the file now."""
        refuse_damaged_content(self._opened, self._reading)
        with self._mutex:
            for row in self._reading.uncovered_rows():
                self._cover(row, StepKind.RECOVER, recover_state(row))
            try:
                self._run(nothing_more)
                self._transactions.full = self._opened.full
            except OutboxFull as error:
                log.warning("%s; claiming waits, what is stored can still be sent", error)

    def _run(self, body: Callable[[Writer], Result]) -> Result:
        announced = self._announced

        def with_announcement(writer: Writer) -> Result:
            if not announced:
                begin_incarnation(writer, owner=self._owner, incarnation=self.incarnation)
            return body(writer)

        result = self._transactions.run(with_announcement)
        self._announced = True
        return result

    def _make_sure(self) -> None:
        """A row whose commit failed in its last sync can be read and yet be undone by a power cut."""
        if self._transactions.unsure:
            self._announced = False  # a write that changes nothing, so that the journal is synced
            self._run(nothing_more)

    def _give(self, row_id: int, status: RowStatus, reason: str) -> Row:
        with self._lock():
            row = self._reading.row(row_id)
            if row.status is RowStatus.ACKNOWLEDGED:
                raise ReceiptMismatch(f"row {row_id} has its receipt: it cannot become {status.value}")
            return self._mark(replace(row, status=status, reason=_cut(reason)))

    def _mark(self, row: Row) -> Row:
        self._buffer.mark(row)
        self._write_if_long()
        return row

    def _cover(self, row: Row, kind: StepKind, state: str) -> None:
        if not self._buffer.is_covered(row):
            self._buffer.add_step(BufferedStep(kind=kind, state=state, at=self._now(), row_id=row.id))

    def _write_if_long(self) -> None:
        if self._buffer.is_long:
            try:
                self.flush()
            except OutboxWriteFailed as error:
                log.warning("%s; what waits is kept in memory", error)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        if self._process != os.getpid():
            raise OutboxFailed(f"outbox {self.path} belongs to process {self._process}, not to its children")
        with self._mutex:
            if self._opened.closed:
                raise OutboxFailed(f"outbox {self.path} is closed")
            yield


def _cut(text: str) -> str:
    return cut_to_bytes(text, limits.ERROR_TEXT_BYTES_MAX)
