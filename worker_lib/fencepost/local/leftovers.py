"""What workers of earlier runs of a store have left in outboxes that no worker of this run opens.

A run with fewer workers than the one before would otherwise never look at them: what was done would be done
again, and a result would lie there for ever. So each such outbox is drained before anybody claims: its rows
are handed in under the leases that they were made under, and leases without a result are released.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fencepost.local.crew import last_words
from fencepost.local.processes import Processes
from fencepost.outbox import OutboxFailed, OutboxRefused, OutboxView
from fencepost.outbox.refusals import RefusalCode
from fencepost.ports import TaskStore
from fencepost.protocol.drain import RowStatus

# A worker of an earlier run that is still being killed has its outbox for a moment longer.
TRIES_MAX: Final = 20
PAUSE_SECONDS: Final = 0.25


def outboxes_beyond(store: Path, workers: int) -> dict[int, Path]:
    """The outboxes beside the store, by number, that are not of the first `workers`."""
    pattern = re.compile(re.escape(store.name) + r"\.outbox-(0|[1-9][0-9]{0,5})")
    found = {}
    for path in store.parent.iterdir():
        matched = pattern.fullmatch(path.name)
        if matched and int(matched[1]) >= workers and path.stat().st_size:
            found[int(matched[1])] = path
    return dict(sorted(found.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftovers:
    """Drains outboxes that have something left. `command(number)` is what follows `fencepost` for one."""

    processes: Processes
    command: Callable[[int], Sequence[str]]
    log_file: Callable[[int], Path]
    tell: Callable[[str], None]

    async def hand_in(self, store: TaskStore, outboxes: dict[int, Path]) -> None:
        """Raises `StoreUnavailable` if the store cannot be asked who holds what."""
        left = [number for number, path in outboxes.items() if await self._has_something(store, path)]
        if not left:
            return
        names = ", ".join(outboxes[number].name for number in left)
        self.tell(f"first handing in what workers of an earlier run have left in {names}")
        async with asyncio.TaskGroup() as group:
            for number in left:
                group.create_task(self._drain(number, outboxes[number]))

    async def _has_something(self, store: TaskStore, path: Path) -> bool:
        try:
            with OutboxView.open(path) as seen:
                uuid = seen.uuid
                if any(row.status is RowStatus.PENDING for row in seen.all()):
                    return True
        except OutboxRefused as refusal:
            if refusal.code is RefusalCode.IN_USE:
                return True
            self.tell(f"an outbox of an earlier run is left alone: {refusal}")
            return False
        except OutboxFailed as failure:
            self.tell(f"an outbox of an earlier run is left alone: {failure}")
            return False
        return bool(await store.unsettled_of_outbox(uuid))

    async def _drain(self, number: int, path: Path) -> None:
        log = self.log_file(number)
        for _ in range(TRIES_MAX):
            before = log.stat().st_size if log.exists() else 0
            code = await self.processes.run(self.command(number), log)
            if code != RefusalCode.IN_USE or self.processes.stopping:
                break
            await asyncio.sleep(PAUSE_SECONDS)
        if code and not self.processes.stopping:
            self.tell(f"{path.name} is not empty yet: {last_words(log, since=before)} (log: {log})")
