"""The operator as a process: probes, signals, and a server that is away, silent or without policies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.control_plane import ControlPlane
from tests.cluster.kubectl import kubeconfig_content, write_kubeconfig
from tests.handlers.operator_process import OperatorProcess
from tests.handlers.place import AFTER, Place
from tests.handlers.tcp_proxy import TcpProxy

CRDS = Path(__file__).parents[2] / "crds"
END_SECONDS_MAX = 2.0
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
MEMORY_KIB_MAX = 150 * 1024


@pytest.fixture
def place(cluster: Cluster, namespace: str, service_account: Callable[..., str]) -> Place:
    return Place(
        cluster=cluster,
        namespace=namespace,
        operator_token=service_account("operator"),
        worker_token=service_account("worker"),
    )


@pytest.fixture
def own_place(own_cluster: Cluster) -> Place:
    namespace = own_cluster.new_namespace("own")
    return Place(
        cluster=own_cluster,
        namespace=namespace,
        operator_token=own_cluster.service_account(namespace, "operator"),
        worker_token=own_cluster.service_account(namespace, "worker"),
    )


def behind(proxy: TcpProxy, place: Place) -> Path:
    content = kubeconfig_content(
        server=proxy.url,
        authorities_pem=place.cluster.ca_file.read_text(),
        token=place.operator_token,
        namespace=place.namespace,
    )
    return write_kubeconfig(place.cluster.folder / f"kubeconfig-of-proxy-{proxy.port}", content)


async def test_it_is_ready_counts_and_ends_within_two_seconds(place: Place) -> None:
    with place.operator() as operator:
        place.make_job("j", "a", "b")
        await place.until(lambda: len(place.tasks()) == 2, "the children are there")
        assert operator.get("/healthz") == (HTTPStatus.OK, "ok\n")
        status, text = operator.get("/metrics")
        assert status == HTTPStatus.OK
        assert 'fencepost_writes_total{end="applied",what="create-task"} 2.0' in text
        assert "fencepost_cached_tasks 2.0" in text
        code, seconds = operator.terminate()
    assert (code, seconds < END_SECONDS_MAX) == (0, True)
    assert operator.lines()[-1]["msg"] == "ended"


async def test_in_one_namespace_it_asks_for_nothing_that_it_may_not(place: Place, cluster: Cluster) -> None:
    with place.operator() as operator:
        job = place.make_job("j", "a", continuation={"template": AFTER})
        await place.settle_all(job)
        await place.until_continued("j")
    assert not [line for line in operator.lines() if line["level"] != "info"], operator.log()
    if cluster.control_plane_folder is not None:
        account = f"system:serviceaccount:{place.namespace}:operator"
        mine = [e for e in cluster.audit_events() if e["user"]["username"].startswith(account)]
        refused = [e for e in mine if e["responseStatus"]["code"] == HTTPStatus.FORBIDDEN]
        # The only refusals are those that the probe asks for.
        assert all(e["verb"] == "create" and "dryRun" in e["requestURI"] for e in refused)


async def test_a_server_that_is_not_there_is_said_in_one_line_and_waited_for(place: Place) -> None:
    with TcpProxy(place.cluster.server) as proxy:
        proxy.refuse()
        with OperatorProcess(behind(proxy, place), place.namespace, wait_until_ready=False) as operator:
            operator.until(lambda: "trying again" in operator.log(), "it says so")
            await asyncio.sleep(2.5)
            said = [line for line in operator.lines() if "trying again" in line["msg"]]
            assert len(said) == 1
            assert proxy.url in said[0]["msg"]
            assert operator.get("/readyz") == (
                HTTPStatus.SERVICE_UNAVAILABLE,
                "the caches are not filled yet\n",
            )
            proxy.restore()
            operator.until(lambda: operator.get("/readyz")[0] == HTTPStatus.OK, "it is ready")


def test_it_gives_up_when_it_is_told_to(place: Place) -> None:
    with TcpProxy(place.cluster.server) as proxy:
        proxy.refuse()
        flags = ("--give-up-after=1.5",)
        with OperatorProcess(
            behind(proxy, place), place.namespace, flags=flags, wait_until_ready=False
        ) as operator:
            assert operator.process.wait(timeout=20) == 3
            assert "gave up after 1.5 s" in operator.lines()[-1]["msg"]


def test_a_port_that_is_taken_is_one_sentence(place: Place) -> None:
    with TcpProxy(place.cluster.server) as taken:
        flags = (f"--probe-address=127.0.0.1:{taken.port}",)
        with place.operator(flags=flags, wait_until_ready=False) as operator:
            assert operator.process.wait(timeout=20) == 1
            assert f"probes cannot be served on 127.0.0.1:{taken.port}" in operator.lines()[-1]["msg"]


async def test_without_policies_it_is_not_ready_and_says_what_to_apply(own_place: Place) -> None:
    api = own_place.cluster.api
    binding = api.request("GET", f"{POLICIES}/fencepost-fence").body
    with own_place.operator() as operator:
        assert api.request("DELETE", f"{POLICIES}/fencepost-fence").ok
        await own_place.until(
            lambda: operator.get("/readyz")[0] == HTTPStatus.SERVICE_UNAVAILABLE,
            "it is not ready",
            seconds=45,
        )
        assert operator.get("/readyz")[1] == (
            "the admission policies are not active: apply crds/policies.yaml\n"
        )
        assert not own_place.tasks()  # the probe leaves nothing
        metadata = {"name": binding["metadata"]["name"]}
        assert api.request("POST", POLICIES, {**binding, "metadata": metadata}).ok
        await own_place.until(lambda: operator.get("/readyz")[0] == HTTPStatus.OK, "it is ready again")


async def test_a_kind_that_goes_and_comes_back_is_watched_again(own_place: Place) -> None:
    """Kopf ends when a kind that it watches is gone, and never looks for one that is not there."""
    kubectl, kind = own_place.cluster.kubectl, "customresourcedefinition/fanoutjobs.fencepost.dev"
    with own_place.operator() as operator:
        before = own_place.make_job("before", "a")
        await own_place.until_children_are_there(before)
        kubectl("delete", kind)
        await own_place.until(lambda: "does not serve fanoutjobs" in operator.log(), "it says so")
        own_place.cluster.install(CRDS)
        job = own_place.make_job("after", "a", "b")
        await own_place.settle_all(job)
        await own_place.until_joined("after")
        assert not [line for line in operator.lines() if "trace" in line]


async def test_an_api_server_that_is_killed_and_comes_back(
    own_place: Place, own_control_plane: ControlPlane
) -> None:
    with own_place.operator() as operator:
        job = own_place.make_job("j", "a", "b", "c", continuation={"template": AFTER})
        await own_place.until_children_are_there(job)
        async with own_place.worker() as worker:
            await worker.settle(own_place.child(job, "a"), "a")
            own_control_plane.kill_apiserver()
            await asyncio.sleep(1)
            own_control_plane.start_apiserver()
            await worker.settle(own_place.child(job, "b"), "b")
            await worker.settle(own_place.child(job, "c"), "c")
        await own_place.until_continued("j", seconds=60)
        assert operator.exit_code is None
    assert len([task for task in own_place.tasks() if task.branch is None]) == 1
    assert all(len(task.receipts) == 1 for task in own_place.tasks() if task.branch)


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_a_watch_that_is_cut_or_goes_silent_is_noticed_and_opened_again(place: Place) -> None:
    """B01: no event is lost for good, every branch is made once, and liveness is red meanwhile."""
    with (
        TcpProxy(place.cluster.server) as proxy,
        OperatorProcess(behind(proxy, place), place.namespace) as operator,
    ):
        place.make_task("first")
        seen = 'fencepost_watch_events_total{resource="leasedtasks"} 1.0'
        operator.until(lambda: seen in operator.get("/metrics")[1], "the watch is open")
        place.delete("leasedtasks", "first")
        proxy.refuse()
        await asyncio.sleep(20)
        proxy.restore()
        place.make_job("f1", "a", "b")
        await place.until(lambda: len(place.tasks()) == 2, "f1 has its branches", seconds=30)

        proxy.silence()
        began, red_after = time.monotonic(), 0.0
        place.make_job("f2", "a", "b")
        while time.monotonic() - began < 90:
            if not red_after and operator.get("/healthz")[0] == HTTPStatus.SERVICE_UNAVAILABLE:
                red_after = time.monotonic() - began
            await asyncio.sleep(0.5)
        assert 0 < red_after <= 85
        assert len(place.tasks()) == 2
        proxy.restore()
        await place.until(lambda: len(place.tasks()) == 4, "f2 has its branches", seconds=60 + 30)
        await place.until(
            lambda: operator.get("/healthz")[0] == HTTPStatus.OK, "liveness is green", seconds=60
        )
        assert operator.exit_code is None
        assert len([line for line in operator.lines() if line["level"] == "error"]) < 40
    for name in ("f1", "f2"):
        assert sorted(
            task.branch or "" for task in place.tasks() if task.owner and task.owner.name == name
        ) == [
            "a",
            "b",
        ]


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_memory_with_five_thousand_tasks(place: Place) -> None:
    api, path = place.cluster.api, place.path("leasedtasks")
    task = {
        "apiVersion": "fencepost.dev/v1alpha1",
        "kind": "LeasedTask",
        "metadata": {"generateName": "t-"},
        "spec": {"queue": "many", "request": {"text": "x" * 500}},
    }

    def make() -> None:
        for _ in range(1250):
            assert api.request("POST", path, task).ok

    with place.operator() as operator:
        await asyncio.gather(*(asyncio.to_thread(make) for _ in range(4)))
        operator.until(lambda: "fencepost_cached_tasks 5000.0" in operator.get("/metrics")[1], "all are seen")
        assert operator.memory_kib() <= MEMORY_KIB_MAX
    with place.operator() as again:
        listed = 'fencepost_watch_events_total{resource="leasedtasks"} 5000.0'
        again.until(lambda: listed in again.get("/metrics")[1], "Kopf has listed them too")
        assert again.memory_kib() <= MEMORY_KIB_MAX
