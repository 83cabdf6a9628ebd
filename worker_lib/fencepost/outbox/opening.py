"""The order in which an outbox is opened: lock, probe, file, content. Each step before the next may touch it.

The lock file comes first, because from then on no other process, and no other part of this one, can have the
database open: only then may the probe open and close it, and only then may a damaged file be moved. Before
even the lock file is made, a file that never was an outbox is refused.
"""

from __future__ import annotations

import hashlib
import logging
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from fencepost.outbox.chain import replay_from, state_of_row
from fencepost.outbox.file import (
    Identity,
    NewIdentity,
    OpenFile,
    damaged_files,
    identity_of,
    moved_aside,
    open_file,
)
from fencepost.outbox.lock import OwnerLock, lock_path
from fencepost.outbox.probe import FileSystemType, judge_place, refusal_of, room_to_write
from fencepost.outbox.reading import Reading
from fencepost.outbox.recognition import refuse_stranger, refuse_stranger_without_lock
from fencepost.outbox.refusals import OutboxRefused, OutboxUnreadable, RefusalCode
from fencepost.outbox.rows import Row
from fencepost.outbox.writer import newest_step
from fencepost.protocol.steps import StepChainBroken

STEPS_REPLAYED_AT_START: Final = 64  # the newest ones; `verify` replays all

log = logging.getLogger("fencepost.outbox")


class OpenPlace:
    """The file and its lock, held until `close`."""

    def __init__(
        self, path: Path, file: OpenFile, lock: OwnerLock, warnings: tuple[str, ...], *, full: bool
    ) -> None:
        self.path = path
        self.connection = file.connection
        self.identity = file.identity
        self.warnings = warnings
        self.full = full
        self.closed = False
        self._lock = lock

    def reread(self) -> None:
        """After the identity row was changed."""
        self.identity = identity_of(self.connection)

    def close(self) -> None:
        """Let go of the file, then of the lock: nobody may get the lock while the file is open here."""
        if self.closed:
            return
        self.closed = True
        with suppress(sqlite3.Error):
            self.connection.close()
        self._lock.release()


def open_place(
    path: Path,
    *,
    owner: str,
    incarnation: str,
    new_uuid: Callable[[], str],
    now: Callable[[], str],
    allow_network: bool,
    file_system_type: FileSystemType,
) -> OpenPlace:
    """Lock, probe and open; raises `OutboxRefused` and leaves nothing open."""
    path = path.resolve()
    warnings = judge_place(path, file_system_type=file_system_type, allow_network=allow_network)
    refuse_stranger_without_lock(path)
    lock = _take_lock(path)
    try:
        refuse_stranger(path, remembered=lock.remembers_outbox)
        existed = path.exists() and path.stat().st_size > 0
        full = not room_to_write(path)
        if full and not existed:
            raise OutboxRefused(RefusalCode.FULL, f"no room for a new outbox {path}: make room on the volume")
        new = NewIdentity(new_uuid=new_uuid, owner=owner, incarnation=incarnation, at=now())
        file = open_file(path, new, remembered=lock.remembers_outbox)
        warnings += _warnings_of_the_past(path, file, lock)
        _write_owner(lock, owner=owner, outbox=file.identity.uuid, incarnation=incarnation, at=now())
        return OpenPlace(path, file, lock, warnings, full=full)
    except OSError as error:
        lock.release()
        raise refusal_of(error, path) from None
    except BaseException:
        lock.release()
        raise


def refuse_damaged_content(opened: OpenPlace, reading: Reading) -> None:
    """Check the newest steps and all that is to be sent; a file that contradicts itself is moved aside.

    SQLite's own check sees damaged pages, not a changed byte inside a value.
    """
    reason = content_damage(opened.connection, opened.identity, reading)
    if reason:
        opened.connection.close()
        raise moved_aside(opened.path, reason)


def content_damage(connection: sqlite3.Connection, identity: Identity, reading: Reading) -> str:
    """What contradicts itself among the newest steps and the rows that are to be sent, or nothing."""
    try:
        return _broken_steps(connection, identity, reading) or _broken_rows(reading)
    except OutboxUnreadable as error:
        return str(error)


def _broken_steps(connection: sqlite3.Connection, identity: Identity, reading: Reading) -> str:
    newest = newest_step(connection)
    if newest is None:
        return ""
    start = max(identity.base_sequence + 1, newest.sequence - STEPS_REPLAYED_AT_START)
    base = reading.step_at(start)
    try:
        replayed = replay_from(base, reading.steps(after=start))
    except StepChainBroken as error:
        return str(error)
    return "" if replayed == newest else f"the chain of steps has a gap before step {newest.sequence}"


def _broken_rows(reading: Reading) -> str:
    return next((reason for row in reading.open_rows() if (reason := damage_of(row, reading))), "")


def damage_of(row: Row, reading: Reading) -> str:
    """What is wrong with a row as it was stored, or nothing: its value's hash, and its step."""
    digest = hashlib.sha256(row.value.encode("utf-8", "surrogatepass")).hexdigest()
    if digest != row.payload_sha256:
        return f"row {row.id} of task {row.task_key}: the value is not what was stored"
    step = reading.step_at(row.row_step)
    if step is None or step.state != state_of_row(row):
        return f"row {row.id} of task {row.task_key} is not the one that step {row.row_step} stored"
    return ""


def _take_lock(path: Path) -> OwnerLock:
    try:
        return OwnerLock.take(path)
    except OSError as error:
        place = lock_path(path)
        raise refusal_of(error, place if place.exists() else path.parent) from None


def _warnings_of_the_past(path: Path, file: OpenFile, lock: OwnerLock) -> tuple[str, ...]:
    warnings: list[str] = []
    before = lock.before.get("outbox")
    if file.created and before:
        warnings.append(
            f"the outbox {before} that was at {path} is gone; a new one, {file.identity.uuid}, was made. "
            "Leases of the old one run out by themselves, and its results that were not sent are made again"
        )
    warnings += [
        f"a damaged outbox is kept as {damaged}; results in it that were not sent are made again by whoever "
        "claims their tasks. Remove it when you do not need it any more"
        for damaged in damaged_files(path)
    ]
    return tuple(warnings)


def _write_owner(lock: OwnerLock, *, owner: str, outbox: str, incarnation: str, at: str) -> None:
    try:
        lock.write_owner(owner=owner, outbox=outbox, incarnation=incarnation, at=at)
    except OSError as error:  # a full disk: the lock holds all the same
        log.warning(
            "lock file %s: %s; a second process cannot be told who has the outbox", lock.path, error.strerror
        )
