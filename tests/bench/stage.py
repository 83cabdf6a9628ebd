"""The place of the measurements: a control plane of our own, the operator as a process, jobs in it.

What is timed against the API server is timed by its audit log: one clock for everybody, and what it says is
what arrived, not what a client believes. etcd runs without fsync, as in every test here, for the product and
for what it is compared with alike.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from fencepost.api.read import task_from_object
from fencepost.kube.client import ApiClient
from fencepost.kube.connection import explicit
from fencepost.kube.store import KubeStore
from fencepost.protocol.task import Task
from tests.bench.trivial import QUEUE
from tests.cluster.cluster import Cluster, cluster_of
from tests.cluster.control_plane import ControlPlane
from tests.handlers.operator_process import OperatorProcess

CRDS = Path(__file__).parents[2] / "crds"
GROUP = "/apis/fencepost.dev/v1alpha1"
WAIT_SECONDS_MAX = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A cluster with Fencepost in it."""

    cluster: Cluster
    plane: ControlPlane
    folder: Path

    def namespace(self, hint: str) -> str:
        return self.cluster.new_namespace(hint)

    def worker_token(self, namespace: str) -> str:
        """The token of a new account with the worker's role, in force."""
        return self.cluster.service_account(namespace, "worker")

    def store(self, namespace: str, token: str) -> KubeStore:
        """A store with connections of its own."""
        return KubeStore(
            ApiClient(
                explicit(self.cluster.server, ca_file=self.cluster.ca_file, token=token, namespace=namespace)
            )
        )

    @contextmanager
    def operator(self, *, only: str | None = None) -> Iterator[OperatorProcess]:
        """The operator as a process with its own role, ready; for all namespaces or for one."""
        token = self.cluster.service_account(only or "default", "operator", cluster_wide=only is None)
        kubeconfig = self.cluster.kubeconfig_for(token, namespace=only or "default")
        with OperatorProcess(kubeconfig, *([only] if only else [])) as process:
            yield process

    def processor_seconds(self, *more: int) -> float:
        """What the control plane, we, those whom we waited for and the processes `more` have used so far."""
        ours = os.times()
        mine = ours.user + ours.system + ours.children_user + ours.children_system
        return mine + sum(map(_processor_seconds, [*self.plane.pids(), *more]))

    def make_job(self, namespace: str, name: str, branches: int) -> None:
        """A FanOutJob; its operator makes the tasks."""
        body = {
            "apiVersion": "fencepost.dev/v1alpha1",
            "kind": "FanOutJob",
            "metadata": {"name": name},
            "spec": {
                "template": {"spec": {"queue": QUEUE, "leaseDurationSeconds": 60}},
                "branches": [
                    {"name": f"branch-{n:04}", "request": {"n": n, "file": f"part-{n:04}.csv"}}
                    for n in range(branches)
                ],
            },
        }
        answer = self.cluster.api.request("POST", f"{GROUP}/namespaces/{namespace}/fanoutjobs", body)
        if not answer.ok:
            raise RuntimeError(f"the job {name} was not created: {answer.message}")

    def make_task(self, namespace: str, name: str) -> None:
        """A task of nobody."""
        body = {
            "apiVersion": "fencepost.dev/v1alpha1",
            "kind": "LeasedTask",
            "metadata": {"name": name},
            "spec": {"queue": QUEUE, "request": {"n": 1}},
        }
        answer = self.cluster.api.request("POST", f"{GROUP}/namespaces/{namespace}/leasedtasks", body)
        if not answer.ok:
            raise RuntimeError(f"the task {name} was not created: {answer.message}")

    def objects(self, namespace: str, resource: str) -> list[Any]:
        """All of them, as the API server has them."""
        path = f"{GROUP}/namespaces/{namespace}/{resource}?limit=500"
        items: list[Any] = []
        following = ""
        while True:
            answer = self.cluster.api.request("GET", path + following)
            if not answer.ok:
                raise RuntimeError(f"{resource} of {namespace} cannot be listed: {answer.message}")
            items += answer.body["items"]
            token = answer.body["metadata"].get("continue")
            if not token:
                return items
            following = f"&continue={token}"

    def tasks(self, namespace: str) -> list[Task]:
        return [task_from_object(item) for item in self.objects(namespace, "leasedtasks")]

    def until_made(self, namespace: str, tasks: int) -> None:
        """Wait until the operator has made so many tasks and has written down that it has."""

        def made() -> bool:
            jobs = self.objects(namespace, "fanoutjobs")
            return bool(sum(job.get("status", {}).get("created", 0) for job in jobs) >= tasks)

        until(made, f"{tasks} tasks are made in {namespace}")

    def until_joined(self, namespace: str, jobs: int) -> None:
        """Wait until every job has its snapshot."""

        def joined() -> bool:
            found = self.objects(namespace, "fanoutjobs")
            return sum("snapshot" in job.get("status", {}) for job in found) >= jobs

        until(joined, f"{jobs} jobs are joined in {namespace}")

    def requests(self, namespace: str) -> list[Any]:
        """The audit events of a namespace, in the order of their arrival."""
        events = [e for e in self.cluster.audit_events() if e["objectRef"].get("namespace") == namespace]
        return sorted(events, key=arrived)


@contextmanager
def stage(folder: Path) -> Iterator[Stage]:
    """A control plane of our own with `crds/` applied; gone at the end."""
    with ControlPlane() as plane:
        cluster = cluster_of(plane)
        cluster.install(CRDS)
        plane.restart_controllers()
        yield Stage(cluster=cluster, plane=plane, folder=folder)


def until(condition: Callable[[], bool], what: str, *, seconds: float = WAIT_SECONDS_MAX) -> None:
    """Ask four times a second; raises `TimeoutError`."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {seconds:.0f} s until {what}")
        time.sleep(0.25)


def arrived(event: Any) -> float:
    """When the API server received the request, in seconds since 1970."""
    return _seconds(event["requestReceivedTimestamp"])


def answered(event: Any) -> float:
    """When its answer was complete."""
    return _seconds(event["stageTimestamp"])


def window(events: Sequence[Any]) -> float:
    """Seconds from the first arrival to the last answer."""
    return max(map(answered, events)) - min(map(arrived, events))


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
