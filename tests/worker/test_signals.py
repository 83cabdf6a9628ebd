"""SIGTERM and what follows: the handler finishes, the lease is let go of, a second signal ends at once."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fencepost.local.store import LocalStore
from fencepost.ports import NewTask
from fencepost.protocol.task import Hold, LeaseEnd, ObjectKey, State, Task, TaskSpec
from fencepost.worker.failures import SECOND_SIGNAL, GraceOver

PROGRAM = Path(__file__).with_name("slow_worker.py")
KEY = ObjectKey(namespace="default", name="t")
Start = Callable[..., "subprocess.Popen[str]"]

pytestmark = pytest.mark.slow


@pytest.fixture
async def store(tmp_path: Path):  # type: ignore[no-untyped-def]
    opened = LocalStore(tmp_path / "store.db")
    await opened.create(NewTask(key=KEY, spec=TaskSpec(queue="q")))
    yield opened
    await opened.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a worker, and waits until its handler works."""
    processes: list[subprocess.Popen[str]] = []

    def begin(mode: str, grace: float = 10.0) -> subprocess.Popen[str]:
        arguments = [str(tmp_path / "store.db"), str(tmp_path / "outbox.db"), mode, str(grace)]
        process = subprocess.Popen(
            [sys.executable, str(PROGRAM), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "working\n"
        return process

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


async def looked(store: LocalStore) -> Task:
    task = await store.task(KEY)
    assert task is not None
    return task


async def test_the_handler_finishes_and_its_result_is_handed_in(start: Start, store: LocalStore) -> None:
    process = start("returns")
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0
    task = await looked(store)
    assert (task.state, task.receipts[0].value) == (State.SUCCEEDED, "finished in time")


async def test_a_handler_that_leaves_frees_its_task_at_once_and_counts_no_failure(
    start: Start, store: LocalStore
) -> None:
    process = start("leaves")
    told = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0
    assert time.monotonic() - told < 2
    task = await looked(store)
    assert (task.hold, task.failures, task.token) == (None, 0, 1)
    assert task.last_lease is not None
    assert task.last_lease.end is LeaseEnd.SHUTDOWN


async def test_an_async_handler_is_cancelled_when_its_grace_is_over(start: Start, store: LocalStore) -> None:
    process = start("async", grace=0.2)
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 0
    task = await looked(store)
    assert (task.hold, task.failures) == (None, 0)


@pytest.mark.parametrize("mode", ["deaf", "stubborn"])
async def test_a_handler_that_outlives_its_grace_keeps_its_lease(
    start: Start, store: LocalStore, mode: str
) -> None:
    """No release while guarded work still runs: the process ends, and the lease runs out."""
    process = start(mode, grace=0.2)
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == GraceOver.exit_code
    _, told = process.communicate()
    assert "did not end in 0.2 s: its lease is left to run out" in told
    assert "Traceback" not in told
    assert (await looked(store)).hold is Hold.LEASED


async def test_the_second_signal_ends_the_process_at_once(start: Start, store: LocalStore) -> None:
    process = start("deaf", grace=30)
    process.send_signal(signal.SIGTERM)
    await asyncio.sleep(0.2)  # two signals at once may arrive as one
    process.send_signal(signal.SIGTERM)
    assert process.wait(5) == SECOND_SIGNAL
    assert (await looked(store)).hold is Hold.LEASED


async def test_an_idle_worker_ends_at_once(start: Start, store: LocalStore) -> None:
    await store.delete_task("t")
    process = start("idle", grace=30)
    await asyncio.sleep(0.3)  # past its start, where the signal would end it in Python's own way
    process.send_signal(signal.SIGTERM)
    assert process.wait(5) == 0


async def test_a_second_worker_on_the_same_outbox_is_refused_and_told_who_has_it(
    start: Start, store: LocalStore, tmp_path: Path
) -> None:
    first = start("returns")
    arguments = [str(tmp_path / "store.db"), str(tmp_path / "outbox.db"), "idle", "1"]
    second = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, str(PROGRAM), *arguments],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert second.returncode == 71
    assert str(first.pid) in second.stderr
    assert "Traceback" not in second.stderr
    first.send_signal(signal.SIGTERM)
    assert first.wait(10) == 0
    assert len((await looked(store)).receipts) == 1
