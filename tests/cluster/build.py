"""Where the programs of the test control plane come from: built once from their Go modules, then kept.

Guarantees: `binaries()` returns programs that run, and builds only what is missing. What was built lies in
a cache outside the tree, in one folder per module named after its version and the hash of its go.mod and
go.sum, so that a change of either builds anew and nothing else does. Builders of the same folder wait for
each other under a file lock, and a program appears in its place whole or not at all.

No download of ready-made programs: the Go module proxy with its checksum database is the one source, so that
the same two files of hashes in this repository decide what runs.

`KUBEBUILDER_ASSETS`, the folder that controller-runtime's `setup-envtest` fills, is honoured: what it holds
is used and not built. `python -m tests.cluster.build` builds what is missing and prints where everything
is.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path

from tests.cluster.server_process import bound_to_this_process
from tests.cluster.toolchain import ToolchainError, go_command, parsed_version

MODULES_FOLDER = Path(__file__).parent / "binaries"
PROGRESS_EVERY_SECONDS = 30.0
DISK_NEEDED_COLD_GIB = 5
"""Module cache (1 GiB), build cache (4 GiB at its largest) and the programs (0.3 GiB), as measured."""
DISK_FREE_BYTES_MIN = 2**30
"""Refused below this: even with Go's cache warm, linking writes several hundred MiB at a time."""

HOW_TO_GET_IT_OTHERWISE = (
    "or set KUBEBUILDER_ASSETS to a folder with kube-apiserver, etcd and kubectl (setup-envtest makes one), "
    "or FENCEPOST_TEST_KUBECONFIG to the kubeconfig of a cluster that tests may use"
)


class BuildError(Exception):
    """A program is missing and cannot be built. The message says which, why, and how to get it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Binaries:
    """Absolute paths of programs that exist and can be executed."""

    kube_apiserver: Path
    kube_controller_manager: Path
    kubectl: Path
    etcd: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class GoModule:
    """One Go module and the programs that are built from it, by the name of their file."""

    name: str
    requirement: str
    packages: dict[str, str]
    duration: str
    """How long a cold build takes on two cores: said before it starts, so that nobody thinks it hangs."""

    @property
    def folder(self) -> Path:
        return MODULES_FOLDER / self.name

    @property
    def version(self) -> str:
        return self._found_in_go_mod(rf"^\s*(?:require )?{re.escape(self.requirement)} (v\S+)")

    @property
    def go_directive(self) -> tuple[int, ...]:
        return parsed_version(self._found_in_go_mod(r"^go (\S+)"))

    @property
    def key(self) -> str:
        content = b"".join((self.folder / name).read_bytes() for name in ("go.mod", "go.sum"))
        return f"{self.name}-{self.version}-{hashlib.sha256(content).hexdigest()[:12]}"

    def linker_flags(self) -> str:
        flags = "-s -w"
        if self.name == "kubernetes":
            major, minor, _ = self.version.removeprefix("v").split(".", 2)
            stamp = "k8s.io/component-base/version"
            values = {"gitVersion": self.version, "gitMajor": major, "gitMinor": minor}
            flags += "".join(f" -X {stamp}.{name}={value}" for name, value in values.items())
        return flags

    def _found_in_go_mod(self, pattern: str) -> str:
        found = re.search(pattern, (self.folder / "go.mod").read_text(), re.MULTILINE)
        if found is None:
            raise BuildError(f"{self.folder / 'go.mod'} has no line that matches {pattern}")
        return found.group(1)


KUBERNETES = GoModule(
    name="kubernetes",
    requirement="k8s.io/kubernetes",
    packages={
        program: f"k8s.io/kubernetes/cmd/{program}"
        for program in ("kube-apiserver", "kube-controller-manager", "kubectl")
    },
    duration="about 9 minutes on two cores when Go's cache is cold",
)
ETCD = GoModule(
    name="etcd",
    requirement="go.etcd.io/etcd/server/v3",
    packages={"etcd": "go.etcd.io/etcd/server/v3"},
    duration="about half a minute when Go's cache is cold",
)


def cache_folder() -> Path:
    """`$FENCEPOST_CACHE`, else `fencepost` in the user's cache folder (XDG)."""
    if chosen := os.environ.get("FENCEPOST_CACHE"):
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "fencepost"


def binaries() -> Binaries:
    """All programs of the control plane; builds those that are neither in the cache nor supplied.

    Raises `BuildError` where a program is missing and cannot be built.
    """
    found = _supplied()
    for module in (ETCD, KUBERNETES):
        missing = [program for program in module.packages if program not in found]
        found |= {program: _built(module, missing) / program for program in missing}
    return Binaries(**{field.name: found[field.name.replace("_", "-")] for field in fields(Binaries)})


def built_kubectl() -> Path:
    """kubectl alone, for a cluster that others run. Raises `BuildError` like `binaries`."""
    return _supplied().get("kubectl") or _built(KUBERNETES, ["kubectl"]) / "kubectl"


def everything_is_built() -> bool:
    """Whether `binaries()` would return at once."""
    supplied = _supplied()
    return all(
        program in supplied or _is_program(_bin_folder(module) / program)
        for module in (ETCD, KUBERNETES)
        for program in module.packages
    )


def _supplied() -> dict[str, Path]:
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if not assets:
        return {}
    folder = Path(assets).expanduser().absolute()
    programs = [program for module in (ETCD, KUBERNETES) for program in module.packages]
    supplied = {program: folder / program for program in programs if _is_program(folder / program)}
    if not supplied:
        raise BuildError(f"KUBEBUILDER_ASSETS is {folder}, which holds none of {', '.join(programs)}")
    return supplied


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _bin_folder(module: GoModule) -> Path:
    return cache_folder() / "bin" / module.key


def _built(module: GoModule, programs: list[str]) -> Path:
    folder = _bin_folder(module)
    if all(_is_program(folder / program) for program in programs):
        return folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _only_builder_of(folder):
            missing = [program for program in programs if not _is_program(folder / program)]
            if missing:
                _build(module, missing, folder)
    except OSError as refused:
        raise BuildError(
            f"cannot keep built programs in {folder}: {refused}; set FENCEPOST_CACHE"
        ) from refused
    return folder


@contextmanager
def _only_builder_of(folder: Path) -> Iterator[None]:
    with open(folder / ".lock", "a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say(f"another process builds into {folder}: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(module: GoModule, programs: list[str], folder: Path) -> None:
    _refuse_a_full_disk(folder)
    try:
        go = go_command(needed=module.go_directive, cache=cache_folder(), say=_say)
    except ToolchainError as missing:
        raise BuildError(
            f"{', '.join(programs)} must be built: {missing}; {HOW_TO_GET_IT_OTHERWISE}"
        ) from missing
    _say(f"building {', '.join(programs)} of {module.name} {module.version} with {go} ({module.duration})")
    started = time.monotonic()
    for leftover in folder.glob(".building-*"):  # of a killed build; we hold the lock, so nobody works there
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=".building-", dir=folder) as scratch:
        packages = [module.packages[program] for program in programs]
        # One program is named by the file, several by the folder: `go build -o` knows both.
        target = str(Path(scratch) / programs[0]) if len(programs) == 1 else scratch + "/"
        _run_go(
            [str(go), "build", "-trimpath", "-ldflags", module.linker_flags(), "-o", target, *packages],
            module,
        )
        for program in programs:
            os.replace(Path(scratch) / program, folder / program)
    _say(f"built {', '.join(programs)} in {_elapsed(started)}: {folder}")


def _refuse_a_full_disk(folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if free < DISK_FREE_BYTES_MIN:
        raise BuildError(
            f"a first build takes {DISK_NEEDED_COLD_GIB} GiB, and {folder} has {free >> 20} MiB free"
        )


def _run_go(command: list[str], module: GoModule) -> None:
    environment = os.environ | {
        "CGO_ENABLED": "0",  # no C compiler needed, and static programs
        "GOTOOLCHAIN": "local",
        "GOFLAGS": "-mod=readonly -buildvcs=false",
        "GOWORK": "off",
    }
    started = time.monotonic()
    go = subprocess.Popen(
        command,
        cwd=module.folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=bound_to_this_process(),  # noqa: PLW1509 - one system call, no lock taken
    )
    try:
        output = _output_with_progress(go, module, started)
    finally:
        # Compilers that an interrupted build left would go on for minutes.
        with_leftovers = go.poll() is None
        if with_leftovers:
            os.killpg(go.pid, signal.SIGKILL)
            go.wait()
    if go.returncode != 0:
        said = [line.strip() for line in output.splitlines() if not line.startswith("go: downloading")]
        reason = " / ".join(said[-3:])
        raise BuildError(
            f"cannot build {module.name} {module.version}: {reason or f'go ended with {go.returncode}'}; "
            f"check access to the Go module proxy (GOPROXY), {HOW_TO_GET_IT_OTHERWISE}"
        )


def _output_with_progress(go: subprocess.Popen[str], module: GoModule, started: float) -> str:
    finished = threading.Event()

    def tell() -> None:
        while not finished.wait(PROGRESS_EVERY_SECONDS):
            _say(f"still building {module.name} {module.version}, {_elapsed(started)} so far")

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        return go.communicate()[0]
    finally:
        finished.set()
        teller.join()


def _elapsed(started: float) -> str:
    minutes, seconds = divmod(int(time.monotonic() - started), 60)
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def _say(line: str) -> None:
    print(f"[test control plane] {line}", file=sys.stderr, flush=True)


def main() -> int:
    try:
        paths = binaries()
    except BuildError as failed:
        _say(str(failed))
        return 1
    except KeyboardInterrupt:
        _say("interrupted; what was compiled so far stays in Go's cache, the next run goes on from there")
        return 130
    for field in fields(paths):
        print(f"{field.name.replace('_', '-'):24} {getattr(paths, field.name)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
