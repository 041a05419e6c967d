"""Server-Sent Events: an answer that goes on for as long as its client listens.

Each piece is written as the connection takes it, so a client that reads slowly slows its own stream and nothing else.
Comments come in the pauses, so that both sides notice when the other is gone.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeAlias

import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from icestream.model.errors import IcestreamError, InvalidRequestError
from icestream.server.http.waiting import Ends, ends_of

HEARTBEAT_SECONDS = 10.0
HEARTBEAT = b":\n\n"
EVENT_STREAM = "text/event-stream"
RETRY_MS = 1000
LAST_EVENT_HEADER = "Last-Event-ID"

_ROUNDS_UNTIL_LOSS_IS_KNOWN = 3
"""Of the event loop: a write fails; the connection is told; it tells who waits for its end; that one is woken."""
_LINE_ENDS = {ord(end): f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"}
_log = structlog.get_logger(__name__)


class EventWriter:
    def __init__(self, send: Send, ends: Ends) -> None:
        self._send = send
        self._ends = ends

    async def write(self, text: bytes) -> bool:
        """Whether the connection took it; not if one of the ends is reached."""
        await self._send({"type": "http.response.body", "body": text, "more_body": True})
        # The server waits before a piece, not behind it: an empty one, which it leaves out, makes it wait now.
        await self._send({"type": "http.response.body", "body": b"", "more_body": True})
        for _ in range(_ROUNDS_UNTIL_LOSS_IS_KNOWN):
            await asyncio.sleep(0)
        return not any(end.done() for end in self._ends)


Produce: TypeAlias = Callable[[EventWriter, Ends], Awaitable[None]]


class EventStream(Response):
    """Sends what `produce` writes, until that returns; what it raises is the last event."""

    media_type = EVENT_STREAM

    def __init__(self, request: Request, closing: asyncio.Event, headers: dict[str, str], produce: Produce) -> None:
        super().__init__(headers={**headers, "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._request = request
        self._closing = closing
        self._produce = produce

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with ends_of(self._request, self._closing) as ends:
            writer = EventWriter(send, ends)
            try:
                await writer.write(b"retry: %d\n\n" % RETRY_MS)
                await self._produce(writer, ends)
            except IcestreamError as error:
                await writer.write(event_text({"error": error.to_dict()}, kind="failure"))
            except Exception as error:  # noqa: BLE001 (logged; the client hears that it is not its fault)
                _log.error("an event stream failed", exc_info=error)
                fault = IcestreamError(f"internal error: {type(error).__name__}", operation="events")
                await writer.write(event_text({"error": fault.to_dict()}, kind="failure"))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def event_text(data: Any, *, kind: str = "") -> bytes:
    name = f"event: {kind}\n" if kind else ""
    return f"{name}data: {_json(data)}\n\n".encode("utf-8", "replace")


def message_events(messages: Iterable[dict[str, Any]]) -> bytes:
    """An event a message, whose id is the message's offset."""
    return "".join(f"id: {message['offset']}\ndata: {_json(message)}\n\n" for message in messages).encode(
        "utf-8", "replace"
    )


def _json(data: Any) -> str:
    """On one line, as an event needs it, whatever a client takes for the end of one."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).translate(_LINE_ENDS)


def last_event_of(request: Request) -> int | None:
    """The offset of the last event that a client has seen, if it comes back."""
    text = request.headers.get(LAST_EVENT_HEADER, "")
    if not text:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > 18:  # noqa: PLR2004
        raise InvalidRequestError(
            f"{LAST_EVENT_HEADER}: not an offset", operation="events", remedy="send the id of an event, or nothing"
        )
    return int(text)
