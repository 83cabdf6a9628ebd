"""The fixture `place`: every test of this folder runs once for each store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.contract import places
from tests.contract.acting import Actor
from tests.contract.places import Place


@pytest.fixture(params=["memory", "sqlite", pytest.param("api server", marks=pytest.mark.cluster)])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    """A store with nothing in it."""
    match request.param:
        case "memory":
            made = places.memory()
        case "sqlite":
            made = places.sqlite(tmp_path)
        case _:
            cluster, namespace, service_account = (
                request.getfixturevalue(name) for name in ("cluster", "namespace", "service_account")
            )
            made = places.api_server(cluster, namespace, service_account)
    async with made as place:
        yield place


@pytest.fixture
async def worker(place: Place) -> Actor:
    """A worker with an outbox of its own."""
    return await Actor.of(place.client())


@pytest.fixture
async def other(place: Place) -> Actor:
    """Another worker, with the same account."""
    return await Actor.of(place.client())
