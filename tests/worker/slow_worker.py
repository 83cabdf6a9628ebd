"""A worker program whose handler takes its time, for the tests of signals.

    python slow_worker.py STORE OUTBOX MODE GRACE

MODE: `returns` (waits to be told to stop, then returns), `leaves` (lets `lease.check` raise), `deaf` (goes
on for ever), `async` (sleeps on the loop), `stubborn` (the same, and takes no cancel), `idle` (there is
nothing to do), `row` (emits a row, then waits). It prints `working` when it is.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from fencepost import Lease, Settings, Worker

sys.path.insert(0, str(Path(__file__).parents[2]))  # it is a program of its own
from tests.worker.store_by_name import store_by_name


def main() -> None:
    store, outbox, mode, grace = sys.argv[1:5]
    worker = Worker(queue="q")
    if mode == "async":

        @worker.task
        async def sleep(request: dict) -> str:  # type: ignore[type-arg]
            print("working", flush=True)
            await asyncio.sleep(60)
            return "never"

    elif mode == "stubborn":

        @worker.task
        async def go_on(request: dict) -> str:  # type: ignore[type-arg]
            print("working", flush=True)
            while True:
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    continue
    else:

        @worker.task
        def handle(request: dict, lease: Lease) -> str:  # type: ignore[type-arg]
            if mode == "row":
                lease.emit("the row", key="the-key")
            print("working", flush=True)
            if mode == "deaf":
                time.sleep(60)
            lease.stopping.wait(60)
            if mode == "leaves":
                lease.check()
            return "finished in time"

    if mode == "idle":
        print("working", flush=True)
    settings = Settings(grace_seconds=float(grace), idle_seconds_min=0.01, idle_seconds_max=0.02)
    worker.run(store=store_by_name(store), outbox=outbox, settings=settings)


if __name__ == "__main__":
    main()
