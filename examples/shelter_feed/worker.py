"""Import a feed row by row: each row once, however often it is exported and the worker is killed.

Embedded:    fencepost run examples/shelter_feed/job.yaml --app examples.shelter_feed.worker:worker
On a cluster: kubectl apply -f examples/shelter_feed/job.yaml
             fencepost worker examples.shelter_feed.worker:worker --once
"""

from __future__ import annotations

from pydantic import BaseModel

from fencepost import Lease, Worker

worker = Worker(queues=["shelter-feed", "shelter-feed-total"])


class Export(BaseModel):
    snapshot: str
    rows: list[str]


class Feed(BaseModel):
    exports: list[Export]


@worker.task(queue="shelter-feed")
def import_feed(request: Feed, lease: Lease) -> dict[str, int]:
    """Emit every row of every export. A row that is there already is refused, and that is no error.

    What is counted depends on the request alone: a row that this task emitted before a crash counts too.
    """
    for export in request.exports:
        for row in export.rows:
            lease.emit(row)
    exported = [row for export in request.exports for row in export.rows]
    return {"exported": len(exported), "rows": len(set(exported))}


@worker.task(queue="shelter-feed-total")
def total(request: dict[str, object], lease: Lease) -> dict[str, int]:
    """The sums over all shelters, from the joined snapshot."""
    counts = [branch.data for branch in lease.branches().values()]
    return {key: sum(count[key] for count in counts) for key in ("exported", "rows")}
