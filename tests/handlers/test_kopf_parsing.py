"""Kopf's own client reads what the API server may send; if Kopf parses elsewhere one day, this fails."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from kopf._cogs.clients import api, auth, fetching
from kopf._cogs.structs.credentials import Vault
from kopf._cogs.structs.references import Resource

from fencepost.kube.connection import explicit
from fencepost_operator.kopf_parsing import parse_watches_of_any_depth
from fencepost_operator.watching import Progress, session_of_kopf, settings_of_kopf

LOG = logging.getLogger(__name__)
TASKS = Resource("fencepost.dev", "v1alpha1", "leasedtasks", namespaced=True)


def an_object(name: str, depth: int = 1) -> str:
    request = '{"a":' * depth + "1" + "}" * depth
    return f'{{"metadata":{{"name":"{name}"}},"spec":{{"request":{request}}}}}'


def names_of(found: list[Any]) -> list[str]:
    return [one["metadata"]["name"] for one in found]


@asynccontextmanager
async def kopf_at_a_server(body: str) -> AsyncIterator[None]:
    """Kopf is logged in, by our own session, at a server whose every answer is this."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=body, content_type="application/json")

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server = f"http://127.0.0.1:{runner.addresses[0][1]}"
    connection = explicit(server, ca_file=None, token=None, namespace="ns")
    session = await session_of_kopf(connection, Progress(["ns"], clock=lambda: 0.0))
    token = auth.vault_var.set(Vault({"us": session}))
    try:
        yield
    finally:
        auth.vault_var.reset(token)
        assert session.aiohttp_session is not None
        await session.aiohttp_session.close()
        await runner.cleanup()


@pytest.mark.parametrize("depth", [900, 1_500, 9_900])
async def test_a_watch_goes_on_past_an_object_of_any_depth(depth: int) -> None:
    parse_watches_of_any_depth()
    objects = [an_object("before"), an_object("deep", depth), an_object("after")]
    async with kopf_at_a_server("".join(f'{{"type":"ADDED","object":{one}}}\n' for one in objects)):
        stream = api.stream("/watch", settings=settings_of_kopf(), logger=LOG)
        assert names_of([event["object"] async for event in stream]) == ["before", "deep", "after"]


@pytest.mark.parametrize("depth", [900, 1_500, 9_900])
async def test_a_list_is_read_with_an_object_of_any_depth_in_it(depth: int) -> None:
    items = ",".join([an_object("before"), an_object("deep", depth), an_object("after")])
    async with kopf_at_a_server(f'{{"metadata":{{"resourceVersion":"7"}},"items":[{items}]}}'):
        pages = fetching.fetch_objs(settings=settings_of_kopf(), resource=TASKS, namespace="ns", logger=LOG)
        found = [item async for page, _ in pages for item in page]
    assert names_of(found) == ["before", "deep", "after"]
