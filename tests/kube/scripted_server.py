"""An HTTP server on loopback that says exactly the bytes that a test wants, or nothing.

It answers the requests of all its connections in the order of the script, and keeps them to be looked at.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Said:
    """A whole answer, `after_seconds`."""

    status: int = 200
    body: Any = field(default_factory=dict)
    headers: tuple[tuple[str, str], ...] = ()
    after_seconds: float = 0.0

    def bytes(self) -> bytes:
        text = self.body if isinstance(self.body, str) else json.dumps(self.body)
        content = text.encode()
        head = [f"HTTP/1.1 {self.status} X", f"Content-Length: {len(content)}"]
        head += [f"{name}: {value}" for name, value in self.headers]
        return "\r\n".join(head).encode() + b"\r\n\r\n" + content


@dataclass(frozen=True, slots=True)
class CutShort:
    """The first bytes of an answer (none by default), then the connection ends."""

    content: bytes = b""


@dataclass(frozen=True, slots=True)
class Silence:
    """Nothing, for as long as the client waits."""


@dataclass(frozen=True, slots=True)
class Got:
    """A request as it arrived. Names of headers are in lower case."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


class ScriptedServer:
    """A context manager. What is asked beyond the script is answered 200 with an empty object."""

    def __init__(self, *script: Said | CutShort | Silence) -> None:
        self.script = list(script)
        self.got: list[Got] = []
        self.busiest = 0
        self._busy = 0
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def targets(self) -> Sequence[str]:
        return [got.target for got in self.got]

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while await self._answer_one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection stays open."""
        self.got.append(await _request(reader))
        step = self.script.pop(0) if self.script else Said()
        self._busy += 1
        self.busiest = max(self.busiest, self._busy)
        try:
            if isinstance(step, Silence):
                await reader.read()  # until the client gives up
                return False
            if isinstance(step, Said):
                await asyncio.sleep(step.after_seconds)
            writer.write(step.bytes() if isinstance(step, Said) else step.content)
            await writer.drain()
            return isinstance(step, Said)
        finally:
            self._busy -= 1


async def _request(reader: asyncio.StreamReader) -> Got:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    method, target, _ = head[0].split(" ", 2)
    pairs = (line.split(": ", 1) for line in head[1:] if line)
    headers = {name.lower(): value for name, value in pairs}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Got(method, target, headers, body)
