"""A namespace of a real API server with an operator's and a worker's account, and what tests do there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fencepost.api.read import job_from_object, task_from_object
from fencepost.kube.connection import explicit
from fencepost.kube.store import KubeStore
from fencepost.protocol import fanout
from fencepost.protocol.job import Condition, Job
from fencepost.protocol.task import ObjectKey, Task
from tests.cluster.cluster import Cluster
from tests.cluster.kube_api import MERGE_PATCH
from tests.handlers.operator_process import OperatorProcess
from tests.handlers.workers_by_hand import HandWorker

GROUP = "/apis/fencepost.dev/v1alpha1"
AFTER = {"apiVersion": "fencepost.dev/v1alpha1", "kind": "LeasedTask", "spec": {"queue": "after"}}


@dataclass
class Place:
    cluster: Cluster
    namespace: str
    operator_token: str
    worker_token: str
    kubeconfig: Path = field(init=False)

    def __post_init__(self) -> None:
        self.kubeconfig = self.cluster.kubeconfig_for(self.operator_token, namespace=self.namespace)

    def operator(self, *namespaces: str, **options: Any) -> OperatorProcess:
        return OperatorProcess(self.kubeconfig, *(namespaces or (self.namespace,)), **options)

    # Objects, as the admin

    def path(self, resource: str, name: str = "", group: str = GROUP) -> str:
        return f"{group}/namespaces/{self.namespace}/{resource}" + (f"/{name}" if name else "")

    def make(self, resource: str, body: Mapping[str, Any], group: str = GROUP) -> Any:
        answer = self.cluster.api.request("POST", self.path(resource, group=group), dict(body))
        assert answer.ok, answer
        return answer.body

    def make_job(self, name: str, *branches: str, **spec: Any) -> Job:
        """`template` is the spec of the children."""
        template = {"template": {"spec": spec.pop("template")}} if "template" in spec else {}
        body = {
            "apiVersion": "fencepost.dev/v1alpha1",
            "kind": "FanOutJob",
            "metadata": {"name": name},
            "spec": {
                "branches": [{"name": branch, "request": {"for": branch}} for branch in branches],
                **template,
                **spec,
            },
        }
        return job_from_object(self.make("fanoutjobs", body))

    def make_task(self, name: str, **spec: Any) -> Task:
        body = {
            "apiVersion": "fencepost.dev/v1alpha1",
            "kind": "LeasedTask",
            "metadata": {"name": name},
            "spec": spec,
        }
        return task_from_object(self.make("leasedtasks", body))

    def get(self, resource: str, name: str, group: str = GROUP) -> Any | None:
        answer = self.cluster.api.request("GET", self.path(resource, name, group))
        return answer.body if answer.ok else None

    def items(self, resource: str, group: str = GROUP) -> list[Any]:
        return list(self.cluster.api.request("GET", self.path(resource, group=group)).body["items"])

    def patch(self, resource: str, name: str, body: Any, group: str = GROUP) -> None:
        path = self.path(resource, name, group)
        answer = self.cluster.api.request("PATCH", path, body, content_type=MERGE_PATCH)
        assert answer.ok, answer

    def delete(self, resource: str, name: str, group: str = GROUP) -> None:
        assert self.cluster.api.request("DELETE", self.path(resource, name, group)).ok

    # Values

    def job(self, name: str) -> Job:
        found = self.get("fanoutjobs", name)
        assert found is not None, f"job {name} is not there"
        return job_from_object(found)

    def task(self, name: str) -> Task | None:
        found = self.get("leasedtasks", name)
        return None if found is None else task_from_object(found)

    def tasks(self) -> list[Task]:
        return [task_from_object(found) for found in self.items("leasedtasks")]

    def condition(self, job: str, kind: str) -> Condition | None:
        return next((one for one in self.job(job).status.conditions if one.type == kind), None)

    def child(self, job: Job, branch: str) -> ObjectKey:
        return ObjectKey(namespace=self.namespace, name=fanout.child_name(job, branch))

    # Waiting

    async def until(self, condition: Callable[[], bool], what: str, seconds: float = 20.0) -> float:
        """Waits for it; the seconds that it took."""
        began = time.monotonic()
        while not condition():
            assert time.monotonic() - began < seconds, f"waited {seconds:.0f} s until {what}"
            await asyncio.sleep(0.03)
        return time.monotonic() - began

    async def until_children_are_there(self, job: Job) -> None:
        await self.until(
            lambda: self.job(job.key.name).status.created == len(job.spec.branches),
            "all children are made",
        )

    async def until_joined(self, name: str, seconds: float = 20.0) -> Job:
        await self.until(lambda: self.job(name).joined, f"{name} is joined", seconds)
        return self.job(name)

    async def until_continued(self, name: str, seconds: float = 20.0) -> Job:
        def started() -> bool:
            record = self.job(name).status.continuation
            return record is not None and record.started

        await self.until(started, f"the continuation of {name} is started", seconds)
        return self.job(name)

    # Work

    @asynccontextmanager
    async def worker(self, namespace: str | None = None) -> AsyncIterator[HandWorker]:
        connection = explicit(
            self.cluster.server,
            ca_file=self.cluster.ca_file,
            token=self.worker_token,
            namespace=namespace or self.namespace,
        )
        store = KubeStore.of(connection)
        try:
            yield await HandWorker.at(store)
        finally:
            await store.close()

    async def settle_all(self, job: Job, value: Callable[[str], str] = str) -> None:
        """Every open branch comes to Ok with the value of its name."""
        await self.until_children_are_there(job)
        async with self.worker() as worker:
            for branch in job.spec.branches:
                key = self.child(job, branch.name)
                task = self.task(key.name)
                if task is not None and not task.settled:
                    await worker.settle(key, value(branch.name))
