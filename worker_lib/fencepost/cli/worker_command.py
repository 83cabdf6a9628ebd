"""`fencepost worker`: run the user's worker."""

from __future__ import annotations

import logging
from pathlib import Path

import click

from fencepost.cli.app import load_worker
from fencepost.cli.target import Target, run_async, target_of, target_options
from fencepost.worker.settings import GRACE_SECONDS, Settings
from fencepost.worker.worker import Worker, or_exit_when_grace_is_over

LOCAL_IDLE_SECONDS = (0.02, 0.25)  # a file on this machine may be asked often


@click.command()
@click.argument("app")
@click.option("--once", is_flag=True, help="Drain, claim until nothing is left, end.")
@click.option("--queue", "queues", multiple=True, help="Only this queue of the worker. May be given again.")
@click.option(
    "--outbox",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="FENCEPOST_OUTBOX",
    help="The outbox file. Default: ./fencepost-outbox.db",
)
@click.option(
    "--grace-seconds",
    type=click.FloatRange(min=0, max=3600),
    default=GRACE_SECONDS,
    show_default=True,
    help="How long the handler may go on after SIGTERM.",
)
@click.option("-v", "--verbose", is_flag=True, help="Log more.")
@target_options
@click.pass_context
def worker(
    ctx: click.Context,
    app: str,
    once: bool,
    queues: tuple[str, ...],
    outbox: Path | None,
    grace_seconds: float,
    verbose: bool,
) -> None:
    """Work on the tasks of the queues of APP, which is module:variable.

    \b
    Examples:
      fencepost worker feeds:worker
      fencepost worker feeds:worker --once --outbox /data/outbox.db
      fencepost worker feeds:worker --store jobs.db

    The first SIGTERM or SIGINT lets the handler finish, the second one ends the process at once. Exit codes:
    0 done, 61 APP cannot be used, 62 the store was away or rows are left in the outbox, 63 its schema is too
    old, 64 no access, 65 the handler outlived its grace, 66 second signal, 71 to 76 the outbox was refused.
    """
    log_to_stderr(verbose=verbose)
    loaded = load_worker(app)
    chosen = loaded.only(queues) if queues else loaded
    chosen.handlers  # noqa: B018 - says now what is missing
    target = target_of(ctx)
    run_async(_work(chosen, target, outbox, settings_for(target, once=once, grace_seconds=grace_seconds)))


async def _work(worker: Worker, target: Target, outbox: Path | None, settings: Settings) -> None:
    async with target.opened() as store:
        await or_exit_when_grace_is_over(worker.run_async(store=store, outbox=outbox, settings=settings))


def settings_for(target: Target, *, once: bool, grace_seconds: float) -> Settings:
    """The settings of a worker: a store on this machine is looked at more often than a server."""
    if target.store is None:
        return Settings(once=once, grace_seconds=grace_seconds)
    shortest, longest = LOCAL_IDLE_SECONDS
    return Settings(
        once=once, grace_seconds=grace_seconds, idle_seconds_min=shortest, idle_seconds_max=longest
    )


def log_to_stderr(*, verbose: bool) -> None:
    """Lines with the time on stderr; a program that configured logging itself is left alone."""
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO,
        format="%(asctime)s %(levelname)-7s %(name)s: %(message)s",
    )
