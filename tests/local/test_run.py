"""`fencepost run` as a person runs it: processes, signals, exit codes, the same digest after every kill."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fencepost.local import run as run_module
from fencepost.local.crew import Crew
from fencepost.local.one_run import only_run_on
from fencepost.local.processes import Processes
from fencepost.local.store import LocalStore
from fencepost.protocol.task import State

REPOSITORY = Path(__file__).parents[2]
APP = "tests.local.feed_app:worker"
SECONDS_MAX = 60.0


def manifest_of(
    count: int = 6, *, more: dict[int, dict[str, int]] | None = None, **spec: Any
) -> dict[str, Any]:
    requests = [{"n": number, **(more or {}).get(number, {})} for number in range(count)]
    return {
        "apiVersion": "fencepost.dev/v1alpha1",
        "kind": "FanOutJob",
        "metadata": {"name": "feed"},
        "spec": {
            "template": {
                "spec": {
                    "queue": "feeds",
                    "leaseDurationSeconds": 5,
                    "retryPolicy": {"maxFailures": 20, "backoffBaseSeconds": 1, "backoffMaxSeconds": 1},
                }
            },
            "branches": [{"name": f"b{number}", "request": one} for number, one in enumerate(requests)],
            **spec,
        },
    }


THEN_TOTAL = {
    "when": "Succeeded",
    "template": {
        "apiVersion": "fencepost.dev/v1alpha1",
        "kind": "LeasedTask",
        "spec": {"queue": "total", "retryPolicy": {"backoffBaseSeconds": 1, "backoffMaxSeconds": 1}},
    },
}


class Runs:
    """Runs of one manifest on one store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = folder / "store.db"
        self.manifest = folder / "job.json"
        self.started: list[subprocess.Popen[str]] = []

    def write(self, manifest: dict[str, Any]) -> None:
        self.manifest.write_text(json.dumps(manifest))

    def start(self, *options: str, app: str = APP) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "fencepost.cli.main", "run", str(self.manifest), "--app", app]
        process = subprocess.Popen(
            [*command, "--store", str(self.store), *options],
            cwd=REPOSITORY,
            env={**os.environ, "FEED_APP_MARK": str(self.folder / "mark")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def run(self, *options: str, app: str = APP) -> tuple[int, str, str]:
        process = self.start(*options, app=app)
        out, err = process.communicate(timeout=SECONDS_MAX)
        return process.returncode, out, err

    def settled(self) -> int:
        if not self.store.exists():
            return 0
        store = LocalStore(self.store)
        try:
            return sum(1 for task in asyncio.run(store.tasks()) if task.settled)
        finally:
            store.close_now()

    def workers(self) -> list[int]:
        """The processes that work on this store, by their command line."""
        found = []
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = entry.read_bytes().split(b"\0")
            except OSError:
                continue
            if b"worker" in words and str(self.store).encode() in words:
                found.append(int(entry.parent.name))
        return found


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    made = Runs(tmp_path)
    yield made
    for process in made.started:
        if process.poll() is None:
            process.kill()
            process.communicate()


def wait_for(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < end, f"waited {SECONDS_MAX} s for {what}"
        time.sleep(0.02)


def digest_in(out: str) -> str:
    [digest] = re.findall(r"^snapshot ([0-9a-f]{64})$", out, re.MULTILINE)
    return str(digest)


@pytest.mark.slow
def test_a_run_ends_with_a_table_a_digest_and_its_continuation(runs: Runs) -> None:
    runs.write(manifest_of(continuation=THEN_TOTAL))
    code, out, err = runs.run()
    assert code == run_module.SUCCEEDED, err
    assert re.search(r'^b3 +Ok +\{"double":6\} +1$', out, re.MULTILINE), out
    assert "job feed: Succeeded; 6/6 branches settled: 6 ok, 0 rejected" in out
    assert re.search(r"^6/6 branches settled; then feed-then-\w+: settled$", out, re.MULTILINE), out
    assert "7/7" not in out
    assert re.search(r'^task feed-then-\w+: Succeeded \(claims: 1\) \{"branches":6\}$', out, re.MULTILINE)
    assert runs.workers() == []
    again, out_again, _ = runs.run()
    assert (again, digest_in(out_again)) == (run_module.SUCCEEDED, digest_in(out))


@pytest.mark.slow
def test_a_rejected_branch_fails_the_run_and_the_others_are_done(runs: Runs) -> None:
    runs.write(manifest_of(3, more={1: {"reject": 1}}))
    code, out, _ = runs.run()
    assert code == run_module.FAILED
    assert re.search(r"^b1 +Rejected +no 1 +1$", out, re.MULTILINE), out
    assert "3/3 branches settled: 2 ok, 1 rejected" in out


@pytest.mark.slow
def test_the_parent_killed_at_any_point_leaves_nothing_behind_and_the_next_run_goes_on(runs: Runs) -> None:
    slow = {number: {"milliseconds": 60} for number in range(12)}
    runs.write(manifest_of(12, more=slow, continuation=THEN_TOTAL))
    code, out, err = runs.run("--workers", "3")
    assert code == run_module.SUCCEEDED, err
    undisturbed = digest_in(out)
    for leftover in runs.folder.glob("store.db*"):
        leftover.unlink()
    for settled in (0, 1, 5, 9):
        process = runs.start("--workers", "3")
        wait_for(lambda least=settled: runs.settled() >= least, f"{settled} settled tasks")
        process.kill()
        process.communicate()
        wait_for(lambda: runs.workers() == [], "the workers to end with their parent")
    code, out, err = runs.run("--workers", "3")
    assert code == run_module.SUCCEEDED, err
    assert digest_in(out) == undisturbed


@pytest.mark.slow
def test_killed_workers_are_started_again(runs: Runs) -> None:
    slow = {number: {"milliseconds": 100} for number in range(10)}
    runs.write(manifest_of(10, more=slow))
    process = runs.start("--workers", "2")
    for least in (1, 4):
        wait_for(lambda n=least: runs.settled() >= n and runs.workers(), f"{least} settled tasks")
        os.kill(runs.workers()[0], signal.SIGKILL)
    out, err = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == run_module.SUCCEEDED, err
    assert "was killed by SIGKILL" in err
    assert "10/10 branches settled: 10 ok" in out


@pytest.mark.slow
def test_a_handler_that_kills_its_worker_is_tried_again(runs: Runs) -> None:
    runs.write(manifest_of(3, more={1: {"die": 1}}))
    code, out, err = runs.run("--workers", "1")
    assert code == run_module.SUCCEEDED, err
    assert re.search(r'^b1 +Ok +\{"double":2\} +2$', out, re.MULTILINE), out


@pytest.mark.slow
@pytest.mark.parametrize("signalled", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_cleanly_and_the_next_run_goes_on(runs: Runs, signalled: signal.Signals) -> None:
    slow = {number: {"milliseconds": 50} for number in range(20)}
    runs.write(manifest_of(20, more=slow))
    process = runs.start()
    wait_for(lambda: runs.settled() >= 2, "2 settled tasks")
    process.send_signal(signalled)
    out, err = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == run_module.INTERRUPTED, err
    assert re.search(r"interrupted at \d+/20 branches settled\. .*the same command goes on from there", err)
    assert "Traceback" not in out + err
    store = LocalStore(runs.store)
    tasks = asyncio.run(store.tasks())
    store.close_now()
    assert [task for task in tasks if task.held and not task.settled] == []
    assert any(task.state is State.OPEN for task in tasks)
    assert runs.run()[0] == run_module.SUCCEEDED


@pytest.mark.slow
def test_what_waits_for_a_report_is_a_standstill(runs: Runs) -> None:
    manifest = manifest_of(2)
    manifest["spec"]["template"]["spec"]["queue"] = "unknown"
    runs.write(manifest)
    code, _, err = runs.run()
    assert code == run_module.STANDSTILL
    assert "job feed (0/2 settled): task feed-" in err
    assert "(branch b0) waits for a report: its outcome is Unknown; task feed-" in err


@pytest.mark.slow
def test_an_app_that_cannot_be_used_is_told_in_one_sentence(runs: Runs) -> None:
    runs.write(manifest_of(1))
    code, _, err = runs.run(app="tests.local.feed_app:nothing")
    assert code == 61
    assert "feed_app has no nothing" in err
    assert "Traceback" not in err


@pytest.mark.slow
def test_other_content_under_the_same_name_is_refused(runs: Runs) -> None:
    runs.write(manifest_of(1))
    assert runs.run()[0] == run_module.SUCCEEDED
    runs.write(manifest_of(2))
    code, _, err = runs.run()
    assert code == run_module.WRONG_INPUT
    assert "of other content" in err
    assert "--store" in err


BAD = [
    ("{", "job.json"),
    ('{"kind": "FanOutJob", "kind": "LeasedTask"}', "kind"),
    (json.dumps(manifest_of(0)), "branches"),
    (
        json.dumps(
            manifest_of(
                1,
                continuation={
                    "template": {
                        "apiVersion": "batch/v1",
                        "kind": "Job",
                        "spec": {"template": {"spec": {"containers": [{"name": "c"}]}}},
                    }
                },
            )
        ),
        "needs a cluster",
    ),
]


@pytest.mark.parametrize(("text", "says"), BAD)
def test_a_manifest_that_cannot_run_is_refused_before_anything_starts(
    tmp_path: Path, text: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = tmp_path / "job.json"
    manifest.write_text(text)
    assert run_module.run_manifest(manifest, APP, store=tmp_path / "store.db") == run_module.WRONG_INPUT
    said = capsys.readouterr().err
    assert says in said
    assert "Traceback" not in said
    assert list(tmp_path.glob("store.db*")) == []


def test_a_queue_that_the_app_does_not_serve_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = tmp_path / "job.json"
    manifest.write_text(json.dumps(manifest_of(1, continuation=THEN_TOTAL)))
    code = run_module.run_manifest(manifest, APP, store=tmp_path / "store.db", served=["feeds"])
    assert code == run_module.WRONG_INPUT
    assert "needs the queue total, the app has feeds" in capsys.readouterr().err


def test_a_second_run_of_a_store_is_told_who_has_it_and_starts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest, store = tmp_path / "job.json", tmp_path / "store.db"
    manifest.write_text(json.dumps(manifest_of(1)))
    with only_run_on(store):
        assert run_module.run_manifest(manifest, APP, store=store) == run_module.WRONG_INPUT
    said = capsys.readouterr().err
    assert f"another fencepost run has this store (pid {os.getpid()})" in said
    assert said.count("\n") == 1
    assert list(tmp_path.glob("*.log")) == []
    with only_run_on(store):  # it is free again
        pass


@pytest.mark.slow
def test_the_run_that_is_killed_lets_go_of_its_store(runs: Runs) -> None:
    runs.write(manifest_of(40, more={number: {"milliseconds": 1000} for number in range(40)}))
    first = runs.start()
    wait_for(lambda: runs.settled() >= 1, "a settled task")
    code, _, err = runs.run()
    assert code == run_module.WRONG_INPUT
    assert err == (
        f"fencepost: another fencepost run has this store (pid {first.pid}): wait for it or stop it, or give "
        f"this one a --store of its own; the store is {runs.store}\n"
    )
    first.kill()
    first.communicate()
    with only_run_on(runs.store):
        pass
    wait_for(lambda: runs.workers() == [], "the workers to end with their parent")


async def test_of_a_workers_log_only_what_this_life_has_said_is_told_and_once(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    log.write_text("an earlier run\n")
    deaths: list[str] = []
    crew = Crew(
        size=1,
        processes=Processes(tell=deaths.append),
        command=lambda number: ["outbox", "no-such-command"],
        log_file=lambda number: log,
        on_death=lambda death: deaths.append(death.said),
    )
    await asyncio.wait_for(crew.run(), SECONDS_MAX)
    [said] = deaths
    assert "no-such-command" in said
    assert "an earlier run" not in said
    lines = said.split(" | ")
    assert len(lines) == len(set(lines))
