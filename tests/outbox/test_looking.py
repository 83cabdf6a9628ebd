"""Looking into an outbox changes nothing, moves nothing, and makes nothing but the lock file."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from fencepost.outbox import Outbox, OutboxRefused, OutboxView, RefusalCode
from fencepost.outbox.audit import FindingKind
from fencepost.outbox.lock import lock_path
from tests.outbox.given import Server, held_task, opened, result_for, sent
from tests.outbox.test_damage import changed, cut_in_half, filled, flipped_in_a_value, garbage, step_changed


def folder_of(path: Path) -> dict[str, bytes]:
    """What lies beside an outbox, but for the lock file."""
    files = (file for file in path.parent.iterdir() if file != lock_path(path))
    return {file.name: file.read_bytes() for file in files}


def test_it_shows_what_the_outbox_shows_and_changes_no_byte(path: Path) -> None:
    with opened(path) as outbox:
        server = Server.of(tasks := held_task(outbox), other := held_task(outbox, 2))
        sent(outbox, server, outbox.store_result(result_for(tasks)))
        outbox.kill(outbox.store_result(result_for(other)).id, "too large")
        before, uuid = list(outbox.all()), outbox.uuid
        steps = list(outbox.steps())
    files, lock = folder_of(path), lock_path(path).read_bytes()
    with OutboxView.open(path) as seen:
        assert [(row.id, row.status) for row in seen.all()] == [(row.id, row.status) for row in before]
        assert [row.reason for row in seen.dead()] == ["too large"]
        assert seen.uuid == uuid
        assert list(seen.steps())[: len(steps)] == steps
        assert seen.verify().ok
        assert seen.warnings == ()
    assert folder_of(path) == files
    assert lock_path(path).read_bytes() == lock


def test_it_cannot_write(path: Path) -> None:
    filled(path, 1)
    with OutboxView.open(path) as seen, pytest.raises(sqlite3.OperationalError, match="readonly"):
        seen._file.connection.execute("DELETE FROM fencepost_rows")


@pytest.mark.parametrize("damage", [garbage, cut_in_half])
def test_a_damaged_outbox_is_told_and_left_where_it_is(path: Path, damage: Callable[[Path], None]) -> None:
    filled(path)
    changed(path, "UPDATE fencepost_outbox SET closed_cleanly = 0")  # as after a crash
    damage(path)
    files = folder_of(path)
    with pytest.raises(OutboxRefused, match="was left where it is") as refusal:
        OutboxView.open(path)
    assert refusal.value.code is RefusalCode.DAMAGED
    assert folder_of(path) == files


@pytest.mark.parametrize(
    ("damage", "finding"),
    [(flipped_in_a_value, FindingKind.ROW_CHANGED), (step_changed, FindingKind.CHAIN_BROKEN)],
)
def test_what_contradicts_itself_is_shown_with_a_warning(
    path: Path, damage: Callable[[Path], None], finding: FindingKind
) -> None:
    filled(path)
    damage(path)
    files = folder_of(path)
    with OutboxView.open(path) as seen:
        assert len(list(seen.all())) == 40
        assert "the next start of its worker moves it aside" in seen.warnings[0]
        assert finding in {found.kind for found in seen.verify().findings}
    assert folder_of(path) == files


def test_an_empty_file_is_no_outbox_to_look_at(path: Path) -> None:
    path.touch()
    with pytest.raises(OutboxRefused, match="it is empty"):
        OutboxView.open(path)
    assert list(path.parent.iterdir()) == [path]


def test_while_a_worker_has_it_nobody_can_look_and_is_told_what_to_do(outbox: Outbox, path: Path) -> None:
    with pytest.raises(OutboxRefused, match="a worker has it open: stop it, or look at its log") as refusal:
        OutboxView.open(path)
    assert refusal.value.code is RefusalCode.IN_USE
    assert "worker-0" in str(refusal.value)


def test_two_can_look_at_once_and_no_worker_starts_meanwhile(path: Path) -> None:
    filled(path, 1)
    with OutboxView.open(path) as first, OutboxView.open(path) as second:
        assert [row.id for row in first.all()] == [row.id for row in second.all()] == [1]
        with pytest.raises(OutboxRefused, match="is being looked into by another command") as refusal:
            opened(path)
        assert refusal.value.code is RefusalCode.IN_USE
    opened(path).close()


def test_what_a_crash_cut_off_is_undone_and_what_was_stored_is_shown(path: Path, tmp_path: Path) -> None:
    """A copy of the files of an outbox that is open is what a crash leaves."""
    (tmp_path / "crashed").mkdir()
    copy = tmp_path / "crashed" / path.name
    with opened(path) as outbox:
        outbox.store_result(result_for(held_task(outbox)))
        shutil.copy(path, copy)
    with OutboxView.open(copy) as seen:
        assert [row.uid for row in seen.all()] == ["uid-1"]
        assert seen.verify().ok


def test_an_outbox_that_a_later_version_wrote_is_not_shown(path: Path) -> None:
    opened(path).close()
    changed(path, "PRAGMA user_version = 99")
    with pytest.raises(OutboxRefused, match="version 99") as refusal:
        OutboxView.open(path)
    assert refusal.value.code is RefusalCode.NEWER_SCHEMA
