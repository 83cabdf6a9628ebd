"""One process has an outbox (B12): everybody else is told who, with an exit code of its own."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from fencepost.outbox import Outbox, OutboxFailed, OutboxRefused, RefusalCode
from fencepost.outbox.lock import lock_path
from tests.outbox.given import held_task, opened, result_for

OPEN_AND_WAIT = """
import sys
from pathlib import Path
from tests.outbox.given import opened
outbox = opened(Path(sys.argv[1]), "other", owner="worker-7")
print(outbox.uuid, flush=True)
sys.stdin.read()
"""


def other_process(path: Path) -> subprocess.Popen[str]:
    """A process that has opened the outbox and waits."""
    process = subprocess.Popen(
        [sys.executable, "-c", OPEN_AND_WAIT, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip()
    return process


def test_a_second_process_is_refused_and_told_who_has_it(path: Path) -> None:
    process = other_process(path)
    try:
        with pytest.raises(OutboxRefused) as refusal:
            opened(path)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    message = str(refusal.value)
    assert refusal.value.code is RefusalCode.IN_USE
    assert refusal.value.exit_code == 71
    for part in (str(path), f"process {process.pid}", "worker-7", os.uname().nodename):
        assert part in message
    # The lock went with its process, however that died.
    opened(path).close()


def test_the_same_process_cannot_open_it_twice_and_the_first_keeps_its_locks(
    outbox: Outbox, path: Path
) -> None:
    with pytest.raises(OutboxRefused) as refusal:
        opened(path)
    assert refusal.value.code is RefusalCode.IN_USE
    read = (
        f"import sqlite3; sqlite3.connect({str(path)!r}, timeout=0).execute('SELECT * FROM fencepost_rows')"
    )
    stranger = subprocess.run([sys.executable, "-c", read], capture_output=True, text=True, check=False)
    assert "database is locked" in stranger.stderr
    outbox.store_result(result_for(held_task(outbox)))


def test_two_names_of_one_file_are_one_outbox(outbox: Outbox, path: Path) -> None:
    link = path.with_name("link.db")
    link.symlink_to(path)
    with pytest.raises(OutboxRefused, match="in use"):
        opened(link)


def test_a_program_without_the_lock_file_is_refused_by_the_files_own_lock(path: Path) -> None:
    opened(path).close()
    shell = sqlite3.connect(path, isolation_level=None)
    shell.execute("BEGIN IMMEDIATE")
    try:
        with pytest.raises(OutboxRefused, match="another program") as refusal:
            opened(path)
    finally:
        shell.close()
    assert refusal.value.code is RefusalCode.IN_USE


def test_a_forked_child_can_neither_use_it_nor_keep_it_locked(outbox: Outbox, path: Path) -> None:
    outbox.store_result(result_for(held_task(outbox)))
    to_parent, from_child = os.pipe()
    hold, release = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            outbox.rows_of("uid-1")
        except OutboxFailed as error:
            os.write(from_child, str(error).encode())
        outbox.close()
        os.close(release)
        os.read(hold, 1)
        os._exit(0)
    os.close(hold)
    try:
        assert b"not to its children" in os.read(to_parent, 1000)
        assert len(outbox.rows_of("uid-1")) == 1
        outbox.close()
        opened(path).close()  # although the child still lives
    finally:
        os.close(release)
        os.waitpid(child, 0)
        os.close(to_parent)
        os.close(from_child)


def test_the_lock_file_says_who_has_it(outbox: Outbox, path: Path) -> None:
    told = json.loads(lock_path(path).read_text())
    assert (told["pid"], told["owner"], told["outbox"], told["incarnation"]) == (
        os.getpid(),
        "worker-0",
        outbox.uuid,
        outbox.incarnation,
    )


@pytest.mark.parametrize("text", ["", "not json", "[1]", '{"pid": 1' + " " * 5000])
def test_a_lock_file_with_other_text_is_a_lock_all_the_same(path: Path, text: str) -> None:
    lock_path(path).write_text(text)
    with opened(path), pytest.raises(OutboxRefused, match="in use"):
        opened(path)


def test_a_closed_outbox_says_so_and_may_be_closed_again(outbox: Outbox) -> None:
    outbox.close()
    outbox.close()
    with pytest.raises(OutboxFailed, match="is closed"):
        outbox.result_of("uid-1")


def test_each_life_has_another_holder_and_the_same_uuid(path: Path) -> None:
    with opened(path, "first") as first:
        before = first.holder
    with opened(path, "second") as second:
        assert second.holder.partition("/")[0] == before.partition("/")[0] == second.uuid
        assert second.holder != before
