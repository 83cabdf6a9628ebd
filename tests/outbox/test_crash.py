"""A worker killed at each step (I2): nothing is there, or one row that recovery accounts for."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fencepost.outbox import Outbox
from fencepost.protocol.drain import RowStatus
from fencepost.protocol.submission import Verdict
from fencepost.protocol.task import Kind
from tests.outbox.given import Server, drained, held_task, opened

# One turn of a worker. It dies where it is told to, by a signal that nothing can catch.
TURN = """
import os, signal, sys
from pathlib import Path
from fencepost.outbox import Statement
from tests.outbox.given import Server, emitted_for, held_task, opened, result_for

path, step = Path(sys.argv[1]), sys.argv[2]

def here(name):
    if name == step:
        os.kill(os.getpid(), signal.SIGKILL)

outbox = opened(path)
task = held_task(outbox)
server = Server.of(task)
here("claimed")
outbox.record_lease(task=task)
outbox.store_result(emitted_for(task, "row"))
here("emitted")
outbox._opened.connection.set_trace_callback(
    lambda sql: here("inside") if sql.startswith("INSERT INTO fencepost_rows") else
                here("before commit") if sql == "COMMIT" else None
)
row = outbox.store_result(
    result_for(task, value="result"),
    deferred=[Statement(sql="CREATE TABLE mine (x)"), Statement(sql="INSERT INTO mine VALUES (1)")],
)
outbox._opened.connection.set_trace_callback(None)
here("stored")
judgement = server.submit(row)
here("sent")
outbox.acknowledge(row.id, judgement.receipt, judgement.verdict)
here("acknowledged")
outbox.flush()
here("flushed")
outbox.close()
here("closed")
"""

BEFORE_THE_RESULT = {"claimed": 0, "emitted": 1, "inside": 1, "before commit": 1}
AFTER_THE_RESULT = {"stored": False, "sent": False, "acknowledged": False, "flushed": True, "closed": True}


def killed_at(path: Path, step: str) -> None:
    process = subprocess.run(
        [sys.executable, "-c", TURN, str(path), step], capture_output=True, text=True, check=False
    )
    assert process.returncode == -signal.SIGKILL, process.stderr


def own_tables(outbox: Outbox) -> list[object]:
    found = outbox._opened.connection.execute("SELECT name FROM sqlite_master WHERE name = 'mine'").fetchall()
    return [row["name"] for row in found]


@pytest.mark.parametrize("step", BEFORE_THE_RESULT)
def test_killed_before_the_commit_nothing_of_the_result_is_there(path: Path, step: str) -> None:
    killed_at(path, step)
    with opened(path, "second") as outbox:
        assert outbox.result_of("uid-1") is None
        assert own_tables(outbox) == []
        assert [row.kind for row in outbox.pending()] == [Kind.ROW] * BEFORE_THE_RESULT[step]
        assert outbox.verify().findings == ()


@pytest.mark.parametrize("step", AFTER_THE_RESULT)
def test_killed_after_the_commit_everything_is_there_and_is_delivered_once(path: Path, step: str) -> None:
    killed_at(path, step)
    with opened(path, "second") as outbox:
        result = outbox.result_of("uid-1")
        assert result is not None
        assert (result.value, result.after_crash) == ("result", True)
        assert (result.status is RowStatus.ACKNOWLEDGED) is AFTER_THE_RESULT[step]
        assert own_tables(outbox) == ["mine"]
        task = held_task(outbox, token=2)
        server = Server.of(task)
        for row in outbox.pending():
            outbox.rearm(row.id, token=2, holder=task.holder)
        expected = [Verdict.RECOVERED] * (1 if AFTER_THE_RESULT[step] else 2)
        assert drained(outbox, server) == expected
        assert drained(outbox, server) == []
        assert len(server.tasks["uid-1"].receipts) == len(expected)
        assert outbox.verify().findings == ()


@pytest.mark.slow
def test_killed_at_any_moment_what_was_reported_is_there(path: Path) -> None:
    """SIGKILL from outside, while it stores as fast as it can; every row it has reported must be found."""
    store = (
        "import sys; from pathlib import Path\n"
        "from tests.outbox.given import held_task, opened, result_for\n"
        "outbox = opened(Path(sys.argv[1]), sys.argv[2])\n"
        "number = len(list(outbox.all()))\n"
        "while True:\n"
        "    outbox.store_result(result_for(held_task(outbox, number)))\n"
        "    print(number, flush=True)\n"
        "    number += 1\n"
    )
    reported = -1
    for life in range(6):
        process = subprocess.Popen(
            [sys.executable, "-c", store, str(path), f"life-{life}"], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        for _ in range(20 + 7 * life):
            reported = int(process.stdout.readline())
        process.kill()
        rest = process.stdout.read().split()
        process.wait()
        reported = int(rest[-1]) if rest else reported
        with opened(path, f"check-{life}") as outbox:
            stored = [row.uid for row in outbox.all()]
            assert len(stored) in (reported + 1, reported + 2)  # the last one may not have been reported yet
            assert stored == [f"uid-{number}" for number in range(len(stored))]
            assert outbox.verify().findings == ()
