"""The main job on a real API server: kubectl apply, one worker, the operator, and `sha256sum -c` at the end.

The same manifest and worker as `make run`. The snapshot's digest has to be the one that the embedded run
comes to: nothing of the run is in it, neither where it ran nor how often anything was killed.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster import GROUP_PATH, Cluster
from tests.handlers.operator_process import OperatorProcess

REPOSITORY = Path(__file__).parents[2]
MANIFEST = REPOSITORY / "examples" / "checksums" / "job.yaml"
APP = "examples.checksums.worker:worker"
BRANCHES = 24
JOIN_SECONDS_MAX = 90.0
DIGEST = re.compile(r"^snapshot ([0-9a-f]{64})$", re.MULTILINE)


def fencepost(*arguments: str, folder: Path, **options: Any) -> subprocess.Popen[str]:
    """The command line, with the examples importable and everything it writes below `folder`."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "CHECKSUMS_FOLDER": str(folder)}
    command = [sys.executable, "-m", "fencepost.cli.main", *arguments]
    return subprocess.Popen(command, cwd=folder, env=environment, text=True, **options)


@pytest.fixture(scope="module")
def embedded_digest(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the same job comes to on this machine alone."""
    folder = tmp_path_factory.mktemp("embedded")
    run = fencepost(
        "run", str(MANIFEST), "--app", APP, "--store", "jobs.db", folder=folder, stdout=subprocess.PIPE
    )
    printed, _ = run.communicate(timeout=60)
    found = DIGEST.search(printed)
    assert run.returncode == 0, printed
    assert found is not None, printed
    return found.group(1)


class Place:
    """A namespace with the job in it, and the programs of its worker."""

    def __init__(
        self, cluster: Cluster, namespace: str, service_account: Callable[..., str], folder: Path
    ) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.folder = folder
        self.worker_kubeconfig = self._kubeconfig(service_account("worker"))
        self.operator_kubeconfig = self._kubeconfig(service_account("operator"))

    def _kubeconfig(self, token: str) -> Path:
        return self.cluster.kubeconfig_for(token, namespace=self.namespace)

    def apply(self) -> None:
        self.cluster.kubectl("apply", "-n", self.namespace, "-f", str(MANIFEST))

    def job(self) -> dict[str, Any]:
        answer = self.cluster.api.request(
            "GET", f"{GROUP_PATH}/namespaces/{self.namespace}/fanoutjobs/checksums"
        )
        assert answer.ok, answer.message
        return answer.body

    def tasks(self) -> list[dict[str, Any]]:
        answer = self.cluster.api.request("GET", f"{GROUP_PATH}/namespaces/{self.namespace}/leasedtasks")
        assert answer.ok, answer.message
        items: list[dict[str, Any]] = answer.body["items"]
        return items

    def settled(self) -> int:
        return sum(1 for task in self.tasks() if task["status"]["settled"])

    @contextmanager
    def worker(self) -> Iterator[subprocess.Popen[str]]:
        """A worker of its own process, killed at the end. Its outbox is the folder's: the next one's too."""
        process = fencepost(
            "worker", APP, "--kubeconfig", str(self.worker_kubeconfig), "--namespace", self.namespace,
            "--outbox", "outbox.db", folder=self.folder, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def operator(self) -> OperatorProcess:
        return OperatorProcess(self.operator_kubeconfig, self.namespace)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + JOIN_SECONDS_MAX
        while not condition():
            assert time.monotonic() < end, f"waited until {what}; the job is {self.job()['status']}"
            time.sleep(0.05)

    def joined(self) -> bool:
        return "snapshot" in self.job()["status"]

    def manifest_is_written(self) -> bool:
        return (self.folder / "checksums.sha256").exists() and self.settled() == BRANCHES + 1

    def expect_all_is_well(self, digest: str) -> None:
        """Joined to this digest, one receipt a task, one continuation, and sha256sum confirms it."""
        status = self.job()["status"]
        assert status["state"] == "Succeeded"
        assert status["snapshot"]["digest"] == digest
        tasks = self.tasks()
        assert len(tasks) == BRANCHES + 1
        assert [len(task["status"]["receipts"]) for task in tasks] == [1] * len(tasks)
        checked = subprocess.run(
            ["sha256sum", "--check", "--quiet", "checksums.sha256"],
            cwd=self.folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert checked.returncode == 0, checked.stdout + checked.stderr
        assert self.cluster.kubectl(
            "wait", "-n", self.namespace, "--for=condition=Succeeded", "--timeout=10s", "foj/checksums"
        )


@pytest.fixture
def place(cluster: Cluster, namespace: str, service_account: Callable[..., str], tmp_path: Path) -> Place:
    return Place(cluster, namespace, service_account, tmp_path)


def test_applied_worked_on_and_joined(place: Place, embedded_digest: str) -> None:
    place.apply()
    with place.operator(), place.worker():
        place.until(place.joined, "the job is joined")
        place.until(place.manifest_is_written, "the continuation wrote its manifest")
    place.expect_all_is_well(embedded_digest)


@pytest.mark.slow
def test_the_same_with_worker_and_operator_each_killed_twice(place: Place, embedded_digest: str) -> None:
    place.apply()
    for settled_at_least in (2, 9):
        with ExitStack() as killed_at_its_end:
            operator = killed_at_its_end.enter_context(place.operator())
            worker = killed_at_its_end.enter_context(place.worker())
            at_least = settled_at_least
            place.until(lambda at_least=at_least: place.settled() >= at_least, f"{at_least} tasks settled")
            os.kill(worker.pid, signal.SIGKILL)
            operator.kill()
        assert not place.joined()
    with place.operator(), place.worker():
        place.until(place.joined, "the job is joined")
        place.until(place.manifest_is_written, "the continuation wrote its manifest")
    place.expect_all_is_well(embedded_digest)
