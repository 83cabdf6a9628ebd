"""Where a check runs: a store, a folder for outboxes, a queue of its own, a clock where it can be moved."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from fencepost.local.embedded import EmbeddedStore
from fencepost.local.store import LocalStore
from fencepost.ports import Applied, TaskStore
from fencepost.protocol.payload import sha256_hex
from fencepost.protocol.task import LeaseEnd, Task, TaskSpec
from fencepost.testing import MemoryStore
from tests.cluster.cluster import Cluster
from tests.contract.acting import Actor, requeue_of, revoke_of
from tests.contract.places import PATIENT, Place, api_server, embedded_place

MEMORY: Final = "memory"
SQLITE: Final = "sqlite"
API_SERVER: Final = "api server"
START: Final = 1000.0  # seconds; where the server's clock of source 002 begins


@dataclass(kw_only=True)
class Ground:
    """`embedded` is the store itself where it is one, with `advance` to move its clock."""

    place: Place
    folder: Path
    label: str
    embedded: EmbeddedStore | None = None
    advance: Callable[[float], None] | None = None

    @property
    def queue(self) -> str:
        return f"q-{self.label}"

    def name(self, base: str) -> str:
        """A task's name that no other check uses."""
        return f"{base}-{self.label}"

    def client(self) -> TaskStore:
        return self.place.client()

    async def put(self, base: str, request: dict[str, Any] | None = None, **spec: Any) -> Task:
        wanted: TaskSpec = replace(PATIENT, **{"queue": self.queue, **spec})
        return await self.place.put(self.name(base), request, wanted)

    async def worker(self) -> Actor:
        return await Actor.of(self.client())

    async def task(self, base: str) -> Task:
        task = await self.place.server.task(self.place.key(self.name(base)))
        assert task is not None
        return task

    async def end_lease(self, base: str, end: LeaseEnd = LeaseEnd.EXPIRED) -> Task:
        """What the server's side does to a lease that nobody renews: revoke, then requeue."""
        revoked = await self.place.server.write(revoke_of(await self.task(base), end))
        assert isinstance(revoked, Applied), revoked
        requeued = await self.place.server.write(requeue_of(revoked.task))
        assert isinstance(requeued, Applied), requeued
        return requeued.task


def label_of(text: str) -> str:
    """A few characters that may stand in a name, different for different checks."""
    return sha256_hex(text)[:8]


@asynccontextmanager
async def memory_ground(folder: Path, label: str) -> AsyncIterator[Ground]:
    store = MemoryStore(now=START)
    place = embedded_place(MEMORY, store, lambda: store)
    yield Ground(place=place, folder=folder, label=label, embedded=store, advance=store.move_clock)


@asynccontextmanager
async def sqlite_ground(folder: Path, label: str) -> AsyncIterator[Ground]:
    now = [START]

    def opened() -> LocalStore:
        return LocalStore(folder / "store.db", clock=lambda: now[0], boottime=lambda: now[0])

    def advance(seconds: float) -> None:
        now[0] += seconds

    store = opened()
    place = embedded_place(SQLITE, store, opened)
    try:
        yield Ground(place=place, folder=folder, label=label, embedded=store, advance=advance)
    finally:
        await place.close()


@asynccontextmanager
async def api_server_ground(
    cluster: Cluster, namespace: str, tokens: Callable[..., str], folder: Path, label: str
) -> AsyncIterator[Ground]:
    async with api_server(cluster, namespace, tokens) as place:
        yield Ground(place=place, folder=folder, label=label)
