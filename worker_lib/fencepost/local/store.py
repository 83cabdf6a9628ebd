"""The store in one SQLite file that several processes share: a keeper and its workers.

Every operation is one transaction under one lock (`locking`), reads too. So no connection ever meets another
one's lock inside SQLite, whose way of waiting is to sleep and look again; the kernel wakes whoever is next.
Durable means committed with `synchronous=FULL`: what was answered is on the disk. A transaction that changed
nothing costs no sync.

Why WAL here, and a rollback journal in the outbox: a commit syncs once instead of three or four times, and
the workers of one machine all wait for this one file. SQLite before 3.51.3 can lose a commit when one
connection writes while another one writes or checkpoints; under our lock no two of them ever do, nor at the
opening and the closing, which may recover or checkpoint too.

Who has the lock may be stopped in the middle of it. So nobody waits for a turn longer than `TURN_SECONDS`:
then nothing was done, which is told with the process that has the lock (`StoreBusy`), and may be tried again.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

from fencepost.local import joining, reports
from fencepost.local.embedded import EmbeddedStore
from fencepost.local.ledger import Ledger
from fencepost.local.locking import FileLock
from fencepost.local.store_clock import Mark, Reading, boot_id, boottime_seconds, goes_on, store_time
from fencepost.local.tables import MIGRATIONS, SCHEMA_VERSION, Tables, schema
from fencepost.local.turns import Turn, TurnNotTaken, in_turn
from fencepost.outbox.probe import NETWORK_TYPES, statfs_type
from fencepost.ports import Answer, Cause, Refused, StoreRefused, StoreUnavailable, Unanswered
from fencepost.protocol.consume import ConsumeVerdict
from fencepost.protocol.task import ObjectKey

LOG = logging.getLogger("fencepost")

T = TypeVar("T")
Effect = Callable[[sqlite3.Connection], None]

APPLICATION_ID: Final = 0x46506F73  # "FPos": a file of ours says so in its header
DEFAULT_NAMESPACE: Final = "default"
# Only somebody who opens the file with another program can hold SQLite's own lock.
BUSY_SECONDS: Final = 10.0
RETRY_AFTER_SECONDS: Final = 1.0
# A transaction takes milliseconds, one that makes or joins a job of the largest size a second.
TURN_SECONDS: Final = 5.0


class DiskFull(StoreUnavailable):
    """Nothing was written, for want of room."""


class StoreBusy(StoreUnavailable):
    """Nothing was done, because another process did not let go of the file; the message names it."""


def local_account() -> str:
    """Who calls, as this machine sees it."""
    return f"local:uid:{os.getuid()}"


class LocalStore(EmbeddedStore):
    """See `EmbeddedStore`. One instance is for one event loop; a file may have many, in many processes.

    The store's time goes on as `store_clock` says: from what `clock` (seconds since 1970) says when the file
    is made, by what passes on `boottime` (seconds since the machine was started).
    """

    def __init__(
        self,
        path: Path,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        account: str | None = None,
        clock: Callable[[], float] = time.time,
        boottime: Callable[[], float] = boottime_seconds,
        boot: str | None = None,
        new_uid: Callable[[], str] = lambda: str(uuid.uuid4()),
        turn_seconds: float = TURN_SECONDS,
    ) -> None:
        """Open the file, or make it. Raises `StoreRefused` with a sentence if that cannot be.

        `boot` names the start of the machine that `boottime` counts from, by default the present one.
        Raises `StoreUnavailable` if the disk is full, or if its turn does not come within `turn_seconds`.
        """
        super().__init__(namespace=namespace, account=account or local_account())
        self.path = path
        self._clock = clock
        self._boottime = boottime
        self._boot = boot_id() if boot is None else boot
        self._turn_seconds = turn_seconds
        self._new_uid = new_uid
        self._turn = threading.Lock()
        self._lock = FileLock(path.with_name(path.name + ".lock"))
        try:
            self._connection = self._open()
        except BaseException:
            self._lock.close()
            raise

    async def close(self) -> None:
        self.close_now()

    def close_now(self) -> None:
        """Let go of the file. May be called twice.

        If its turn does not come, the file is left as a kill would leave it: what was answered is in it.
        """
        if self._lock.closed or not self._turn.acquire(timeout=self._turn_seconds):
            return
        try:
            with self._lock.alone_within(self._turn_seconds) as alone:
                if alone:
                    self._connection.close()
            self._lock.close()
        finally:
            self._turn.release()

    async def consume(self, key: ObjectKey, effect: Effect) -> ConsumeVerdict:
        """Call `effect` with the store's connection and mark the joined job consumed, in one transaction.

        `effect` may write tables of its own in the store's file; if it raises, nothing was done. It can
        neither commit nor roll back.
        """

        def once(ledger: Ledger) -> ConsumeVerdict:
            return reports.consume(ledger, key, lambda: self._without_transactions(effect))

        return await self._run(once)

    async def look(self, question: Callable[[Ledger], T]) -> T:
        """Ask whatever a ledger can answer, in one transaction."""
        return await self._run(question)

    async def _run(self, operation: Callable[[Ledger], T]) -> T:
        """Run it here and now if nobody else has the file, else in a thread that waits for its turn.

        A transaction takes about as long as handing it to a thread does; only waiting could be long.
        """
        with self._at_once() as at_once:
            if at_once:
                return self._transact(operation)
        turn = Turn(lambda: self._transact(operation))
        try:
            return await in_turn(turn, self._wait_and_begin, seconds=self._turn_seconds)
        except TurnNotTaken:
            raise self._busy() from None

    @contextmanager
    def _at_once(self) -> Iterator[bool]:
        """Have the file alone if that needs no waiting; whether we have it."""
        if not self._turn.acquire(blocking=False):
            yield False
            return
        try:
            with self._lock.alone_if_free() as free:
                yield free
        finally:
            self._turn.release()

    def _wait_and_begin(self, turn: Turn[T]) -> T:
        """One thread of this store at a time waits for the file; the others wait for it, not long."""
        if not self._turn.acquire(timeout=self._turn_seconds):
            raise TurnNotTaken
        try:
            with self._lock.alone():
                return turn.begin()
        finally:
            self._turn.release()

    def _busy(self) -> StoreBusy:
        holder = self._lock.last_holder
        who = f"process {holder} has" if holder else "another process has"
        return StoreBusy(
            f"{who} the store {self.path} for more than {self._turn_seconds:g} s: if it is stopped, "
            "let it go on or end it",
            RETRY_AFTER_SECONDS,
        )

    async def _run_write(self, operation: Callable[[Ledger], Answer]) -> Answer:
        try:
            return await self._run(operation)
        except (DiskFull, StoreBusy) as failure:
            return Refused(
                cause=Cause.OVERLOADED, message=str(failure), retry_after_seconds=RETRY_AFTER_SECONDS
            )
        except StoreUnavailable as failure:
            return Unanswered(message=str(failure))
        except StoreRefused as refusal:
            return Refused(cause=refusal.cause, message=str(refusal))

    def _transact(self, operation: Callable[[Ledger], T]) -> T:
        """Run one transaction; the caller has the file."""
        try:
            with self._transaction() as tables:
                reading = Reading(wall=self._clock(), boottime=self._boottime(), boot=self._boot)
                now = store_time(tables.mark, reading)
                ledger = Ledger(shelf=tables, clock=now, account=self._account, new_uid=self._new_uid)
                result = operation(ledger)
                joining.follow_up(ledger)
                _tell_restart(self.path, tables.mark, reading)
                tables.note_time(now, reading)
                return result
        except sqlite3.Error as failure:
            raise _as_store_failure(self.path, failure) from failure

    @contextmanager
    def _transaction(self) -> Iterator[Tables]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            tables = Tables(connection=self._connection)
            yield tables
            self._connection.execute("COMMIT" if tables.changed else "ROLLBACK")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    def _without_transactions(self, effect: Effect) -> None:
        """Call `effect` while a commit, a rollback or an attached file is refused."""
        refused = {sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_SAVEPOINT, sqlite3.SQLITE_ATTACH}

        def allow(action: int, *_: object) -> int:
            return sqlite3.SQLITE_DENY if action in refused else sqlite3.SQLITE_OK

        self._connection.set_authorizer(allow)
        try:
            effect(self._connection)
        finally:
            self._connection.set_authorizer(None)

    def _open(self) -> sqlite3.Connection:
        try:
            _refuse_network(self.path)
            with self._lock.alone_within(self._turn_seconds) as alone:
                if not alone:
                    raise self._busy()
                return _connected(self.path)
        except sqlite3.Error as failure:
            raise _as_store_failure(self.path, failure) from failure


def _refuse_network(path: Path) -> None:
    kind = NETWORK_TYPES.get(statfs_type(path.parent))
    if kind is not None:
        message = f"{path} would be on {kind}: locks, shared memory and fsync need a disk of this machine"
        raise StoreRefused(message, Cause.ADMISSION)


def _connected(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, timeout=BUSY_SECONDS, check_same_thread=False)
    try:
        _prepare(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Look whether the file is ours before anything is changed in it, then make it ready to use.

    Raises `StoreRefused`.
    """
    is_new = _refuse_what_is_not_ours(connection, path)
    connection.execute("PRAGMA synchronous = FULL")
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise StoreRefused(f"the store {path} answers journal mode {mode!r}, not 'wal'", Cause.ADMISSION)
    connection.execute("BEGIN IMMEDIATE")
    if is_new:
        _make(connection)
    else:
        _migrate(connection)
    connection.execute("COMMIT")


def _refuse_what_is_not_ours(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether the file is empty. Raises `StoreRefused` for something else's database or another version."""
    if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        return True
    if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise StoreRefused(f"{path} is a database of something else: give another file", Cause.ADMISSION)
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version != SCHEMA_VERSION and version not in MIGRATIONS:
        raise StoreRefused(
            f"{path} has version {version} of the store's tables, this fencepost reads {SCHEMA_VERSION}",
            Cause.SCHEMA,
        )
    return False


def _make(connection: sqlite3.Connection) -> None:
    for statement in schema():
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _migrate(connection: sqlite3.Connection) -> None:
    """From the version that the file has, step by step to ours; nothing in a file of ours."""
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    for older in range(version, SCHEMA_VERSION):
        for statement in MIGRATIONS[older]:
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {older + 1}")


def _tell_restart(path: Path, mark: Mark, reading: Reading) -> None:
    """The only moment at which the wall clock is believed: a person may have to know by how much."""
    if mark.reading is None or goes_on(mark, reading):
        return
    passed = store_time(mark, reading) - mark.time
    LOG.warning(
        "the machine was started again since the store %s was written: by its clock %.0f s have passed, "
        "which count for leases, backoffs and deadlines",
        path,
        passed,
    )


def _as_store_failure(path: Path, failure: sqlite3.Error) -> StoreUnavailable | StoreRefused:
    code = getattr(failure, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return DiskFull(f"the disk of the store {path} is full: make room", RETRY_AFTER_SECONDS)
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_IOERR):
        return StoreUnavailable(f"the store {path} could not be read or written: {failure}")
    return StoreRefused(f"the store {path} cannot be used: {failure}", Cause.ADMISSION)
