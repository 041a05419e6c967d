"""Around every request and WebSocket: how many may be open at once, and headers that every answer has."""

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from icestream.model.errors import OverloadedError
from icestream.server.http.errors import error_response
from icestream.server.metrics import BrokerMetrics

_COUNTED = frozenset({"http", "websocket"})
_ANSWERS = frozenset({"http.response.start", "websocket.http.response.start"})
_ALWAYS_OPEN = frozenset({"/healthz", "/readyz", "/metrics"})
"""What tells an overloaded broker from a dead one must not be refused with the rest."""


class Gate:
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
