"""Files that are no outbox any more (B25, B6): moved aside with a clear error, never replaced in silence."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from fencepost.outbox import OutboxRefused, OutboxView, RefusalCode
from fencepost.outbox.file import _set
from fencepost.outbox.lock import lock_path
from fencepost.outbox.recognition import JOURNAL_MAGIC
from fencepost.outbox.statements import APPLICATION_ID, migrate, migrations, version_of
from tests.outbox.given import Server, held_task, opened, result_for, sent


def filled(path: Path, rows: int = 40) -> None:
    """A closed outbox with rows that are still to be sent."""
    with opened(path) as outbox:
        for number in range(rows):
            outbox.store_result(result_for(held_task(outbox, number), value=f"value-{number} " * 50))


def changed(path: Path, sql: str) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(sql)
    connection.close()


def garbage(path: Path) -> None:
    path.write_bytes(b"garbage " * 1000)


def flipped_in_a_value(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[content.index(b"value-7 ")] ^= 1
    path.write_bytes(content)


def cut_in_half(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 8192 * 4096])
    # Closed in order or not: the check of the pages follows a crash, so say that there was one.


def step_changed(path: Path) -> None:
    changed(path, "UPDATE fencepost_steps SET state = '[]' WHERE sequence = 39")


def step_lost(path: Path) -> None:
    changed(path, "DELETE FROM fencepost_steps WHERE sequence = 39")


def row_exchanged(path: Path) -> None:
    changed(path, "UPDATE fencepost_rows SET outcome = 'Rejected' WHERE id = 3")


@pytest.mark.parametrize(
    "damage", [garbage, flipped_in_a_value, cut_in_half, step_changed, step_lost, row_exchanged]
)
def test_a_damaged_file_is_moved_aside_and_the_next_start_says_so(
    path: Path, damage: Callable[[Path], None]
) -> None:
    filled(path)
    damage(path)
    content = path.read_bytes()
    with pytest.raises(OutboxRefused) as refusal:
        opened(path)
    kept = path.with_name("outbox.db.damaged-1")
    assert refusal.value.exit_code == RefusalCode.DAMAGED == 74
    assert str(kept) in str(refusal.value)
    assert len(kept.read_bytes()) >= len(content) // 2
    assert not path.exists()

    with opened(path, "second") as outbox:
        assert list(outbox.all()) == []
        assert any(str(kept) in warning for warning in outbox.warnings)
        assert any("is gone; a new one" in warning for warning in outbox.warnings)


def test_garbage_is_kept_byte_for_byte(path: Path) -> None:
    filled(path)
    garbage(path)
    with pytest.raises(OutboxRefused, match="file is not a database"):
        opened(path)
    assert path.with_name("outbox.db.damaged-1").read_bytes() == b"garbage " * 1000


def test_each_damaged_file_has_a_name_of_its_own_and_its_journal_goes_along(path: Path) -> None:
    for number in (1, 2):
        filled(path)
        flipped_in_a_value(path)
        with pytest.raises(OutboxRefused):
            opened(path)
        assert path.with_name(f"outbox.db.damaged-{number}").exists()
        assert path.with_name(f"outbox.db.damaged-{number}-journal").exists()
        assert not path.with_name("outbox.db-journal").exists()


def test_a_file_that_is_gone_is_noticed_by_the_lock_file(path: Path) -> None:
    with opened(path) as outbox:
        before = outbox.uuid
    path.unlink()
    with opened(path, "second") as outbox:
        assert before in outbox.warnings[0]
        assert outbox.uuid != before


def notes(path: Path) -> None:
    path.write_text("my notes\n")


def long_notes(path: Path) -> None:
    path.write_bytes(b"garbage " * 1000)


def torn_database_of_nobody(path: Path) -> None:
    path.write_bytes(b"SQLite format 3\0" + b"garbage " * 1000)


@pytest.mark.parametrize("stranger", [notes, long_notes, torn_database_of_nobody])
@pytest.mark.parametrize("opens", [opened, OutboxView.open])
def test_a_file_that_never_was_an_outbox_is_left_alone(
    path: Path, stranger: Callable[[Path], None], opens: Callable[[Path], object]
) -> None:
    """A mistyped --outbox must cost nobody a file."""
    stranger(path)
    content = path.read_bytes()
    with pytest.raises(OutboxRefused, match="is no outbox") as refusal:
        opens(path)
    assert str(path) in str(refusal.value)
    assert path.read_bytes() == content
    assert {file.name for file in path.parent.iterdir()} <= {"outbox.db", "outbox.db.lock"}


@pytest.mark.parametrize("opens", [opened, OutboxView.open])
def test_beside_a_file_that_is_no_database_nothing_is_made(
    path: Path, opens: Callable[[Path], object]
) -> None:
    notes(path)
    with pytest.raises(OutboxRefused):
        opens(path)
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("kept", [slice(0, 100), slice(16, 100)], ids=["header", "header without its name"])
def test_an_outbox_is_known_by_its_header_where_its_lock_file_is_gone(path: Path, kept: slice) -> None:
    filled(path)
    lock_path(path).unlink()
    content = path.read_bytes()
    damaged = bytearray(b"\xff" * len(content))
    damaged[kept] = content[kept]
    path.write_bytes(damaged)
    with pytest.raises(OutboxRefused, match="was moved to"):
        opened(path)
    assert path.with_name("outbox.db.damaged-1").exists()


def test_a_file_that_was_cut_off_while_it_was_made_is_an_outbox_again(path: Path) -> None:
    """A power cut may leave pages that were never whole, and the journal that undoes them."""
    path.write_bytes(b"\0" * 4096)
    journal = (
        JOURNAL_MAGIC + bytes(4) + b"nonc" + bytes(4) + (512).to_bytes(4, "big") + (4096).to_bytes(4, "big")
    )
    path.with_name("outbox.db-journal").write_bytes(journal.ljust(512, b"\0"))
    with opened(path) as outbox:
        assert outbox.verify().ok


def test_an_empty_file_is_a_new_outbox(path: Path) -> None:
    """A crash while the file was made leaves it with no byte."""
    path.touch()
    with opened(path) as outbox:
        assert outbox.verify().ok


def test_another_programs_database_is_left_alone(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    content = path.read_bytes()
    for opens in (opened, OutboxView.open):
        with pytest.raises(OutboxRefused, match="another program"):
            opens(path)
    assert path.read_bytes() == content


def test_a_later_schema_is_refused_and_left_alone(path: Path) -> None:
    opened(path).close()
    later = len(migrations()) + 1
    changed(path, f"PRAGMA user_version = {later}")
    with pytest.raises(OutboxRefused, match=f"version {later}") as refusal:
        opened(path)
    assert refusal.value.exit_code == RefusalCode.NEWER_SCHEMA == 76
    assert path.exists()


def test_a_file_left_in_wal_mode_becomes_a_rollback_journal_without_a_loss(path: Path) -> None:
    filled(path, 3)
    changed(path, "PRAGMA journal_mode = WAL")
    with opened(path, "second") as outbox:
        assert len(list(outbox.pending())) == 3
        assert not path.with_name("outbox.db-wal").exists()


def test_every_setting_that_durability_depends_on_was_answered(path: Path) -> None:
    with opened(path) as outbox:
        connection = outbox._opened.connection
        answers = {
            name: connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("synchronous", "locking_mode", "journal_mode", "temp_store", "application_id")
        }
    assert answers == {
        "synchronous": 2,
        "locking_mode": "exclusive",
        "journal_mode": "persist",
        "temp_store": 2,
        "application_id": APPLICATION_ID,
    }


def test_a_setting_that_is_answered_with_another_one_is_refused() -> None:
    """A database in memory cannot have a journal on disk, and says so only in its answer."""
    connection = sqlite3.connect(":memory:")
    with pytest.raises(OutboxRefused, match="'memory' to journal_mode = PERSIST"):
        _set(connection, Path("x"), "journal_mode", "PERSIST", "persist")
    connection.close()


def test_a_migration_is_whole_or_not_there(path: Path) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    first = migrations()
    migrate(connection, first)
    with pytest.raises(sqlite3.OperationalError):
        migrate(connection, (*first, "CREATE TABLE fencepost_new (x);\nCREATE TABLE fencepost_new (x);"))
    assert version_of(connection) == len(first)
    migrate(connection, (*first, "CREATE TABLE fencepost_new (x);"))
    assert version_of(connection) == len(first) + 1
    connection.close()


def test_an_older_copy_of_the_file_opens_and_its_row_is_sent_again(path: Path, tmp_path: Path) -> None:
    """B6: what the audit then says is tested with the audit."""
    outbox = opened(path)
    task = held_task(outbox)
    server = Server.of(task)
    row = outbox.store_result(result_for(task))
    outbox.close()
    copy = tmp_path / "copy.db"
    shutil.copy(path, copy)
    outbox = opened(path, "second")
    sent(outbox, server, outbox.row(row.id))
    outbox.close()
    shutil.copy(copy, path)
    with opened(path, "third") as outbox:
        assert [row.id for row in outbox.pending()] == [row.id]
        assert outbox.verify().ok
