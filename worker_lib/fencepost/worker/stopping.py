"""Being told to stop: the first signal asks, the second one ends the process at once.

After the first, nothing more is claimed; the handler that runs may finish within its grace. After the
second, nothing is tidied up, because nothing has to be: a result that was stored lies in the outbox, and a
lease that is not released runs out.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from fencepost.worker.failures import SECOND_SIGNAL

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Flag:
    """Something that happened or not: true once it did, and to be waited for in a thread.

    `if lease.lost:`, `lease.lost.is_set()` and `lease.lost.wait(seconds)` all work.
    """

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = threading.Event()

    def __bool__(self) -> bool:
        return self._event.is_set()

    def is_set(self) -> bool:
        return self._event.is_set()

    def set(self) -> None:
        self._event.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Block this thread until it is set or `timeout` seconds have passed; whether it is set."""
        return self._event.wait(timeout)


class Stopping:
    """Whether the worker was told to stop, and when the handler's grace is over. Belongs to one loop."""

    def __init__(self, *, grace_seconds: float) -> None:
        self.requested = Flag()
        self.asked = asyncio.Event()
        self.grace_over = asyncio.Event()
        self._grace_seconds = grace_seconds
        self._timer: asyncio.TimerHandle | None = None

    def request(self) -> None:
        """Ask the worker to stop. Asking again changes nothing."""
        if self.requested:
            return
        self.requested.set()
        self.asked.set()
        self._timer = asyncio.get_running_loop().call_later(self._grace_seconds, self.grace_over.set)

    async def sleep(self, seconds: float) -> None:
        """Wait, but no longer than until the worker is told to stop."""
        try:
            await asyncio.wait_for(self.asked.wait(), timeout=max(0.0, seconds))
        except TimeoutError:
            pass

    async def sleep_within_grace(self, seconds: float) -> bool:
        """Wait, but no longer than the grace lasts; False if it is over."""
        try:
            await asyncio.wait_for(self.grace_over.wait(), timeout=max(0.0, seconds))
        except TimeoutError:
            return True
        return False

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def _on_signal(stopping: Stopping) -> None:
    if stopping.requested:
        os._exit(SECOND_SIGNAL)
    stopping.request()


@contextmanager
def signals_ask_to_stop(stopping: Stopping) -> Iterator[None]:
    """SIGTERM and SIGINT ask `stopping` while the block runs. Only in the main thread of a process."""
    loop = asyncio.get_running_loop()
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    for number in SIGNALS:
        loop.add_signal_handler(number, _on_signal, stopping)
    try:
        yield
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
