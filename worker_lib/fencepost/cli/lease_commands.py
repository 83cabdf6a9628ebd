"""`fencepost claim`, `heartbeat`, `release`, `submit`: the worker's writes for scripts in any language.

The lease travels as JSON, in a file or on stdin. `submit` prints its verdict and ends with a code for it.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Callable
from typing import Any, TextIO, TypeVar

import click

from fencepost.api.write import receipt_object
from fencepost.cli import exit_codes
from fencepost.cli.output import output_option, print_json
from fencepost.cli.target import run_async, target_of, target_options
from fencepost.protocol.fencing import NotCanonical, holder_name
from fencepost.protocol.limits import PROGRESS_BYTES_MAX, text_size
from fencepost.protocol.payload import PayloadRefused, value_text
from fencepost.protocol.receipt import key_problem
from fencepost.protocol.task import Kind, LeaseEnd, Outcome, Task
from fencepost.worker import bare_lease
from fencepost.worker.bare_lease import BareLease, LeaseUnreadable
from fencepost.worker.handing_in import Judged, NotNow, Unacceptable

Command = TypeVar("Command", bound=Callable[..., Any])


def lease_argument(command: Command) -> Command:
    """Adds the argument LEASE: a file, or `-` for stdin."""
    return click.argument("lease_file", metavar="LEASE", type=click.File("r", encoding="utf-8"))(command)


@click.command()
@click.argument("queue")
@click.option("--holder", envvar="FENCEPOST_HOLDER", help="UUID/INCARNATION. Default: a new one.")
@target_options
@click.pass_context
def claim(ctx: click.Context, queue: str, holder: str | None) -> int:
    """Claim one task of QUEUE and print the lease as JSON.

    \b
    Example:
      fencepost claim feeds > lease.json || exit
      do-the-work "$(jq .request lease.json)" > result.json
      fencepost submit lease.json --file result.json

    Without --holder each claim is a worker of its own, so a script that crashed never finds its lease again:
    it runs out. Exit codes: 0 claimed, 2 wrong input, 3 there is nothing to claim and nothing is printed, 62
    the store does not answer, 64 no access.
    """
    target, name = target_of(ctx), _holder(holder)

    async def work() -> Task | None:
        async with target.opened(must_exist=True) as store:
            return await bare_lease.claim_one(store, queue, holder=name)

    task = run_async(work())
    if task is None:
        return exit_codes.NOTHING
    click.echo(bare_lease.lease_text(task))
    return exit_codes.OK


def _holder(given: str | None) -> str:
    if given is None:
        return holder_name(str(uuid.uuid4()), secrets.token_hex(8))
    outbox, _, incarnation = given.partition("/")
    try:
        return holder_name(outbox, incarnation)
    except NotCanonical as error:
        raise click.BadParameter(str(error), param_hint="--holder") from None


@click.command()
@lease_argument
@click.option("--progress", help="A text of up to 1 KiB for people and the next attempt.")
@target_options
@click.pass_context
def heartbeat(ctx: click.Context, lease_file: TextIO, progress: str | None) -> int:
    """Renew the lease in the file LEASE (`-`: stdin). Do it every third of leaseDurationSeconds.

    \b
    Example:
      fencepost heartbeat lease.json --progress '40 of 100' || stop-working

    Exit codes: 0 renewed, 2 wrong input, 4 the lease is over: stop working, another worker may have started,
    62 the store does not answer, 64 no access.
    """
    if progress is not None and text_size(progress) > PROGRESS_BYTES_MAX:
        raise click.BadParameter(f"at most {PROGRESS_BYTES_MAX} bytes", param_hint="--progress")
    lease, target = _lease(lease_file), target_of(ctx)

    async def work() -> Task | None:
        async with target.opened(must_exist=True) as store:
            return await bare_lease.renew(store, lease, progress=progress)

    return _in_force(run_async(work()), lease)


@click.command()
@lease_argument
@click.option("--error", metavar="MESSAGE", help="The work failed: retry it after its backoff.")
@target_options
@click.pass_context
def release(ctx: click.Context, lease_file: TextIO, error: str | None) -> int:
    """Let go of the lease in the file LEASE (`-`: stdin) without a result.

    \b
    Examples:
      fencepost release lease.json
      fencepost release lease.json --error 'the feed answered 503'

    Without --error the task is free at once and no failure is counted. Exit codes: 0 released, 2 wrong input,
    4 the lease was over, 62 the store does not answer, 64 no access.
    """
    lease, target = _lease(lease_file), target_of(ctx)
    end = LeaseEnd.SHUTDOWN if error is None else LeaseEnd.ERROR

    async def work() -> Task | None:
        async with target.opened(must_exist=True) as store:
            return await bare_lease.let_go(store, lease, end, error or "")

    return _in_force(run_async(work()), lease)


@click.command()
@lease_argument
@click.argument("value", required=False)
@click.option("--file", "value_file", type=click.File("r", encoding="utf-8"), help="Read the value there.")
@click.option(
    "--outcome",
    type=click.Choice([outcome.value for outcome in Outcome], case_sensitive=False),
    default=Outcome.OK.value,
    show_default=True,
    help="What the work came to. Unknown has no value and settles nothing.",
)
@click.option("--row", is_flag=True, help="Hand in a row on the way; the lease goes on.")
@click.option("--key", help="An idempotency key of your own.")
@output_option
@target_options
@click.pass_context
def submit(
    ctx: click.Context,
    lease_file: TextIO,
    value: str | None,
    value_file: TextIO | None,
    outcome: str,
    row: bool,
    key: str | None,
    output: str,
) -> int:
    """Hand in the result of the lease in the file LEASE (`-`: stdin): VALUE, or what --file has.

    \b
    Examples:
      fencepost submit lease.json '{"rows": 41}'
      fencepost submit lease.json --file result.json
      fencepost submit lease.json --outcome Rejected 'no such feed'
      fencepost submit lease.json --row 'first row' --key row-1

    The value is kept byte for byte. The same submit again is a DUPLICATE with the original receipt. Exit
    codes: 0 the receipt stands, 2 wrong input, 10 CONFLICT, 11 REJECTED_STALE_TOKEN, 12
    REJECTED_EXPIRED_LEASE, 13 ALREADY_TERMINAL, 14 TERMINAL_CONFLICT, 15 UNKNOWN_TASK, 16 unacceptable (for
    example a value of over 16 KiB), 62 try the same again later, 64 no access.
    """
    lease, target = _lease(lease_file), target_of(ctx)
    if row and outcome != Outcome.OK.value:
        raise click.UsageError("a row has the outcome Ok: leave out --outcome", ctx)
    problem = key_problem(key) if key is not None else None
    if problem:
        raise click.BadParameter(problem, param_hint="--key")
    try:
        text = _value(value, value_file, Outcome(outcome))
    except PayloadRefused as error:
        return _told(Unacceptable(message=str(error), task=None), output)

    async def work() -> Judged | Unacceptable | NotNow:
        async with target.opened(must_exist=True) as store:
            kind = Kind.ROW if row else Kind.RESULT
            return await bare_lease.submit(
                store, lease, kind=kind, outcome=Outcome(outcome), value=text, key=key
            )

    return _told(run_async(work()), output)


def _value(value: str | None, value_file: TextIO | None, outcome: Outcome) -> str:
    if value is not None and value_file is not None:
        raise click.UsageError("give the value as an argument or with --file, not both")
    if outcome is Outcome.UNKNOWN:
        if value or value_file:
            raise click.UsageError("an Unknown outcome has no value: leave it out")
        return ""
    if value is None and value_file is None:
        raise click.UsageError("give the value as an argument or with --file ('' for an empty one)")
    try:
        return value_text(value if value_file is None else value_file.read())
    except UnicodeDecodeError as error:
        raise click.UsageError(f"the value is not UTF-8 text: {error.reason} at byte {error.start}") from None


def _lease(lease_file: TextIO) -> BareLease:
    try:
        return bare_lease.lease_from_text(lease_file.read())
    except (LeaseUnreadable, UnicodeDecodeError) as error:
        raise click.UsageError(f"{lease_file.name}: {error}") from None


def _in_force(task: Task | None, lease: BareLease) -> int:
    if task is not None:
        return exit_codes.OK
    click.echo(f"fencepost: the lease of {lease.key} with token {lease.token} is over", err=True)
    return exit_codes.LEASE_OVER


def _told(end: Judged | Unacceptable | NotNow, output: str) -> int:
    """Print what became of the submit; its exit code."""
    if isinstance(end, Judged):
        receipt = end.judgement.receipt
        fields = {
            "verdict": end.judgement.verdict.value,
            "nextStep": end.judgement.next_step.value,
            "message": end.judgement.message,
            "receipt": receipt_object(receipt) if receipt else None,
        }
        code = exit_codes.OF_VERDICT[end.judgement.verdict]
    else:
        later = isinstance(end, NotNow)
        fields = {"verdict": "RETRY_LATER" if later else "UNACCEPTABLE", "message": end.message}
        code = exit_codes.TRY_AGAIN_LATER if later else exit_codes.UNACCEPTABLE
    fields = {name: value for name, value in fields.items() if value}
    if output == "json":
        print_json(fields)
    else:
        click.echo(fields["verdict"])
        if end_message := fields.get("message"):
            click.echo(f"fencepost: {end_message}", err=True)
    return code
