"""`fencepost enqueue`: make a task."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click

from fencepost.api.write import task_view
from fencepost.cli import exit_codes
from fencepost.cli.output import output_option, print_json
from fencepost.cli.strict_json import JsonRefused, parse_json
from fencepost.cli.target import run_async, target_of, target_options
from fencepost.protocol import limits
from fencepost.protocol.submission import Verdict
from fencepost.protocol.task import RetryPolicy, TaskSpec, UnknownPolicy
from fencepost.worker.enqueue import Enqueued, enqueue_async

_SECONDS: Final = click.IntRange(min=1, max=limits.DEADLINE_SECONDS_MAX)


@click.command()
@click.argument("queue")
@click.argument("request_text", metavar="REQUEST", required=False)
@click.option(
    "--file",
    "file",
    type=click.Path(path_type=Path, allow_dash=True),
    help="Read the request there (-: stdin).",
)
@click.option("--name", help="The task's name. Default: derived from queue and request.")
@click.option("--priority", type=click.IntRange(limits.PRIORITY_MIN, limits.PRIORITY_MAX))
@click.option("--lease-seconds", type=click.IntRange(limits.LEASE_SECONDS_MIN, limits.LEASE_SECONDS_MAX))
@click.option("--max-failures", type=click.IntRange(0, limits.FAILURES_MAX))
@click.option("--deadline-seconds", type=_SECONDS, help="Settle it as Failed after this time.")
@click.option("--ttl-seconds", type=_SECONDS, help="Delete it this long after it has settled.")
@click.option("--unknown-policy", type=click.Choice([policy.value for policy in UnknownPolicy]))
@output_option
@target_options
@click.pass_context
def enqueue(
    ctx: click.Context,
    /,
    queue: str,
    request_text: str | None,
    file: Path | None,
    name: str | None,
    output: str,
    **asked: Any,
) -> int:
    """Make a task in QUEUE with REQUEST, a JSON object.

    \b
    Examples:
      fencepost enqueue feeds '{"url": "https://example.org/feed"}'
      fencepost enqueue feeds --file request.json --name import-2026-01-01 --priority 9

    The same content again is a replay (DUPLICATE); other content under the same name is a CONFLICT and
    changes nothing. Exit codes: 0 the task is there, 2 wrong input, 10 CONFLICT, 62 the store does not
    answer, 64 no access.
    """
    if not 1 <= len(queue) <= limits.QUEUE_CHARACTERS_MAX:
        raise click.BadParameter(f"1 to {limits.QUEUE_CHARACTERS_MAX} characters", param_hint="QUEUE")
    request = _request(request_text, file)
    target = target_of(ctx)

    async def work() -> Enqueued:
        async with target.opened() as store:
            return await enqueue_async(queue, request, name=name, store=store, spec=_spec(asked))

    made = run_async(work())
    if output == "json":
        print_json({"verdict": made.verdict.value, "task": task_view(made.task)})
    else:
        click.echo(f"{made.verdict.value} {made.task.key}")
    if made.verdict is Verdict.CONFLICT:
        taken = f"the name {made.task.key} is taken by a task with other content"
        click.echo(f"fencepost: {taken}: nothing was changed, choose another --name", err=True)
    return exit_codes.OF_VERDICT[made.verdict]


def _request(text: str | None, file: Path | None) -> object:
    if (text is None) == (file is None):
        raise click.UsageError("give the request as an argument or with --file")
    if file is not None:
        with click.open_file(str(file), encoding="utf-8") as opened:
            try:
                text = opened.read()
            except UnicodeDecodeError as error:
                raise click.UsageError(f"{file} is not UTF-8 text: {error.reason}") from None
    try:
        return parse_json(text or "")
    except JsonRefused as error:
        raise click.UsageError(f"the request is no JSON: {error}") from None


def _spec(asked: dict[str, Any]) -> TaskSpec:
    """The defaults of a task with what was asked for."""
    fields = {
        "priority": asked["priority"],
        "lease_duration_seconds": asked["lease_seconds"],
        "active_deadline_seconds": asked["deadline_seconds"],
        "ttl_seconds_after_finished": asked["ttl_seconds"],
        "unknown_policy": UnknownPolicy(asked["unknown_policy"]) if asked["unknown_policy"] else None,
        "retry_policy": RetryPolicy(max_failures=asked["max_failures"])
        if asked["max_failures"] is not None
        else None,
    }
    return replace(TaskSpec(), **{name: value for name, value in fields.items() if value is not None})
