"""The server's side of an embedded store: leases that ran out, backoffs, deadlines, progress of jobs.

The joins need no keeper, they happen in the transaction that settles the last branch; nor does a lease that
ran out, whoever looks at its task first revokes it. What would wait without a keeper is a task that nobody
looks at, a branch whose task was deleted, and the records of branches that a running job shows.

Nothing is deleted by age here: a store file is the record of a run and goes when somebody deletes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

from fencepost.local.embedded import EmbeddedStore

# A lease lasts a second at least, so one that ran out waits a quarter of that at most.
PASS_SECONDS: Final = 0.25
# Between two writes of a job's records: the first after a second, each later one half as much later again, so
# that a job of any length is written about a dozen times an hour.
BATCH_SECONDS_MIN: Final = 1.0
BATCH_GROWTH: Final = 1.5


@dataclass(slots=True, kw_only=True)
class Keeper:
    """Keeps one store until it is told to stop. Two of them at once do no harm."""

    store: EmbeddedStore
    monotonic: Callable[[], float] = monotonic
    _spacing: float = BATCH_SECONDS_MIN
    _last_batch: float = field(default=float("-inf"))

    async def run(self, stop: asyncio.Event) -> None:
        """Pass after pass until `stop` is set. Raises what the store raises."""
        while not stop.is_set():
            await self.run_once()
            try:
                await asyncio.wait_for(stop.wait(), PASS_SECONDS)
            except TimeoutError:
                continue

    async def run_once(self) -> int:
        """One pass; how many tasks were due."""
        now = self.monotonic()
        batch_due = now - self._last_batch >= self._spacing
        if batch_due:
            first = self._last_batch == float("-inf")
            self._spacing = BATCH_SECONDS_MIN if first else self._spacing * BATCH_GROWTH
            self._last_batch = now
        return await self.store.keep_up(batch_due=batch_due)
