"""The embedded runner: `fencepost run` as a user starts it, its worker processes with full durability.

Tasks a second are counted in the store: from the first claim to the last receipt, by the store's own clock,
so that the start of Python is not in it; the wall time of the whole command stands beside it. Syncs are
counted by strace in a run of their own, because tracing costs time.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

from tests.bench.measured import Measured, Target, say
from tests.bench.trivial import QUEUE

REPOSITORY = Path(__file__).parents[2]
APP = "tests.bench.trivial:worker"
BRANCHES = 1_000
TASKS_A_SECOND_MIN = 500
DEFAULT_WORKERS = 2  # of `fencepost run`; the target is about what a user gets who says nothing
SYNC = re.compile(r"\b(fsync|fdatasync)\(")


def measure(*, quick: bool) -> list[Measured]:
    """One worker process and two, in turn."""
    jobs, rounds = (1, 1) if quick else (3, 3)
    folder = _place()
    rates: dict[int, list[float]] = {1: [], 2: []}
    walls: list[float] = []
    for turn in range(rounds):
        for workers, of_them in rates.items():
            rate, wall = _run(folder / f"run-{turn}-{workers}", jobs=jobs, workers=workers)
            of_them.append(rate)
            walls.append(wall)
            say(f"embedded {turn + 1}/{rounds}, {workers} workers: {rate:.0f} tasks/s, {wall:.1f} s in all")
    lines = [
        Measured(
            name=f"embedded, {workers} worker process{'es' if workers > 1 else ''}",
            unit="tasks/s",
            values=of_them,
            target=Target(sign=">=", limit=TASKS_A_SECOND_MIN) if workers == DEFAULT_WORKERS else None,
        )
        for workers, of_them in rates.items()
    ]
    return [*lines, *_about_syncs(folder, quick=quick)]


def _place() -> Path:
    """On the file system of the repository where that can be written: /tmp may be memory."""
    folder = REPOSITORY / "build" / f"bench-{os.getpid()}"
    folder.mkdir(parents=True)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _manifest(folder: Path, jobs: int, branches: int) -> Path:
    folder.mkdir()
    objects = [
        {
            "apiVersion": "fencepost.dev/v1alpha1",
            "kind": "FanOutJob",
            "metadata": {"name": f"fan-{job}"},
            "spec": {
                "template": {"spec": {"queue": QUEUE}},
                "branches": [{"name": f"branch-{n:04}", "request": {"n": n}} for n in range(branches)],
            },
        }
        for job in range(jobs)
    ]
    file = folder / "jobs.yaml"
    file.write_text("\n---\n".join(json.dumps(item) for item in objects))
    return file


def _run(
    folder: Path, *, jobs: int, workers: int, branches: int = BRANCHES, prefix: tuple[str, ...] = ()
) -> tuple[float, float]:
    """Tasks a second, and the seconds of the whole command."""
    manifest = _manifest(folder, jobs, branches)
    command = [*prefix, sys.executable, "-m", "fencepost.cli.main", "run", str(manifest), "--app", APP]
    began = time.monotonic()
    answer = subprocess.run(
        [*command, "--workers", str(workers), "--store", str(folder / "store.db")],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    wall = time.monotonic() - began
    if answer.returncode:
        raise RuntimeError(f"fencepost run ended with {answer.returncode}: {answer.stderr[-2000:]}")
    return jobs * branches / _window(folder, jobs * branches), wall


def _window(folder: Path, tasks: int) -> float:
    """From the first claim, by the store, to the last acknowledgement, by the outboxes of this machine."""
    claims = _times(folder / "store.db", "SELECT acquired_at FROM tasks WHERE settled = 1")
    if len(claims) != tasks:
        raise RuntimeError(f"{len(claims)} of {tasks} tasks were settled")
    ends = [
        moment
        for outbox in folder.glob("store.db.outbox-?")
        for moment in _times(
            outbox, "SELECT acknowledged_at FROM fencepost_rows WHERE status = 'acknowledged'"
        )
    ]
    return max(ends) - min(claims)


def _times(file: Path, query: str) -> list[float]:
    connection = sqlite3.connect(file)
    try:
        return [datetime.fromisoformat(text).timestamp() for (text,) in connection.execute(query)]
    finally:
        connection.close()


def _about_syncs(folder: Path, *, quick: bool) -> list[Measured]:
    return [
        Measured(name="one fdatasync of a 4 KiB write there", unit="ms", values=_sync_times(folder)),
        _syncs_per_task(folder, branches=100 if quick else 500),
    ]


def _sync_times(folder: Path, rounds: int = 200) -> list[float]:
    file = os.open(folder / "sync", os.O_RDWR | os.O_CREAT)
    times = []
    for _ in range(rounds):
        os.pwrite(file, os.urandom(4096), 0)
        began = time.monotonic()
        os.fdatasync(file)
        times.append(1000 * (time.monotonic() - began))
    os.close(file)
    return times


def _syncs_per_task(folder: Path, *, branches: int) -> Measured:
    name, unit = "embedded: fsync and fdatasync per task", "syncs"
    strace = shutil.which("strace")
    if strace is None:
        return Measured(name=name, unit=unit, values=[], note="strace is not here to count them")
    output = folder / "syncs"
    prefix = (strace, "-f", "-qq", "-e", "trace=fsync,fdatasync", "-o", str(output))
    _run(folder / "traced", jobs=1, workers=1, branches=branches, prefix=prefix)
    syncs = sum(bool(SYNC.search(line)) for line in output.read_text().splitlines())
    return Measured(
        name=name,
        unit=unit,
        values=[syncs / branches],
        note=f"by strace, of the whole run of {branches} tasks: keeper, store and outbox",
    )
