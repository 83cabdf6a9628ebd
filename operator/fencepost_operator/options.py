"""The command line: what can be told to the operator, and one sentence for what cannot."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import click

LABEL: Final = re.compile(r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")
LEVELS: Final = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How one operator runs. `namespaces` empty means all of them."""

    namespaces: tuple[str, ...] = ()
    kubeconfig: str | None = None
    context: str | None = None
    probe_host: str = "0.0.0.0"
    probe_port: int = 8080
    resync_seconds: float = 300.0
    hands: int = 16
    log_level: str = "info"
    give_up_seconds: float = 0.0

    @property
    def watched(self) -> tuple[str | None, ...]:
        """The namespaces to list and watch; None stands for all of them."""
        return self.namespaces or (None,)


class BadOption(ValueError):  # noqa: N818 - the sentence a reader sees
    """The command line is not understood; the message says which option and why."""


class Told(Exception):  # noqa: N818
    """Help or the version was asked for and printed."""


def options_of(arguments: list[str]) -> Options:
    """Parse the command line. Raises `BadOption`, or `Told` when only help or the version was wanted."""
    try:
        found = _command.main(arguments, prog_name="fencepost-operator", standalone_mode=False)
    except click.ClickException as problem:
        raise BadOption(" ".join(problem.format_message().split())) from None
    except click.Abort:
        raise BadOption("interrupted") from None
    if not isinstance(found, Options):
        raise Told
    return found


def _namespaces(context: click.Context, option: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        if not LABEL.match(value):
            raise click.BadParameter(f"{value!r} is no name of a namespace: at most 63 of a-z, 0-9 and -")
    return tuple(dict.fromkeys(values))


def _address(context: click.Context, option: click.Parameter, value: str) -> tuple[str, int]:
    host, colon, port = value.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise click.BadParameter(f"{value!r} is no HOST:PORT, for example 0.0.0.0:8080")
    return host.strip("[]") or "0.0.0.0", int(port)


@click.command(
    epilog="Example: fencepost-operator --namespace feeds --probe-address 127.0.0.1:8080. "
    "Exit codes: 0 ended by a signal, 1 the probes cannot be served (the port is in use) or a defect, "
    "2 wrong options or no usable kubeconfig, 3 gave up waiting for the API server (--give-up-after).",
    context_settings={"max_content_width": 100},
)
@click.option(
    "-n",
    "--namespace",
    "namespaces",
    multiple=True,
    callback=_namespaces,
    metavar="NAME",
    help="Serve this namespace; may be given several times. Default: all namespaces.",
)
@click.option("--kubeconfig", metavar="FILE", help="Default: KUBECONFIG, the pod we are in, ~/.kube/config.")
@click.option("--context", metavar="NAME", help="A context of the kubeconfig. Default: its current one.")
@click.option(
    "--probe-address",
    default="0.0.0.0:8080",
    show_default=True,
    callback=_address,
    metavar="HOST:PORT",
    help="Where /healthz, /readyz and /metrics are served; port 0 is any.",
)
@click.option(
    "--resync-seconds",
    type=click.FloatRange(1, 86_400),
    default=300.0,
    show_default=True,
    help="How often both kinds are listed whole, so that a lost event does no harm.",
)
@click.option(
    "--hands",
    type=click.IntRange(1, 64),
    default=16,
    show_default=True,
    help="How many objects are worked on at a time.",
)
@click.option(
    "--log-level",
    type=click.Choice(LEVELS),
    default="info",
    show_default=True,
    help="The least severe lines that are logged.",
)
@click.option(
    "--give-up-after",
    "give_up_seconds",
    type=click.FloatRange(0, 86_400),
    default=0.0,
    help="Exit with 3 if the API server cannot be used for so many seconds at the start. "
    "Default: keep trying.",
)
@click.version_option(package_name="fencepost", prog_name="fencepost-operator")
def _command(probe_address: tuple[str, int], **others: object) -> Options:
    """Run the operator of Fencepost: fan out, join, continue; revoke, requeue and settle.

    Two operators may run at once: all their writes are conditional.
    """
    return Options(probe_host=probe_address[0], probe_port=probe_address[1], **others)  # type: ignore[arg-type]
