"""A sync that fails (B1), by strace's own injection: the only way to fail it under the real SQLite."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.outbox.given import held_task, opened, result_for

REPOSITORY = Path(__file__).parents[2]
SYNCS_BEFORE = 10  # while the file is made and opened
SYNCS_A_STORE = 4

STORE_TWICE = """
import json, sys
from pathlib import Path
from fencepost.outbox import OutboxFailed, OutboxRefused
from tests.outbox.given import held_task, opened, result_for
try:
    outbox = opened(Path(sys.argv[1]))
except OutboxRefused as refusal:
    print(json.dumps({"refused": refusal.exit_code}))
    raise SystemExit(0)
said = {"stored": [], "failed": [], "again": []}
for number in range(3):
    task = held_task(outbox, number)
    outbox.record_lease(task=task)
    try:
        outbox.store_result(result_for(task))
        said["stored"].append(task.uid)
    except OutboxFailed:
        said["failed"].append(task.uid)
        said["again"].append(outbox.store_result(result_for(task)).uid)
assert outbox.verify().findings == ()
print(json.dumps(said))
"""


def told_with_failing_sync(path: Path, nth: int) -> dict[str, list[str]]:
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not here, and a sync cannot be made to fail without it")
    failing = [strace, "-f", "-qq", "-o", "/dev/null", "-e", f"inject=fdatasync:error=EIO:when={nth}"]
    answer = subprocess.run(
        [*failing, sys.executable, "-c", STORE_TWICE, str(path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=REPOSITORY,
    )
    if "ptrace" in answer.stderr:
        pytest.skip(f"strace may not trace here: {answer.stderr.strip()}")
    assert answer.returncode == 0, answer.stderr
    told: dict[str, list[str]] = json.loads(answer.stdout)
    return told


@pytest.mark.slow
def test_a_sync_that_fails_is_reported_whichever_it_is(tmp_path: Path) -> None:
    """Of the four syncs of a commit, the last one fails after the commit took effect; the chain goes on."""
    failed: list[str] = []
    for nth in range(1, SYNCS_BEFORE + 3 * SYNCS_A_STORE):
        path = tmp_path / f"{nth}.db"
        told = told_with_failing_sync(path, nth)
        if "refused" in told:
            continue
        failed += told["failed"]
        assert told["again"] == told["failed"]
        with opened(path, "second") as outbox:
            assert [row.uid for row in outbox.all()] == ["uid-0", "uid-1", "uid-2"]
            assert outbox.verify().findings == ()
    assert failed.count("uid-1") == SYNCS_A_STORE


def test_after_a_failed_write_a_replay_is_answered_only_after_a_write_that_landed(tmp_path: Path) -> None:
    with opened(tmp_path / "outbox.db") as outbox:
        outbox.store_result(result_for(held_task(outbox)))
        trace: list[str] = []
        outbox._opened.connection.set_trace_callback(trace.append)
        outbox.store_result(result_for(held_task(outbox)))
        assert "COMMIT" not in trace
        outbox._transactions.unsure = True
        outbox.store_result(result_for(held_task(outbox)))
        assert "COMMIT" in trace
        assert not outbox._transactions.unsure
