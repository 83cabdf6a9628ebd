"""Plain JSON requests to the API server; every one of them ends as a value.

Guarantees: the value says which of three things happened. `Response`: the server answered, whatever it
said. `NeverSent`: not one byte of the request left us. `Lost`: it may have arrived and nobody can tell what
became of it (time-out, reset, an answer cut short, an answer that is no JSON where it says success).
No write is retried here, with one exception: an answer 401 means that nothing was done, so credentials are
read again and the same request is sent once more. (There is no PUT: aiohttp repeats one by itself where a
kept connection turns out to be closed, and a repeated write may be refused because the first copy of it was
applied.)

Every request has a time limit. That of a write is longer than the 34 s after which the API server itself
gives up, so that an answer that comes late is still heard. Requests in flight are bounded, so a slow server
is not buried under more of them; connections are kept open and shared.

Rejected: the `kubernetes` package's client (typed models cost more than the requests) and httpx (no faster,
one more dependency of the operator, which has aiohttp through Kopf).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import aiohttp

from fencepost.kube.connection import Connection, NoCluster
from fencepost.kube.parsing import parsed

JSON: Final = "application/json"
MERGE_PATCH: Final = "application/merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"
METADATA_LIST: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

IN_FLIGHT_MAX: Final = 64
KEEP_ALIVE_SECONDS: Final = 30.0  # below what servers and load balancers allow, so that we close first
PAGES_MAX: Final = 10_000
RETRY_AFTER_SECONDS_MAX: Final = 60.0

_BEFORE_SENDING: Final = (
    aiohttp.ClientConnectorError,
    aiohttp.ConnectionTimeoutError,
    aiohttp.ClientHttpProxyError,
    aiohttp.InvalidURL,
)

Json = Any
"""What `json.loads` gives: dictionaries stop at `api`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Seconds. `write` has to be over 34: the API server works on a patch that long."""

    connect: float = 10.0
    read: float = 20.0
    write: float = 36.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """The server's answer. `body` is parsed JSON, or text where it is none; `date` is the server's clock."""

    status: int
    body: Json
    date: str = ""
    retry_after_seconds: float | None = None

    @property
    def ok(self) -> bool:
        return HTTPStatus.OK <= self.status < HTTPStatus.MULTIPLE_CHOICES


@dataclass(frozen=True, slots=True, kw_only=True)
class NeverSent:
    """The request did not leave: no connection, or no credentials to send it with."""

    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """Nobody can tell what became of the request."""

    message: str


Result = Response | NeverSent | Lost


class ApiClient:
    """One identity at one API server. Belongs to the event loop in which it is first used."""

    def __init__(
        self,
        connection: Connection,
        *,
        timeouts: Timeouts = Timeouts(),
        in_flight_max: int = IN_FLIGHT_MAX,
    ) -> None:
        self.connection = connection
        self._timeouts = timeouts
        self._in_flight_max = in_flight_max
        self._in_flight = asyncio.Semaphore(in_flight_max)
        self._session: aiohttp.ClientSession | None = None

    async def get(self, path: str, *, query: Mapping[str, str] | None = None, accept: str = JSON) -> Result:
        """Read `path`, which begins with a slash; without a resourceVersion it is never from a cache."""
        return await self._request("GET", path, query=query, accept=accept, seconds=self._timeouts.read)

    async def pages(
        self, path: str, *, query: Mapping[str, str] | None = None, page_size: int = 500, accept: str = JSON
    ) -> AsyncIterator[Result]:
        """The pages of a list, each as the server answered it; what is no 2xx is the last one."""
        asked = {**(query or {}), "limit": str(page_size)}
        for _ in range(PAGES_MAX):
            result = await self.get(path, query=asked, accept=accept)
            yield result
            if not isinstance(result, Response) or not result.ok:
                return
            following = (result.body.get("metadata") or {}).get("continue")
            if not following:
                return
            asked["continue"] = following

    async def create(self, path: str, body: Json, *, query: Mapping[str, str] | None = None) -> Result:
        """POST `body` to the collection `path`."""
        return await self._write("POST", path, body, JSON, query)

    async def patch(self, path: str, body: Json, *, content_type: str = MERGE_PATCH) -> Result:
        """PATCH the object `path` by a merge patch or a JSON patch."""
        return await self._write("PATCH", path, body, content_type, None)

    async def delete(
        self, path: str, *, uid: str, version: str | None = None, propagation: str = "Background"
    ) -> Result:
        """DELETE the object of this UID (and version) and no other that has its name by now."""
        preconditions = {"uid": uid} | ({"resourceVersion": version} if version else {})
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": preconditions,
            "propagationPolicy": propagation,
        }
        return await self._write("DELETE", path, body, JSON, None)

    async def close(self) -> None:
        """Close all connections. May be called twice, and the client used again after it."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _write(
        self, method: str, path: str, body: Json, content_type: str, query: Mapping[str, str] | None
    ) -> Result:
        return await self._request(
            method,
            path,
            query=query,
            content=json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8"),
            content_type=content_type,
            seconds=self._timeouts.write,
        )

    async def _request(
        self,
        method: str,
        path: str,
        *,
        seconds: float,
        query: Mapping[str, str] | None = None,
        content: bytes | None = None,
        content_type: str | None = None,
        accept: str = JSON,
    ) -> Result:
        headers = {"Accept": accept} | ({"Content-Type": content_type} if content_type else {})
        async with self._in_flight:
            result = await self._send(method, path, query, content, headers, seconds)
            if isinstance(result, Response) and result.status == HTTPStatus.UNAUTHORIZED:
                self.connection.credentials.distrust()
                result = await self._send(method, path, query, content, headers, seconds)
            return result

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        content: bytes | None,
        headers: dict[str, str],
        seconds: float,
    ) -> Result:
        try:
            authorization = await self.connection.credentials.authorization()
        except NoCluster as problem:
            return NeverSent(message=str(problem))
        identity = {"Authorization": authorization} if authorization else {}
        try:
            async with self._open().request(
                method,
                self.connection.server + path,
                params=query,
                data=content,
                headers=headers | identity,
                timeout=aiohttp.ClientTimeout(total=seconds, sock_connect=self._timeouts.connect),
                allow_redirects=False,
                proxy=self.connection.proxy,
                server_hostname=self.connection.tls_server_name,
            ) as response:
                return _answered(response, await response.read())
        except _BEFORE_SENDING as error:
            return NeverSent(message=f"no connection to {self.connection.server}: {_reason(error)}")
        except TimeoutError:
            return Lost(message=f"no answer from {self.connection.server} within {seconds:g} s")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return Lost(message=f"the answer of {self.connection.server} was lost: {_reason(error)}")

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                ssl=self.connection.tls or True,
                limit=self._in_flight_max,
                keepalive_timeout=KEEP_ALIVE_SECONDS,
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"User-Agent": "fencepost"},
            )
        return self._session


def _answered(response: aiohttp.ClientResponse, content: bytes) -> Result:
    """The answer as a value. Success without JSON came from somebody who is not the API server."""
    try:
        body: Json = parsed(content)
    except ValueError:
        body = content.decode("utf-8", "replace")
        if HTTPStatus.OK <= response.status < HTTPStatus.MULTIPLE_CHOICES:
            return Lost(message=f"an answer {response.status} that is no JSON: {body[:200]!r}")
    return Response(
        status=response.status,
        body=body,
        date=response.headers.get("Date", ""),
        retry_after_seconds=_retry_after(response.headers.get("Retry-After"), body),
    )


def _retry_after(header: str | None, body: Json) -> float | None:
    """Seconds to wait, by the header or the Status; a date in the header is taken as no hint."""
    said: Any = header
    if said is None and isinstance(body, dict):
        details = body.get("details")
        said = details.get("retryAfterSeconds") if isinstance(details, dict) else None
    try:
        return None if said is None else min(max(float(said), 0.0), RETRY_AFTER_SECONDS_MAX)
    except (TypeError, ValueError):
        return None


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
