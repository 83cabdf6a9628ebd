"""Every request ends as a value, and the value tells whether the server may have done it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable

import pytest

from fencepost.kube.client import JSON_PATCH, ApiClient, Lost, NeverSent, Response, Timeouts
from fencepost.kube.connection import Connection, NoCluster, StaticToken
from tests.kube.scripted_server import CutShort, Said, ScriptedServer, Silence

PATH = "/apis/x"
HALF = b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"half": '

Clients = Callable[..., ApiClient]


@pytest.fixture
async def client_of() -> AsyncIterator[Clients]:
    """Makes clients that are closed at the end."""
    made: list[ApiClient] = []

    def make(
        url: str, *, seconds: float = 5.0, connect_seconds: float = 5.0, in_flight_max: int = 8
    ) -> ApiClient:
        timeouts = Timeouts(connect=connect_seconds, read=seconds, write=seconds)
        connection = Connection(server=url, credentials=StaticToken("t"))
        made.append(ApiClient(connection, timeouts=timeouts, in_flight_max=in_flight_max))
        return made[-1]

    yield make
    for client in made:
        await client.close()


async def test_an_answer_is_its_status_its_json_and_the_time_of_the_server(client_of: Clients) -> None:
    date = "Mon, 30 Nov 2026 13:00:00 GMT"
    async with ScriptedServer(Said(201, {"a": 1}, (("Date", date),))) as server:
        result = await client_of(server.url).create(PATH, {"b": "ü"})
    assert result == Response(status=201, body={"a": 1}, date=date)
    assert server.got[0].headers["authorization"] == "Bearer t"
    assert server.got[0].headers["content-type"] == "application/json"
    assert server.got[0].body == '{"b":"ü"}'.encode()


async def test_a_patch_says_which_sort_it_is(client_of: Clients) -> None:
    async with ScriptedServer() as server:
        await client_of(server.url).patch(PATH, [{"op": "test"}], content_type=JSON_PATCH)
    assert (server.got[0].method, server.got[0].headers["content-type"]) == ("PATCH", JSON_PATCH)


async def test_a_delete_names_the_uid(client_of: Clients) -> None:
    async with ScriptedServer() as server:
        await client_of(server.url).delete(PATH, uid="u-1", propagation="Foreground")
    options = json.loads(server.got[0].body)
    assert options["preconditions"] == {"uid": "u-1"}
    assert options["propagationPolicy"] == "Foreground"


async def test_where_nobody_listens_nothing_was_sent(client_of: Clients) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{reserved.getsockname()[1]}"
        result = await client_of(url).patch(PATH, {})
    assert isinstance(result, NeverSent)
    assert url in result.message


async def test_a_name_that_does_not_resolve_is_never_sent(client_of: Clients) -> None:
    result = await client_of("http://nowhere.invalid").patch(PATH, {})
    assert isinstance(result, NeverSent)


@pytest.mark.parametrize("step", [CutShort(), CutShort(b"HTTP/1.1 200 OK\r\n"), CutShort(HALF)])
async def test_a_connection_that_ends_before_the_answer_does_is_lost(
    client_of: Clients, step: CutShort
) -> None:
    async with ScriptedServer(step) as server:
        result = await client_of(server.url).patch(PATH, {})
    assert isinstance(result, Lost)
    assert len(server.got) == 1, "the client sent a write again by itself"


async def test_a_write_on_a_kept_connection_that_was_closed_is_lost_and_not_repeated(
    client_of: Clients,
) -> None:
    async with ScriptedServer(Said(), CutShort()) as server:
        client = client_of(server.url)
        assert isinstance(await client.patch(PATH, {}), Response)
        assert isinstance(await client.patch(PATH, {}), Lost)
    assert len(server.got) == 2


async def test_silence_is_lost_when_the_time_is_over(client_of: Clients) -> None:
    async with ScriptedServer(Silence()) as server:
        result = await client_of(server.url, seconds=0.05).patch(PATH, {})
    assert isinstance(result, Lost)
    assert "0.05 s" in result.message


async def test_a_success_that_is_no_json_is_lost(client_of: Clients) -> None:
    async with ScriptedServer(Said(200, "<html>please log in</html>")) as server:
        result = await client_of(server.url).patch(PATH, {})
    assert isinstance(result, Lost)
    assert "please log in" in result.message


async def test_a_failure_that_is_no_json_keeps_its_text(client_of: Clients) -> None:
    async with ScriptedServer(Said(502, "bad gateway")) as server:
        assert await client_of(server.url).get(PATH) == Response(status=502, body="bad gateway")


async def test_a_redirect_is_not_followed(client_of: Clients) -> None:
    async with ScriptedServer(Said(302, "", (("Location", "/elsewhere"),))) as server:
        result = await client_of(server.url).get(PATH)
    assert isinstance(result, Response) and result.status == 302
    assert server.targets == [PATH]


@pytest.mark.parametrize(
    ("header", "details", "seconds"),
    [("3", {}, 3.0), (None, {"retryAfterSeconds": 2}, 2.0), ("86400", {}, 60.0), ("soon", {}, None)],
)
async def test_the_advice_when_to_come_again(
    client_of: Clients, header: str | None, details: dict[str, int], seconds: float | None
) -> None:
    headers = (("Retry-After", header),) if header else ()
    async with ScriptedServer(Said(429, {"kind": "Status", "details": details}, headers)) as server:
        result = await client_of(server.url).get(PATH)
    assert isinstance(result, Response) and result.retry_after_seconds == seconds


class Renewable:
    """Credentials that are good from the second time on."""

    def __init__(self) -> None:
        self.generation = 1

    async def authorization(self) -> str:
        return f"Bearer {self.generation}"

    def distrust(self) -> None:
        self.generation += 1


async def test_credentials_that_are_not_taken_are_read_again_once() -> None:
    async with ScriptedServer(Said(401), Said(200, {"ok": 1}), Said(401), Said(401)) as server:
        client = ApiClient(Connection(server=server.url, credentials=Renewable()))
        assert await client.patch(PATH, {}) == Response(status=200, body={"ok": 1})
        again = await client.patch(PATH, {})
        await client.close()
    assert isinstance(again, Response) and again.status == 401
    assert [got.headers["authorization"] for got in server.got] == [f"Bearer {n}" for n in (1, 2, 2, 3)]


async def test_without_credentials_nothing_is_sent() -> None:
    class Missing(Renewable):
        async def authorization(self) -> str:
            raise NoCluster("the token cannot be read")

    async with ScriptedServer() as server:
        client = ApiClient(Connection(server=server.url, credentials=Missing()))
        result = await client.patch(PATH, {})
        await client.close()
    assert result == NeverSent(message="the token cannot be read")
    assert server.got == []


async def test_pages_follow_each_other_to_the_end(client_of: Clients) -> None:
    first = Said(200, {"metadata": {"continue": "c/1"}, "items": [1]})
    async with ScriptedServer(first, Said(200, {"metadata": {}, "items": [2]})) as server:
        pages = client_of(server.url).pages(PATH, query={"labelSelector": "a"}, page_size=1)
        items = [page.body["items"] async for page in pages if isinstance(page, Response)]
    assert items == [[1], [2]]
    assert server.targets == [
        f"{PATH}?labelSelector=a&limit=1",
        f"{PATH}?labelSelector=a&limit=1&continue=c/1",
    ]


async def test_a_page_that_fails_is_the_last_one(client_of: Clients) -> None:
    async with ScriptedServer(Said(410, {"kind": "Status"})) as server:
        pages = [page async for page in client_of(server.url).pages(PATH)]
    assert [page.status for page in pages if isinstance(page, Response)] == [410]


async def test_requests_in_flight_are_bounded(client_of: Clients) -> None:
    async with ScriptedServer() as server:
        client = client_of(server.url, in_flight_max=3)
        results = await asyncio.gather(*(client.patch(PATH, {}) for _ in range(20)))
    assert all(isinstance(result, Response) for result in results)
    assert server.busiest <= 3


async def test_waiting_for_a_turn_takes_nothing_from_the_time_of_a_request(client_of: Clients) -> None:
    async with ScriptedServer(*[Said(after_seconds=0.04)] * 4) as server:
        client = client_of(server.url, in_flight_max=1, seconds=0.1)
        results = await asyncio.gather(*(client.patch(PATH, {}) for _ in range(4)))
    assert all(isinstance(result, Response) for result in results)


async def test_a_server_that_accepts_no_connection_was_sent_nothing(client_of: Clients) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as deaf, contextlib.ExitStack() as waiting:
        for _ in range(4):  # fill the queue of those that wait to be accepted
            early = waiting.enter_context(socket.socket())
            early.setblocking(False)
            early.connect_ex(deaf.getsockname())
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        result = await client_of(url, connect_seconds=0.1).patch(PATH, {})
    assert isinstance(result, NeverSent), result


async def test_a_client_may_be_closed_twice_and_used_again(client_of: Clients) -> None:
    async with ScriptedServer() as server:
        client = client_of(server.url)
        assert isinstance(await client.get(PATH), Response)
        await client.close()
        await client.close()
        assert isinstance(await client.get(PATH), Response)
