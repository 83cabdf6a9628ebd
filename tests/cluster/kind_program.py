"""What pytest-kind calls as `kind`: the control plane as a background process with a name.

    kind get clusters
    kind create cluster --name NAME --kubeconfig FILE [--image ...] [--config ...]
    kind load docker-image --name NAME IMAGE
    kind delete cluster --name NAME [--kubeconfig FILE]
    kind restart controllers --name NAME        (ours alone: kind has no such command)

Guarantees: `create` returns when requests are answered; `delete` returns when every process is gone and
every file removed. The default kubeconfig is never read or written: `create` insists on `--kubeconfig`, and
refuses a file that holds anything of somebody else.

The background process is bound to the process whose id is in `FENCEPOST_CLUSTER_OWNER_PID` (the tests set
it to their own): it waits on a pidfd and ends with its owner, however that ended. Without the variable it
stays until `delete`. Its servers are bound to it by the kernel, so there is no way for them to be left
over.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.cluster.build import BuildError, binaries, cache_folder
from tests.cluster.control_plane import ControlPlane
from tests.cluster.kubectl import kubeconfig_content, write_kubeconfig
from tests.cluster.server_process import ServerError

OWNER_VARIABLE = "FENCEPOST_CLUSTER_OWNER_PID"
NAME_PATTERN = re.compile(r"[a-z0-9]([a-z0-9.-]{0,48}[a-z0-9])?")
START_SECONDS_MAX = 120.0
STOP_SECONDS_MAX = 30.0
REPOSITORY = Path(__file__).parents[2]


class KindError(Exception):
    """The command cannot be carried out. The message is one line for the person who reads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningCluster:
    """What the background process wrote down about itself when it was ready."""

    name: str
    pid: int
    pid_started: int
    """Clock ticks since boot, so that a process id that was given out again is not taken for ours."""
    server: str
    authorities_pem: str
    admin_token: str
    folder: str
    """Logs, data and audit logs of the control plane."""


def running_cluster(name: str) -> RunningCluster | None:
    """The cluster of that name, if its process lives."""
    try:
        cluster = RunningCluster(**json.loads(_state_file(name).read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return cluster if _started_at(cluster.pid) == cluster.pid_started else None


def running_clusters() -> list[str]:
    folder = cache_folder() / "clusters"
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    return [name for name in names if running_cluster(name)]


def create_cluster(name: str, kubeconfig: Path | None, owner: int | None) -> RunningCluster:
    """Starts the cluster in the background and writes the kubeconfig. Raises `KindError`."""
    if not NAME_PATTERN.fullmatch(name):
        raise KindError(f"{name!r} is no cluster name: up to 50 of a-z, 0-9, '.' and '-'")
    if kubeconfig is None:
        raise KindError("give --kubeconfig FILE: this program never writes the default kubeconfig")
    _refuse_foreign_kubeconfig(kubeconfig, name)
    binaries()  # here and not in the background, so that its progress is seen
    with _only_one_at_work_on(name):
        if running_cluster(name):
            raise KindError(f"a cluster with the name {name!r} already exists")
        cluster = _started_in_background(name, owner)
    content = kubeconfig_content(
        server=cluster.server,
        authorities_pem=cluster.authorities_pem,
        token=cluster.admin_token,
        name=_context_name(name),
    )
    write_kubeconfig(kubeconfig, content)
    return cluster


def delete_cluster(name: str, kubeconfig: Path | None) -> bool:
    """Ends the cluster and removes its files; whether there was one. Returns when its processes are gone."""
    if kubeconfig is not None and _is_ours(kubeconfig, name):
        kubeconfig.unlink()
    cluster = running_cluster(name)
    if cluster is None:
        return False
    with contextlib.suppress(ProcessLookupError):
        process = os.pidfd_open(cluster.pid)
        signal.pidfd_send_signal(process, signal.SIGTERM)
        ended, _, _ = select.select([process], [], [], STOP_SECONDS_MAX)
        if not ended:
            signal.pidfd_send_signal(process, signal.SIGKILL)  # its servers go with it
            select.select([process], [], [])
        os.close(process)
    shutil.rmtree(_state_file(name).parent, ignore_errors=True)
    return True


def restart_controllers(name: str) -> None:
    """Asks for it and returns; it takes half a second. Raises `KindError` where no such cluster runs."""
    cluster = running_cluster(name)
    if cluster is None:
        raise KindError(f"no cluster named {name!r} runs")
    os.kill(cluster.pid, signal.SIGHUP)


def serve(name: str, owner: int | None) -> None:
    """The background process: a control plane until SIGTERM, or until the owner is gone."""
    watched = [os.pidfd_open(owner)] if owner else []
    signals, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # the number arrives through the pipe
    with ControlPlane() as plane:
        _write_down(name, plane)
        try:
            while True:
                readable, _, _ = select.select([signals, *watched], [], [])
                if readable != [signals] or set(os.read(signals, 64)) != {signal.SIGHUP}:
                    return
                plane.restart_controllers()
        finally:
            shutil.rmtree(_state_file(name).parent, ignore_errors=True)


def _started_in_background(name: str, owner: int | None) -> RunningCluster:
    log_file = _state_file(name).with_name("log")
    command = [sys.executable, "-m", "tests.cluster.kind_program", "serve", "--name", name]
    with open(log_file, "wb") as log:
        process = subprocess.Popen(
            [*command, "--owner", str(owner)] if owner else command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=REPOSITORY,
            start_new_session=True,
        )
    until = time.monotonic() + START_SECONDS_MAX
    while (cluster := running_cluster(name)) is None:
        if process.poll() is not None:
            raise KindError(f"the cluster did not start: {log_file.read_text(errors='replace').strip()}")
        if time.monotonic() > until:
            process.kill()
            raise KindError(f"the cluster did not start in {START_SECONDS_MAX:.0f} s; its log: {log_file}")
        time.sleep(0.03)
    return cluster


def _write_down(name: str, plane: ControlPlane) -> None:
    cluster = RunningCluster(
        name=name,
        pid=os.getpid(),
        pid_started=_started_at(os.getpid()) or 0,
        server=plane.server,
        authorities_pem=plane.ca_file.read_text(),
        admin_token=plane.admin_token,
        folder=str(plane.folder),
    )
    unfinished = _state_file(name).with_suffix(".new")
    unfinished.touch(mode=0o600)
    unfinished.write_text(json.dumps(asdict(cluster)))
    unfinished.replace(_state_file(name))


@contextmanager
def _only_one_at_work_on(name: str) -> Iterator[None]:
    _state_file(name).parent.mkdir(parents=True, exist_ok=True)
    with open(cache_folder() / "clusters" / ".lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _state_file(name: str) -> Path:
    return cache_folder() / "clusters" / name / "cluster.json"


def _started_at(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *numbers = stat.rpartition(")")[2].split()
    return None if state == "Z" else int(numbers[18])


def _context_name(name: str) -> str:
    return f"kind-{name}"  # as kind names it


def _is_ours(kubeconfig: Path, name: str) -> bool:
    try:
        return bool(json.loads(kubeconfig.read_text())["current-context"] == _context_name(name))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _refuse_foreign_kubeconfig(kubeconfig: Path, name: str) -> None:
    if kubeconfig.exists() and kubeconfig.read_text().strip() and not _is_ours(kubeconfig, name):
        raise KindError(f"{kubeconfig} holds other entries and is left alone; name a file of its own")


def _owner_in_environment() -> int | None:
    text = os.environ.get(OWNER_VARIABLE, "")
    if not text:
        return None
    if not text.isdigit() or _started_at(int(text)) is None:
        raise KindError(f"{OWNER_VARIABLE} is {text!r}, which is no running process")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kind", description="A control plane for tests, in the words of kind."
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("get").add_argument("what", choices=["clusters"])
    for verb, what in (
        ("create", "cluster"),
        ("delete", "cluster"),
        ("load", "docker-image"),
        ("restart", "controllers"),
    ):
        command = verbs.add_parser(verb)
        command.add_argument("what", choices=[what])
        command.add_argument("--name", default="kind")
        if verb in ("create", "delete"):
            command.add_argument("--kubeconfig", type=Path)
        if verb == "create":
            command.add_argument("--image")
            command.add_argument("--config")
        if verb == "load":
            command.add_argument("images", nargs="+")
    server = verbs.add_parser("serve", description="The background process; `create cluster` starts it.")
    server.add_argument("--name", required=True)
    server.add_argument("--owner", type=int)
    return parser


def _run(arguments: argparse.Namespace) -> None:
    match arguments.verb:
        case "get":
            names = running_clusters()
            print("\n".join(names)) if names else _say("No kind clusters found.")
        case "create":
            if arguments.image or arguments.config:
                _say("--image and --config describe nodes; this cluster has none, so they are ignored")
            started = time.monotonic()
            cluster = create_cluster(arguments.name, arguments.kubeconfig, _owner_in_environment())
            _say(
                f"cluster {cluster.name} answers at {cluster.server} after {time.monotonic() - started:.1f} s"
            )
        case "delete":
            existed = delete_cluster(arguments.name, arguments.kubeconfig)
            _say(f"cluster {arguments.name} deleted" if existed else f"there is no cluster {arguments.name}")
        case "load":
            _say(
                f"nothing to load: the cluster has no node, so {', '.join(arguments.images)} would never run"
            )
        case "restart":
            restart_controllers(arguments.name)
        case "serve":
            serve(arguments.name, arguments.owner)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    try:
        _run(_parser().parse_args())
    except (KindError, BuildError, ServerError) as failed:
        _say(f"ERROR: {failed}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
