"""One server of the control plane as a child process that cannot outlive us.

Guarantees: a server is gone when its owner is gone, however the owner ended (`kill -9` included), because the
kernel is asked to kill it (PR_SET_PDEATHSIG). The kernel's parent is the *thread* that forked, so all servers
are forked by one thread that lives as long as the process: a server that a worker thread of a test asked for
would otherwise die with that thread.

A server keeps its ports, its data and its log file over `kill`, `terminate` and `start`, so that a test can
end it in any way and see the same server come back. `pause` stops it with SIGSTOP: connections stay open
and nothing answers, which is what a hung process or a partition looks like from outside.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

POLL_SECONDS = 0.03
STOP_SECONDS_MAX = 20.0
LOG_TAIL_LINES = 25

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)  # loaded before any fork: a child must not take the import lock
_forking_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="parent of servers")


class ServerError(Exception):
    """A server did not come up, or went away too early. The message ends with the tail of its log."""


def bound_to_this_process() -> Callable[[], None]:
    """A `preexec_fn`: the kernel kills the new process when the thread that forked it ends."""
    parent = os.getpid()

    def die_with_parent() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before the call above could take effect
            os._exit(1)

    return die_with_parent


class ServerProcess:
    """A server: its command, its log file, and the question that tells whether it is ready.

    `ready` is asked every few hundredths of a second after a start, for at most `ready_seconds_max` seconds.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log_file: Path,
        ready: Callable[[], bool],
        ready_seconds_max: float = 60.0,
    ) -> None:
        self.name = name
        self.log_file = log_file
        self._command = list(command)
        self._ready = ready
        self._ready_seconds_max = ready_seconds_max
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process id while it runs (paused counts as running), else None."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def start(self, *, wait: bool = True) -> None:
        """Starts the server; with `wait` returns when it is ready. Raises `ServerError`."""
        if self.pid is not None:
            raise ServerError(f"{self.name} already runs (pid {self.pid})")
        self._process = _forking_thread.submit(self._fork).result()
        if wait:
            self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Returns when the server says that it is ready. Raises `ServerError` with the tail of its log."""
        until = time.monotonic() + self._ready_seconds_max
        while not self._ready():
            if self.pid is None:
                code = self._process.returncode if self._process else None
                raise ServerError(f"{self.name} ended with {code} before it was ready{self._log_tail()}")
            if time.monotonic() > until:
                raise ServerError(
                    f"{self.name} is not ready after {self._ready_seconds_max:.0f} s{self._log_tail()}"
                )
            time.sleep(POLL_SECONDS)

    def kill(self) -> None:
        """SIGKILL, as the out-of-memory killer or a lost node would do. Returns when it is gone."""
        self._end_with(signal.SIGKILL)

    def terminate(self) -> None:
        """SIGTERM, and SIGKILL where that is not enough. Returns when it is gone."""
        self._end_with(signal.SIGTERM)

    def pause(self) -> None:
        """SIGSTOP: alive, connected, and silent."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _fork(self) -> subprocess.Popen[bytes]:
        with open(self.log_file, "ab") as log:
            return subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.log_file.parent,
                start_new_session=True,  # Ctrl-C at the terminal is for pytest, which then stops us in order
                preexec_fn=bound_to_this_process(),  # noqa: PLW1509 - one system call, no lock taken
            )

    def _end_with(self, number: signal.Signals) -> None:
        if self._process is None or self.pid is None:
            return
        self._signal(number)
        self._signal(signal.SIGCONT)  # a paused process takes no SIGTERM before it is resumed
        try:
            self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def _log_tail(self) -> str:
        lines = self.log_file.read_text(errors="replace").splitlines() if self.log_file.exists() else []
        return f"; the end of {self.log_file}:\n" + "\n".join(lines[-LOG_TAIL_LINES:])
