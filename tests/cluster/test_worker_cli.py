"""The command line against the real API server, by kubeconfig, as processes that a person would start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster

FENCEPOST = Path(sys.executable).with_name("fencepost")
APP = """
from fencepost import Worker
worker = Worker(queue="feeds")

@worker.task
def handle(request: dict) -> dict:
    return {"twice": 2 * request["n"]}
"""
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(
    cluster: Cluster, namespace: str, service_account: Callable[..., str], tmp_path: Path
) -> Callable[[str], Run]:
    """`run("worker")("get", "tasks")` as somebody with that role."""
    (tmp_path / "feeds.py").write_text(APP)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FENCEPOST_")}

    def as_role(role: str) -> Run:
        token = cluster.admin_token if role == "admin" else service_account(role)
        kubeconfig = str(cluster.kubeconfig_for(token, namespace=namespace))

        def call(*arguments: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [FENCEPOST, *arguments, "--kubeconfig", kubeconfig],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )

        return call

    return as_role


@pytest.mark.slow
def test_from_enqueue_to_audit(run: Callable[[str], Run], namespace: str, tmp_path: Path) -> None:
    person, worker = run("edit"), run("worker")
    for number in (1, 2):
        said = person("enqueue", "feeds", f'{{"n": {number}}}', "--name", f"t{number}")
        assert (said.returncode, said.stdout) == (0, f"ACCEPTED {namespace}/t{number}\n"), said.stderr
    claimed = worker("claim", "feeds")
    (tmp_path / "lease.json").write_text(claimed.stdout)
    assert worker("heartbeat", "lease.json", "--progress", "half").returncode == 0
    submitted = worker("submit", "lease.json", "by hand", "-o", "json")
    assert json.loads(submitted.stdout)["verdict"] == "ACCEPTED"
    assert worker("submit", "lease.json", "by hand").stdout == "DUPLICATE\n"
    assert worker("submit", "lease.json", "otherwise").returncode == 14
    done = worker("worker", "feeds:worker", "--once")
    assert (done.returncode, "ended: 1 claim, 1 accepted" in done.stderr) == (0, True), done.stderr
    listed = json.loads(person("get", "tasks", "-o", "json").stdout)["items"]
    assert {item["status"]["state"] for item in listed} == {"Succeeded"}
    audited = worker("audit")
    assert (audited.returncode, "No fault was found." in audited.stdout) == (0, True), audited.stderr


def test_what_an_account_may_not_do_is_one_sentence(run: Callable[[str], Run]) -> None:
    said = run("worker")("enqueue", "feeds", '{"n": 1}')
    assert said.returncode == 64
    assert len(said.stderr.strip().splitlines()) == 1
    assert "cannot create" in said.stderr or "may not" in said.stderr, said.stderr
    viewer = run("view")("worker", "feeds:worker", "--once")
    assert "Traceback" not in viewer.stderr
