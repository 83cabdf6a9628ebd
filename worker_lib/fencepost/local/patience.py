"""How long `fencepost run` waits for its store: a disk that is full for a while, a process that has the file.

Workers wait for that as long as it takes; the run waits a bounded time, says in one line what it waits for,
and then ends with a code of its own. Nothing is lost by that: the same command goes on from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Final, TypeVar

from fencepost.ports import StoreUnavailable

T = TypeVar("T")

PATIENCE_SECONDS: Final = 300.0  # a person needs a few minutes to make room on a disk
PAUSE_SECONDS: Final = 1.0
SAY_AGAIN_SECONDS: Final = 60.0


class StoreAway(Exception):  # noqa: N818 - the sentence a reader sees
    """The store could not be used for the whole of our patience."""


@dataclass(slots=True, kw_only=True)
class Patience:
    """Asks again while the store is unavailable, until it answers, `stop` is set or `seconds` are over."""

    tell: Callable[[str], None]
    stop: asyncio.Event
    seconds: float = PATIENCE_SECONDS
    pause_seconds: float = PAUSE_SECONDS
    clock: Callable[[], float] = monotonic
    _told: dict[str, float] = field(default_factory=dict)

    async def ask(self, question: Callable[[], Awaitable[T]]) -> T:
        """Its answer. Raises `StoreAway`, and `StoreUnavailable` once we were told to stop."""
        began: float | None = None
        while True:
            try:
                return await question()
            except StoreUnavailable as failure:
                if self.stop.is_set():
                    raise
                began = self.clock() if began is None else began
                if self.clock() - began >= self.seconds:
                    raise StoreAway(f"gave up after {self.seconds:g} s: {failure}") from failure
                self._say(str(failure))
            with suppress(TimeoutError):
                await asyncio.wait_for(self.stop.wait(), self.pause_seconds)

    def _say(self, sentence: str) -> None:
        """Once a minute, whoever asks."""
        now = self.clock()
        if now - self._told.get(sentence, float("-inf")) >= SAY_AGAIN_SECONDS:
            self._told[sentence] = now
            self.tell(f"waiting for the store: {sentence}")
