"""The cluster of a conformance run outside pytest."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.build import built_kubectl
from tests.cluster.cluster import Cluster, cluster_of, connect
from tests.cluster.control_plane import ControlPlane

EXISTING_CLUSTER = "FENCEPOST_TEST_KUBECONFIG"
CRDS = Path(__file__).parents[2] / "crds"


@contextmanager
def a_cluster() -> Iterator[Cluster]:
    """A control plane of this run's own with Fencepost's kinds in it, or the one that is named."""
    existing = os.environ.get(EXISTING_CLUSTER)
    if existing:
        with tempfile.TemporaryDirectory() as folder:
            found = connect(
                kubectl=built_kubectl(), kubeconfig=Path(existing).expanduser(), folder=Path(folder)
            )
            found.install(CRDS)
            yield found
        return
    with ControlPlane() as plane:
        found = cluster_of(plane)
        found.install(CRDS)
        plane.restart_controllers()
        yield found
