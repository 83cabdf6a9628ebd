"""A worker program that dies at one step of its loop, as `kill -9` would have it. Run by the crash tests.

    python crashing_worker.py STORE OUTBOX STEP LOG [SECONDS-AHEAD]

It appends a line to LOG for each execution. STEP is one of `STEPS`, or `never`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from fencepost import Lease, Settings, Worker
from fencepost.outbox import Outbox, Row
from fencepost.ports import Answer, TaskStore
from fencepost.protocol.mutation import Claim, Mutation, Submit
from fencepost.protocol.task import Kind

sys.path.insert(0, str(Path(__file__).parents[2]))  # it is a program of its own
from tests.worker.store_by_name import store_by_name

DIED = 99
STEPS = (
    "before the claim",
    "after the claim",
    "in the handler",
    "after the row",
    "before the result is stored",
    "after the result is stored",
    "before the submit",
    "after the submit",
    "after the acknowledgement",
)


class Dying:
    """Ends the process when its step comes."""

    def __init__(self, step: str) -> None:
        self._step = step

    def at(self, step: str) -> None:
        if step == self._step:
            os._exit(DIED)


def die_around_writes(store: TaskStore, dying: Dying) -> None:
    """Have the process die before or after the write of its step."""
    write = store.write

    async def dying_write(mutation: Mutation) -> Answer:
        result = isinstance(mutation, Submit) and mutation.receipt.kind is Kind.RESULT
        name = "the claim" if isinstance(mutation, Claim) else "the submit" if result else "another write"
        dying.at(f"before {name}")
        answer = await write(mutation)
        dying.at(f"after {name}")
        return answer

    store.write = dying_write  # type: ignore[method-assign]


def main() -> None:
    store_file, outbox_file, step, log = sys.argv[1:5]
    ahead = float(sys.argv[5]) if len(sys.argv) > 5 else 0.0
    dying = Dying(step)
    store = store_by_name(store_file, ahead=ahead)
    die_around_writes(store, dying)
    _die_around_the_outbox(dying)
    worker = Worker(queue="q")

    @worker.task
    def handle(request: dict, lease: Lease) -> dict:  # type: ignore[type-arg]
        with Path(log).open("a") as executions:
            executions.write(f"{lease.token}\n")
        dying.at("in the handler")
        lease.emit({"row": request["n"]})
        dying.at("after the row")
        lease.defer("CREATE TABLE IF NOT EXISTS effects (n INTEGER)")
        lease.defer("INSERT INTO effects VALUES (?)", (request["n"],))
        return {"done": request["n"]}

    settings = Settings(once=True, idle_seconds_min=0.01, idle_seconds_max=0.02)
    worker.run(store=store, outbox=outbox_file, settings=settings)


def _die_around_the_outbox(dying: Dying) -> None:
    """The outbox itself has tests of its own; here it is only where the process dies."""
    store_result, acknowledge = Outbox.store_result, Outbox.acknowledge

    def storing(self: Outbox, row, *, deferred=()) -> Row:  # type: ignore[no-untyped-def]
        if row.kind is Kind.RESULT:
            dying.at("before the result is stored")
        stored = store_result(self, row, deferred=deferred)
        if row.kind is Kind.RESULT:
            dying.at("after the result is stored")
        return stored

    def acknowledging(self: Outbox, row_id, receipt, verdict) -> Row:  # type: ignore[no-untyped-def]
        row = acknowledge(self, row_id, receipt, verdict)
        if row.kind is Kind.RESULT:
            dying.at("after the acknowledgement")
        return row

    Outbox.store_result, Outbox.acknowledge = storing, acknowledging  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
