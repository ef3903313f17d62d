"""A TCP proxy before a server that cuts the connection right before or right after COMMIT."""

from __future__ import annotations

import contextlib
import socket
import threading
from enum import Enum

_COM_QUERY = 3
_HEADER = 4


class Cut(Enum):
    """Where the next COMMIT's connection breaks."""

    BEFORE = "the server never sees the COMMIT"
    AFTER = "the server has done it, its reply is lost"


class CommitProxy:
    """Forwards everything until a cut is armed; then the next COMMIT ends its connection.

    Attributes:
        port: its port on 127.0.0.1; clients must not use TLS, which the proxy cannot read.
        done: the cuts that were made.
        queries: the texts of the statements that passed.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._cuts: list[Cut] = []
        self.done: list[Cut] = []
        self.queries: list[str] = []
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def arm(self, *cuts: Cut) -> None:
        """Break the next COMMITs in these ways."""
        self._cuts.extend(cuts)

    def close(self) -> None:
        self._cuts.clear()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in self._sockets:
            _shut(each)
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                _shut(client)  # the server is down: so is the way to it
                continue
            self._sockets += [client, server]
            gate = threading.Event()
            for target in (self._upwards, self._downwards):
                thread = threading.Thread(target=target, args=(client, server, gate), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _upwards(self, client: socket.socket, server: socket.socket, gate: threading.Event) -> None:
        """From the client to the server, packet by packet."""
        with contextlib.suppress(OSError):
            while (packet := _packet(client)) is not None:
                query = packet[_HEADER + 1 :] if packet[_HEADER] == _COM_QUERY else None
                if query is not None:
                    self.queries.append(query.decode(errors="replace"))
                is_commit = query == b"COMMIT"
                if is_commit and self._cuts:
                    cut = self._cuts.pop(0)
                    self.done.append(cut)
                    if cut is Cut.BEFORE:
                        break
                    gate.set()
                server.sendall(packet)
        _shut(server)
        if not gate.is_set():
            _shut(client)

    def _downwards(
        self, client: socket.socket, server: socket.socket, gate: threading.Event
    ) -> None:
        """From the server to the client, unless the reply is the one to be lost."""
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                if gate.is_set():
                    break
                client.sendall(data)
        _shut(client)
        _shut(server)


def _packet(source: socket.socket) -> bytes | None:
    header = _exactly(source, _HEADER)
    if header is None:
        return None
    body = _exactly(source, int.from_bytes(header[:3], "little"))
    return None if body is None else header + body


def _exactly(source: socket.socket, size: int) -> bytes | None:
    data = b""
    while len(data) < size:
        piece = source.recv(size - len(data))
        if not piece:
            return None
        data += piece
    return data


def _shut(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
