"""Lost, late and doubled requests between the operator and the real API server: the same end every time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.fault_proxy import (
    Answer,
    ArriveLater,
    DropAnswer,
    DropRequest,
    Duplicate,
    Fault,
    FaultProxy,
)
from tests.cluster.kubectl import kubeconfig_content, write_kubeconfig
from tests.handlers.operator_process import OperatorProcess
from tests.handlers.place import AFTER, Place

STATUS_500 = '{"kind":"Status","apiVersion":"v1","status":"Failure","code":500,"message":"no"}'
STATUS_429 = '{"kind":"Status","apiVersion":"v1","status":"Failure","code":429,"message":"slow down"}'


@pytest.fixture
def place(cluster: Cluster, namespace: str, service_account: Callable[..., str]) -> Place:
    return Place(
        cluster=cluster,
        namespace=namespace,
        operator_token=service_account("operator"),
        worker_token=service_account("worker"),
    )


@pytest.fixture
def proxy(place: Place) -> Iterator[FaultProxy]:
    with FaultProxy(place.cluster.server, place.cluster.ca_file) as proxy:
        yield proxy


def kubeconfig_of(proxy: FaultProxy, place: Place) -> Path:
    content = kubeconfig_content(
        server=proxy.url,
        authorities_pem=place.cluster.ca_file.read_text(),
        token=place.operator_token,
        namespace=place.namespace,
    )
    return write_kubeconfig(place.cluster.folder / f"kubeconfig-{place.namespace}", content)


@pytest.mark.parametrize(
    "fault",
    [
        DropAnswer(),
        DropRequest(),
        ArriveLater(1.0),
        Duplicate(),
        Answer(500, STATUS_500),
        Answer(504, STATUS_500, after_commit=True),
        Answer(429, STATUS_429, (("Retry-After", "1"),)),
    ],
    ids=["answer lost", "request lost", "late", "twice", "500", "504 after commit", "429"],
)
async def test_each_kind_of_write_meets_a_fault_once(place: Place, proxy: FaultProxy, fault: Fault) -> None:
    template = {"leaseDurationSeconds": 1, "retryPolicy": {"backoffBaseSeconds": 1, "backoffMaxSeconds": 1}}
    with OperatorProcess(kubeconfig_of(proxy, place), place.namespace):
        for method, path in (
            ("POST", "/leasedtasks"),  # a child
            ("PATCH", "/fanoutjobs/j/status"),  # the mark
            ("PATCH", "/leasedtasks/j-a-"),  # revoke or requeue
            ("PATCH", "/leasedtasks/j-then-"),  # unsuspend
        ):
            proxy.inject(fault, method=method, path=path)
        job = place.make_job("j", "a", "b", template=template, continuation={"template": AFTER})
        await place.until_children_are_there(job)
        async with place.worker() as worker:
            key = place.child(job, "a")
            await worker.claim(key)  # and it is never heard of again
            await place.until(
                lambda: (task := place.task(key.name)) is not None and (task.token, task.hold) == (1, None),
                "the lease was revoked and the task freed",
                seconds=40,
            )
            proxy.inject(fault, method="PATCH", path="/fanoutjobs/j/status")  # the snapshot
            proxy.inject(fault, method="POST", path="/leasedtasks")  # the continuation
            await worker.settle(key, "a")
            await worker.settle(place.child(job, "b"), "b")
        joined = await place.until_continued("j", seconds=60)
    children = [task for task in place.tasks() if task.branch]
    assert sorted((task.branch, task.token, len(task.receipts)) for task in children) == [
        ("a", 2, 1),
        ("b", 1, 1),
    ]
    assert next(task for task in children if task.branch == "a").failures == 1
    after = [task for task in place.tasks() if task.branch is None]
    record = joined.status.continuation
    assert record is not None
    assert [task.uid for task in after] == [record.uid]


async def test_no_join_while_the_server_fails_to_create_children(place: Place, proxy: FaultProxy) -> None:
    """B18."""
    with OperatorProcess(kubeconfig_of(proxy, place), place.namespace):
        proxy.inject(Answer(500, STATUS_500), method="POST", path="/leasedtasks", skip=2, times=12)
        job = place.make_job("five", "1", "2", "3", "4", "5")
        await place.until(lambda: len(place.tasks()) >= 2, "two children are there")
        async with place.worker() as worker:
            for task in place.tasks():
                await worker.settle(task.key)
        assert not place.job("five").joined
        await place.until_children_are_there(job)
        await place.settle_all(job)
        joined = await place.until_joined("five")
    assert len(joined.status.branches) == 5
