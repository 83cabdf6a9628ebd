"""The composition root: builds an operator from its parts, starts it, and ends it within two seconds.

The order at the start: probes first, so that the kubelet gets an answer; then the API server and its kinds,
waited for as long as it takes; then one whole list of both kinds, which fills the cache; then the watch and
the hands that work the queue. At the end: no new work, no more requests; what was under way is conditional
and idempotent, so it needs no waiting for.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any, Final

import kopf

from fencepost.api import names
from fencepost.kube.client import ApiClient, Response
from fencepost.kube.connection import Connection, NoCluster, connect
from fencepost.kube.refusals import problem_of_read
from fencepost.kube.store import KubeStore
from fencepost.ports import Cause, StoreRefused, StoreUnavailable
from fencepost_operator import logs
from fencepost_operator.apply import Writer
from fencepost_operator.cache import Cache
from fencepost_operator.clock import ServerClock
from fencepost_operator.continuing import Continuing
from fencepost_operator.handlers import registry_of_kopf
from fencepost_operator.joining import Joining
from fencepost_operator.keys import Key
from fencepost_operator.kopf_parsing import parse_watches_of_any_depth
from fencepost_operator.leases import LeaseObserver
from fencepost_operator.logs import Repeats, logger
from fencepost_operator.metrics import Metrics
from fencepost_operator.observe import World
from fencepost_operator.options import BadOption, Options, Told, options_of
from fencepost_operator.probes import PolicyProbe, Probes
from fencepost_operator.queue import WorkQueue
from fencepost_operator.reconcile import Reconciler
from fencepost_operator.watching import Progress, settings_of_kopf

EXIT_DONE: Final = 0
EXIT_FAILED: Final = 1
EXIT_MISUSED: Final = 2
EXIT_NO_SERVER: Final = 3

RETRY_SECONDS: Final = 1.0
WATCH_AGAIN_SECONDS: Final = 2.0
END_SECONDS_MAX: Final = 1.8
GROUP_PATH: Final = f"/apis/{names.API_VERSION}"


class GaveUp(Exception):  # noqa: N818
    """The API server could not be used for as long as was allowed."""


class Operator:
    """All the parts of one operator, and their life. Belongs to the event loop that runs it."""

    def __init__(self, options: Options, client: ApiClient) -> None:
        clock = monotonic
        self._options = options
        self._client = client
        self._repeats = Repeats(clock=clock)
        self._metrics = Metrics()
        self._leases = LeaseObserver()
        self._queue: WorkQueue[Key] = WorkQueue(clock=clock)
        self._cache = Cache(clock=clock)
        self._server_clock = ServerClock(clock=clock)
        self._progress = Progress(options.watched, clock=clock)
        self._world = World(
            client=client,
            cache=self._cache,
            queue=self._queue,
            leases=self._leases,
            server_clock=self._server_clock,
            clock=clock,
            repeats=self._repeats,
        )
        self._store = KubeStore(client, now=self._server_clock.text)
        self._policies = PolicyProbe(client, self._own_namespace(), repeats=self._repeats)
        self._probes = Probes(
            progress=self._progress, policies=self._policies, metrics=self._metrics, count=self._count
        )
        self._stop = asyncio.Event()

    async def run(self, *, at_end: Callable[[], None]) -> None:
        """Runs until SIGTERM or SIGINT, calls `at_end`, and lets go of everything.

        Raises `GaveUp`, and `OSError` if the probes cannot be served.
        """
        self._catch_signals()
        port = await self._probes.start(self._options.probe_host, self._options.probe_port)
        logger.info("probes are served on %s:%d", self._options.probe_host, port)
        work = asyncio.create_task(self._work())
        stopped = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            at_end()
            await self._end(work)

    async def _end(self, work: asyncio.Task[None]) -> None:
        failed = work.done()
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        await self._probes.stop()
        await self._client.close()
        if failed:
            work.result()  # raises what ended it
        logger.info("ended")

    async def _work(self) -> None:
        allowed = self._options.give_up_seconds
        account = await self._until_it_works(self._prepare, seconds=allowed)
        await self._until_it_works(self._fill, seconds=allowed)
        self._probes.filled = True
        logger.info(
            "serving %s as %s: %d tasks, %d jobs",
            ", ".join(self._options.namespaces) or "all namespaces",
            account,
            self._cache.task_count,
            self._cache.job_count,
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(self._queue.run(self._reconciler(account).look, hands=self._options.hands))
            group.create_task(self._policies.run())
            group.create_task(self._list_again_and_again())
            group.create_task(self._watch_again_and_again())

    def _reconciler(self, account: str) -> Reconciler:
        writer = Writer(
            client=self._client,
            store=self._store,
            world=self._world,
            clock=monotonic,
            metrics=self._metrics,
        )
        joining = Joining(
            world=self._world,
            writer=writer,
            queue=self._queue,
            clock=monotonic,
            metrics=self._metrics,
            repeats=self._repeats,
        )
        return Reconciler(
            world=self._world,
            writer=writer,
            queue=self._queue,
            leases=self._leases,
            joining=joining,
            continuing=Continuing(
                world=self._world,
                writer=writer,
                queue=self._queue,
                clock=monotonic,
                repeats=self._repeats,
            ),
            account=account,
            clock=monotonic,
            metrics=self._metrics,
            repeats=self._repeats,
        )

    async def _prepare(self) -> str:
        """The account we are, once the server knows us and serves both kinds."""
        account = await self._store.account()
        result = await self._client.get(GROUP_PATH)
        self._world.heard(result)
        if not isinstance(result, Response) or not result.ok:
            raise problem_of_read(result, f"the kinds of {names.API_VERSION} (apply crds/ first)")
        served = {resource["name"] for resource in result.body.get("resources") or []}
        missing = {names.LEASED_TASKS, names.FAN_OUT_JOBS} - served
        if missing:
            message = f"the API server does not serve {', '.join(sorted(missing))}: apply crds/ first"
            raise StoreRefused(message, Cause.MISSING)
        return account

    async def _fill(self) -> str:
        await self._world.list_all(self._options.watched)
        return ""

    async def _until_it_works(self, attempt: Callable[[], Awaitable[str]], *, seconds: float = 0.0) -> str:
        """The first result of `attempt`. Raises `GaveUp` if that takes longer than `seconds` (0: never)."""
        began = monotonic()
        while True:
            try:
                return await attempt()
            except (StoreUnavailable, StoreRefused) as problem:
                if seconds and monotonic() - began >= seconds:
                    raise GaveUp(f"gave up after {seconds:g} s: {problem}") from None
                if self._repeats.is_news("start", str(problem)):
                    logger.warning("trying again every second: %s", problem)
            await asyncio.sleep(RETRY_SECONDS)

    async def _list_again_and_again(self) -> None:
        while True:
            await asyncio.sleep(self._options.resync_seconds)
            try:
                await self._world.list_all(self._options.watched)
            except (StoreUnavailable, StoreRefused) as problem:
                if self._repeats.is_news("list"):
                    logger.warning("the periodic list failed: %s", problem)

    async def _watch_again_and_again(self) -> None:
        """Kopf runs until something in it fails; then a new one starts."""
        parse_watches_of_any_depth()
        cluster_wide = not self._options.namespaces
        while True:
            await self._until_it_works(self._prepare)  # Kopf never looks for a kind that was not there
            registry = registry_of_kopf(
                world=self._world,
                progress=self._progress,
                connection=self._client.connection,
                metrics=self._metrics,
                cluster_wide=cluster_wide,
            )
            tasks = await kopf.spawn_tasks(
                registry=registry,
                settings=settings_of_kopf(),
                standalone=True,
                clusterwide=cluster_wide,
                namespaces=self._options.namespaces,
            )
            self._catch_signals()  # Kopf has taken them
            try:
                await kopf.run_tasks(tasks, ignored=_EveryTask())
            except Exception as problem:
                logger.error("the watch ended and is started again: %s", problem or type(problem).__name__)
            await asyncio.sleep(WATCH_AGAIN_SECONDS)

    def _catch_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._stop.set)

    def _count(self) -> None:
        self._metrics.queue_ready.set(len(self._queue))
        self._metrics.queue_delayed.set(self._queue.delayed)
        self._metrics.tasks.set(self._cache.task_count)
        self._metrics.jobs.set(self._cache.job_count)
        for resource, age in self._progress.ages().items():
            self._metrics.watch_age.labels(resource).set(age)

    def _own_namespace(self) -> str:
        return self._options.namespaces[0] if self._options.namespaces else self._client.connection.namespace


class _EveryTask(frozenset[asyncio.Task[Any]]):
    """Kopf cancels whatever task it does not know when it ends; none of ours is its business."""

    def __contains__(self, task: object) -> bool:
        return True


def _leave_soon() -> None:
    """Ends the process if it has not ended in time by itself, whatever it waits for."""
    timer = threading.Timer(END_SECONDS_MAX, os._exit, args=(EXIT_DONE,))
    timer.daemon = True
    timer.start()


async def run(options: Options, connection: Connection, *, client_type: type[ApiClient] = ApiClient) -> int:
    """Runs one operator to its end, which is the end of the process; the exit code."""
    operator = Operator(options, client_type(connection))
    try:
        await operator.run(at_end=_leave_soon)
    except GaveUp as end:
        logger.error("%s", end)
        return EXIT_NO_SERVER
    except OSError as problem:
        address = f"{options.probe_host}:{options.probe_port}"
        logger.error("probes cannot be served on %s: %s", address, problem.strerror or problem)
        return EXIT_FAILED
    except Exception:
        logger.exception("defect: the operator cannot go on; please report this line")
        return EXIT_FAILED
    return EXIT_DONE


def main(arguments: list[str] | None = None, *, client_type: type[ApiClient] = ApiClient) -> int:
    """The command `fencepost-operator`; the exit code. Tests may hand in another client."""
    try:
        options = options_of(sys.argv[1:] if arguments is None else arguments)
        connection = connect(options.kubeconfig, options.context)
    except Told:
        return EXIT_DONE
    except (BadOption, NoCluster) as problem:
        print(f"fencepost-operator: {problem}", file=sys.stderr)
        return EXIT_MISUSED
    logs.set_up(options.log_level)
    return asyncio.run(run(options, connection, client_type=client_type))
