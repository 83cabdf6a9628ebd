"""The worker on the real API server, as a ServiceAccount with the worker role."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from fencepost import Verdict, Worker
from fencepost.kube.client import ApiClient
from fencepost.kube.connection import explicit
from fencepost.kube.store import KubeStore
from fencepost.ports import TaskStore
from fencepost.protocol.receipt import verify_chain
from fencepost.protocol.task import ObjectKey, State
from fencepost.worker.enqueue import enqueue_async
from fencepost.worker.settings import Settings
from tests.cluster.audit import accepted_writes
from tests.cluster.cluster import Cluster

ONCE = Settings(once=True, idle_seconds_min=0.01, idle_seconds_max=0.05)
Stores = Callable[[str], KubeStore]


@pytest.fixture
async def store_of(cluster: Cluster, namespace: str) -> AsyncIterator[Stores]:
    """Makes a store for whose token that is, in the test's namespace."""
    made: list[KubeStore] = []

    def make(token: str) -> KubeStore:
        where = explicit(cluster.server, ca_file=cluster.ca_file, token=token, namespace=namespace)
        made.append(KubeStore(ApiClient(where)))
        return made[-1]

    yield make
    for store in made:
        await store.close()


@pytest.fixture
async def admin(cluster: Cluster, store_of: Stores) -> KubeStore:
    return store_of(cluster.admin_token)


@pytest.fixture
async def worker_store(service_account: Callable[..., str], store_of: Stores) -> KubeStore:
    return store_of(service_account("worker"))


def doubling(queue: str = "q") -> Worker:
    worker = Worker(queue=queue)

    @worker.task
    def handle(request: dict) -> dict:  # type: ignore[type-arg]
        return {"twice": 2 * request["n"]}

    return worker


async def test_a_task_costs_exactly_three_writes(
    cluster: Cluster, namespace: str, admin: KubeStore, worker_store: KubeStore, tmp_path: Path
) -> None:
    """Create, claim, submit: as the API server counts them."""
    for number in range(20):
        await enqueue_async("q", {"n": number}, store=admin)
    tally = await doubling().run_async(store=worker_store, outbox=tmp_path / "outbox.db", settings=ONCE)
    assert tally == {"claims": 20, "ACCEPTED": 20}
    writes = accepted_writes(cluster.audit_events(), namespace=namespace)
    assert len(writes) == 3 * 20
    for task in await admin.tasks():
        verify_chain(task)
        assert (task.state, task.token, task.count) == (State.SUCCEEDED, 1, 1)


async def test_several_workers_share_a_queue_and_nothing_is_done_twice(
    cluster: Cluster,
    namespace: str,
    admin: KubeStore,
    service_account: Callable[..., str],
    store_of: Stores,
    tmp_path: Path,
) -> None:
    for number in range(40):
        await enqueue_async("q", {"n": number}, store=admin)
    stores = [store_of(service_account("worker")) for _ in range(4)]
    tallies = await asyncio.gather(
        *(
            doubling().run_async(store=store, outbox=tmp_path / f"{number}.db", settings=ONCE)
            for number, store in enumerate(stores)
        )
    )
    assert sum(tally["ACCEPTED"] for tally in tallies) == 40
    assert {(task.token, task.count) for task in await admin.tasks()} == {(1, 1)}
    assert len(accepted_writes(cluster.audit_events(), namespace=namespace)) == 3 * 40


async def test_enqueue_is_a_replay_for_the_same_content_and_a_conflict_for_other(admin: TaskStore) -> None:
    async def made(request: dict[str, object], name: str | None = None) -> Verdict:
        return (await enqueue_async("q", request, name=name, store=admin)).verdict

    verdicts = await asyncio.gather(*(made({"a": 1, "b": 2.0}) for _ in range(10)))
    assert sorted(verdicts) == ["ACCEPTED"] + ["DUPLICATE"] * 9
    assert await made({"b": 2, "a": 1.0}) == "DUPLICATE"
    assert await made({"a": 1}, "named") == "ACCEPTED"
    assert await made({"a": 2}, "named") == "CONFLICT"
    task = await admin.task(ObjectKey(namespace=admin.namespace, name="named"))
    assert task is not None
    assert task.spec.request == '{"a":1}'
