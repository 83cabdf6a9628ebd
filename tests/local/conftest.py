"""The embedded stores with a clock that the test moves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from fencepost.local.embedded import EmbeddedStore
from fencepost.local.store import LocalStore
from fencepost.testing import MemoryStore
from fencepost.testing.memory import NOON


@dataclass
class Clock:
    """Seconds, moved by the test alone: the wall clock, and the time since the machine's start."""

    now: float = NOON
    since_start: float = 1000.0

    def __call__(self) -> float:
        return self.now

    def boottime(self) -> float:
        return self.since_start


@dataclass
class Embedded:
    """A store and the way to move its time."""

    store: EmbeddedStore
    clock: Clock
    reopen: Callable[[], EmbeddedStore]

    async def advance(self, seconds: float) -> None:
        """Let time pass; nothing is done about it before somebody looks."""
        self.clock.now += seconds
        self.clock.since_start += seconds
        if isinstance(self.store, MemoryStore):
            self.store.now += seconds


@pytest.fixture(params=["memory", "sqlite"])
async def embedded(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Embedded]:
    clock = Clock()
    if request.param == "memory":
        memory = MemoryStore(now=clock.now)
        yield Embedded(store=memory, clock=clock, reopen=lambda: memory)
        return
    store = LocalStore(tmp_path / "store.db", clock=clock, boottime=clock.boottime)
    opened: list[LocalStore] = [store]

    def reopen() -> LocalStore:
        opened.append(LocalStore(tmp_path / "store.db", clock=clock, boottime=clock.boottime))
        return opened[-1]

    yield Embedded(store=store, clock=clock, reopen=reopen)
    for one in opened:
        one.close_now()
