"""What every step of the loop shares: the store, the outbox, the clocks, and the words for the log."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from fencepost.certainty import write_until_certain
from fencepost.outbox import Outbox, Row
from fencepost.ports import Answer, StoreRefused, TaskStore, Unanswered
from fencepost.protocol.mutation import WorkerMutation
from fencepost.protocol.submission import Verdict
from fencepost.protocol.task import LeaseEnd
from fencepost.worker.clock import Seconds, seconds_since_boot, time_of_day
from fencepost.worker.settings import Settings, retry_seconds
from fencepost.worker.stopping import Stopping

LOG = logging.getLogger("fencepost.worker")

OnRefused = Callable[[Row, Verdict | None], object]


@dataclass(slots=True, kw_only=True)
class Workplace:
    """The surroundings of one running worker.

    `tally` counts what it did, by verdict and event. `owed` has the releases whose fate is uncertain, by
    (task UID, token).
    """

    store: TaskStore
    outbox: Outbox
    account: str
    settings: Settings
    stopping: Stopping
    on_refused: OnRefused | None = None
    clock: Seconds = seconds_since_boot
    now: Callable[[], str] = time_of_day
    random: random.Random = field(default_factory=random.Random)
    tally: Counter[str] = field(default_factory=Counter)
    owed: dict[tuple[str, int], tuple[LeaseEnd, str]] = field(default_factory=dict)

    async def write(self, mutation: WorkerMutation, *, until: float | None = None) -> Answer:
        """Send `mutation` until its fate is certain; `Unanswered` if there is no more time to find out.

        `until` is a moment of `clock`; without it the settings' patience counts.
        """
        end = self.clock() + self.settings.patience_seconds if until is None else until
        try:
            return await write_until_certain(self.store, mutation, pause=self._pause(end))
        except StoreRefused as refused:
            return Unanswered(message=f"its fate could not be read back: {refused}")

    def _pause(self, end: float) -> Callable[[int], Awaitable[bool]]:
        async def pause(tries: int) -> bool:
            wait = retry_seconds(tries, spread=self.random.random())
            if self.clock() + wait >= end:
                return False
            return await self.stopping.sleep_within_grace(wait)

        return pause

    def tell_refused(self, row: Row, verdict: Verdict | None) -> None:
        """Tell the user's code that a row was not accepted (`verdict` None: no store would take it)."""
        if self.on_refused is None:
            return
        try:
            self.on_refused(row, verdict)
        except Exception:
            LOG.exception("on_refused raised for row %s of %s", row.id, row.task_key)
