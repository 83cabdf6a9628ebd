"""Workers that freeze, die or are told to stop, on the real API server. Nothing is lost, nothing doubled."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fencepost import Worker
from fencepost.kube.connection import explicit
from fencepost.kube.store import KubeStore
from fencepost.outbox import Row
from fencepost.ports import Applied
from fencepost.protocol import upkeep
from fencepost.protocol.drain import RowStatus
from fencepost.protocol.mutation import Requeue
from fencepost.protocol.receipt import verify_chain
from fencepost.protocol.task import Hold, LeaseEnd, ObjectKey, State, Task
from fencepost.worker import bare_lease
from fencepost.worker.enqueue import enqueue_async
from fencepost.worker.settings import Settings
from fencepost.worker.worker import open_outbox
from tests.cluster import fault_proxy as faults
from tests.cluster.cluster import Cluster, cluster_of
from tests.cluster.control_plane import ControlPlane
from tests.cluster.fault_proxy import FaultProxy
from tests.conftest import CRDS
from tests.worker.crashing_worker import DIED, STEPS

PROGRAMS = Path(__file__).parents[1] / "worker"
ONCE = Settings(once=True, idle_seconds_min=0.01, idle_seconds_max=0.05, patience_seconds=5)
A_HEARTBEAT = "renewed-at"


@dataclass
class Scene:
    """One task, a worker program that gets at it through the proxy, and people who look from outside."""

    cluster: Cluster
    namespace: str
    folder: Path
    token: str
    admin: KubeStore
    operator: KubeStore
    other: KubeStore
    proxy: FaultProxy
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def key(self) -> ObjectKey:
        return ObjectKey(namespace=self.namespace, name="t")

    async def task(self) -> Task:
        task = await self.admin.task(self.key)
        assert task is not None
        return task

    def program(self, name: str, *arguments: str, outbox: str = "outbox.db") -> list[str]:
        where = self.folder / "where.json"
        store = {"server": self.proxy.url, "token": self.token, "namespace": self.namespace}
        where.write_text(json.dumps(store))
        return [sys.executable, str(PROGRAMS / name), str(where), str(self.folder / outbox), *arguments]

    async def start(self, mode: str, grace: float = 10.0) -> subprocess.Popen[str]:
        """Starts the slow worker and waits until its handler works."""
        process = subprocess.Popen(  # noqa: ASYNC220 - it returns at once
            self.program("slow_worker.py", mode, str(grace)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        assert process.stdout is not None
        assert await asyncio.to_thread(process.stdout.readline) == "working\n"
        return process

    async def end(self, process: subprocess.Popen[str], number: signal.Signals, seconds: float = 15) -> int:
        process.send_signal(number)
        return await asyncio.to_thread(process.wait, seconds)

    async def expire(self) -> Task:
        """What the operator does when nobody renews: revoke, then requeue."""
        task = await self.task()
        revoked = await self.operator.write(upkeep.revoke(task, LeaseEnd.EXPIRED))
        assert isinstance(revoked, Applied), revoked
        return await self.requeue()

    async def requeue(self) -> Task:
        task = await self.task()
        assert task.hold is not None
        freed = Requeue(key=task.key, uid=task.uid, token=task.token, hold=task.hold, state=task.state)
        answer = await self.operator.write(freed)
        assert isinstance(answer, Applied), answer
        return answer.task

    def rows(self, outbox: str = "outbox.db") -> list[Row]:
        with open_outbox(self.folder / outbox) as opened:
            return list(opened.all())

    async def work_as_another(self, value: str) -> None:
        worker = Worker(queue="q")
        worker.task(lambda request: value)
        await worker.run_async(store=self.other, outbox=self.folder / "other.db", settings=ONCE)

    async def drain(self) -> dict[str, int]:
        """A new life of the frozen worker's outbox, which claims nothing."""
        where = explicit(self.proxy.url, ca_file=None, token=self.token, namespace=self.namespace)
        store = KubeStore.of(where)
        try:
            drained = await Worker(queue="-").run_async(
                store=store, outbox=self.folder / "outbox.db", settings=ONCE, drain_only=True
            )
        finally:
            await store.close()
        return dict(drained)


@pytest.fixture
async def scene(
    cluster: Cluster, namespace: str, service_account: Callable[..., str], tmp_path: Path
) -> AsyncIterator[Scene]:
    def store(token: str) -> KubeStore:
        return KubeStore.of(
            explicit(cluster.server, ca_file=cluster.ca_file, token=token, namespace=namespace)
        )

    stores = [
        store(token)
        for token in (cluster.admin_token, service_account("operator"), service_account("worker"))
    ]
    with FaultProxy(cluster.server, cluster.ca_file) as proxy:
        made = Scene(cluster, namespace, tmp_path, service_account("worker"), *stores, proxy)
        await enqueue_async("q", {"n": 7}, name="t", store=made.admin)
        yield made
        for process in made.processes:
            process.kill()
            process.communicate()
    for opened in stores:
        await opened.close()


class TestAFrozenWorkerWakesUp:
    """B09: the order of replay and fence, pinned from both sides."""

    async def test_its_late_result_is_stale_and_only_the_others_receipt_stands(self, scene: Scene) -> None:
        process = await scene.start("returns")
        process.send_signal(signal.SIGSTOP)
        await scene.expire()
        await scene.work_as_another("the other's")
        process.send_signal(signal.SIGCONT)
        assert await scene.end(process, signal.SIGTERM) == 0
        task = await scene.task()
        assert [(r.value, r.fencing_token) for r in task.receipts] == [("the other's", 2)]
        (row,) = scene.rows()
        assert row.status in (RowStatus.PARKED, RowStatus.DEAD)  # dead once it sees the task settled
        assert await scene.drain() in ({}, {"REJECTED_STALE_TOKEN": 1})
        assert [row.status for row in scene.rows()] == [RowStatus.DEAD]
        assert (await scene.task()).receipts == task.receipts

    async def test_a_stored_key_is_replayed_although_the_token_is_stale(self, scene: Scene) -> None:
        scene.proxy.inject(faults.DropAnswer(), method="PATCH", path="/status", times=None)
        starting = asyncio.create_task(scene.start("row"))
        await _until(lambda: _stored(scene, 1))
        (process,) = scene.processes
        process.kill()
        starting.cancel()
        original = (await scene.task()).receipts[0]
        scene.proxy.heal()
        await scene.expire()
        claimed = await bare_lease.claim_one(scene.other, "q", holder=_holder())
        assert claimed is not None
        assert claimed.token == 2
        assert await scene.drain() == {"DUPLICATE": 1}
        (row,) = scene.rows()
        assert (row.status, row.receipt) == (RowStatus.ACKNOWLEDGED, original)
        assert (await scene.task()).receipts == (original,)

    async def test_a_key_that_was_never_stored_is_stale(self, scene: Scene) -> None:
        scene.proxy.inject(faults.DropRequest(), method="PATCH", path="/status", times=None)
        starting = asyncio.create_task(scene.start("row"))
        await _until(lambda: any("/status" in seen.path for seen in scene.proxy.requests))
        (process,) = scene.processes
        process.kill()
        starting.cancel()
        scene.proxy.heal()
        await scene.expire()
        claimed = await bare_lease.claim_one(scene.other, "q", holder=_holder())
        assert claimed is not None
        assert await scene.drain() == {"REJECTED_STALE_TOKEN": 1}
        assert [row.status for row in scene.rows()] == [RowStatus.PARKED]
        assert (await scene.task()).receipts == ()


class TestSigterm:
    """B11: a worker that is told to stop lets go of what it holds."""

    async def test_between_heartbeats_the_task_is_free_in_less_than_two_seconds(self, scene: Scene) -> None:
        process = await scene.start("leaves")
        told = time.monotonic()
        assert await scene.end(process, signal.SIGTERM) == 0
        assert time.monotonic() - told < 2
        claimed = await bare_lease.claim_one(scene.other, "q", holder=_holder())
        assert claimed is not None
        assert (claimed.token, claimed.failures) == (2, 0)

    async def test_with_a_heartbeat_in_flight_the_release_does_not_lose_to_it(self, scene: Scene) -> None:
        await scene.admin.client.delete(_path(scene), uid=(await scene.task()).uid)
        await enqueue_async("q", {"n": 7}, name="t", store=scene.admin, spec=_lease_of_seconds(2))
        process = await scene.start("leaves")
        before = len(scene.proxy.requests)
        scene.proxy.inject(faults.Delay(request_seconds=1), method="PATCH", path="leasedtasks/t")
        await _until(lambda: len(scene.proxy.requests) > before)
        told = time.monotonic()
        assert await scene.end(process, signal.SIGTERM) == 0
        assert time.monotonic() - told < 2
        task = await scene.task()
        assert (task.hold, task.failures) == (None, 0)

    async def test_an_unsent_row_is_kept_for_the_next_start(self, scene: Scene) -> None:
        scene.proxy.inject(faults.Answer(503), method="PATCH", path="/status", times=None)
        process = await scene.start("returns", grace=1.0)
        assert await scene.end(process, signal.SIGTERM) == 0
        assert [row.status for row in scene.rows()] == [RowStatus.PENDING]
        assert (await scene.task()).hold is Hold.LEASED  # nobody else starts what is done already
        scene.proxy.heal()
        assert await scene.drain() == {"RECOVERED": 1}
        assert [receipt.value for receipt in (await scene.task()).receipts] == ["finished in time"]

    async def test_after_sigkill_the_lease_stays_until_somebody_ends_it(self, scene: Scene) -> None:
        process = await scene.start("leaves")
        await scene.end(process, signal.SIGKILL)
        assert (await scene.task()).hold is Hold.LEASED
        assert await bare_lease.claim_one(scene.other, "q", holder=_holder()) is None
        assert await scene.drain() == {"released, start": 1}  # the same volume: no need to wait
        task = await scene.task()
        assert (task.hold, task.failures) == (Hold.BACKOFF, 1)


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
async def test_killed_at_each_step_of_its_loop(scene: Scene, step: str) -> None:
    async def life(step: str) -> int:
        program = scene.program("crashing_worker.py", step, str(scene.folder / "log"))
        return (await asyncio.to_thread(subprocess.run, program, check=False, timeout=60)).returncode

    assert await life(step) == DIED
    assert await life("never") == 0
    if (await scene.task()).hold is Hold.BACKOFF:
        await scene.requeue()
        assert await life("never") == 0
    task = await scene.task()
    verify_chain(task)
    assert task.state is State.SUCCEEDED
    assert [receipt.value for receipt in task.receipts] == ['{"row":7}', '{"done":7}']
    executions = (scene.folder / "log").read_text().split()
    assert len(executions) == 1 if step in STEPS[STEPS.index("after the result is stored") :] else 2
    assert {row.status for row in scene.rows()} == {RowStatus.ACKNOWLEDGED}


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_the_api_server_is_restarted_in_the_middle(
    own_control_plane: ControlPlane, tmp_path: Path
) -> None:
    """A worker goes on by itself when the API server is back: each task executed once, one receipt each."""
    cluster = cluster_of(own_control_plane)
    cluster.install(CRDS)
    own_control_plane.restart_controllers()
    namespace = cluster.new_namespace("restart")
    token = cluster.service_account(namespace, "worker")
    admin, store = (
        KubeStore.of(explicit(cluster.server, ca_file=cluster.ca_file, token=t, namespace=namespace))
        for t in (cluster.admin_token, token)
    )
    for number in range(30):
        await enqueue_async("q", {"n": number}, store=admin)
    worker, executed = Worker(queue="q"), list[int]()

    @worker.task
    def handle(request: dict) -> dict:  # type: ignore[type-arg]
        executed.append(request["n"])
        if len(executed) == 10:
            own_control_plane.kill_apiserver()
            own_control_plane.start_apiserver()
        return request

    settings = Settings(once=True, idle_seconds_min=0.05, idle_seconds_max=0.1, patience_seconds=60)
    await worker.run_async(store=store, outbox=tmp_path / "outbox.db", settings=settings)
    tasks = await admin.tasks()
    for task in tasks:
        verify_chain(task)
    assert sorted(executed) == list(range(30))
    assert {(task.state, task.token, task.count) for task in tasks} == {(State.SUCCEEDED, 1, 1)}
    for opened in (admin, store):
        await opened.close()


def _holder() -> str:
    import uuid

    return f"{uuid.uuid4()}/script"


def _path(scene: Scene) -> str:
    return f"/apis/fencepost.dev/v1alpha1/namespaces/{scene.namespace}/leasedtasks/t"


def _lease_of_seconds(seconds: int):  # type: ignore[no-untyped-def]
    from fencepost.protocol.task import TaskSpec

    return TaskSpec(lease_duration_seconds=seconds)


async def _stored(scene: Scene, count: int) -> bool:
    return (await scene.task()).count >= count


async def _until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Wait until the condition (or what it awaits) is true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        outcome = condition()
        if asyncio.iscoroutine(outcome):
            outcome = await outcome
        if outcome:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"not within {seconds} s")
