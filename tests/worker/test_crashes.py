"""A worker that is killed at each step of its loop: nothing is lost, nothing is there twice (I2)."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from fencepost.local.store import LocalStore
from fencepost.outbox import Outbox
from fencepost.outbox.audit import audit_report
from fencepost.ports import NewTask
from fencepost.protocol.drain import RowStatus
from fencepost.protocol.receipt import verify_chain
from fencepost.protocol.task import ObjectKey, State, TaskSpec
from tests.worker.crashing_worker import DIED, STEPS

PROGRAM = Path(__file__).with_name("crashing_worker.py")
AFTER_THE_RESULT_IS_STORED = STEPS[STEPS.index("after the result is stored") :]
AN_HOUR = 3600.0

pytestmark = pytest.mark.slow


def life(folder: Path, step: str, ahead: float = 0.0) -> int:
    """One life of the worker; its exit code."""
    arguments = [str(folder / "store.db"), str(folder / "outbox.db"), step, str(folder / "log"), str(ahead)]
    return subprocess.run([sys.executable, str(PROGRAM), *arguments], check=False, timeout=60).returncode


@pytest.mark.parametrize("step", STEPS)
async def test_killed_at_each_step(tmp_path: Path, step: str) -> None:
    store = LocalStore(tmp_path / "store.db")
    key = ObjectKey(namespace="default", name="t")
    await store.create(NewTask(key=key, spec=TaskSpec(queue="q", request='{"n":7}')))
    assert life(tmp_path, step) == DIED
    assert life(tmp_path, "never") == 0  # adopts, hands in or releases
    assert life(tmp_path, "never", ahead=AN_HOUR) == 0  # after the backoff, if there was one

    task = await store.task(key)
    assert task is not None
    verify_chain(task)
    assert task.state is State.SUCCEEDED
    assert [receipt.value for receipt in task.receipts] == ['{"row":7}', '{"done":7}']
    executions = (tmp_path / "log").read_text().split()
    if step in AFTER_THE_RESULT_IS_STORED:
        assert executions == ["1"], "a task whose result lies in the outbox is not executed again"
    else:
        assert len(executions) <= 2
    assert _effects(tmp_path) == [7], "a deferred statement runs once, with the result"

    with Outbox.open(
        tmp_path / "outbox.db",
        owner="test",
        incarnation="looking",
        new_uuid=lambda: str(uuid.uuid4()),
        now=lambda: "2026-01-01T12:00:00.000000Z",
    ) as outbox:
        assert {row.status for row in outbox.all()} == {RowStatus.ACKNOWLEDGED}
        report = audit_report(outbox, await store.claimed_by_outbox(outbox.uuid))
    assert report.ok, report
    await store.close()


def _effects(folder: Path) -> list[int]:
    with sqlite3.connect(folder / "outbox.db") as file:
        return [n for (n,) in file.execute("SELECT n FROM effects")]


async def test_a_task_that_kills_its_worker_comes_to_an_end(tmp_path: Path) -> None:
    """Each start releases the dead process's lease with a failure, so the failures run out."""
    from fencepost.protocol.task import Reason, RetryPolicy

    store = LocalStore(tmp_path / "store.db")
    key = ObjectKey(namespace="default", name="t")
    policy = RetryPolicy(max_failures=1)
    await store.create(NewTask(key=key, spec=TaskSpec(queue="q", request='{"n":1}', retry_policy=policy)))
    for number in range(3):
        life(tmp_path, "in the handler", ahead=(10 + number) * AN_HOUR)
    life(tmp_path, "never", ahead=14 * AN_HOUR)
    task = await store.task(key)
    assert task is not None
    assert (task.state, task.token, task.receipts[0].reason) == (
        State.FAILED,
        2,
        Reason.FAILURES_EXHAUSTED,
    )
    await store.close()
