"""Accepts connections, each served by a thread of its own, within limits.

Refused connections are counted, and logged once a minute at most: whoever opens connections cannot fill the log.
"""

import contextlib
import errno
import socket
import threading
from collections.abc import Callable
from time import monotonic, sleep

import structlog

from icestream.model.errors import UnavailableError

_BACKLOG = 512
_PAUSE_SECONDS = 0.1
_LOG_SECONDS = 60.0
_JOIN_SECONDS = 1.0
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_log = structlog.get_logger(__name__)

Serve = Callable[[socket.socket], None]


class Listener:
    """Calls `serve` in a thread for each connection, and closes the connection when it returns."""

    def __init__(self, host: str, port: int, serve: Serve, *, door: str, setting: str, max_connections: int) -> None:
        self._serve = serve
        self._door = door
        self._max_connections = max_connections
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._refused = 0
        self._logged_at = -_LOG_SECONDS
        self._stopping = False
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            self._socket = socket.socket(family, kind, protocol)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind(address)
            self._socket.listen(_BACKLOG)
        except OSError as error:
            raise UnavailableError(
                f"cannot listen at {host}:{port}: {error.strerror or error}",
                operation=f"open the {door} door",
                remedy=f"stop what listens there, or choose another {setting}",
                retryable=False,
            ) from error
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._run, name=f"{door}-accept", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Accept no more connections."""
        self._stopping = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        if self._thread.is_alive():
            self._thread.join(_JOIN_SECONDS)

    def end_connections(self) -> None:
        with self._lock:
            connections = list(self._open)
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        while not self._stopping:
            try:
                connection, _ = self._socket.accept()
            except OSError as error:
                if error.errno in _NO_DESCRIPTORS:
                    self._note_refusal(str(error))
                    sleep(_PAUSE_SECONDS)
                continue
            self._take(connection)

    def _take(self, connection: socket.socket) -> None:
        with self._lock:
            has_room = len(self._open) < self._max_connections and not self._stopping
            if has_room:
                self._open.add(connection)
        if not has_room:
            connection.close()
            self._note_refusal(f"{self._max_connections} connections are open, or the broker is stopping")
            return
        thread = threading.Thread(
            target=self._run_one, args=(connection,), name=f"{self._door}-connection", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:  # no more threads
            self._forget(connection)
            self._note_refusal(str(error))

    def _run_one(self, connection: socket.socket) -> None:
        try:
            self._serve(connection)
        except OSError:
            pass  # the other side is gone
        except Exception:  # noqa: BLE001 - the thread ends here
            _log.exception("connection_failed", door=self._door)
        finally:
            self._forget(connection)

    def _forget(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.discard(connection)
        connection.close()

    def _note_refusal(self, reason: str) -> None:
        self._refused += 1
        now = monotonic()
        if now - self._logged_at >= _LOG_SECONDS:
            _log.warning("connections_refused", door=self._door, count=self._refused, last_reason=reason)
            self._logged_at, self._refused = now, 0
