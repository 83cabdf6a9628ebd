"""Fixtures for tests that need a real API server. A run without such tests starts and builds nothing.

The cluster comes from pytest-kind's fixture `kind_cluster`, so that `--kind-bin $(which kind)` runs the same
tests on a real kind. Without that option the program in `tests/cluster/kind` stands in, which needs no
containers; `FENCEPOST_TEST_KUBECONFIG=FILE` uses a cluster that runs already. The user's own kubeconfig is
never looked at. `tests/cluster/README.md` has the details.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.build import Binaries, BuildError, binaries, built_kubectl, everything_is_built
from tests.cluster.cluster import Cluster, Role, cluster_of, connect
from tests.cluster.control_plane import ControlPlane
from tests.cluster.kind_program import OWNER_VARIABLE, restart_controllers, running_cluster

REPOSITORY = Path(__file__).parents[1]
CRDS = REPOSITORY / "crds"
KIND = REPOSITORY / "tests" / "cluster" / "kind"
EXISTING_CLUSTER = "FENCEPOST_TEST_KUBECONFIG"
CLUSTER_FIXTURES = frozenset({"cluster", "kind_cluster", "programs", "own_control_plane", "own_cluster"})
PYTEST_KIND_DEFAULT_NAME = "pytest-kind"
BUILD_FAILURE = pytest.StashKey[str]()
"""Why the servers could not be built: said by each test that needs them, and by no other."""


def pytest_configure(config: pytest.Config) -> None:
    """Puts our program and a name of this run's own where the user left pytest-kind's options alone."""
    config.option.kind_bin = config.option.kind_bin or str(KIND)
    if not _kind_is_ours(config):
        return
    keep = config.option.keep_cluster
    if not keep:
        os.environ[OWNER_VARIABLE] = str(os.getpid())
    if config.option.cluster_name == PYTEST_KIND_DEFAULT_NAME:
        # Two runs at once in one tree must not end each other's cluster; a kept one is to be found again.
        config.option.cluster_name = "fencepost" if keep else f"fencepost-{os.getpid()}"


def _kind_is_ours(config: pytest.Config) -> bool:
    return Path(config.option.kind_bin).resolve() == KIND.resolve()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Removes the folder that pytest-kind makes for each name, where the name was ours and is not kept."""
    name = config.option.cluster_name
    if name == f"fencepost-{os.getpid()}":
        folder = Path(".pytest-kind")
        shutil.rmtree(folder / name, ignore_errors=True)
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what needs a cluster, so that `-m "not cluster"` leaves exactly that out."""
    for item in items:
        if CLUSTER_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.cluster)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Builds what is missing before the first test: a build takes minutes, and tests have time-outs."""
    config = session.config
    wanted = any(item.get_closest_marker("cluster") for item in session.items)
    if not wanted or config.option.collectonly or os.environ.get(EXISTING_CLUSTER):
        return
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    try:
        if not everything_is_built():
            with capture.global_and_fixture_disabled() if capture else nullcontext():
                binaries()
    except BuildError as failed:
        config.stash[BUILD_FAILURE] = str(failed)


@pytest.fixture(scope="session")
def programs(request: pytest.FixtureRequest) -> Binaries:
    """The servers, for tests that start and kill some of their own."""
    if os.environ.get(EXISTING_CLUSTER):
        pytest.skip(
            f"starts and kills servers of its own; {EXISTING_CLUSTER} asks for another cluster instead"
        )
    if failure := request.config.stash.get(BUILD_FAILURE, None):
        pytest.fail(failure, pytrace=False)
    return binaries()


@pytest.fixture(scope="session")
def kubectl_program(request: pytest.FixtureRequest) -> Path:
    """The kubectl of this run: the user's where the cluster is the user's, else the one that was built."""
    if failure := request.config.stash.get(BUILD_FAILURE, None):
        pytest.fail(failure, pytrace=False)
    if chosen := request.config.option.kind_kubectl_bin:
        return Path(chosen)
    installed = shutil.which("kubectl")
    theirs = bool(os.environ.get(EXISTING_CLUSTER)) or not _kind_is_ours(request.config)
    program = Path(installed) if theirs and installed else built_kubectl()
    request.config.option.kind_kubectl_bin = str(program)  # else pytest-kind downloads one
    return program


@pytest.fixture(scope="session")
def cluster(
    request: pytest.FixtureRequest, kubectl_program: Path, tmp_path_factory: pytest.TempPathFactory
) -> Cluster:
    """The cluster of this run, with Fencepost's kinds, policies and roles in it."""
    folder = tmp_path_factory.mktemp("cluster")
    if existing := os.environ.get(EXISTING_CLUSTER):
        found = connect(kubectl=kubectl_program, kubeconfig=Path(existing).expanduser(), folder=folder)
        found.install(CRDS)
        return found
    kubeconfig = request.getfixturevalue("kind_cluster").kubeconfig_path
    name = request.config.option.cluster_name
    ours = running_cluster(name) if _kind_is_ours(request.config) else None
    found = connect(
        kubectl=kubectl_program,
        kubeconfig=kubeconfig,
        folder=folder,
        control_plane_folder=Path(ours.folder) if ours else None,
    )
    found.install(CRDS)
    if ours:
        restart_controllers(name)
    return found


@pytest.fixture
def namespace(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[str]:
    """A namespace of this test's own. Its deletion is asked for at the end and not waited for."""
    name = cluster.new_namespace(request.node.name)
    yield name
    cluster.delete_namespace(name)


@pytest.fixture
def service_account(cluster: Cluster, namespace: str) -> Callable[..., str]:
    """Makes a ServiceAccount in the test's namespace: `service_account("worker", name=None)` is its token.

    Roles: worker, operator, edit, view, admin. The token can be used at once. Its rights end at the
    namespace; with `cluster_wide=True` they do not, as an operator for all namespaces needs it.
    """

    def make(role: Role, name: str | None = None, *, cluster_wide: bool = False) -> str:
        return cluster.service_account(namespace, role, name, cluster_wide=cluster_wide)

    return make


@pytest.fixture
def own_control_plane(programs: Binaries) -> Iterator[ControlPlane]:
    """A control plane for this test alone, to be killed, paused and restarted. Nothing is installed in it."""
    with ControlPlane(programs=programs) as plane:
        yield plane


@pytest.fixture
def own_cluster(own_control_plane: ControlPlane) -> Cluster:
    """The control plane of `own_control_plane` with Fencepost's kinds, policies and roles in it."""
    found = cluster_of(own_control_plane)
    found.install(CRDS)
    own_control_plane.restart_controllers()
    return found
