"""The same checks as `make conformance`, one test for each check and store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.conformance.checks import Check
from tests.conformance.grounds import (
    API_SERVER,
    MEMORY,
    api_server_ground,
    label_of,
    memory_ground,
    sqlite_ground,
)
from tests.conformance.suites import ALL

EMBEDDED = [
    pytest.param(check, store, id=f"{check.name}-{store}")
    for check in ALL
    for store in check.stores
    if store != API_SERVER
]
ON_THE_API_SERVER = [pytest.param(check, id=check.name) for check in ALL if API_SERVER in check.stores]


@pytest.mark.parametrize(("check", "store"), EMBEDDED)
async def test_embedded(check: Check, store: str, tmp_path: Path) -> None:
    make = memory_ground if store == MEMORY else sqlite_ground
    async with make(tmp_path, label_of(check.name)) as ground:
        await check.run(ground)


@pytest.fixture(scope="module")
def shared_accounts(cluster: Cluster) -> Iterator[tuple[str, Callable[..., str]]]:
    """A namespace with an account for each role: the checks have names and queues of their own in it."""
    namespace = cluster.new_namespace("conformance")
    tokens: dict[str, str] = {}

    def token(role: str) -> str:
        if role not in tokens:
            tokens[role] = cluster.service_account(namespace, role)  # type: ignore[arg-type]
        return tokens[role]

    yield namespace, token
    cluster.delete_namespace(namespace)


@pytest.mark.cluster
@pytest.mark.parametrize("check", ON_THE_API_SERVER)
async def test_on_the_api_server(
    check: Check, cluster: Cluster, shared_accounts: tuple[str, Callable[..., str]], tmp_path: Path
) -> None:
    namespace, token = shared_accounts
    async with api_server_ground(cluster, namespace, token, tmp_path, label_of(check.name)) as ground:
        await check.run(ground)
