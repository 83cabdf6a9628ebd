"""The worker that the tests of `fencepost run` start: a handler for each queue of their manifests."""

from __future__ import annotations

import os
import time
from pathlib import Path

from fencepost import Lease, OutcomeUnknown, Rejected, Worker

worker = Worker(queues=["feeds", "total", "unknown"])


@worker.task(queue="feeds")
def import_feed(request: dict[str, int]) -> dict[str, int]:
    """The double of `n`, slowly if asked to. Odd numbers can be rejected."""
    time.sleep(request.get("milliseconds", 0) / 1000)
    if request.get("reject"):
        raise Rejected(f"no {request['n']}")
    if request.get("die") and not Path(os.environ["FEED_APP_MARK"]).exists():
        Path(os.environ["FEED_APP_MARK"]).touch()
        os._exit(9)
    return {"double": request["n"] * 2}


@worker.task(queue="total")
def total(request: dict[str, object], lease: Lease) -> dict[str, int]:
    return {"branches": len(lease.branches())}


@worker.task(queue="unknown")
def nobody_knows(request: dict[str, object]) -> None:
    raise OutcomeUnknown
