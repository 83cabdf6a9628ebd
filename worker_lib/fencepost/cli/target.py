"""Where a command looks: the options that say so, and the store that they mean."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from fencepost.ports import TaskStore
from fencepost.worker.worker import connect_to_cluster

Command = TypeVar("Command", bound=Callable[..., Any])
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A cluster and namespace, or the file of an embedded store."""

    namespace: str | None
    kubeconfig: Path | None
    context: str | None
    store: Path | None

    @asynccontextmanager
    async def opened(self, *, must_exist: bool = False) -> AsyncIterator[TaskStore]:
        """The store, closed at the end. `must_exist`: a file that is not there is an error."""
        opened = await self._open(must_exist)
        try:
            yield opened
        finally:
            await opened.close()

    async def _open(self, must_exist: bool) -> TaskStore:
        if self.store is None:
            return await connect_to_cluster(
                kubeconfig=self.kubeconfig, context=self.context, namespace=self.namespace
            )
        from fencepost.local.store import LocalStore

        if must_exist and not self.store.exists():
            raise click.BadParameter(f"there is no store {self.store}", param_hint="--store")
        return LocalStore(self.store, namespace=self.namespace or "default")


def target_options(command: Command) -> Command:
    """Adds --namespace, --kubeconfig, --context and --store; the command gets them as `target`."""

    def collect(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
        ctx.meta[f"fencepost.{param.name}"] = value
        return value

    for option in reversed(
        (
            click.option("-n", "--namespace", expose_value=False, callback=collect, help="Where to look."),
            click.option(
                "--kubeconfig",
                type=click.Path(path_type=Path, dir_okay=False),
                expose_value=False,
                callback=collect,
                help="How to reach the cluster. Default: KUBECONFIG, the pod, ~/.kube/config.",
            ),
            click.option("--context", expose_value=False, callback=collect, help="One of the kubeconfig's."),
            click.option(
                "--store",
                type=click.Path(path_type=Path, dir_okay=False),
                envvar="FENCEPOST_STORE",
                expose_value=False,
                callback=collect,
                help="The file of an embedded store, instead of a cluster.",
            ),
        )
    ):
        command = option(command)
    return command


def target_of(ctx: click.Context) -> Target:
    """What the options of `target_options` said. Raises `click.UsageError` for two places at once."""
    names = ("namespace", "kubeconfig", "context", "store")
    said = {name: ctx.meta.get(f"fencepost.{name}") for name in names}
    if said["store"] and (said["kubeconfig"] or said["context"]):
        raise click.UsageError("--store is instead of a cluster: leave out --kubeconfig and --context", ctx)
    return Target(**said)


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run the asynchronous part of a command."""
    return asyncio.run(work)
