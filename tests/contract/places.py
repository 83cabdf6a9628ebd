"""The three stores as the contract meets them: each can be opened again, as another process would."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fencepost.kube.connection import connect
from fencepost.kube.store import KubeStore
from fencepost.local.embedded import EmbeddedStore
from fencepost.local.store import LocalStore
from fencepost.ports import Applied, NewTask, TaskStore
from fencepost.protocol.payload import request_text
from fencepost.protocol.task import ObjectKey, RetryPolicy, Task, TaskSpec
from fencepost.testing import MemoryStore
from tests.cluster.cluster import Cluster
from tests.cluster.kube_api import MERGE_PATCH

# Long enough that nothing runs out by itself while a test looks.
PATIENT = TaskSpec(
    queue="feeds",
    lease_duration_seconds=3600,
    retry_policy=RetryPolicy(max_failures=6, backoff_base_seconds=3600, backoff_max_seconds=3600),
)


@dataclass(kw_only=True)
class Place:
    """A store that was opened for a test.

    `open` makes another client with a worker's rights. `server` has the rights of the server's side (revoke,
    requeue, settle), `producer` those of somebody who makes tasks. Where no rights exist they are one.
    """

    name: str
    namespace: str
    open: Callable[[], TaskStore]
    server: TaskStore
    producer: TaskStore
    delete: Callable[[str], Awaitable[object]]
    suspend: Callable[[str], Awaitable[object]]
    opened: list[TaskStore] = field(default_factory=list)

    def key(self, name: str) -> ObjectKey:
        return ObjectKey(namespace=self.namespace, name=name)

    def client(self) -> TaskStore:
        """A client that is closed when the test ends."""
        store = self.open()
        self.opened.append(store)
        return store

    async def put(self, name: str, request: dict[str, Any] | None = None, spec: TaskSpec = PATIENT) -> Task:
        wanted = replace(spec, request=request_text(request or {}))
        answer = await self.producer.create(NewTask(key=self.key(name), spec=wanted))
        assert isinstance(answer, Applied), answer
        return answer.task

    async def close(self) -> None:
        for store in [*self.opened, self.producer, self.server]:
            await store.close()


def embedded_place(name: str, store: EmbeddedStore, opened: Callable[[], TaskStore]) -> Place:
    """An embedded store has no rights to divide: everybody is one."""
    return Place(
        name=name,
        namespace=store.namespace,
        open=opened,
        server=store,
        producer=store,
        delete=store.delete_task,
        suspend=lambda task: store.set_suspended(task, suspend=True),
    )


@asynccontextmanager
async def memory() -> AsyncIterator[Place]:
    store = MemoryStore()
    yield embedded_place("memory", store, lambda: store)


@asynccontextmanager
async def sqlite(folder: Path) -> AsyncIterator[Place]:
    place = embedded_place("sqlite", LocalStore(folder / "store.db"), lambda: LocalStore(folder / "store.db"))
    try:
        yield place
    finally:
        await place.close()


@asynccontextmanager
async def api_server(
    cluster: Cluster, namespace: str, service_account: Callable[..., str]
) -> AsyncIterator[Place]:
    def client_of(token: str) -> KubeStore:
        kubeconfig = cluster.kubeconfig_for(token, namespace=namespace)
        return KubeStore.of(connect(kubeconfig=kubeconfig, namespace=namespace))

    path = f"/apis/fencepost.dev/v1alpha1/namespaces/{namespace}/leasedtasks"

    async def delete(name: str) -> None:
        answer = cluster.api.request("DELETE", f"{path}/{name}")
        assert answer.ok, answer

    async def suspend(name: str) -> None:
        body = {"spec": {"suspend": True}}
        answer = cluster.api.request("PATCH", f"{path}/{name}", body, content_type=MERGE_PATCH)
        assert answer.ok, answer

    worker, operator, person = (service_account(role) for role in ("worker", "operator", "edit"))
    place = Place(
        name="api server",
        namespace=namespace,
        open=lambda: client_of(worker),
        server=client_of(operator),
        producer=client_of(person),
        delete=delete,
        suspend=suspend,
    )
    try:
        yield place
    finally:
        await place.close()
