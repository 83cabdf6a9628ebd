"""`fencepost run`: a manifest from its first task to its last snapshot, on one machine, without a cluster.

The parent keeps the store and starts worker processes; each of them claims, executes and submits as it would
on a cluster. Kill any of them, or the parent, at any moment and start again with the same store: the run goes
on and ends with the same snapshot digest. What has happened is in the store and in the outboxes beside it.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TextIO

from fencepost.api.manifest import JobManifest, ManifestUnreadable, TaskManifest, load_manifests
from fencepost.local import continuing, view
from fencepost.local.crew import Crew, Death
from fencepost.local.keeper import Keeper
from fencepost.local.leftovers import Leftovers, outboxes_beyond
from fencepost.local.one_run import StoreTaken, only_run_on
from fencepost.local.patience import Patience, StoreAway
from fencepost.local.processes import GRACE_SECONDS, Processes
from fencepost.local.screen import Screen
from fencepost.local.store import LocalStore
from fencepost.ports import Cause, NewTask, Refused, StoreRefused, StoreUnavailable, Unanswered
from fencepost.protocol.job import Continuation, ContinuationKind, JobSpec
from fencepost.protocol.task import ObjectKey

SUCCEEDED: Final = 0  # every job Succeeded, its continuation too
FAILED: Final = 1  # a job or a task ended Failed
WRONG_INPUT: Final = 2  # the manifest, the store or the app cannot be used; nothing was started
STANDSTILL: Final = 20  # what is left waits for a person or a report; start again when that has come
NO_WORKERS: Final = 21  # the workers cannot be used or keep dying; the log says why
STORE_AWAY: Final = 22  # the store could not be used for minutes; start again when it can
INTERRUPTED: Final = 130  # told to stop; start again to go on

CONTINUE: Final = "Nothing is lost: the same command goes on from there."

LOOK_SECONDS: Final = 0.05
# Looks in a row that find nothing to go on with: a worker may be between two steps.
STILL_LOOKS: Final = 20
WORKERS_MAX: Final = 64


class RunRefused(ValueError):  # noqa: N818
    """The run cannot begin; the sentence says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be run, where."""

    manifests: tuple[JobManifest | TaskManifest, ...]
    app: str
    workers: int
    store: Path

    @property
    def namespace(self) -> str:
        return self.manifests[0].namespace

    @property
    def keys(self) -> list[ObjectKey]:
        return [
            ObjectKey(namespace=manifest.namespace, name=manifest.key_name) for manifest in self.manifests
        ]

    def outbox(self, number: int) -> Path:
        return self.store.with_name(f"{self.store.name}.outbox-{number}")

    def log(self, number: int) -> Path:
        return self.store.with_name(f"{self.store.name}.worker-{number}.log")

    def drain_command(self, number: int) -> list[str]:
        where = ["--store", str(self.store), "--namespace", self.namespace]
        return ["outbox", "drain", *where, "--outbox", str(self.outbox(number))]

    def command(self, number: int) -> list[str]:
        where = ["--store", str(self.store), "--namespace", self.namespace]
        grace = ["--grace-seconds", str(GRACE_SECONDS)]
        return ["worker", self.app, *where, *grace, "--outbox", str(self.outbox(number))]


def run_manifest(
    manifest: Path,
    app: str,
    *,
    workers: int = 2,
    store: Path | None = None,
    served: Collection[str] | None = None,
    out: TextIO | None = None,
    err: TextIO | None = None,
) -> int:
    """Run the jobs and tasks of a manifest to their end; the exit code (the constants above).

    `app` is `module:variable`, what `fencepost worker` takes. `workers` is the number of processes, 1 to 64.
    `store` is the file, default `NAME.fencepost.db` beside the manifest, after its name.
    `served` are the queues that the app has handlers for; where given, a manifest that needs another one is
    refused before anything starts. Nothing is raised: what is wrong is told on `err`.
    """
    screen = Screen(out=out or sys.stdout, err=err or sys.stderr)
    try:
        plan = _plan(manifest, app, workers=workers, store=store, served=served)
        opened = LocalStore(plan.store, namespace=plan.namespace)
    except (RunRefused, ManifestUnreadable, StoreRefused) as refusal:
        screen.warn(str(refusal))
        return WRONG_INPUT
    except StoreUnavailable as failure:
        screen.warn(str(failure))
        return STORE_AWAY
    try:
        with only_run_on(plan.store):
            return asyncio.run(_Run(plan=plan, store=opened, screen=screen).to_the_end())
    except (RunRefused, StoreTaken, StoreRefused) as refusal:
        screen.warn(str(refusal))
        return WRONG_INPUT
    except (StoreAway, StoreUnavailable) as failure:
        screen.warn(f"{failure}. {CONTINUE}")
        return STORE_AWAY
    finally:
        screen.end_progress()
        opened.close_now()


def _plan(
    manifest: Path, app: str, *, workers: int, store: Path | None, served: Collection[str] | None
) -> Plan:
    """Raises `RunRefused` or `ManifestUnreadable`."""
    if not 1 <= workers <= WORKERS_MAX:
        raise RunRefused(f"{workers} workers: 1 to {WORKERS_MAX} are allowed")
    try:
        text = manifest.read_text(encoding="utf-8")
    except OSError as failure:
        raise RunRefused(f"{manifest} cannot be read: {failure.strerror}") from None
    except UnicodeDecodeError as failure:
        raise RunRefused(f"{manifest} is not UTF-8 text (byte {failure.start})") from None
    manifests = tuple(load_manifests(text, source=str(manifest)))
    _refuse_what_cannot_run_here(manifests, served)
    default = manifest.with_name(f"{manifest.stem}.fencepost.db")
    return Plan(manifests=manifests, app=app, workers=workers, store=store or default)


def _refuse_what_cannot_run_here(
    manifests: Sequence[JobManifest | TaskManifest], served: Collection[str] | None
) -> None:
    namespaces = sorted({manifest.namespace for manifest in manifests})
    if len(namespaces) > 1:
        raise RunRefused(f"all of a run is in one namespace, the manifest has {', '.join(namespaces)}")
    keys = [manifest.key_name for manifest in manifests]
    for name in keys:
        if keys.count(name) > 1:
            raise RunRefused(f"the manifest has two objects of the name {name}")
    for manifest in manifests:
        for queue in _queues(manifest):
            if served is not None and queue not in served:
                has = ", ".join(sorted(served))
                raise RunRefused(f"{manifest.key_name} needs the queue {queue}, the app has {has}")


def _queues(manifest: JobManifest | TaskManifest) -> set[str]:
    """The queues that its tasks and continuations are put in; raises `RunRefused` for a batch/v1 Job."""
    if isinstance(manifest, TaskManifest):
        return set() if manifest.spec.external else {manifest.spec.queue}
    return _queues_of_job(manifest.spec)


def _queues_of_job(spec: JobSpec) -> set[str]:
    queues = set() if spec.template.external else {spec.template.queue}
    return queues | (_queues_of_continuation(spec.continuation) if spec.continuation else set())


def _queues_of_continuation(planned: Continuation) -> set[str]:
    if planned.kind is ContinuationKind.JOB:
        raise RunRefused(continuing.NEEDS_PODS)
    spec = continuing.template_spec(planned)
    if isinstance(spec, JobSpec):
        return _queues_of_job(spec)
    return set() if spec.external else {spec.queue}


@dataclass(slots=True, kw_only=True)
class _Run:
    """One run, from the creation of its objects to its exit code."""

    plan: Plan
    store: LocalStore
    screen: Screen
    _stop: asyncio.Event = field(default_factory=asyncio.Event)
    _signals: int = 0
    _still: int = 0
    _processes: Processes = field(init=False)
    _patience: Patience = field(init=False)

    def __post_init__(self) -> None:
        self._processes = Processes(tell=self.screen.warn)
        self._patience = Patience(tell=self.screen.warn, stop=self._stop)

    async def to_the_end(self) -> int:
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._told_to_stop)
        try:
            await self._prepare()
            code = await self._work()
            self.screen.end_progress()
            await self._tell_the_end(code)
        except StoreUnavailable:
            if not self._signals:
                raise
            self.screen.warn(f"interrupted. {CONTINUE}")
            return INTERRUPTED
        return code

    async def _prepare(self) -> None:
        """Make what is not made yet, and hand in what no worker of this run would."""
        await self._patience.ask(self._create)
        leftovers = Leftovers(
            processes=self._processes,
            command=self.plan.drain_command,
            log_file=self.plan.log,
            tell=self.screen.warn,
        )
        outboxes = outboxes_beyond(self.plan.store, self.plan.workers)
        await self._patience.ask(lambda: leftovers.hand_in(self.store, outboxes))

    async def _work(self) -> int:
        crew = Crew(
            size=self.plan.workers,
            processes=self._processes,
            command=self.plan.command,
            log_file=self.plan.log,
            on_death=self._tell_death,
        )
        keeping = asyncio.create_task(Keeper(store=self.store).run(self._stop, self._patience))
        working = asyncio.create_task(crew.run())
        try:
            return await self._watch(crew, keeping, working)
        finally:
            await self._end(keeping, working)

    async def _tell_the_end(self, code: int) -> None:
        if code in (SUCCEEDED, FAILED, STANDSTILL):
            self.screen.show(await self.store.look(lambda ledger: view.tables(ledger, self.plan.keys)))
        if code == STANDSTILL:
            waits = await self.store.look(lambda ledger: view.waits(ledger, self.plan.keys))
            self.screen.warn(f"nothing is left to do here: {'; '.join(waits)}")
        if code == INTERRUPTED:
            seen = await self._look()
            self.screen.warn(f"interrupted at {seen.sentence}. {CONTINUE}")

    async def _create(self) -> None:
        """Make what the manifest names, unless an earlier run did; raises `RunRefused` for other content.

        May be called again after `StoreUnavailable`.
        """
        for manifest in self.plan.manifests:
            if isinstance(manifest, JobManifest):
                answer: object = await self.store.create_job(manifest.key_name, manifest.spec)
            else:
                answer = await self._create_task(manifest)
            if isinstance(answer, Unanswered):
                raise StoreUnavailable(answer.message)
            if isinstance(answer, Refused) and answer.cause is Cause.OVERLOADED:
                raise StoreUnavailable(answer.message, answer.retry_after_seconds)
            if isinstance(answer, Refused):
                raise RunRefused(f"{answer.message} (in {self.plan.store}; another --store begins anew)")

    async def _create_task(self, manifest: TaskManifest) -> object:
        key = ObjectKey(namespace=manifest.namespace, name=manifest.key_name)
        answer = await self.store.create(NewTask(key=key, spec=manifest.spec))
        if isinstance(answer, Refused) and answer.cause is Cause.EXISTS:
            known = await self.store.task(key)
            if known is not None and known.spec == manifest.spec:
                return known
        return answer

    async def _watch(self, crew: Crew, keeping: asyncio.Task[None], working: asyncio.Task[None]) -> int:
        """Look at the store until the run is over, however that comes."""
        settled = -1
        while True:
            seen = await self._patience.ask(self._look)
            self.screen.progress(seen)
            if seen.settled_of_all > settled:
                settled = seen.settled_of_all
                crew.something_was_settled()
            code = self._code(seen, crew)
            if code is not None:
                return code
            if keeping.done():
                keeping.result()
            if working.done():
                working.result()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), LOOK_SECONDS)

    def _code(self, seen: view.View, crew: Crew) -> int | None:
        if seen.done:
            return FAILED if seen.failed else SUCCEEDED
        if self._signals:
            return INTERRUPTED
        if crew.hopeless is not None:
            self.screen.warn(f"giving up after {crew.deaths} deaths of workers; {crew.hopeless.sentence}")
            return NO_WORKERS
        self._still = 0 if seen.can_go_on else self._still + 1
        return STANDSTILL if self._still >= STILL_LOOKS else None

    async def _look(self) -> view.View:
        return await self.store.look(lambda ledger: view.look(ledger, self.plan.keys))

    def _told_to_stop(self) -> None:
        self._signals += 1
        self._stop.set()
        if self._signals == 1:
            self.screen.warn("stopping: the workers finish what they hold, a second signal ends them at once")
            self._processes.stop()
        else:
            self._processes.kill()

    def _tell_death(self, death: Death) -> None:
        self.screen.warn(f"{death.sentence} (log: {self.plan.log(death.worker)})")

    async def _end(self, keeping: asyncio.Task[None], working: asyncio.Task[None]) -> None:
        """Stop the workers and wait for them: they release what they hold; what they have is in outboxes."""
        self._stop.set()
        self._processes.stop()
        await asyncio.gather(working, keeping, return_exceptions=True)
