"""The worker processes of `fencepost run`: started, started again when they die, stopped together.

A worker that dies is started again after a pause that doubles, a bounded number of times while nothing is
settled in between; a worker that says that it cannot be used (its exit code is one of `worker.failures`)
is not. Each has an outbox and a log of its own beside the store, so that a later run finds both.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fencepost.local.processes import Processes

# Deaths in a row without anything being settled: a task that kills its worker is settled after a few.
DEATHS_MAX: Final = 20
PAUSE_SECONDS_MIN: Final = 0.2
PAUSE_SECONDS_MAX: Final = 5.0
# What no second try can change: 61 and 64 of the worker, 71 to 76 of its outbox but for "in use" (71), which
# may be a process of an earlier run that is still being killed, and "full" (75), which passes when there is
# room; and a wrong command line.
HOPELESS: Final = frozenset({2, 61, 63, 64, 72, 73, 74, 76})
LAST_LINES: Final = 5
LOG_TAIL_BYTES: Final = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """How a worker ended that was not told to. `said` are the last lines that it logged."""

    worker: int
    code: int
    said: str

    @property
    def sentence(self) -> str:
        how = (
            f"was killed by {signal.Signals(-self.code).name}" if self.code < 0 else f"ended with {self.code}"
        )
        return f"worker {self.worker} {how}{': ' + self.said if self.said else ''}"


@dataclass(slots=True, kw_only=True)
class Crew:
    """`size` workers. `command(number)` is what follows `fencepost` on the command line of one of them."""

    size: int
    processes: Processes
    command: Callable[[int], Sequence[str]]
    log_file: Callable[[int], Path]
    on_death: Callable[[Death], None]
    deaths: int = 0
    hopeless: Death | None = None

    async def run(self) -> None:
        """Keep all of them running until they are told to stop, or until there is no hope left."""
        async with asyncio.TaskGroup() as group:
            for number in range(self.size):
                group.create_task(self._keep_running(number))

    def something_was_settled(self) -> None:
        """The work goes on: deaths are counted anew."""
        self.deaths = 0

    async def _keep_running(self, number: int) -> None:
        pause = PAUSE_SECONDS_MIN
        while not self.processes.stopping and self.hopeless is None:
            log = self.log_file(number)
            before = log.stat().st_size if log.exists() else 0
            code = await self.processes.run(self.command(number), log)
            if self.processes.stopping:
                return
            self._count(Death(worker=number, code=code, said=last_words(log, since=before)))
            await asyncio.sleep(pause)
            pause = min(PAUSE_SECONDS_MAX, pause * 2) if self.deaths > 1 else PAUSE_SECONDS_MIN

    def _count(self, death: Death) -> None:
        self.deaths += 1
        self.on_death(death)
        if death.code in HOPELESS or self.deaths >= DEATHS_MAX:
            self.hopeless = death
            self.processes.stop()


def last_words(log: Path, *, since: int) -> str:
    """The last lines that this life of the worker has written, as one line, each line once."""
    try:
        with log.open("rb") as file:
            file.seek(max(since, log.stat().st_size - LOG_TAIL_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    different = dict.fromkeys(line.strip() for line in lines if line.strip())
    return " | ".join(list(different)[-LAST_LINES:])
