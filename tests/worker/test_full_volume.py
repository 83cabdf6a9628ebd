"""A volume that fills up under the outbox: the claim stops, the drain does not, nothing is lost (B23)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.outbox.test_disk import in_small_tmpfs

TASKS = 60
PROGRAM = """
import asyncio, json, os, subprocess, sys
from pathlib import Path
from fencepost import Settings, Worker
from fencepost.testing.memory import MemoryStore
from fencepost.worker.failures import TryAgainLater

folder, tasks = Path(sys.argv[1]), 60
worker = Worker(queue="q")

@worker.task
def handle(request: dict) -> str:
    return f"{request['n']:04}" + "x" * 8000

async def life(store):
    settings = Settings(once=True, idle_seconds_min=0.01, patience_seconds=1)
    try:
        await worker.run_async(store=store, outbox=folder / "outbox.db", settings=settings)
    except TryAgainLater as failure:
        return str(failure)
    return "ended"

async def main():
    store = MemoryStore()
    for number in range(tasks):
        store.put("q", {"n": number}, name=f"t{number}")
    said = await life(store)
    found = await store.tasks()
    full = {
        "said": said,
        "settled": sum(task.settled for task in found),
        "failed": [task.last_lease.message for task in found if task.last_lease],
        "never claimed": sum(task.token == 0 for task in found),
    }
    subprocess.run(["mount", "-o", "remount,size=8m", str(folder)], check=True)
    store.advance(3600)
    again = await life(store)
    found = await store.tasks()
    print(json.dumps({"full": full, "again": again, "receipts": [task.count for task in found]}))

asyncio.run(main())
"""


@pytest.mark.slow
def test_a_full_volume_stops_the_claim_and_nothing_is_lost(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    said = json.loads(in_small_tmpfs(folder, PROGRAM))
    full = said["full"]
    assert "is full: nothing was claimed since; make room" in full["said"]
    assert full["settled"] > 5  # what was stored was handed in
    (message,) = full["failed"]  # the one whose result found no room: told, not reported as done
    assert "could not be stored" in message
    assert full["never claimed"] == TASKS - full["settled"] - 1
    assert (said["again"], said["receipts"]) == ("ended", [1] * TASKS)
