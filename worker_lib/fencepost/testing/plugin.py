"""Fixtures for tests of workers, in every pytest run of an environment that has Fencepost installed.

    def test_a_feed_is_imported(fencepost_store, fencepost_drain):
        fencepost_store.put("feeds", {"url": "https://example.org/a"}, name="a")
        fencepost_drain(worker)
        assert fencepost_store.look("a").state == "Succeeded"

pytest imports this file at every start, so it imports nothing of Fencepost before a fixture is used.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from fencepost.testing.memory import MemoryStore
    from fencepost.worker.worker import Worker


@pytest.fixture
def fencepost_store() -> MemoryStore:
    """A store in memory, empty, whose clock stands still until `advance`."""
    from fencepost.testing.memory import MemoryStore

    return MemoryStore()


@pytest.fixture
def fencepost_outbox(tmp_path: Path) -> Path:
    """The file of an outbox that is this test's own; it is made at the first use."""
    return tmp_path / "fencepost-outbox.db"


@pytest.fixture
def fencepost_drain(fencepost_store: MemoryStore, fencepost_outbox: Path) -> Callable[[Worker], Counter[str]]:
    """`fencepost_drain(worker)` runs the worker until nothing is left to claim, as `once` does.

    It answers what was done, counted by verdict and event. Each call is a new life of the same worker: same
    outbox, new incarnation. A test that is a coroutine awaits `worker.run_async(store=..., outbox=...,
    once=True)` instead.
    """

    def drain(worker: Worker) -> Counter[str]:
        return asyncio.run(worker.run_async(store=fencepost_store, outbox=fencepost_outbox, once=True))

    return drain
