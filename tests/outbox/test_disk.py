"""Disks that fail (B1) and disks that are full (B2, B23): nothing is reported that is not stored.

What stands can be read and sent all the while; what could not be marked is sent again and is a DUPLICATE.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from fencepost.outbox import Outbox, OutboxFailed, OutboxFull, OutboxRefused, OutboxWriteFailed, RefusalCode
from fencepost.protocol.drain import RowStatus
from fencepost.protocol.submission import Verdict
from tests.outbox.failing_disk import NoHook, failing
from tests.outbox.given import Server, drained, held_task, opened, result_for, sent

BIG = "x" * 4000
CALLS_A_RUN_MAX = 400


@contextmanager
def without_room(outbox: Outbox, more_pages: int = 0) -> Iterator[None]:
    """The file may not grow by more than this."""
    connection = outbox._opened.connection
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages + more_pages}")
    yield
    if not outbox._opened.closed:
        connection.execute("PRAGMA max_page_count = 1073741823")


def fill(outbox: Outbox, first: int) -> int:
    """Store big results until there is no room; the number of the one that was refused."""
    for number in range(first, first + 1000):
        try:
            outbox.store_result(result_for(held_task(outbox, number), value=BIG))
        except OutboxFull:
            return number
    raise AssertionError("there was room for a thousand")


def test_a_full_disk_is_a_named_error_and_what_stands_is_sent_all_the_same(
    path: Path, outbox: Outbox
) -> None:
    with without_room(outbox, more_pages=20):
        refused = fill(outbox, 1)
        assert outbox.full
        assert outbox.result_of(f"uid-{refused}") is None
        tasks = [held_task(outbox, number) for number in range(1, refused)]
        server = Server.of(*tasks)
        assert drained(outbox, server) == [Verdict.ACCEPTED] * len(tasks)
        assert list(outbox.pending()) == []  # although nothing of it may be in the file
    outbox.store_result(result_for(held_task(outbox, refused), value=BIG))
    assert not outbox.full
    assert outbox.verify().findings == ()


def test_what_could_not_be_marked_is_sent_again_and_gets_its_first_receipt(
    path: Path, outbox: Outbox
) -> None:
    task = held_task(outbox)
    server = Server.of(task)
    row = outbox.store_result(result_for(task))
    first = outbox.acknowledge(row.id, server.submit(row).receipt, Verdict.ACCEPTED)
    outbox.record_lease(task=replace(task, uid="x" * 9000))
    with without_room(outbox):
        with pytest.raises(OutboxFull):
            outbox.flush()
        outbox.close()
    with opened(path, "second") as later:
        assert [pending.id for pending in later.pending()] == [row.id]
        assert drained(later, server) == [Verdict.DUPLICATE]
        assert later.row(row.id).receipt_text == first.receipt_text


def in_small_tmpfs(directory: Path, program: str) -> str:
    """What `program` prints on a tmpfs of 256 KiB at `directory`, which is a mount of this process alone."""
    command = (
        f'mount -t tmpfs -o size=256k none {directory} && exec {sys.executable} -c "$PROGRAM" {directory}'
    )
    answer = subprocess.run(
        ["unshare", "--mount", "sh", "-c", command],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PROGRAM": program},
    )
    if "unshare:" in answer.stderr or "mount:" in answer.stderr:
        pytest.skip(f"no mount namespace to be had here: {answer.stderr.strip()}")
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


ON_A_SMALL_DISK = """
import os, subprocess, sys
from pathlib import Path
from fencepost.outbox import OutboxFull
from fencepost.protocol.drain import RowStatus
from tests.outbox.given import Server, drained, held_task, opened, result_for
from tests.outbox.test_disk import fill

directory = Path(sys.argv[1])
path = directory / "outbox.db"
outbox = opened(path)
refused = fill(outbox, 1)
descriptor = os.open(directory / "ballast", os.O_WRONLY | os.O_CREAT)
try:
    while os.write(descriptor, b"x" * 4096): pass
except OSError:
    pass
server = Server.of(*(held_task(outbox, number) for number in range(1, refused)))
outbox._opened.close()                      # killed, on a disk without a byte left

outbox = opened(path, "second")             # opens, for what it has must be sent
assert outbox.full and len(outbox.warnings) == 0
first = [verdict.value for verdict in drained(outbox, server)]
try:
    outbox.store_result(result_for(held_task(outbox, refused), value="x" * 4000))
    raise SystemExit("stored on a full disk")
except OutboxFull:
    pass
outbox._opened.close()

outbox = opened(path, "third")
assert outbox.full                          # as the probe says, whatever could be written in place
try:
    outbox.flush()
    raise SystemExit("found room on a full disk")
except OutboxFull:
    pass
second = [verdict.value for verdict in drained(outbox, server)]
os.close(descriptor)
subprocess.run(["mount", "-o", "remount,size=4m", str(directory)], check=True)
outbox.flush()
assert not outbox.full
outbox.store_result(result_for(held_task(outbox, refused), value="x" * 4000))
assert not [row for row in outbox.all() if row.id < refused and row.status is not RowStatus.ACKNOWLEDGED]
assert outbox.verify().findings == ()
outbox.close()
receipts = [len(task.receipts) for task in server.tasks.values()]
assert receipts == [1] * len(receipts), receipts
print(refused, sorted(set(first)), sorted(set(second)))
"""


def test_a_tmpfs_that_is_really_full_is_drained_and_goes_on_after_it_was_enlarged(tmp_path: Path) -> None:
    directory = tmp_path / "small"
    directory.mkdir()
    refused, _, rest = in_small_tmpfs(directory, ON_A_SMALL_DISK).partition(" ")
    assert int(refused) > 10
    assert rest.startswith("['RECOVERED'] [")


WITH_TWO_PAGES_LEFT = """
import os, sys
from pathlib import Path
from fencepost.outbox import OutboxFull
from tests.outbox.given import opened

directory = Path(sys.argv[1])
opened(directory / "outbox.db").close()
ballast = directory / "ballast"
descriptor = os.open(ballast, os.O_WRONLY | os.O_CREAT)
try:
    while os.write(descriptor, b"x" * 4096): pass
except OSError:
    pass
os.ftruncate(descriptor, os.fstat(descriptor).st_size - 8192)

with opened(directory / "outbox.db", "second") as outbox:
    print(outbox.full)                      # although everything that waited could be written
    try:
        outbox.flush()
    except OutboxFull as error:
        print(error)
    ballast.unlink()
    os.close(descriptor)
    outbox.flush()
    print(outbox.full)
"""


def test_room_for_a_mark_is_no_room_for_a_result(tmp_path: Path) -> None:
    directory = tmp_path / "small"
    directory.mkdir()
    at_start, refused, at_end = in_small_tmpfs(directory, WITH_TWO_PAGES_LEFT).splitlines()
    assert (at_start, at_end) == ("True", "False")
    assert "still no room on the volume for a result" in refused


def test_a_new_outbox_on_a_full_disk_is_refused_with_its_own_code(tmp_path: Path) -> None:
    directory = tmp_path / "small"
    directory.mkdir()
    program = (
        "import os, sys\nfrom pathlib import Path\n"
        "from fencepost.outbox import OutboxRefused\nfrom tests.outbox.given import opened\n"
        "directory = Path(sys.argv[1])\n"
        "descriptor = os.open(directory / 'ballast', os.O_WRONLY | os.O_CREAT)\n"
        "try:\n    while os.write(descriptor, b'x' * 4096): pass\nexcept OSError: pass\n"
        "try: opened(directory / 'outbox.db')\n"
        "except OutboxRefused as error: print(error.exit_code, error)\n"
    )
    printed = in_small_tmpfs(directory, program)
    assert printed.startswith("75 no room for")
    assert RefusalCode.FULL == 75


def survived(path: Path, call: str, nth: int, persistent: bool, error: int) -> bool:
    """One run with one fault; whether the fault was met. Everything that was reported must be there."""
    reported: list[str] = []
    failures: list[OutboxFailed] = []
    outbox = opened(path)
    server = Server.of(*(held_task(outbox, number) for number in range(4)))
    with failing(call, nth=nth, persistent=persistent, error=error) as fault:
        for task in list(server.tasks.values())[:2]:
            try:
                outbox.record_lease(task=task)
                row = outbox.store_result(result_for(task))
                reported.append(task.uid)
                sent(outbox, server, row)
            except OutboxFailed as failure:
                failures.append(failure)
    full = [isinstance(failure, OutboxFull) for failure in failures]
    assert full == [error == errno.ENOSPC and call == "pwrite64"] * len(failures)
    # The disk is well again: the same process goes on, and so does the next one.
    outbox.store_result(result_for(server.tasks["uid-2"]))
    assert outbox.verify().findings == ()
    outbox._opened.close()
    with opened(path, "second") as later:
        stored = {row.uid for row in later.all()}
        assert {*reported, "uid-2"} <= stored
        drained(later, server)
        assert {row.status for row in later.all()} == {RowStatus.ACKNOWLEDGED}
        assert later.verify().findings == ()
    assert {len(server.tasks[uid].receipts) for uid in stored} == {1}
    return fault.met


@pytest.mark.slow
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize(
    ("call", "error"), [("pwrite64", errno.EIO), ("pwrite64", errno.ENOSPC), ("ftruncate", errno.EIO)]
)
def test_the_nth_call_fails_for_every_n(tmp_path: Path, call: str, error: int, persistent: bool) -> None:
    """n = 1, 2, 3 … until a run meets no fault any more."""
    try:
        for nth in range(1, CALLS_A_RUN_MAX):
            directory = tmp_path / str(nth)
            directory.mkdir()
            if not survived(directory / "outbox.db", call, nth, persistent, error):
                assert nth > 10 or call != "pwrite64"
                return
    except NoHook as reason:
        pytest.skip(str(reason))
    raise AssertionError(f"more than {CALLS_A_RUN_MAX} calls in one run")


def made_in_spite_of(path: Path, call: str, nth: int, error: int) -> bool:
    """Make an outbox while one call fails; whether it was met. Then the disk is well, and it must open."""
    with failing(call, nth=nth, error=error) as fault:
        try:
            opened(path).close()
        except OutboxRefused as refusal:
            fault.armed = False
            codes = (RefusalCode.NOT_WRITABLE, RefusalCode.FULL)
            if refusal.code not in codes:
                raise
    with opened(path, "second") as outbox:
        outbox.store_result(result_for(held_task(outbox)))
        assert outbox.verify().findings == ()
    return fault.met


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "error"), [("pwrite64", errno.EIO), ("pwrite64", errno.ENOSPC), ("open", errno.EIO)]
)
def test_the_nth_call_fails_while_the_file_is_made(tmp_path: Path, call: str, error: int) -> None:
    try:
        for nth in range(1, CALLS_A_RUN_MAX):
            directory = tmp_path / str(nth)
            directory.mkdir()
            if not made_in_spite_of(directory / "outbox.db", call, nth, error):
                assert nth > 2
                return
    except NoHook as reason:
        pytest.skip(str(reason))
    raise AssertionError(f"more than {CALLS_A_RUN_MAX} calls in one run")


def test_a_disk_that_fails_at_the_start_is_a_refusal(path: Path) -> None:
    opened(path).close()
    try:
        with failing("pwrite64", nth=1, persistent=True), pytest.raises(OutboxRefused) as refusal:
            opened(path)
    except NoHook as reason:
        pytest.skip(str(reason))
    assert refusal.value.exit_code == RefusalCode.NOT_WRITABLE
    assert "SQLITE_IOERR" in str(refusal.value)
    with opened(path) as outbox:  # nothing was left open or locked
        assert outbox.verify().ok


def test_a_write_that_failed_stored_nothing_and_the_next_one_works(outbox: Outbox) -> None:
    mark = outbox.mark
    try:
        with failing("pwrite64", nth=1), pytest.raises(OutboxWriteFailed, match="cannot be relied on"):
            outbox.store_result(result_for(held_task(outbox)))
    except NoHook as reason:
        pytest.skip(str(reason))
    assert (outbox.mark, outbox.full, list(outbox.all())) == (mark, False, [])
    assert outbox.store_result(result_for(held_task(outbox))).id == 1
    assert outbox.verify().findings == ()
