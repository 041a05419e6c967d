"""One connection, HTTP or WebSocket, with bounds that uvicorn leaves open.

How many there are, how long one may be silent, and how long one may take nothing of what is sent to it.
"""

import asyncio
import json

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from icestream.model.errors import OverloadedError
from icestream.server.http.errors import RETRY_AFTER_SECONDS

REQUEST_TIMEOUT_SECONDS = 30.0
"""A client has this long to send a request's head. (Bodies have their own limit.)"""


STALL_SECONDS = 60.0
"""A client that takes nothing of what waits for it in this time is cut off."""


class StallWatch:
    """Aborts a connection whose output does not move; slow is allowed, standing still is not."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None

    def paused(self) -> None:
        waiting = self._transport.get_write_buffer_size()
        self._timer = self._loop.call_later(STALL_SECONDS, self._check, waiting)

    def resumed(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self, before: int) -> None:
        if self._transport.get_write_buffer_size() >= before:
            self._transport.abort()
        else:
            self.paused()


class BoundedWebSocket(WebSocketsSansIOProtocol):
    """What a connection becomes when a client asks for it; pings find out who is gone."""

    _stall: StallWatch

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._stall = StallWatch(transport, self.loop)
        super().connection_made(transport)
        self.loop.call_later(REQUEST_TIMEOUT_SECONDS, self._check_request)

    def _check_request(self) -> None:
        """A request that announces a body is not complete without it."""
        if not self.handshake_initiated:
            self.transport.abort()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall.paused()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stall.resumed()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stall.resumed()
        super().connection_lost(exc)


class BoundedConnection(H11Protocol):
    """Connections over the limit are answered with 503 and closed, so that sockets cannot use up all file descriptors.

    The limit is twice that of open requests: idle connections that clients keep are allowed for.
    """

    _deadline: asyncio.TimerHandle | None = None
    _is_websocket = False
    _stall: StallWatch

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._stall = StallWatch(transport, self.loop)
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

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall.paused()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stall.resumed()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Hand the connection over to a `BoundedWebSocket`."""
        self._is_websocket = True
        self._unwatch()
        super().handle_websocket_upgrade(event)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._unwatch()  # uvicorn's keep-alive timeout is at work until more data comes

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        self._stall.resumed()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Start the clock while a request is awaited, stop it while one is served."""
        if self._is_websocket:
            return
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
