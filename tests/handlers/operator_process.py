"""The operator as a process of its own, as the kubelet runs it, for tests against a real API server."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.error import HTTPError
from urllib.request import urlopen

START_SECONDS_MAX = 40.0
PROGRAM = ("-m", "fencepost_operator")


class OperatorProcess:
    """A context manager: started, ready, and killed at the end if it has not ended by then."""

    def __init__(
        self,
        kubeconfig: Path,
        *namespaces: str,
        program: Sequence[str] = PROGRAM,
        environment: Mapping[str, str] | None = None,
        flags: Sequence[str] = (),
        wait_until_ready: bool = True,
    ) -> None:
        chosen = [flag for namespace in namespaces for flag in ("--namespace", namespace)]
        self._command = [
            sys.executable,
            *program,
            f"--kubeconfig={kubeconfig}",
            "--probe-address=127.0.0.1:0",
            *chosen,
            *flags,
        ]
        self._environment = environment
        self._wait_until_ready = wait_until_ready
        self._log = tempfile.NamedTemporaryFile("w+", suffix=".log")  # noqa: SIM115 - lives as we do
        self._process: subprocess.Popen[bytes] | None = None
        self._said = ""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, stderr=self._log, stdout=self._log, env=self._environment
        )
        if self._wait_until_ready:
            self.until(lambda: self.get("/readyz")[0] == HTTPStatus.OK, "the operator is ready")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        if error is not None:
            print(f"the operator's log:\n{self.log()[-6000:]}")
        self._said = self.log()
        self._log.close()

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    @property
    def exit_code(self) -> int | None:
        return self.process.poll()

    def kill(self) -> None:
        """SIGKILL, and gone."""
        self.process.kill()
        self.process.wait()

    def terminate(self) -> tuple[int, float]:
        """SIGTERM; the exit code and the seconds that it took."""
        began = time.monotonic()
        self.process.terminate()
        return self.process.wait(timeout=10), time.monotonic() - began

    def log(self) -> str:
        """What it has logged so far, or had logged when it ended."""
        return self._said or Path(self._log.name).read_text()

    def lines(self) -> list[dict[str, Any]]:
        """The log as JSON; fails on a line that is none. One that is still being written is left out."""
        whole, _, _ = self.log().rpartition("\n")
        return [json.loads(line) for line in whole.splitlines()]

    def get(self, path: str) -> tuple[int, str]:
        """Status and text of a probe; 0 where nobody answers."""
        port = self._port()
        if port is None:
            return 0, ""
        try:
            with urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as refused:
            return refused.code, refused.read().decode()
        except OSError:
            return 0, ""

    def memory_kib(self) -> int:
        """Resident memory at its highest."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(next(line.split()[1] for line in text.splitlines() if line.startswith("VmHWM")))

    def until(self, condition: Callable[[], bool], what: str, seconds: float = START_SECONDS_MAX) -> None:
        """Waits for it; fails with the log if it does not come, or the process ends before."""
        until = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < until, f"waited {seconds:.0f} s until {what}\n{self.log()[-4000:]}"
            assert self.exit_code is None, f"ended with {self.exit_code} before {what}\n{self.log()[-4000:]}"
            time.sleep(0.05)

    def _port(self) -> int | None:
        for line in self.log().splitlines():
            if "probes are served on" in line:
                return int(line.split('"msg"')[1].split('"')[1].rpartition(":")[2])
        return None
