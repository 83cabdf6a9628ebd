"""The parts of an operator without the watch, so that a test decides what the cache has seen."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import monotonic

from fencepost.kube.client import ApiClient
from fencepost.kube.connection import explicit
from fencepost.kube.store import KubeStore
from fencepost.protocol.job import Job
from fencepost_operator.apply import Writer
from fencepost_operator.cache import Cache
from fencepost_operator.clock import ServerClock
from fencepost_operator.continuing import Continuing
from fencepost_operator.joining import Joining
from fencepost_operator.keys import Key, job_key
from fencepost_operator.leases import LeaseObserver
from fencepost_operator.logs import Repeats
from fencepost_operator.metrics import Metrics
from fencepost_operator.observe import World
from fencepost_operator.queue import WorkQueue
from fencepost_operator.reconcile import Reconciler
from tests.handlers.place import Place


@dataclass
class Parts:
    world: World
    queue: WorkQueue[Key]
    reconciler: Reconciler
    joining: Joining

    async def look(self, job: Job) -> None:
        await self.reconciler.look(job_key(job.key))


@asynccontextmanager
async def parts_at(
    place: Place,
    *,
    client_type: type[ApiClient] = ApiClient,
    clock: Callable[[], float] = monotonic,
) -> AsyncIterator[Parts]:
    """The parts, with the operator's account at the real API server. `clock` is that of continuations."""
    connection = explicit(
        place.cluster.server,
        ca_file=place.cluster.ca_file,
        token=place.operator_token,
        namespace=place.namespace,
    )
    client = client_type(connection)
    try:
        yield await _parts(client, clock)
    finally:
        await client.close()


async def _parts(client: ApiClient, clock: Callable[[], float]) -> Parts:
    queue: WorkQueue[Key] = WorkQueue(clock=monotonic)
    leases, repeats, metrics = LeaseObserver(), Repeats(clock=monotonic), Metrics()
    server_clock = ServerClock(clock=monotonic)
    world = World(
        client=client,
        cache=Cache(clock=monotonic),
        queue=queue,
        leases=leases,
        server_clock=server_clock,
        clock=monotonic,
        repeats=repeats,
    )
    store = KubeStore(client, now=server_clock.text)
    writer = Writer(client=client, store=store, world=world, clock=monotonic, metrics=metrics)
    joining = Joining(
        world=world, writer=writer, queue=queue, clock=monotonic, metrics=metrics, repeats=repeats
    )
    reconciler = Reconciler(
        world=world,
        writer=writer,
        queue=queue,
        leases=leases,
        joining=joining,
        continuing=Continuing(world=world, writer=writer, queue=queue, clock=clock, repeats=repeats),
        account=await store.account(),
        clock=monotonic,
        metrics=metrics,
        repeats=repeats,
    )
    return Parts(world=world, queue=queue, reconciler=reconciler, joining=joining)
