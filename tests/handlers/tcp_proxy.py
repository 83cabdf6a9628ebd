"""A TCP proxy before an API server that can be cut, refuse, or go silent; it does not look at what passes."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

RESET_ON_CLOSE = struct.pack("ii", 1, 0)
CHUNK = 1 << 16


class TcpProxy:
    """A context manager. Clients connect to `url`; the server has to have a certificate for 127.0.0.1."""

    def __init__(self, server: str) -> None:
        address = urlsplit(server)
        self._upstream = (str(address.hostname), int(address.port or 443))
        self._flows = threading.Event()
        self._flows.set()
        self._connections: set[socket.socket] = set()
        self._listener = _listening(0)
        self.port = int(self._listener.getsockname()[1])
        self.url = f"https://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._accept_in_the_background()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._flows.set()
        self.refuse()

    def reset(self) -> None:
        """Every connection ends with RST."""
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
                connection.shutdown(socket.SHUT_RD)
                connection.close()
        self._connections.clear()

    def refuse(self) -> None:
        """Connections end, and new ones are refused."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.reset()

    def silence(self) -> None:
        """Connections stay and are accepted, and nothing comes through, not even their end."""
        self._flows.clear()

    def restore(self) -> None:
        """All is well again, for new connections; those that were silent go on."""
        self._flows.set()
        if self._listener.fileno() == -1:
            self._listener = _listening(self.port)
            self._accept_in_the_background()

    def _accept_in_the_background(self) -> None:
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            self._connections.add(client)
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        self._flows.wait()
        try:
            upstream = socket.create_connection(self._upstream)
        except OSError:
            client.close()
            return
        self._connections.add(upstream)
        for source, target in ((client, upstream), (upstream, client)):
            threading.Thread(target=self._pump, args=(source, target), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while content := source.recv(CHUNK):
                self._flows.wait()
                target.sendall(content)
        self._flows.wait()
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
            self._connections.discard(one)


def _listening(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen()
    return listener
