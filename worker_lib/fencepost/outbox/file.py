"""Opening the database file: one handle, every setting verified, and never an empty outbox in silence.

Why a rollback journal and not WAL. WAL would sync once a transaction where this syncs four times (measured:
0.24 ms against 0.4 to 0.55 ms a commit on one SSD). But a WAL with one damaged byte in its first frame, or a
lost WAL file, loses *all* rows since the last checkpoint while `integrity_check` says ok; SQLite before
3.51.3 has a race that corrupts a WAL being reset; and WAL needs shared memory unless every access is
exclusive. An outbox exists for the row that must not be lost, so it pays the difference.

Why the journal is kept (PERSIST): in this mode a commit is the overwritten header of the journal, synced.
In the mode DELETE it is the removal of the journal, which FULL does not sync: a power cut could bring it
back, and it would undo a row whose success was reported.

`locking_mode=EXCLUSIVE` is set before the first access, so that no one can read between and no lock is ever
given up. All temporary data is kept in memory: a pod with a read-only root needs no other writable path.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fencepost.outbox.recognition import no_outbox, was_outbox
from fencepost.outbox.refusals import OutboxRefused, RefusalCode, is_damage, is_full, is_in_use
from fencepost.outbox.statements import APPLICATION_ID, migrate, migrations, query, version_of

BUSY_SECONDS: Final = 0.2  # another program may be just closing the file
JOURNAL_BYTES_KEPT: Final = 1024 * 1024
SYNCHRONOUS_FULL: Final = 2
TEMP_STORE_MEMORY: Final = 2
DAMAGED_FILES_MAX: Final = 1000

# (setting, value, what SQLite must answer when asked for it). locking_mode comes before any access.
SETTINGS: Final[tuple[tuple[str, str, object], ...]] = (
    ("locking_mode", "EXCLUSIVE", "exclusive"),
    ("synchronous", "FULL", SYNCHRONOUS_FULL),
    ("journal_mode", "PERSIST", "persist"),
    ("temp_store", "MEMORY", TEMP_STORE_MEMORY),
    ("journal_size_limit", str(JOURNAL_BYTES_KEPT), JOURNAL_BYTES_KEPT),
    ("trusted_schema", "OFF", 0),
    ("cell_size_check", "ON", 1),
)

# Who looks changes nothing, so what says how a write is made does not matter, and setting it would write.
SETTINGS_TO_LOOK: Final = (
    *(setting for setting in SETTINGS if not setting[0].startswith("journal_")),
    ("query_only", "ON", 1),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who the outbox is; made with the file."""

    uuid: str
    incarnation: str
    closed_cleanly: bool
    base_sequence: int
    base_hash: str
    pruned_before: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NewIdentity:
    """What a new file is given."""

    new_uuid: Callable[[], str]
    owner: str
    incarnation: str
    at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenFile:
    """The one handle on the database, and who it is."""

    connection: sqlite3.Connection
    identity: Identity
    created: bool


def open_file(
    path: Path, new: NewIdentity, *, remembered: bool, scripts: Sequence[str] | None = None
) -> OpenFile:
    """Open or create the database under the lock that the caller holds; raises `OutboxRefused`.

    An outbox that is no database any more, or whose pages do not hold together, is moved aside first.
    `remembered`: the lock file says that an outbox was there.
    """
    try:
        return _open(path, new, migrations() if scripts is None else scripts)
    except sqlite3.Error as error:
        if is_damage(error):
            raise _damaged(path, str(error), remembered=remembered) from None
        raise _refusal_of(path, error) from None


def open_file_to_look(path: Path, *, remembered: bool) -> OpenFile:
    """Open what is there, without a write of ours; raises `OutboxRefused`, and moves and makes nothing.

    A transaction that a crash cut off is undone by SQLite itself, as at any opening.
    """
    try:
        return _open_to_look(path, len(migrations()))
    except sqlite3.Error as error:
        if is_damage(error):
            raise _left_there(path, str(error), remembered=remembered) from None
        raise _refusal_of(path, error) from None


def _open_to_look(path: Path, known_version: int) -> OpenFile:
    uri = f"{path.as_uri()}?mode=rw"  # never makes a file
    connection = sqlite3.connect(
        uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )
    try:
        connection.row_factory = sqlite3.Row
        for name, value, answer in SETTINGS_TO_LOOK:
            _set(connection, path, name, value, answer)
        _refuse_foreign(connection, path, known_version)
        _refuse_unfinished(connection, path, known_version)
        identity = identity_of(connection)
        if not identity.closed_cleanly:
            _check_pages(connection)
        return OpenFile(connection=connection, identity=identity, created=False)
    except BaseException:
        connection.close()
        raise


def _open(path: Path, new: NewIdentity, scripts: Sequence[str]) -> OpenFile:
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        connection.row_factory = sqlite3.Row
        for name, value, answer in SETTINGS:
            _set(connection, path, name, value, answer)
        _take_file_lock(connection)
        _refuse_foreign(connection, path, len(scripts))
        migrate(connection, scripts)
        created = _create_if_new(connection, new)
        identity = identity_of(connection)
        if not identity.closed_cleanly and not created:
            _check_pages(connection)
        return OpenFile(connection=connection, identity=identity, created=created)
    except BaseException:
        connection.close()
        raise


def _set(connection: sqlite3.Connection, path: Path, name: str, value: str, answer: object) -> None:
    connection.execute(f"PRAGMA {name} = {value}")
    row = connection.execute(f"PRAGMA {name}").fetchone()
    got = row[0] if row else None
    if got != answer:
        raise OutboxRefused(
            RefusalCode.NOT_WRITABLE,
            f"outbox {path}: SQLite answers {got!r} to {name} = {value}: durability cannot be promised here",
        )


def _take_file_lock(connection: sqlite3.Connection) -> None:
    """Get the exclusive lock now; in this locking mode it stays until the end."""
    connection.execute("BEGIN EXCLUSIVE")
    connection.execute("ROLLBACK")


def _refuse_foreign(connection: sqlite3.Connection, path: Path, known_version: int) -> None:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables and application != APPLICATION_ID:
        raise no_outbox(path, "it is a SQLite database of another program")
    version = version_of(connection)
    if version > known_version:
        raise OutboxRefused(
            RefusalCode.NEWER_SCHEMA,
            f"outbox {path} has schema version {version}, this library knows {known_version}: use the "
            "version of fencepost that wrote it, or a later one",
        )


def _refuse_unfinished(connection: sqlite3.Connection, path: Path, known_version: int) -> None:
    """What only a start of its worker makes an outbox, or makes one that this library reads."""
    version = version_of(connection)
    if version == 0 or connection.execute(query("identity")).fetchone() is None:
        raise no_outbox(path, "nothing was ever stored in it")
    if version < known_version:
        raise OutboxRefused(
            RefusalCode.NEWER_SCHEMA,
            f"outbox {path} has schema version {version}, this library reads {known_version}: start its "
            "worker once, which brings it there, or look with the version of fencepost that wrote it",
        )


def _create_if_new(connection: sqlite3.Connection, new: NewIdentity) -> bool:
    if connection.execute(query("identity")).fetchone() is not None:
        return False
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(
        query("create_outbox"),
        {"uuid": new.new_uuid(), "owner": new.owner, "incarnation": new.incarnation, "at": new.at},
    )
    connection.execute("COMMIT")
    return True


def identity_of(connection: sqlite3.Connection) -> Identity:
    """Who the file says it is."""
    row = connection.execute(query("identity")).fetchone()
    return Identity(
        uuid=row["uuid"],
        incarnation=row["incarnation"],
        closed_cleanly=bool(row["closed_cleanly"]),
        base_sequence=row["base_sequence"],
        base_hash=row["base_hash"],
        pruned_before=row["pruned_before"],
    )


def _check_pages(connection: sqlite3.Connection) -> None:
    """After a crash the pages are looked through before anything relies on them."""
    (answer,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if answer != "ok":
        error = sqlite3.DatabaseError(str(answer))
        error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise error


def _damaged(path: Path, reason: str, *, remembered: bool) -> OutboxRefused:
    if was_outbox(path, remembered=remembered):
        return moved_aside(path, reason)
    return no_outbox(path, reason)


def _left_there(path: Path, reason: str, *, remembered: bool) -> OutboxRefused:
    if not was_outbox(path, remembered=remembered):
        return no_outbox(path, reason)
    return OutboxRefused(
        RefusalCode.DAMAGED,
        f"outbox {path} is damaged ({reason}) and was left where it is: nothing can be read in it. The next "
        "start of its worker moves it aside and makes a new one",
    )


def moved_aside(path: Path, reason: str) -> OutboxRefused:
    """Move the file and its journal aside, together, and say so. The journal belongs to this very file."""
    target = _free_name(path)
    path.rename(target)
    journal = path.with_name(path.name + "-journal")
    if journal.exists():
        journal.rename(target.with_name(target.name + "-journal"))
    return OutboxRefused(
        RefusalCode.DAMAGED,
        f"outbox {path} is damaged ({reason}) and was moved to {target}. Results in it that were not sent "
        "are made again: their leases run out and the tasks are claimed again. Keep the file if you want to "
        "know what it held; the next start makes a new outbox",
    )


def _free_name(path: Path) -> Path:
    for number in range(1, DAMAGED_FILES_MAX + 1):
        target = path.with_name(f"{path.name}.damaged-{number}")
        if not target.exists():
            return target
    raise OutboxRefused(
        RefusalCode.DAMAGED,
        f"outbox {path} is damaged, and {DAMAGED_FILES_MAX} damaged files are beside it: look at the disk",
    )


def damaged_files(path: Path) -> list[Path]:
    """What was moved aside beside `path` earlier."""
    found = path.parent.glob(f"{path.name}.damaged-*")
    return sorted(file for file in found if not file.name.endswith("-journal"))


def _refusal_of(path: Path, error: sqlite3.Error) -> OutboxRefused:
    if is_in_use(error):
        return OutboxRefused(
            RefusalCode.IN_USE,
            f"outbox {path} is open in another program (one that does not take its lock file, such as the "
            "sqlite3 shell): close it there first",
        )
    if is_full(error):
        return OutboxRefused(RefusalCode.FULL, f"no room for the outbox {path}: make room on the volume")
    return OutboxRefused(RefusalCode.NOT_WRITABLE, f"outbox {path} cannot be opened: {error}")


__all__ = [
    "Identity",
    "NewIdentity",
    "OpenFile",
    "damaged_files",
    "identity_of",
    "moved_aside",
    "open_file",
    "open_file_to_look",
]
