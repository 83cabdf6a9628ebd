"""A proxy between a client and the API server that does to single requests what networks do to them.

It understands HTTP, so that a fault can be aimed: the second PATCH of a status, every list, all of it. It
runs in a thread of its own, so sync tests, async tests and processes that a test starts can all use it, and
it passes watches through as they come. The front is plain HTTP on loopback: what it is tested for lies above
TLS. Every request is written down with what became of it.

    with FaultProxy(cluster.server, cluster.ca_file) as proxy:
        proxy.inject(DropAnswer(), method="PATCH", path="/status")
        ...  # the client uses proxy.url
        assert [seen.forwarded for seen in proxy.requests] == [1]
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import threading
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import aiohttp
from aiohttp import web
from yarl import URL

T = TypeVar("T")
_HOP_BY_HOP = frozenset(
    {"connection", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "content-length"}
)


@dataclass(frozen=True, slots=True)
class DropRequest:
    """The connection is reset before the request reaches the server."""


@dataclass(frozen=True, slots=True)
class DropAnswer:
    """The server does it; the connection is reset instead of the answer."""


@dataclass(frozen=True, slots=True)
class ResetMidBody:
    """The server does it; the connection is reset in the middle of the answer's body."""


@dataclass(frozen=True, slots=True)
class Delay:
    """The request arrives late, the answer comes late, or both."""

    request_seconds: float = 0.0
    answer_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ArriveLater:
    """The client's connection is reset at once; the request reaches the server so many seconds later."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The server gets it twice, one after the other; the client gets the first answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The proxy answers itself; with `after_commit` the server has done it nevertheless."""

    status: int
    body: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    after_commit: bool = False


@dataclass(frozen=True, slots=True)
class Blackhole:
    """Nothing is passed on and nothing comes back; the connection stays open."""


Fault = DropRequest | DropAnswer | ResetMidBody | Delay | ArriveLater | Duplicate | Answer | Blackhole


@dataclass(slots=True)
class Seen:
    """One request of a client. `statuses` are what the server answered, one for each time it was asked."""

    method: str
    path: str
    body: bytes
    fault: Fault | None
    statuses: list[int] = field(default_factory=list)

    @property
    def forwarded(self) -> int:
        return len(self.statuses)

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(slots=True)
class _Rule:
    fault: Fault
    method: str | None
    path: str
    skip: int
    times: int | None

    def takes(self, method: str, path: str) -> bool:
        """Whether this request is one for the rule; counts it if so."""
        if self.times == 0 or self.method not in (None, method) or self.path not in path:
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        if self.times is not None:
            self.times -= 1
        return True


class FaultProxy:
    """Start it as a context manager; `url` is where clients go."""

    def __init__(self, server: str, ca_file: Path | None = None) -> None:
        self._server = server
        self._tls = ssl.create_default_context(cafile=str(ca_file)) if ca_file else None
        self._rules: list[_Rule] = []
        self._seen: list[Seen] = []
        self._lock = threading.Lock()
        self._late: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def requests(self) -> list[Seen]:
        """All requests so far, in the order in which they came."""
        with self._lock:
            return list(self._seen)

    def inject(
        self,
        fault: Fault,
        *,
        method: str | None = None,
        path: str = "",
        skip: int = 0,
        times: int | None = 1,
    ) -> None:
        """Does `fault` to the next `times` requests (None: to all) of that method whose path and query
        contain `path`, after `skip` of them. The rule that was injected first and fits is taken."""
        with self._lock:
            self._rules.append(_Rule(fault, method, path, skip, times))

    def heal(self) -> None:
        """From now on nothing is done to requests. What is under way stays as it is."""
        with self._lock:
            self._rules.clear()

    def refuse_connections(self) -> None:
        """Nobody listens any more, and open connections are cut."""
        self._call(self._stop_listening())

    def accept_connections(self) -> None:
        """Listens again, under the same address."""
        self._call(self._listen())

    def __enter__(self) -> Self:
        self._thread.start()
        self._call(self._open())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=60)

    async def _open(self) -> None:
        self._client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=self._tls or True),
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None),
        )
        await self._listen()

    async def _listen(self) -> None:
        self._closing = asyncio.Event()
        application = web.Application(client_max_size=16 * 2**20)
        application.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(application, shutdown_timeout=0.1, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True)
        await site.start()
        self._port = self._port or self._runner.addresses[0][1]

    async def _stop_listening(self) -> None:
        self._closing.set()  # aiohttp would wait for the handlers of black holes for ever
        await self._runner.cleanup()

    async def _close(self) -> None:
        for task in self._late:
            task.cancel()
        await asyncio.gather(*self._late, return_exceptions=True)
        await self._stop_listening()
        await self._client.close()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        with self._lock:
            target = request.path_qs
            rule = next((rule for rule in self._rules if rule.takes(request.method, target)), None)
            seen = Seen(request.method, target, body, rule.fault if rule else None)
            self._seen.append(seen)
        match seen.fault:
            case None:
                return await self._pass_through(request, seen)
            case Blackhole():
                await self._closing.wait()
            case DropRequest():
                pass
            case ArriveLater(seconds):
                self._deliver_late(request, seen, seconds)
            case DropAnswer():
                await self._forward(request, seen)
            case ResetMidBody():
                await self._cut_short(request, seen)
            case Delay(before, after):
                await asyncio.sleep(before)
                return await self._answered_after(request, seen, after)
            case Duplicate():
                first = await self._forward(request, seen)
                await self._forward(request, seen)
                return first
            case Answer() as answer:
                return await self._answer(request, seen, answer)
        return _abort(request)

    async def _pass_through(self, request: web.Request, seen: Seen) -> web.StreamResponse:
        """As it comes, so that a watch is a watch."""
        try:
            async with self._ask(request, seen) as upstream:
                seen.statuses.append(upstream.status)
                response = web.StreamResponse(status=upstream.status, headers=_kept(upstream.headers))
                await response.prepare(request)
                async for chunk in upstream.content.iter_any():
                    await response.write(chunk)
                await response.write_eof()
                return response
        except aiohttp.ClientError:
            return _abort(request)

    async def _forward(self, request: web.Request, seen: Seen) -> web.Response:
        async with self._ask(request, seen) as upstream:
            body = await upstream.read()
            seen.statuses.append(upstream.status)
            return web.Response(status=upstream.status, headers=_kept(upstream.headers), body=body)

    async def _answered_after(self, request: web.Request, seen: Seen, seconds: float) -> web.Response:
        # A client that gives up meanwhile must not take the request back: the server has it already.
        answer = await asyncio.shield(self._forward(request, seen))
        await asyncio.sleep(seconds)
        return answer

    async def _answer(self, request: web.Request, seen: Seen, answer: Answer) -> web.Response:
        if answer.after_commit:
            await self._forward(request, seen)
        return web.Response(status=answer.status, text=answer.body, headers=dict(answer.headers))

    async def _cut_short(self, request: web.Request, seen: Seen) -> None:
        whole = await self._forward(request, seen)
        body = whole.body if isinstance(whole.body, bytes) else b""
        headers = {"Content-Type": "application/json", "Content-Length": str(len(body))}
        response = web.StreamResponse(status=whole.status, headers=headers)
        await response.prepare(request)
        await response.write(body[: len(body) // 2])

    def _deliver_late(self, request: web.Request, seen: Seen, seconds: float) -> None:
        async def deliver() -> None:
            await asyncio.sleep(seconds)
            await self._forward(request, seen)

        task = asyncio.create_task(deliver())
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    @contextlib.asynccontextmanager
    async def _ask(self, request: web.Request, seen: Seen) -> Any:
        async with self._client.request(
            seen.method,
            URL(self._server + seen.path, encoded=True),
            data=seen.body or None,
            headers=_kept(request.headers),
            allow_redirects=False,
        ) as upstream:
            yield upstream


def _kept(headers: Any) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _HOP_BY_HOP}


def _abort(request: web.Request) -> web.Response:
    """Ends the connection without an answer: what the returned response holds goes nowhere."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=500)
