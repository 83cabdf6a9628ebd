"""`fencepost`, also installed as `kubectl-fencepost` so that `kubectl fencepost` works.

Each command lives in a module of its own that is imported when it is called: `fencepost --help` loads no
HTTP client. Whatever goes wrong ends in one sentence on stderr and a documented exit code; a traceback is
shown only if FENCEPOST_DEBUG is set.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Final

import click

from fencepost.cli import exit_codes

DEBUG_VARIABLE: Final = "FENCEPOST_DEBUG"

# Command -> the module and name that it is, and the line that the list of commands shows.
COMMANDS: Final[dict[str, tuple[str, str, str]]] = {
    "run": ("run_command", "run", "Run a manifest on this machine, without a cluster."),
    "worker": ("worker_command", "worker", "Work on the tasks of a queue."),
    "enqueue": ("enqueue_command", "enqueue", "Make a task."),
    "get": ("look_commands", "get", "List tasks or jobs."),
    "tree": ("look_commands", "tree", "Show a job with its branches."),
    "outbox": ("outbox_commands", "outbox", "Look into the outbox of a worker, drain or prune it."),
    "audit": ("audit_command", "audit", "Compare an outbox with what the server has."),
    "claim": ("lease_commands", "claim", "Claim one task; the lease is printed as JSON."),
    "heartbeat": ("lease_commands", "heartbeat", "Renew a lease."),
    "release": ("lease_commands", "release", "Let go of a lease without a result."),
    "submit": ("lease_commands", "submit", "Hand in the result of a lease."),
}


class Commands(click.Group):
    """The commands in the order above, each loaded when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, name, _ = COMMANDS[cmd_name]
        command = getattr(importlib.import_module(f"fencepost.cli.{module}"), name)
        return command if isinstance(command, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, _, line) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise click.UsageError(f"there is no command {args[0]!r}{hint}", ctx) from error


def _version() -> str:
    from importlib.metadata import version

    return version("fencepost")


def _show_version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        click.echo(f"fencepost {_version()}")
        ctx.exit()


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_show_version,
    help="Show the version.",
)
def root() -> None:
    """Tasks that exactly one worker's result can settle, and joins that survive crashes.

    \b
    Examples:
      fencepost run examples/checksums/job.yaml --app examples.checksums.worker:worker
      fencepost worker feeds:worker --once
      fencepost get jobs -n shelter
      fencepost enqueue feeds '{"url": "https://example.org/feed"}'

    Without --store FILE the commands talk to the Kubernetes API server: the one of --kubeconfig and
    --context, else KUBECONFIG, else that of the pod, else ~/.kube/config.

    Exit codes: 0 done, 1 failed, 2 wrong input, and those that the --help of each command lists.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """The program: runs one command and ends the process with its exit code."""
    sys.exit(run(list(sys.argv[1:] if arguments is None else arguments), program=_program()))


def run(arguments: Sequence[str], *, program: str = "fencepost") -> int:
    """Run one command; its exit code. Whatever it raised has been told on stderr."""
    try:
        code = root.main(list(arguments), prog_name=program, standalone_mode=False)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else exit_codes.FAILED
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()  # the help itself
        return error.exit_code
    except click.ClickException as error:
        click.echo(f"fencepost: {_usage_sentence(error, program)}", err=True)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return exit_codes.INTERRUPTED
    except BrokenPipeError:
        _let_go_of_stdout()
        return exit_codes.FAILED
    except Exception as error:
        return _told(error)
    return code if isinstance(code, int) else exit_codes.OK


def _usage_sentence(error: click.ClickException, program: str) -> str:
    """What is wrong, in one line as every other error, and where the help is."""
    message = " ".join(error.format_message().split()).rstrip(".")
    if message[1:2].islower():
        message = message[0].lower() + message[1:]
    if not isinstance(error, click.UsageError):
        return message
    command = error.ctx.command_path if error.ctx is not None else program
    return f"{message}{' Try' if message.endswith('?') else '; try'} '{command} --help'"


def _told(error: Exception) -> int:
    from fencepost.cli.telling import sentence_and_code

    if os.environ.get(DEBUG_VARIABLE):
        raise error
    sentence, code = sentence_and_code(error)
    click.echo(f"fencepost: {sentence}", err=True)
    return code


def _let_go_of_stdout() -> None:
    """The reader has gone; without this Python complains again when it flushes at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _program() -> str:
    called = os.path.basename(sys.argv[0])
    return "kubectl fencepost" if called.startswith("kubectl-") else "fencepost"


if __name__ == "__main__":
    main()
