"""The processes that `fencepost run` starts: all are told to stop together, and none is waited for for ever.

Each is `fencepost ...` under `child`, so it ends with the run, however that ends. A process that was stopped
(SIGSTOP) does not hear SIGTERM, so it is woken with it; one that does not end within its grace is killed,
which loses nothing: what it had done lies in its outbox.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

GRACE_SECONDS: Final = 25.0  # told to each worker: how long its handler may go on
# After its grace the worker hands in, releases and closes.
STOP_SECONDS: Final = GRACE_SECONDS + 10.0


@dataclass(slots=True, kw_only=True)
class Processes:
    """Those that run now. `tell` is called when some had to be killed."""

    tell: Callable[[str], None]
    stop_seconds: float = STOP_SECONDS
    stopping: bool = False
    _running: set[asyncio.subprocess.Process] = field(default_factory=set)

    async def run(self, words: Sequence[str], log: Path) -> int:
        """Run `fencepost WORDS` to its end; its exit code. What it says goes to the end of `log`."""
        return await self.run_program(
            [sys.executable, "-m", "fencepost.local.child", str(os.getpid()), *words], log
        )

    async def run_program(self, command: Sequence[str], log: Path) -> int:
        """The same for a whole command line."""
        output = _opened(log)
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                process_group=0,  # Ctrl-C is for the parent, which tells them in its own way
            )
        finally:
            os.close(output)
        self._running.add(process)
        if self.stopping:
            process.kill()
        try:
            return await process.wait()
        finally:
            self._running.discard(process)

    def stop(self) -> None:
        """Tell all to stop: once, because a second signal would end them before they have let go."""
        if self.stopping:
            return
        self.stopping = True
        for process in self._alive():
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGCONT)
        asyncio.get_running_loop().call_later(self.stop_seconds, self._kill_the_last)

    def kill(self) -> None:
        """End all now."""
        self.stopping = True
        for process in self._alive():
            process.kill()

    def _kill_the_last(self) -> None:
        left = self._alive()
        if left:
            pids = ", ".join(str(process.pid) for process in left)
            self.tell(f"not ended {self.stop_seconds:g} s after they were told to, so killed: process {pids}")
            self.kill()

    def _alive(self) -> list[asyncio.subprocess.Process]:
        return [process for process in self._running if process.returncode is None]


def _opened(log: Path) -> int:
    """A log that cannot be made, on a full disk, is no reason not to work."""
    with suppress(OSError):
        return os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
