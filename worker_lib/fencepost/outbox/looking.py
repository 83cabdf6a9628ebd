"""An outbox for who only looks: nothing is changed or moved, and nothing but the lock file is made.

Looking needs the lock too, shared with others who look. While a worker has the outbox nobody can look: it
keeps the file locked to the end of its life, and a read past that lock could meet half a transaction.

Damage is told and left where it is. Only a start that is going to write may move a file aside.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import RLock

from fencepost.outbox.audit import Verification, verify_ledger
from fencepost.outbox.buffer import Buffer
from fencepost.outbox.chain import base_step
from fencepost.outbox.file import OpenFile, damaged_files, open_file_to_look
from fencepost.outbox.lock import OwnerLock, lock_path
from fencepost.outbox.opening import content_damage
from fencepost.outbox.reading import Reading
from fencepost.outbox.recognition import no_outbox, refuse_stranger, refuse_stranger_without_lock
from fencepost.outbox.refusals import OutboxRefused, RefusalCode
from fencepost.outbox.rows import Row
from fencepost.protocol.drain import RowStatus
from fencepost.protocol.steps import Step


class OutboxView:
    """What lies in an outbox that no worker has open. Make it with `open`; it is a context manager too."""

    def __init__(self, path: Path, file: OpenFile, lock: OwnerLock) -> None:
        self.path = path
        self.uuid = file.identity.uuid
        self._file = file
        self._lock = lock
        self._reading = Reading(path, file.connection, Buffer(), RLock())
        self.warnings = tuple(self._warnings())

    @classmethod
    def open(cls, path: Path) -> OutboxView:
        """The outbox at `path`. Raises `OutboxRefused` (in use, damaged, no outbox), `OutboxFailed`."""
        path = path.resolve()
        if path.is_file() and path.stat().st_size == 0:
            raise no_outbox(path, "it is empty")
        refuse_stranger_without_lock(path)
        lock = _shared_lock(path)
        try:
            refuse_stranger(path, remembered=lock.remembers_outbox)
            return _opened(cls, path, lock)
        except BaseException:
            lock.release()
            raise

    @property
    def base(self) -> Step | None:
        """Where a replay of the chain starts: the newest step that was pruned."""
        return base_step(self._file.identity.base_sequence, self._file.identity.base_hash)

    @property
    def pruned_before(self) -> str:
        """Acknowledged rows from before this time may have been pruned; empty if none were."""
        return self._file.identity.pruned_before

    def all(self) -> Iterator[Row]:
        """Every row, oldest first."""
        return self._reading.all_rows()

    def dead(self) -> tuple[Row, ...]:
        """The dead letters, each with its reason."""
        return tuple(row for row in self._reading.open_rows() if row.status is RowStatus.DEAD)

    def rows_of(self, uid: str) -> tuple[Row, ...]:
        """All rows of a task, oldest first."""
        return self._reading.rows_of(uid)

    def steps(self) -> Iterator[Step]:
        """The chain from `base` on."""
        return self._reading.steps(after=self.base.sequence if self.base else 0)

    def step_at(self, sequence: int) -> Step | None:
        """The step of this number."""
        return self._reading.step_at(sequence)

    def inconsistencies(self) -> Iterator[str]:
        """What the file says about itself that cannot be."""
        return self._reading.inconsistencies()

    def verify(self) -> Verification:
        """Replay the chain and compare it with the rows, their hashes and their receipts."""
        return verify_ledger(self)

    def close(self) -> None:
        """Let go of the file, then of the lock; may be called twice."""
        with suppress(sqlite3.Error):
            self._file.connection.close()
        self._lock.release()

    def __enter__(self) -> OutboxView:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _warnings(self) -> Iterator[str]:
        reason = content_damage(self._file.connection, self._file.identity, self._reading)
        if reason:
            yield (
                f"outbox {self.path} is damaged ({reason}): the next start of its worker moves it aside and "
                "makes a new one"
            )
        for damaged in damaged_files(self.path):
            yield f"a damaged outbox is kept as {damaged}"


def _opened(kind: type[OutboxView], path: Path, lock: OwnerLock) -> OutboxView:
    file = open_file_to_look(path, remembered=lock.remembers_outbox)
    try:
        return kind(path, file, lock)
    except BaseException:
        file.connection.close()
        raise


def _shared_lock(path: Path) -> OwnerLock:
    try:
        return OwnerLock.take(path, to_look=True)
    except OSError as error:
        raise OutboxRefused(
            RefusalCode.NOT_WRITABLE,
            f"outbox {path} cannot be looked into: its lock file {lock_path(path).name} cannot be opened in "
            f"{path.parent} ({error.strerror}), and without it nobody knows whether a worker has it. Look as "
            "a user who may write there, or at a copy",
        ) from None
