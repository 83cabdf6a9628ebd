"""`fencepost run` in trouble: fewer workers than before, no room on the disk, a process that was stopped."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sqlite3
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fencepost.local import run as run_module
from fencepost.local.leftovers import outboxes_beyond
from fencepost.local.locking import FileLock
from fencepost.local.patience import Patience, StoreAway
from fencepost.local.processes import Processes
from fencepost.local.store import TURN_SECONDS
from fencepost.ports import StoreUnavailable
from tests.local.test_run import SECONDS_MAX, Runs, manifest_of, runs, wait_for

__all__ = ["runs"]

QUIET_NANOSECONDS = 300_000_000  # a commit of one row is over by then


def rows_of(outbox: Path) -> list[tuple[str, int]]:
    with sqlite3.connect(f"file:{outbox}?mode=ro", uri=True) as connection:
        return connection.execute("SELECT status, token FROM fencepost_rows").fetchall()


def test_the_outboxes_of_other_workers_are_known_by_their_number(tmp_path: Path) -> None:
    names = [
        "outbox-0",
        "outbox-1",
        "outbox-10",
        "outbox-2-journal",
        "outbox-2.lock",
        "outbox-x",
        "outbox-01",
    ]
    for name in names:
        (tmp_path / f"store.db.{name}").write_text("x")
    (tmp_path / "other.db.outbox-7").write_text("x")
    (tmp_path / "store.db.outbox-9").touch()  # killed before there was anything in it
    found = outboxes_beyond(tmp_path / "store.db", 1)
    assert {number: path.name for number, path in found.items()} == {
        1: "store.db.outbox-1",
        10: "store.db.outbox-10",
    }


@pytest.mark.slow
def test_a_run_with_fewer_workers_hands_in_what_the_others_have_left(runs: Runs) -> None:
    runs.write(manifest_of(3, more={number: {"milliseconds": 700} for number in range(3)}))
    first = runs.start("--workers", "3")
    outboxes = [runs.folder / f"store.db.outbox-{number}" for number in range(3)]
    wait_for(lambda: all(outbox.exists() for outbox in outboxes), "three outboxes")
    wait_for(lambda: all_held(runs), "three claims")
    lock = FileLock(runs.folder / "store.db.lock")
    with lock.alone():  # nobody can submit now
        before = [outbox.stat().st_mtime_ns for outbox in outboxes]
        wait_for(lambda: all(map(has_stored, outboxes, before)), "three results")
        first.kill()
        first.communicate()
        wait_for(lambda: runs.workers() == [], "the workers to end with their parent")
    lock.close()
    assert [rows_of(outbox) for outbox in outboxes] == [[("pending", 1)]] * 3
    code, out, err = runs.run("--workers", "1")
    assert code == run_module.SUCCEEDED, err
    assert (
        "first handing in what workers of an earlier run have left in store.db.outbox-1, store.db.outbox-2"
        in err
    )
    assert re.findall(r"^b\d .* (\d+)$", out, re.MULTILINE) == ["1", "1", "1"], out  # none was claimed again
    assert [rows_of(outbox) for outbox in outboxes] == [[("acknowledged", 1)]] * 3
    assert "handing in" not in runs.run("--workers", "1")[2]


def has_stored(outbox: Path, mtime: int) -> bool:
    """Whether it was written since, and not right now: while a worker has it, nobody else can read it."""
    written = outbox.stat().st_mtime_ns
    return written > mtime and time.time_ns() - written > QUIET_NANOSECONDS


def all_held(runs: Runs) -> bool:
    with sqlite3.connect(f"file:{runs.store}?mode=ro", uri=True) as connection:
        return bool(connection.execute("SELECT count(*) = 3 FROM tasks WHERE holder <> ''").fetchone()[0])


async def test_the_run_waits_for_a_store_that_comes_back_and_says_so_once() -> None:
    told: list[str] = []
    answers = iter([StoreUnavailable("the disk is full"), StoreUnavailable("the disk is full"), None])

    async def question() -> str:
        failure = next(answers)
        if failure is not None:
            raise failure
        return "there"

    patience = Patience(tell=told.append, stop=asyncio.Event(), pause_seconds=0.001)
    assert await patience.ask(question) == "there"
    assert told == ["waiting for the store: the disk is full"]


async def always_full() -> None:
    raise StoreUnavailable("the disk is full")


async def test_the_patience_of_a_run_has_an_end_and_begins_anew_with_every_answer() -> None:
    now = [0.0]
    stop = asyncio.Event()
    patience = Patience(
        tell=lambda _: None, stop=stop, seconds=300, pause_seconds=0.001, clock=lambda: now[0]
    )
    asking = asyncio.create_task(patience.ask(always_full))
    await asyncio.sleep(0)
    now[0] = 299.0
    done, _ = await asyncio.wait([asking], timeout=0.02)
    assert not done
    now[0] = 300.0
    with pytest.raises(StoreAway, match="gave up after 300 s: the disk is full"):
        await asyncio.wait_for(asking, 5)


async def test_who_is_told_to_stop_waits_no_longer_for_the_store() -> None:
    stop = asyncio.Event()
    asking = asyncio.create_task(Patience(tell=lambda _: None, stop=stop, pause_seconds=60).ask(always_full))
    await asyncio.sleep(0)
    stop.set()
    with pytest.raises(StoreUnavailable):
        await asyncio.wait_for(asking, 5)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few megabytes, where this user may make one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = os.geteuid() == 0 and os.system(f"mount -t tmpfs -o size=16m tmpfs {folder} 2>/dev/null") == 0
    if not made:
        pytest.skip("no right to mount a small disk")
    yield folder
    os.system(f"umount -l {folder}")


@pytest.mark.slow
def test_a_disk_that_is_full_for_a_while_is_waited_for(small_disk: Path, runs: Runs) -> None:
    runs.store = small_disk / "store.db"
    runs.write(manifest_of(20, more={number: {"milliseconds": 100} for number in range(20)}))
    process = runs.start()
    wait_for(lambda: runs.settled() >= 3, "3 settled tasks")
    filling = small_disk / "filling"
    with filling.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            full_since = time.monotonic()
    while time.monotonic() - full_since < 3:
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    filling.unlink()
    out, err = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == run_module.SUCCEEDED, err
    assert "20/20 branches settled: 20 ok" in out


def stop_inside_the_lock(runs: Runs) -> int:
    """Stop a worker in a moment at which it has the store's lock; its pid."""
    lock = FileLock(runs.folder / "store.db.lock")
    try:
        for _ in range(3000):
            for pid in runs.workers():
                os.kill(pid, signal.SIGSTOP)
                if lock.last_holder == str(pid) and stays_locked(lock):
                    return pid
                os.kill(pid, signal.SIGCONT)
    finally:
        lock.close()
    pytest.fail("no worker was met inside the lock")


def stays_locked(lock: FileLock) -> bool:
    for _ in range(10):
        with lock.alone_if_free() as free:
            if free:
                return False
        time.sleep(0.01)
    return True


@pytest.mark.slow
def test_one_signal_stops_a_run_whose_worker_was_stopped_inside_the_lock(runs: Runs) -> None:
    runs.write(manifest_of(1000))
    process = runs.start("--workers", "2")
    wait_for(lambda: runs.settled() >= 2, "2 settled tasks")
    pid = stop_inside_the_lock(runs)
    time.sleep(TURN_SECONDS + 1)  # the run says then whom it waits for
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == run_module.INTERRUPTED, err
    assert f"process {pid} has the store" in err
    assert runs.workers() == []


async def test_who_does_not_end_when_told_to_is_killed_after_its_grace(tmp_path: Path) -> None:
    told: list[str] = []
    processes = Processes(tell=told.append, stop_seconds=0.1)
    deaf = "import signal as s; s.signal(s.SIGTERM, s.SIG_IGN); print('deaf', flush=True); s.pause()"
    log = tmp_path / "log"
    running = asyncio.create_task(processes.run_program([sys.executable, "-c", deaf], log))
    await asyncio.to_thread(wait_for, lambda: log.exists() and log.read_text(), "its first line")
    processes.stop()
    assert await asyncio.wait_for(running, 5) == -signal.SIGKILL
    assert "killed: process" in told[0]


async def test_a_stopped_process_is_woken_to_hear_that_it_shall_stop(tmp_path: Path) -> None:
    processes = Processes(tell=lambda _: None, stop_seconds=30)
    stopped = (
        "import os, signal; print('here', flush=True); os.kill(os.getpid(), signal.SIGSTOP); signal.pause()"
    )
    log = tmp_path / "log"
    running = asyncio.create_task(processes.run_program([sys.executable, "-c", stopped], log))
    await asyncio.to_thread(wait_for, lambda: log.exists() and log.read_text(), "its first line")
    processes.stop()
    assert await asyncio.wait_for(running, 5) == -signal.SIGTERM
