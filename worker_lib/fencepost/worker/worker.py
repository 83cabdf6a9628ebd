"""`Worker`: handlers by queue, and the run that ties store, outbox, signals and loop together. Public.

`run()` is what a program's last line calls: it ends the process with one sentence and an exit code where
something is wrong. `run_async()` raises instead, for programs that have a loop of their own.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final, TypeVar, overload

from fencepost.outbox import Outbox, OutboxFailed, OutboxRefused, OutboxWriteFailed
from fencepost.ports import StoreRefused, StoreUnavailable, TaskStore
from fencepost.protocol.limits import QUEUE_CHARACTERS_MAX
from fencepost.worker.clock import time_of_day
from fencepost.worker.failures import AppUnusable, GraceOver, NoAccess, TryAgainLater, WorkerFailure
from fencepost.worker.handler import Handler, handler_of
from fencepost.worker.loop import Loop
from fencepost.worker.settings import RETRY_SECONDS_MAX, Settings, retry_seconds
from fencepost.worker.stopping import Stopping, signals_ask_to_stop
from fencepost.worker.summary import summary_of
from fencepost.worker.workplace import LOG, OnRefused, Workplace

T = TypeVar("T")
Function = TypeVar("Function", bound=Callable[..., Any])

OUTBOX_VARIABLE: Final = "FENCEPOST_OUTBOX"
OUTBOX_DEFAULT: Final = "fencepost-outbox.db"
OWNER_VARIABLES: Final = ("POD_NAME", "HOSTNAME")


class Worker:
    """Takes tasks of one queue, or of several in their order, and runs the handler of each.

    `Worker(queue="feeds")`, or `Worker(queues=["urgent", "feeds"])`: a later queue is looked at only while
    the earlier ones have nothing to claim.
    """

    def __init__(self, queue: str | None = None, *, queues: Sequence[str] | None = None) -> None:
        if (queue is None) == (queues is None):
            raise ValueError("a Worker takes either queue= or queues=")
        self.queues: tuple[str, ...] = (queue,) if queue is not None else tuple(queues or ())
        _refuse_queues(self.queues)
        self._handlers: dict[str, Handler] = {}
        self._on_refused: OnRefused | None = None

    @overload
    def task(self, function: Function, /) -> Function: ...

    @overload
    def task(self, *, queue: str | None = None) -> Callable[[Function], Function]: ...

    def task(  # type: ignore[misc]  # one implementation type for both forms
        self, function: Any = None, /, *, queue: str | None = None
    ) -> Any:
        """Make a function the handler of the worker's queue, or of `queue` where it has several.

        Raises `AppUnusable` if the queue is not this worker's, has a handler already, or the function's
        signature does not fit.
        """
        if function is None:
            return lambda inner: self._register(inner, queue)
        return self._register(function, queue)

    def on_refused(self, function: Function) -> Function:
        """Call this with (row, verdict) when a row of the outbox was parked or became a dead letter.

        The task was settled by somebody else, or the row cannot be taken: what the handler did elsewhere
        stands, and this is the place to undo it. The verdict is None where the row was unacceptable
        (`row.reason` says why).
        """
        self._on_refused = function
        return function

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """By queue, in the order of the queues. Raises `AppUnusable` if a queue has none."""
        missing = [queue for queue in self.queues if queue not in self._handlers]
        if missing:
            raise AppUnusable(
                f"no handler for the queue {', '.join(missing)}: decorate one with @worker.task"
            )
        return {queue: self._handlers[queue] for queue in self.queues}

    def only(self, queues: Sequence[str]) -> Worker:
        """The same worker for some of its queues, in this order. Raises `AppUnusable` for others."""
        strange = [queue for queue in queues if queue not in self.queues]
        if strange:
            raise AppUnusable(
                f"the worker has no queue {', '.join(strange)}; it has {', '.join(self.queues)}"
            )
        chosen = Worker(queues=list(queues))
        chosen._handlers = {queue: h for queue, h in self._handlers.items() if queue in queues}
        chosen._on_refused = self._on_refused
        return chosen

    def run(
        self,
        *,
        store: TaskStore | None = None,
        outbox: Path | str | None = None,
        once: bool = False,
        settings: Settings | None = None,
    ) -> None:
        """Run until a signal, or with `once` until nothing is left. Ends the process if something is wrong.

        `store`: the API server by default (in the cluster, or by kubeconfig). `outbox`: the file, default
        `$FENCEPOST_OUTBOX` or `./fencepost-outbox.db`. `settings` goes before `once`.
        """
        if not logging.getLogger().handlers:
            logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        try:
            work = self.run_async(store=store, outbox=outbox, once=once, settings=settings)
            asyncio.run(or_exit_when_grace_is_over(work))
        except (WorkerFailure, OutboxRefused, OutboxFailed) as failure:
            _end(failure)

    async def run_async(
        self,
        *,
        store: TaskStore | None = None,
        outbox: Path | str | None = None,
        once: bool = False,
        settings: Settings | None = None,
        drain_only: bool = False,
    ) -> Counter[str]:
        """As `run`, in a loop that exists; answers what was done, counted by verdict and event.

        Raises `WorkerFailure`, `OutboxRefused` or `OutboxFailed`. `drain_only` hands in what lies
        in the outbox and ends.
        """
        handlers = {} if drain_only else self.handlers
        settings = settings or Settings(once=once)
        async with AsyncExitStack() as stack:
            opened = stack.enter_context(open_outbox(outbox_path(outbox)))
            _prune(opened)
            if store is None:
                store = await connect_to_cluster()
                stack.push_async_callback(store.close)
            stopping = Stopping(grace_seconds=settings.grace_seconds)
            stack.callback(stopping.close)
            stack.enter_context(signals_ask_to_stop(stopping))
            account = await _account(store, settings, stopping)
            if account is None:
                return Counter()
            place = Workplace(
                store=store,
                outbox=opened,
                account=account,
                settings=settings,
                stopping=stopping,
                on_refused=self._on_refused,
            )
            loop = Loop(place, handlers)
            await (loop.drain_only() if drain_only else loop.run())
            LOG.info("ended: %s", summary_of(place.tally))
            return place.tally

    def _register(self, function: Function, queue: str | None) -> Function:
        if queue is None and len(self.queues) > 1:
            raise AppUnusable(f"say which queue: @worker.task(queue=...), one of {', '.join(self.queues)}")
        name = queue if queue is not None else self.queues[0]
        if name not in self.queues:
            raise AppUnusable(f"the worker has no queue {name}; it has {', '.join(self.queues)}")
        if name in self._handlers:
            raise AppUnusable(f"the queue {name} has a handler already: one handler a queue")
        self._handlers[name] = handler_of(function, name)
        return function


def _refuse_queues(queues: Sequence[str]) -> None:
    for queue in queues:
        if not 1 <= len(queue) <= QUEUE_CHARACTERS_MAX:
            raise ValueError(f"a queue has 1 to {QUEUE_CHARACTERS_MAX} characters, got {queue!r}")
    if not queues or len(set(queues)) != len(queues):
        raise ValueError("a Worker takes at least one queue, and each once")


def outbox_path(given: Path | str | None) -> Path:
    """The outbox file: as given, else `$FENCEPOST_OUTBOX`, else in the working directory."""
    return Path(given or os.environ.get(OUTBOX_VARIABLE) or OUTBOX_DEFAULT)


def open_outbox(path: Path) -> Outbox:
    """The outbox of this process, under a new incarnation. Raises `OutboxRefused`."""
    outbox = Outbox.open(
        path,
        owner=next(
            (os.environ[name] for name in OWNER_VARIABLES if os.environ.get(name)), socket.gethostname()
        ),
        incarnation=secrets.token_hex(8),
        new_uuid=lambda: str(uuid.uuid4()),
        now=time_of_day,
    )
    for warning in outbox.warnings:
        LOG.warning("%s", warning)
    return outbox


def _prune(outbox: Outbox) -> None:
    """Once a start: rows that were acknowledged a set age ago go. Without room for it, nothing goes."""
    try:
        outbox.prune()
    except OutboxWriteFailed as error:
        LOG.warning("old rows could not be pruned: %s", error)


async def connect_to_cluster(
    *, kubeconfig: Path | None = None, context: str | None = None, namespace: str | None = None
) -> TaskStore:
    """The API server as a store. Raises `NoAccess` with what is missing."""
    from fencepost.kube.connection import NoCluster, connect
    from fencepost.kube.store import KubeStore

    try:
        return KubeStore.of(connect(kubeconfig=kubeconfig, context=context, namespace=namespace))
    except NoCluster as error:
        raise NoAccess(str(error)) from error


async def _account(store: TaskStore, settings: Settings, stopping: Stopping) -> str | None:
    """Who the store says that we are; None if the worker was told to stop before it answered."""
    tries = 0
    while not stopping.requested:
        try:
            return await store.account()
        except StoreRefused as refused:
            raise NoAccess(f"the store does not say who we are: {refused}") from refused
        except StoreUnavailable as error:
            tries += 1
            wait = max(error.retry_after_seconds or 0.0, retry_seconds(tries, spread=0.5))
            if settings.once and wait >= RETRY_SECONDS_MAX / 2:
                raise TryAgainLater(f"the store does not answer: {error}") from error
            LOG.warning("the store does not answer, next try in %.1f s: %s", wait, error)
            await stopping.sleep(wait)
    return None


async def or_exit_when_grace_is_over(work: Coroutine[Any, Any, T]) -> T:
    """For programs: a handler that still runs can be neither ended nor waited for, so the process ends.

    Closing the loop would wait for it. The outbox is closed by then; the lease runs out.
    """
    try:
        return await work
    except GraceOver as failure:
        _end(failure)
        raise


def _end(failure: WorkerFailure | OutboxRefused | OutboxFailed) -> None:
    """One sentence and the exit code."""
    print(f"fencepost: {failure}", file=sys.stderr, flush=True)
    code = WorkerFailure.exit_code if isinstance(failure, OutboxFailed) else failure.exit_code
    if isinstance(failure, GraceOver):
        os._exit(code)
    sys.exit(code)


__all__ = ["Worker", "connect_to_cluster", "open_outbox", "or_exit_when_grace_is_over", "outbox_path"]
