"""The HTTP door: uvicorn on a thread and an event loop of its own."""

import asyncio
import contextlib
import json
import logging
import socket
import threading
from typing import Any

import h11
import structlog
import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from icestream.model.errors import OverloadedError, UnavailableError
from icestream.model.names import url_host
from icestream.server.http.errors import RETRY_AFTER_SECONDS, error_response
from icestream.server.http.requests import MAX_ADMIN_BYTES
from icestream.server.metrics import BrokerMetrics

# Connections, with limits that uvicorn does not have: how many there are, how long one may be silent, and how long one
# may take nothing of what is sent to it.


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
    """Refuses connections over the limit with 503, so that sockets cannot use up all file descriptors.

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


_BACKLOG = 1024
_TICKS_A_SECOND = 10  # uvicorn counts tenths, and does its regular work every tenth one
_STOP_MARGIN_SECONDS = 5.0
_log = structlog.get_logger(__name__)


class HttpDoor:
    """Serves an application between `start` and `stop`; `port` and `address` are known once it has started."""

    def __init__(self, app: Starlette, host: str, port: int, *, setting: str = "server.http_port") -> None:
        """`setting` is what an error names when the port cannot be had."""
        self._app = app
        self._setting = setting
        self._host = host
        self.port = port
        self._thread: threading.Thread | None = None
        self._server: _Server | None = None

    @property
    def address(self) -> str:
        host = url_host(self._host)
        return f"http://{host}:{self.port}"

    def start(self) -> None:
        """Return once the door is open."""
        listener = self._listen()
        self.port = listener.getsockname()[1]
        _redirect_uvicorn_logs()
        config = uvicorn.Config(
            self._app,
            http=BoundedConnection,
            ws=BoundedWebSocket,
            ws_max_size=MAX_ADMIN_BYTES,
            ws_per_message_deflate=False,
            loop="asyncio",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
        )
        self._server = _Server(config)
        self._thread = threading.Thread(target=self._server.run_on, args=(listener,), name="http-door", daemon=True)
        self._thread.start()
        self._server.settled.wait()
        if not self._server.started:
            raise UnavailableError("the HTTP door did not open", operation="open door", place=self.address)

    def _listen(self) -> socket.socket:
        try:
            # The protocol must be named: only then asyncio turns off delayed sending, which costs 40 ms a response.
            family, kind, protocol, _, address = socket.getaddrinfo(
                self._host, self.port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=socket.AI_PASSIVE
            )[0]
            listener = socket.socket(family, kind, protocol)
            try:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(address)
                listener.listen(_BACKLOG)
            except OSError:
                listener.close()
                raise
        except (OSError, UnicodeError) as error:
            raise UnavailableError(
                f"the HTTP door cannot be opened: {getattr(error, 'strerror', None) or error}",
                operation="open door",
                place=f"{self._host}:{self.port}",
                remedy=f"stop what listens there, or set server.host and {self._setting}",
                retryable=False,
            ) from error
        return listener

    def stop(self, timeout: float = 30.0) -> None:
        """Take no more requests, let the open ones finish, and cut those that have not after `timeout` seconds."""
        server, thread = self._server, self._thread
        if server is None or thread is None:
            return
        server.config.timeout_graceful_shutdown = timeout  # type: ignore[assignment]  # asyncio takes fractions too
        server.should_exit = True
        with contextlib.suppress(RuntimeError):  # the loop has ended by itself
            server.loop.call_soon_threadsafe(server.stopping.set)
            server.loop.call_soon_threadsafe(self._app.state.closing.set)
        thread.join(timeout + _STOP_MARGIN_SECONDS)
        if thread.is_alive():
            _log.warning("http_door_stop_timed_out")
        self._server = self._thread = None


class _Server(uvicorn.Server):
    """Says when it listens, or that it never will."""

    loop: asyncio.AbstractEventLoop

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.settled = threading.Event()
        self.stopping = asyncio.Event()

    def run_on(self, listener: socket.socket) -> None:
        try:
            self.run(sockets=[listener])
        except Exception:  # noqa: BLE001 (logged; `start` raises because the door has not started)
            _log.exception("http_door_failed")
        finally:
            listener.close()
            self.settled.set()

    async def main_loop(self) -> None:
        """Like uvicorn's, but it sleeps between the seconds and is woken to stop."""
        ticks = 0
        while not await self.on_tick(ticks):
            ticks += _TICKS_A_SECOND
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self.stopping.wait()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.loop = asyncio.get_running_loop()
        await super().startup(sockets)
        self.settled.set()


class _ToStructlog(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        exc_info: Any = record.exc_info
        _log.log(record.levelno, record.getMessage(), logger=record.name, exc_info=exc_info)


def _redirect_uvicorn_logs() -> None:
    """Warnings and worse go where the broker's own logs go; the rest is of no interest."""
    logger = logging.getLogger("uvicorn")
    logger.handlers = [_ToStructlog()]
    logger.propagate = False
    logger.setLevel(logging.WARNING)


# A limit on open requests, and headers of every response.


_COUNTED = frozenset({"http", "websocket"})
_ANSWERS = frozenset({"http.response.start", "websocket.http.response.start"})
_ALWAYS_OPEN = frozenset({"/healthz", "/readyz", "/metrics"})
"""Never refused: monitoring needs these to distinguish overload from a dead broker."""


class RequestLimit:
    def __init__(self, app: ASGIApp, *, metrics: BrokerMetrics, max_requests: int, door: str = "http") -> None:
        self._app = app
        self._door = door
        self._metrics = metrics
        self._max_requests = max_requests
        self._open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in _COUNTED:
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] in _ANSWERS:
                headers = MutableHeaders(scope=message)
                headers["X-Content-Type-Options"] = "nosniff"
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        if self._open >= self._max_requests and scope["path"] not in _ALWAYS_OPEN:
            refusal = OverloadedError(
                f"{self._open} requests are open already",
                operation="connect",
                remedy="wait and try again, or raise server.max_connections",
            )
            await error_response(refusal)(scope, receive, send_with_headers)
            return
        self._open += 1
        try:
            with self._metrics.open_stream(self._door):
                await self._app(scope, receive, send_with_headers)
        finally:
            self._open -= 1
