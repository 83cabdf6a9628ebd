"""The server's side of an embedded store: leases that ran out, backoffs, deadlines, progress of jobs.

The joins need no keeper, they happen in the transaction that settles the last branch; nor does a lease that
ran out, whoever looks at its task first revokes it. What would wait without a keeper is a task that nobody
looks at, a branch whose task was deleted, and the records of branches that a running job shows.

Nothing is deleted by age here: a store file is the record of a run and goes when somebody deletes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Final

from fencepost.local.embedded import EmbeddedStore
from fencepost.local.patience import Patience

# A lease lasts a second at least, so one that ran out waits a quarter of that at most.
PASS_SECONDS: Final = 0.25
# Between two writes of the records of running jobs, which take the file from the workers for some tens of
# milliseconds for each thousand branches: the first after two seconds, each later one after twice as long, so
# that a run of any length has about a dozen.
BATCH_SECONDS_MIN: Final = 2.0
BATCH_GROWTH: Final = 2.0
BATCH_SECONDS_MAX: Final = 600.0  # a branch whose task was deleted is recorded by then


@dataclass(slots=True, kw_only=True)
class Keeper:
    """Keeps one store until it is told to stop. Two of them at once do no harm."""

    store: EmbeddedStore
    monotonic: Callable[[], float] = monotonic
    _spacing: float = BATCH_SECONDS_MIN
    _next_batch: float | None = None

    async def run(self, stop: asyncio.Event, patience: Patience | None = None) -> None:
        """Pass after pass until `stop` is set. Raises what the store, or `patience`, raises."""
        while not stop.is_set():
            await (patience.ask(self.run_once) if patience else self.run_once())
            try:
                await asyncio.wait_for(stop.wait(), PASS_SECONDS)
            except TimeoutError:
                continue

    async def run_once(self) -> int:
        """One pass; how many tasks were due."""
        return await self.store.keep_up(batch_due=self._batch_is_due())

    def _batch_is_due(self) -> bool:
        now = self.monotonic()
        if self._next_batch is None:
            self._next_batch = now + self._spacing
        if now < self._next_batch:
            return False
        self._spacing = min(BATCH_SECONDS_MAX, self._spacing * BATCH_GROWTH)
        self._next_batch = now + self._spacing
        return True
