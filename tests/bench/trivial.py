"""The worker whose handler does nothing worth timing: what is left is what Fencepost costs."""

from __future__ import annotations

from fencepost import Worker

QUEUE = "bench"

worker = Worker(queue=QUEUE)


@worker.task
async def answer(request: dict) -> dict:  # type: ignore[type-arg]
    """A small result of a small request."""
    return {"n": request["n"], "rows": 17 * request["n"]}
