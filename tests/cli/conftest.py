"""A command line to play with: its own folder, an embedded store, and what was printed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fencepost.cli.main import run

APP = """
from fencepost import Lease, OutcomeUnknown, Rejected, Worker

worker = Worker(queue="feeds")


@worker.task
def handle(request: dict, lease: Lease) -> dict:
    if request.get("reject"):
        raise Rejected("no such feed")
    if request.get("fail"):
        raise ConnectionError("the feed\\nanswered 503")
    if request.get("vague"):
        raise OutcomeUnknown("did it arrive?")
    if request.get("large"):
        return {"text": "x" * 2000}
    return {"twice": 2 * request["n"]}
"""


@dataclass(frozen=True, slots=True)
class Said:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Fencepost = Callable[..., Said]


@pytest.fixture
def fencepost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Fencepost:
    """Runs `fencepost ARGUMENTS` in a folder of its own, on the embedded store `s.db`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("FENCEPOST_STORE", "s.db")
    monkeypatch.delenv("KUBECONFIG", raising=False)
    name = f"app_{abs(hash(tmp_path))}"  # each test imports a module of its own
    (tmp_path / f"{name}.py").write_text(APP)
    monkeypatch.setenv("APP", f"{name}:worker")

    def call(*arguments: str) -> Said:
        capsys.readouterr()
        code = run([argument.replace("APP", f"{name}:worker") for argument in arguments])
        printed = capsys.readouterr()
        return Said(code, printed.out, printed.err)

    return call
