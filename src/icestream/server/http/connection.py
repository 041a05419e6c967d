"""One HTTP connection, with bounds that uvicorn leaves open: how many there are, and how long one may be silent."""

import asyncio
import json

from uvicorn.protocols.http.h11_impl import H11Protocol

from icestream.model.errors import OverloadedError
from icestream.server.http.errors import RETRY_AFTER_SECONDS

REQUEST_TIMEOUT_SECONDS = 30.0
"""A client has this long to send a request's head. (Bodies have their own limit.)"""


class BoundedConnection(H11Protocol):
    """Connections over the limit are answered with 503 and closed, so that sockets cannot use up all file descriptors.

    The limit is twice that of open requests: idle connections that clients keep are allowed for.
    """

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        max_connections = 2 * self.config.app.state.max_connections  # type: ignore[union-attr]
        if len(self.connections) > max_connections:
            transport.write(_refusal(max_connections))
            transport.close()
            return
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._unwatch()  # uvicorn's keep-alive timeout is at work until more data comes

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Start the clock while a request is awaited, stop it while one is served."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._unwatch()
        elif self._deadline is None and not self.transport.is_closing():
            self._deadline = self.loop.call_later(REQUEST_TIMEOUT_SECONDS, self.transport.close)

    def _unwatch(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def _refusal(max_connections: int) -> bytes:
    error = OverloadedError(
        f"{max_connections} connections are open already",
        operation="connect",
        remedy="close some or raise server.max_connections",
    )
    body = json.dumps({"error": error.to_dict()}).encode()
    head = (
        "HTTP/1.1 503 Service Unavailable\r\n"
        "Content-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n"
        f"Retry-After: {RETRY_AFTER_SECONDS}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body
