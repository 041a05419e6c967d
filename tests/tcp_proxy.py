"""A TCP proxy whose connections can be cut and refused.

Clients see what they see when a server's machine goes away and comes back at the same address.
"""

import contextlib
import socket
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

HOST = "127.0.0.1"

_CHUNK_BYTES = 64 * 1024
_CONNECT_SECONDS = 10
_STOP_SECONDS = 10


class TcpProxy:
    """Passes bytes both ways between clients and `upstream` (a URL or `host:port`)."""

    def __init__(self, upstream: str) -> None:
        parts = urlsplit(upstream if "//" in upstream else f"//{upstream}")
        self._upstream = (parts.hostname or HOST, parts.port or 80)
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._threads: set[threading.Thread] = set()
        self._listener: socket.socket | None = None
        self.port = 0

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def allow(self) -> None:
        """Accept connections (again), always on the same port."""
        with self._lock:
            if self._listener is None:
                self._listener = socket.create_server((HOST, self.port))
                self.port = self._listener.getsockname()[1]
                self._begin(threading.Thread(target=self._accept, args=(self._listener,), daemon=True))

    def refuse(self) -> None:
        """Refuse new connections, and cut the open ones."""
        with self._lock:
            listener, self._listener = self._listener, None
        if listener is not None:
            _break(listener)
        self.cut()

    def cut(self) -> None:
        """Break all open connections; accept new ones."""
        with self._lock:
            sockets = list(self._sockets)
        for one in sockets:
            _break(one, close=False)  # its own thread closes it

    def close(self) -> None:
        """Refuse from now on, and wait for the threads to end."""
        self.refuse()
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join(_STOP_SECONDS)

    def __enter__(self) -> Self:
        self.allow()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def serve(self, client: socket.socket) -> None:
        """Serve one client until it or the server goes; runs in a thread of its own."""
        with self.connected() as server:
            back = threading.Thread(target=_pump, args=(server, client), daemon=True)
            back.start()
            _pump(client, server)
            back.join()

    @contextlib.contextmanager
    def connected(self) -> Iterator[socket.socket]:
        """A connection to the server, which `cut` breaks too."""
        with socket.create_connection(self._upstream, timeout=_CONNECT_SECONDS) as server, self._known(server):
            server.settimeout(None)
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield server

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                with self._lock:
                    if self._listener is not listener:
                        client.close()
                        return
                    self._begin(threading.Thread(target=self._serve, args=(client,), daemon=True))

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client, self._known(client):
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.serve(client)
        with self._lock:
            self._threads.discard(threading.current_thread())

    def _begin(self, thread: threading.Thread) -> None:
        self._threads.add(thread)
        thread.start()

    @contextlib.contextmanager
    def _known(self, one: socket.socket) -> Iterator[None]:
        with self._lock:
            self._sockets.add(one)
        try:
            yield
        finally:
            with self._lock:
                self._sockets.discard(one)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(_CHUNK_BYTES):
            sink.sendall(data)
    for one in (source, sink):
        _break(one, close=False)


def _break(one: socket.socket, *, close: bool = True) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits on it, which closing alone does not
    if close:
        one.close()
