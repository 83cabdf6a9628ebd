"""The store's file: shared by processes, durable when it answers, and clear about what it cannot use."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fencepost.local import store as store_module
from fencepost.local.locking import FileLock
from fencepost.local.store import LocalStore, StoreBusy
from fencepost.ports import (
    Answer,
    Applied,
    Cause,
    NewTask,
    Refused,
    StoreRefused,
    StoreUnavailable,
    Unanswered,
)
from fencepost.protocol.task import ObjectKey, TaskSpec
from tests.contract.acting import Actor, submission_of, submit_of


def new(name: str) -> NewTask:
    return NewTask(key=ObjectKey(namespace="default", name=name), spec=TaskSpec(queue="feeds"))


async def test_every_commit_is_synced(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store.db")

    def settings(connection: sqlite3.Connection) -> tuple[object, object]:
        return tuple(
            connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("synchronous", "journal_mode")
        )

    assert settings(store._connection) == (2, "wal")
    store.close_now()


def garbage(path: Path) -> None:
    path.write_bytes(b"this is no database " * 100)


def somebody_elses(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (x)")


def of_a_newer_version(path: Path) -> None:
    LocalStore(path).close_now()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (garbage, "not a database"),
        (somebody_elses, "a database of something else"),
        (of_a_newer_version, "version 99"),
    ],
)
def test_a_file_that_cannot_be_used_is_left_alone_and_named(
    tmp_path: Path, spoil: Callable[[Path], None], says: str
) -> None:
    path = tmp_path / "store.db"
    spoil(path)
    before = path.read_bytes()
    with pytest.raises(StoreRefused, match=says) as refused:
        LocalStore(path)
    assert str(path) in str(refused.value)
    assert path.read_bytes() == before


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreRefused, match="there is no folder"):
        LocalStore(tmp_path / "nowhere" / "store.db")


def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "statfs_type", lambda _: 0x6969)
    with pytest.raises(StoreRefused, match="NFS"):
        LocalStore(tmp_path / "store.db")
    assert list(tmp_path.glob("store.db")) == []


async def test_a_full_disk_refuses_the_write_and_keeps_what_is_there(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store.db")
    assert isinstance(await store.create(new("before")), Applied)

    def limit(pages: int) -> int:
        used = store._connection.execute("PRAGMA page_count").fetchone()[0]
        return int(store._connection.execute(f"PRAGMA max_page_count = {used + pages}").fetchone()[0])

    limit(0)
    answer: Answer = Applied(task=(await store.tasks())[0])
    for number in range(200):
        answer = await store.create(new(f"t{number}"))
        if not isinstance(answer, Applied):
            break
    assert isinstance(answer, Refused)
    assert answer.cause is Cause.OVERLOADED
    assert "full" in answer.message
    stored = len(await store.tasks())
    limit(1000)
    assert isinstance(await store.create(new("after")), Applied)
    assert len(await store.tasks()) == stored + 1
    store.close_now()


async def test_an_error_in_the_middle_of_a_write_says_nothing_about_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path / "store.db")

    def broken(_: object) -> Answer:
        failure = sqlite3.OperationalError("disk I/O error")
        failure.sqlite_errorcode = sqlite3.SQLITE_IOERR
        raise failure

    answer = await store._run_write(broken)
    assert isinstance(answer, Unanswered)
    assert isinstance(await store.create(new("a")), Applied)
    store.close_now()


@pytest.mark.slow
def test_many_threads_and_processes_write_without_a_lock_error(tmp_path: Path) -> None:
    """(B21)"""
    path = tmp_path / "store.db"
    LocalStore(path).close_now()
    failures: list[BaseException] = []

    def write(prefix: str) -> None:
        try:
            asyncio.run(create_many(path, prefix, 20))
        except BaseException as failure:
            failures.append(failure)

    program = (
        "import asyncio, sys; from pathlib import Path; from tests.local.test_store_file import create_many;"
        "asyncio.run(create_many(Path(sys.argv[1]), sys.argv[2], 20))"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", program, str(path), f"p{number}"], stderr=subprocess.PIPE)
        for number in range(2)
    ]
    threads = [threading.Thread(target=write, args=(f"t{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for process in processes:
        _, said = process.communicate(timeout=60)
        assert process.returncode == 0, said.decode()
    assert failures == []
    store = LocalStore(path)
    assert len(asyncio.run(store.tasks())) == 120
    store.close_now()


async def create_many(path: Path, prefix: str, number: int) -> None:
    store = LocalStore(path)
    for one in range(number):
        answer = await store.create(new(f"{prefix}-{one}"))
        assert isinstance(answer, Applied), answer
    await store.close()


KILLED_AFTER_ANSWER = """
import asyncio, os, signal, sys
from pathlib import Path
from tests.local.test_store_file import submit_one
asyncio.run(submit_one(Path(sys.argv[1])))
os.kill(os.getpid(), signal.SIGKILL)
"""


async def submit_one(path: Path) -> None:
    store = LocalStore(path)
    worker = await Actor.of(store)
    await store.create(new("a"))
    held = await worker.claim(new("a").key)
    submit = submit_of(held, submission_of(held, account=worker.account, key="k"))
    assert isinstance(await store.write(submit), Applied)


@pytest.mark.slow
def test_what_was_answered_is_there_after_a_kill(tmp_path: Path) -> None:
    """(B25)"""
    path = tmp_path / "store.db"
    killed = subprocess.run([sys.executable, "-c", KILLED_AFTER_ANSWER, str(path)], check=False, timeout=60)
    assert killed.returncode == -9
    store = LocalStore(path)
    task = asyncio.run(store.task(new("a").key))
    assert task is not None
    assert [receipt.idempotency_key for receipt in task.receipts] == ["k"]
    store.close_now()


async def test_a_transaction_waits_for_whoever_has_the_file(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store.db")
    lock = FileLock(tmp_path / "store.db.lock")
    with lock.alone():
        waiting = asyncio.create_task(store.create(new("a")))
        done, _ = await asyncio.wait([waiting], timeout=0.1)
        assert not done
    assert isinstance(await waiting, Applied)
    lock.close()
    store.close_now()


STOPPED_IN_THE_LOCK = """
import os, signal, sys
from pathlib import Path
from fencepost.local.locking import FileLock
with FileLock(Path(sys.argv[1])).alone():
    print("held", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
"""


@contextmanager
def stopped_holder(lock_file: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that was stopped while it has the lock."""
    command = [sys.executable, "-c", STOPPED_IN_THE_LOCK, str(lock_file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


@pytest.mark.slow
async def test_nobody_waits_for_ever_for_a_process_that_was_stopped_and_it_is_named(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = LocalStore(path, turn_seconds=0.2)
    with stopped_holder(tmp_path / "store.db.lock") as holder:
        with pytest.raises(StoreBusy, match=f"process {holder.pid} has the store"):
            await store.tasks()
        answer = await store.create(new("a"))
        assert isinstance(answer, Refused)
        assert (answer.cause, answer.retry_after_seconds) == (Cause.OVERLOADED, 1.0)
        with pytest.raises(StoreUnavailable, match=str(holder.pid)):
            LocalStore(path, turn_seconds=0.1)
        await asyncio.gather(*(store.create(new(f"b{number}")) for number in range(20)))
        assert sum(thread.name == "fencepost-store" for thread in threading.enumerate()) < 25
        os.kill(holder.pid, signal.SIGCONT)
        assert isinstance(await answer_of(store, "c"), Applied)
        assert [task.key.name for task in await store.tasks()] == ["c"]  # what was taken back is never done
    store.close_now()


async def answer_of(store: LocalStore, name: str) -> Answer:
    """The answer once the file is free again."""
    for _ in range(100):
        answer = await store.create(new(name))
        if isinstance(answer, Applied):
            break
    return answer


@pytest.mark.slow
async def test_a_store_is_closed_although_its_turn_does_not_come(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store.db", turn_seconds=0.2)
    assert isinstance(await store.create(new("a")), Applied)
    with stopped_holder(tmp_path / "store.db.lock"):
        with pytest.raises(StoreBusy):
            await store.tasks()
        began = time.monotonic()
        store.close_now()
        assert time.monotonic() - began < 5
    later = LocalStore(tmp_path / "store.db")
    assert [task.key.name for task in await later.tasks()] == ["a"]
    later.close_now()
