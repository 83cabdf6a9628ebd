"""Kopf as the watch: how it is set, whom it logs in as, and the proof that it makes progress.

Kopf watches and does nothing else here: no finalizers, no annotations, no Events, no retries of handlers, no
peering. Every time-out of a watch is set (all default to none), so a connection that went silent is noticed
and opened again, from the last version seen. Attempts go on for ever, with short pauses.

Progress is an event, or a watch that the server has opened. The server ends each watch after
`WATCH_SECONDS`, so a stream that works makes progress at least that often even where nothing happens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from http import HTTPStatus
from typing import Any, Final

import aiohttp
import kopf

from fencepost.api import names
from fencepost.kube.connection import Connection
from fencepost.protocol import limits
from fencepost_operator import paths
from fencepost_operator.kopf_parsing import ResponseOfAnyDepth
from fencepost_operator.nothing_stored import NoDiffBase, NoProgress

WATCH_SECONDS: Final = 45  # the server ends a watch after that; a new one costs it next to nothing
INACTIVITY_SECONDS: Final = 55.0  # nothing heard for so long, not even the end: the connection is dead
CLIENT_SECONDS: Final = 60.0
CONNECT_SECONDS: Final = 10.0
REQUEST_SECONDS: Final = 30.0
RETRY_PAUSE_SECONDS: Final = 2.0
PROGRESS_SECONDS_MAX: Final = 75.0  # a watch that works is never older; a dead one is reopened before that
PAGE_SIZE: Final = 200
IDLE_SECONDS: Final = 0.3  # Kopf keeps a task and the last event of each object that long

RESOURCES: Final = (names.LEASED_TASKS, names.FAN_OUT_JOBS)


class Progress:
    """When each watch was last seen to work. `clock` is monotonic, in seconds."""

    def __init__(self, namespaces: Sequence[str | None], *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._paths = {
            paths.collection(resource, namespace): resource
            for resource in RESOURCES
            for namespace in namespaces
        }
        now = clock()
        self._last = dict.fromkeys(self._paths, now)

    def note(self, path: str) -> None:
        """The watch of this collection works now."""
        if path in self._last:
            self._last[path] = self._clock()

    def ages(self) -> dict[str, float]:
        """Seconds since the last progress, by resource; of several namespaces the worst."""
        now = self._clock()
        ages = dict.fromkeys(RESOURCES, 0.0)
        for path, last in self._last.items():
            resource = self._paths[path]
            ages[resource] = max(ages[resource], now - last)
        return ages


class _ForEver:
    """Kopf's pauses between attempts: always the same one, without an end."""

    def __iter__(self) -> Iterator[float]:
        while True:
            yield RETRY_PAUSE_SECONDS


def settings_of_kopf() -> kopf.OperatorSettings:
    """Everything that is not left at Kopf's defaults."""
    settings = kopf.OperatorSettings()
    settings.watching.server_timeout = WATCH_SECONDS
    settings.watching.client_timeout = CLIENT_SECONDS
    settings.watching.connect_timeout = CONNECT_SECONDS
    settings.watching.inactivity_timeout = INACTIVITY_SECONDS
    settings.watching.chunk_size = PAGE_SIZE
    settings.networking.request_timeout = REQUEST_SECONDS
    settings.networking.connect_timeout = CONNECT_SECONDS
    settings.networking.error_backoffs = _ForEver()
    settings.queueing.idle_timeout = IDLE_SECONDS
    settings.queueing.exit_timeout = 0.1
    settings.posting.enabled = False
    settings.scanning.disabled = True  # our kinds and namespaces are known: nothing else need be readable
    settings.peering.standalone = True
    settings.persistence.finalizer = f"{limits.GROUP}/operator"  # never set; if ever, a name that is ours
    settings.persistence.progress_storage = NoProgress()
    settings.persistence.diffbase_storage = NoDiffBase()
    return settings


async def session_of_kopf(connection: Connection, progress: Progress) -> kopf.AiohttpSession:
    """Who we are, for Kopf. It asks again when the server no longer takes these credentials."""
    connection.credentials.distrust()
    authorization = await connection.credentials.authorization()
    identity = {"Authorization": authorization} if authorization else {}
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=connection.tls or True, limit=0),
        headers={"User-Agent": "fencepost-operator"} | identity,
        cookie_jar=aiohttp.DummyCookieJar(),
        proxy=connection.proxy,
        trace_configs=[_trace(progress)],
        response_class=ResponseOfAnyDepth,
    )
    return kopf.AiohttpSession(
        server=connection.server, aiohttp_session=session, default_namespace=connection.namespace
    )


def _trace(progress: Progress) -> aiohttp.TraceConfig:
    """Notes each list and watch that the server has begun to answer."""

    async def answered(
        session: aiohttp.ClientSession, context: Any, answer: aiohttp.TraceRequestEndParams
    ) -> None:
        if answer.response.status == HTTPStatus.OK:
            progress.note(answer.url.path)

    trace = aiohttp.TraceConfig()
    trace.on_request_end.append(answered)
    return trace
