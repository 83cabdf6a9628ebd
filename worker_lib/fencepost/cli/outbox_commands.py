"""`fencepost outbox`: look into a worker's outbox, drain it, prune it.

An outbox belongs to one process: while its worker runs, these commands are refused and name it. `ls` and
`dead` only look: they change and move nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from fencepost.cli.output import output_option, print_json, print_table
from fencepost.cli.target import run_async, target_of, target_options
from fencepost.cli.worker_command import log_to_stderr, settings_for
from fencepost.outbox import OutboxView, Row
from fencepost.protocol.drain import RowStatus
from fencepost.worker.settings import GRACE_SECONDS
from fencepost.worker.worker import Worker, open_outbox, outbox_path

Command = TypeVar("Command", bound=Callable[..., Any])


def outbox_option(command: Command) -> Command:
    """Adds --outbox, as the argument `outbox_file`."""
    return click.option(
        "--outbox",
        "outbox_file",
        type=click.Path(path_type=Path, dir_okay=False),
        envvar="FENCEPOST_OUTBOX",
        help="The outbox file. Default: ./fencepost-outbox.db",
    )(command)


@click.group()
def outbox() -> None:
    """Look into the outbox of a worker, drain it or prune it.

    \b
    Examples:
      fencepost outbox ls
      fencepost outbox dead -o json
      fencepost outbox drain -n shelter
      fencepost outbox prune --older-than-days 30

    Exit codes: each command has its own, see its --help; 71 to 76 say why an outbox was refused.
    """


@outbox.command("ls")
@click.option("--all", "everything", is_flag=True, help="Acknowledged rows too.")
@outbox_option
@output_option
def list_rows(outbox_file: Path | None, everything: bool, output: str) -> None:
    """List the rows that are not acknowledged yet. Only looks: changes and moves nothing.

    \b
    Examples:
      fencepost outbox ls --outbox /data/outbox.db
      fencepost outbox ls --all -o json

    Exit codes: 0 listed, 2 there is no such file, 71 a worker has it open, 72 it may not be opened, 74 it is
    damaged or no outbox, 76 it is of another version.
    """
    with outbox_to_look(outbox_file) as seen:
        rows = [row for row in seen.all() if everything or row.status is not RowStatus.ACKNOWLEDGED]
    _print(rows, output, empty="no rows" if everything else "Nothing is waiting in the outbox.")


@outbox.command()
@outbox_option
@output_option
def dead(outbox_file: Path | None, output: str) -> None:
    """List the dead letters, each with its reason. Only looks: changes and moves nothing.

    \b
    Example:
      fencepost outbox dead --outbox /data/outbox.db -o json

    Exit codes: 0 listed, 2 there is no such file, 71 a worker has it open, 72 it may not be opened, 74 it is
    damaged or no outbox, 76 it is of another version.
    """
    with outbox_to_look(outbox_file) as seen:
        rows = seen.dead()
    _print(rows, output, empty="There are no dead letters.")


@outbox.command()
@outbox_option
@target_options
@click.pass_context
def drain(ctx: click.Context, outbox_file: Path | None) -> None:
    """Hand in what lies in the outbox, without claiming anything. Nothing to do is success.

    \b
    Example:
      fencepost outbox drain --outbox /data/outbox.db -n shelter

    Exit codes: 0 nothing is left to send, 2 wrong input, 62 rows are left that the store does not take yet,
    63 its schema is too old, 64 no access, 71 to 76 the outbox was refused.
    """
    log_to_stderr(verbose=False)
    path, target = _existing(outbox_file), target_of(ctx)

    async def work() -> Counter[str]:
        async with target.opened(must_exist=True) as store:
            settings = settings_for(target, once=True, grace_seconds=GRACE_SECONDS)
            return await Worker(queue="-").run_async(
                store=store, outbox=path, settings=settings, drain_only=True
            )

    done = run_async(work())
    click.echo(", ".join(f"{what}: {count}" for what, count in sorted(done.items())) or "nothing to drain")


@outbox.command()
@click.option(
    "--older-than-days",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    help="The age of what is removed, since it was acknowledged.",
)
@click.option("--dead", "dead_too", is_flag=True, help="Dead letters of that age too.")
@outbox_option
def prune(outbox_file: Path | None, older_than_days: float, dead_too: bool) -> None:
    """Remove acknowledged rows of a certain age. What is pending or parked always stays.

    \b
    Examples:
      fencepost outbox prune --outbox /data/outbox.db
      fencepost outbox prune --older-than-days 7 --dead

    Exit codes: 0 done, 1 the file could not be written, 2 wrong input, 71 to 76 the outbox was refused.
    """
    with open_outbox(_existing(outbox_file)) as opened:
        removed = opened.prune(older_than_days, dead=dead_too)
    click.echo(f"{removed} rows removed")


def outbox_to_look(given: Path | None) -> OutboxView:
    """The outbox, to be closed by `with`. Raises `click.BadParameter` if there is no such file."""
    seen = OutboxView.open(_existing(given))
    for warning in seen.warnings:
        click.echo(f"fencepost: {warning}", err=True)
    return seen


def _existing(given: Path | None) -> Path:
    path = outbox_path(given)
    if not path.exists():
        raise click.BadParameter(f"there is no outbox {path}", param_hint="--outbox")
    return path


def _print(rows: Sequence[Row], output: str, *, empty: str) -> None:
    if output == "json":
        print_json([row_view(row) for row in rows])
        return
    headings = ("ID", "STATUS", "TASK", "KIND", "OUTCOME", "TOKEN", "TRIES", "REASON")
    table = [
        (
            row.id,
            row.status.value,
            row.task_key,
            row.kind.value,
            row.outcome.value,
            row.token,
            row.tries,
            row.reason or row.last_error,
        )
        for row in rows
    ]
    print_table(headings, table, empty=empty)


def row_view(row: Row) -> dict[str, object]:
    """A row for `-o json`."""
    fields: dict[str, object] = {
        "id": row.id,
        "status": row.status.value,
        "namespace": row.task_key.namespace,
        "name": row.task_key.name,
        "uid": row.uid,
        "token": row.token,
        "holder": row.holder,
        "kind": row.kind.value,
        "outcome": row.outcome.value,
        "value": row.value,
        "payloadSha256": row.payload_sha256,
        "idempotencyKey": row.idempotency_key,
        "job": row.job.name if row.job else None,
        "branch": row.branch,
        "tries": row.tries,
        "reason": row.reason,
        "lastError": row.last_error,
        "verdict": row.verdict.value if row.verdict else None,
        "receiptSha256": row.receipt_sha256,
        "storedAt": row.stored_at,
        "acknowledgedAt": row.acknowledged_at,
    }
    return {name: value for name, value in fields.items() if value not in (None, "")}


__all__ = ["outbox", "outbox_to_look", "row_view"]
