"""An API server whose schema is older than the library: what it drops without a word is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from fencepost.kube.client import ApiClient
from fencepost.kube.connection import explicit
from fencepost.kube.store import KubeStore
from fencepost.ports import Cause, Refused
from tests.cluster.cluster import cluster_of
from tests.cluster.control_plane import ControlPlane
from tests.cluster.kube_acting import claimed, new_task, refused
from tests.conftest import CRDS
from tests.kube.deciding import submit_of


def crd_without(field: str) -> str:
    """The CRD of an older release, whose receipts do not have that field."""
    crd = yaml.safe_load((CRDS / "leasedtasks.yaml").read_text())
    [version] = crd["spec"]["versions"]
    status = version["schema"]["openAPIV3Schema"]["properties"]["status"]
    receipt = status["properties"]["receipts"]["items"]
    del receipt["properties"][field]
    receipt["required"] = [name for name in receipt["required"] if name != field]
    return yaml.safe_dump(crd)


@pytest.mark.parametrize("field", ["fencingToken", "deviceTime"])
async def test_a_field_that_an_older_schema_drops_is_named_and_is_no_success(
    own_control_plane: ControlPlane, tmp_path: Path, field: str
) -> None:
    (tmp_path / "leasedtasks.yaml").write_text(crd_without(field))
    cluster = cluster_of(own_control_plane)
    cluster.install(tmp_path)
    store = KubeStore(ApiClient(explicit(cluster.server, ca_file=cluster.ca_file, token=cluster.admin_token)))
    task = await claimed(store, await new_task(store))
    answer = await store.write(submit_of(task, device_time="2001-01-01T00:00:00Z"))
    assert refused(answer) is Cause.SCHEMA
    assert isinstance(answer, Refused) and f"status.receipts[-1].{field}" in answer.message
    await store.close()
