"""Streams over HTTP: Server-Sent Events, WebSockets, and which web pages may open them."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Iterable
from functools import partial
from typing import Any, TypeAlias

import pyarrow as pa
import structlog
from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import WebSocketRoute
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from icestream.model.callers import Callers
from icestream.model.enums import SubscriptionType
from icestream.model.errors import IcestreamError, InvalidRequestError
from icestream.model.messages import OFFSET, offset_ranges
from icestream.model.offsets import StartPosition
from icestream.server.http.errors import STATUS, NoSuchRouteError, error_response, shorten
from icestream.server.http.messages import (
    Ends,
    check_has_json,
    ends_of,
    parse_start,
    range_as_json,
    read_range,
    wait_past,
)
from icestream.server.http.models import EventsQuery, FollowQuery, SocketControl, SocketQuery
from icestream.server.http.requests import HttpOperation, ResponseSpec, admit, parse_json, parse_query
from icestream.server.http.subscriptions import (
    DELIVERED_BYTES,
    DELIVERED_MESSAGES,
    NO_LIMIT_BYTES,
    SUBSCRIPTION_PATH,
    Consumers,
    KeptConsumer,
    delivered_as_json,
    open_for_stream,
    ranges_of,
)
from icestream.server.http.topics import TOPIC_PATH, topic_name
from icestream.server.metrics import BrokerMetrics
from icestream.storage import IcebergStorage, Topic
from icestream.subscription import ConsumerSession

# Server-Sent Events: a response that continues while its client listens. Each chunk is written when the connection
# takes it, so a slow client slows only its own stream. Comments are sent in pauses, so that both sides notice a lost
# peer.


HEARTBEAT_SECONDS = 10.0
HEARTBEAT = b":\n\n"
EVENT_STREAM = "text/event-stream"
RETRY_MS = 1000
LAST_EVENT_HEADER = "Last-Event-ID"

_ROUNDS_UNTIL_LOSS_IS_KNOWN = 3
"""Rounds of the event loop: the write fails, the connection ends, the task that waits for its end wakes."""
_LINE_ENDS = {ord(end): f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"}
_log = structlog.get_logger(__name__)


class EventWriter:
    def __init__(self, send: Send, ends: Ends) -> None:
        self._send = send
        self._ends = ends

    async def write(self, text: bytes) -> bool:
        """Whether the connection took it; not if one of the ends is reached."""
        await self._send({"type": "http.response.body", "body": text, "more_body": True})
        # The server waits before a chunk, not after it: an empty one, which it leaves out, makes it wait now.
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
                _log.error("event_stream_failed", exc_info=error)
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


# Which web pages may open streams. A browser lets any page open a WebSocket or an event stream to any address that it
# can reach, also to a broker on the same machine, and those streams acknowledge messages. So a page's origin must be
# the door itself or one of `server.allowed_origins`. Programs other than browsers send no origin and are not
# affected. Other calls that change something need a Content-Type or a method for which browsers ask first, and get no
# permission.


_OWN_SITE = frozenset({"same-origin", "none"})


class OriginRefusedError(IcestreamError):
    """A web page of another origin than those that are allowed."""

    code = "origin_refused"


def check_origin(connection: HTTPConnection, allowed: Collection[str], *, operation: str) -> dict[str, str]:
    """Raise unless the caller may open streams; return headers that let an allowed page read the response."""
    origin = connection.headers.get("origin")
    if origin is None:
        # Requests whose response a page cannot read have no origin; browsers mark them by another header.
        if connection.headers.get("sec-fetch-site", "none") in _OWN_SITE:
            return {}
        origin = "another site"
    elif origin.partition("://")[2] == connection.headers.get("host"):
        return {}
    elif origin in allowed:
        return {"Access-Control-Allow-Origin": origin, "Vary": "Origin"}
    raise OriginRefusedError(
        f"pages of {shorten(origin)!r} may not open streams here",
        operation=operation,
        remedy="serve the page from an origin that server.allowed_origins names",
    )


_OPERATION = "events"


class EventsApi:
    def __init__(
        self, storage: IcebergStorage, metrics: BrokerMetrics, consumers: Consumers, closing: asyncio.Event
    ) -> None:
        self._storage = storage
        self._metrics = metrics
        self._consumers = consumers
        self._closing = closing
        self._origins = allowed_origins(storage)

    def operations(self) -> list[HttpOperation]:
        return [
            HttpOperation(
                "GET",
                f"{TOPIC_PATH}/events",
                "follow",
                "messages",
                "Follow a topic",
                self.follow,
                {200: ResponseSpec("An event a message; its id is the offset.", {EVENT_STREAM: None})},
                query=FollowQuery,
                errors=(400, 403, 404, 406, 416, 429, 503),
                details=f"Server-Sent Events. A client that comes back with `{LAST_EVENT_HEADER}` goes on behind it.",
            ),
            HttpOperation(
                "GET",
                f"{SUBSCRIPTION_PATH}/events",
                "subscription_events",
                "subscriptions",
                "Receive messages of a subscription as events",
                self.events,
                {200: ResponseSpec("An event a message; its id is the offset.", {EVENT_STREAM: None})},
                query=EventsQuery,
                errors=(400, 403, 404, 406, 409, 416, 429, 503),
                details="Server-Sent Events. The first event, `subscribed`, tells the consumer's token. A client of an "
                f"exclusive subscription that comes back with `{LAST_EVENT_HEADER}` gets what it has missed.",
            ),
        ]

    # A topic without a subscription

    async def follow(self, request: Request) -> Response:
        query = parse_query(request, FollowQuery, operation=_OPERATION)
        headers = check_origin(request, self._origins, operation=_OPERATION)
        name, seen = topic_name(request), last_event_of(request)
        start = StartPosition.offset(seen + 1) if seen is not None else parse_start(query.start)

        def begin() -> tuple[Topic, int]:
            topic = self._storage.topic(name)
            check_has_json(topic.stream_schema, topic.name, operation=_OPERATION)
            return topic, topic.start_offset_of(start)

        topic, offset = await run_in_threadpool(begin)
        if request.method == "HEAD":
            return Response(headers=headers, media_type=EVENT_STREAM)
        return EventStream(request, self._closing, headers, partial(self._follow, topic, offset))

    async def _follow(self, topic: Topic, offset: int, writer: EventWriter, ends: Ends) -> None:
        def read() -> tuple[bytes, int]:
            found = read_range(self._storage, topic, offset, max_messages=DELIVERED_MESSAGES, max_bytes=DELIVERED_BYTES)
            rows, nbytes = sum(batch.num_rows for batch in found.batches), sum(batch.nbytes for batch in found.batches)
            if rows:
                self._metrics.delivered(rows, nbytes)
            return message_events(range_as_json(found)["messages"]), found.next_offset

        while not any(end.done() for end in ends):
            text, offset = await run_in_threadpool(read)
            if not await writer.write(text or HEARTBEAT):
                return
            if not text:
                await wait_past(topic.log, offset, HEARTBEAT_SECONDS, ends=ends)

    # A subscription

    async def events(self, request: Request) -> Response:
        query = parse_query(request, EventsQuery, operation=_OPERATION)
        headers = check_origin(request, self._origins, operation=_OPERATION)
        seen = last_event_of(request)
        if request.method == "HEAD":
            return Response(headers=headers, media_type=EVENT_STREAM)
        subscription = await open_for_stream(self._storage, request, query, operation=_OPERATION)
        kept = await self._consumers.connect(
            subscription, query.consumer, max_messages=DELIVERED_MESSAGES, max_bytes=NO_LIMIT_BYTES
        )
        is_auto = query.ack == "auto"
        if seen is not None and is_auto and subscription.options.type is SubscriptionType.EXCLUSIVE:
            await self._rewind(kept, seen + 1)
        return EventStream(request, self._closing, headers, partial(self._deliver, kept, is_auto))

    async def _rewind(self, kept: KeptConsumer, offset: int) -> None:
        """Send again what was acknowledged when it was written, and never arrived."""
        subscription = kept.subscription

        def run() -> None:
            if subscription.stats().floor_offset > offset:
                self._storage.subscriptions.seek(subscription.topic, subscription.name, StartPosition.offset(offset))

        try:
            await run_in_threadpool(run)
        except BaseException:
            await self._consumers.close(kept)
            raise

    async def _deliver(self, kept: KeptConsumer, is_auto: bool, writer: EventWriter, ends: Ends) -> None:
        session = kept.feed.session
        try:
            subscription = kept.subscription
            described = {"consumer": kept.token, "topic": str(subscription.topic), "subscription": subscription.name}
            listens = await writer.write(event_text(described, kind="subscribed"))
            while listens:
                batch = await kept.feed.receive(
                    max_messages=DELIVERED_MESSAGES, max_bytes=DELIVERED_BYTES, seconds=HEARTBEAT_SECONDS, ends=ends
                )
                if batch is None:
                    listens = await writer.write(HEARTBEAT)
                    continue
                listens = await writer.write(await run_in_threadpool(_events_of, batch))
                if listens:
                    self._metrics.delivered(batch.num_rows, batch.nbytes)
                    if is_auto:
                        await run_in_threadpool(session.ack, offset_ranges(batch.column(OFFSET)))
                    session.grant(batch.num_rows, batch.nbytes)
        finally:
            await self._consumers.close(kept)


def _events_of(batch: pa.RecordBatch) -> bytes:
    return message_events(delivered_as_json(batch))


def allowed_origins(storage: IcebergStorage) -> frozenset[str]:
    given = storage.settings.server.allowed_origins.split(",")
    return frozenset(origin.strip().rstrip("/") for origin in given if origin.strip())


# WebSockets, for browsers: JSON in text frames, both ways. The client grants messages (`credit`, then `grant`), and no
# more are sent. An error is the last frame; the close code is 4000 plus the HTTP status that fits.


SOCKET_PATH = f"{SUBSCRIPTION_PATH}/ws"
CODE_BASE = 4000
GOING_AWAY = 1001
_SOCKET_OPERATION = "websocket"
_SOCKET = "subscription_socket"
_WAIT_SECONDS = 60.0


class UpgradeRequiredError(IcestreamError):
    """A plain request where a WebSocket is spoken."""

    code = "upgrade_required"


class SocketApi:
    def __init__(
        self,
        storage: IcebergStorage,
        metrics: BrokerMetrics,
        consumers: Consumers,
        closing: asyncio.Event,
        callers: Callers,
    ) -> None:
        self._storage = storage
        self._callers = callers
        self._metrics = metrics
        self._consumers = consumers
        self._closing = closing
        self._origins = allowed_origins(storage)

    def operations(self) -> list[HttpOperation]:
        return [
            HttpOperation(
                "GET",
                SOCKET_PATH,
                _SOCKET,
                "subscriptions",
                "Receive messages of a subscription over a WebSocket",
                self.refuse,
                {101: ResponseSpec("The WebSocket is open.")},
                query=SocketQuery,
                errors=(400, 403, 426, 429),
                details='Text frames. The broker sends `{"subscribed": …}`, then `{"messages": […]}`; an error is '
                '`{"error": …}` and the last frame. The client sends `{"ack": [offsets]}`, `{"ack_cumulative": '
                'offset}`, `{"nack": [offsets], "delay_ms": n}` and `{"grant": n}`, or several of them in one object.',
            )
        ]

    def routes(self) -> list[WebSocketRoute]:
        return [WebSocketRoute(SOCKET_PATH, self.serve), WebSocketRoute("/{path:path}", _refuse_elsewhere)]

    async def refuse(self, _: Request) -> Response:
        raise UpgradeRequiredError(
            "this is a WebSocket",
            operation=_SOCKET_OPERATION,
            remedy="connect with a WebSocket client, or use …/events",
        )

    async def serve(self, socket: WebSocket) -> None:
        try:
            admit(socket, self._callers, _SOCKET)
            check_origin(socket, self._origins, operation=_SOCKET_OPERATION)
        except IcestreamError as error:
            await error_response(error)(socket.scope, socket.receive, socket.send)
            return
        await socket.accept()
        try:
            await self._serve(socket)
            await socket.close(GOING_AWAY)
        except WebSocketDisconnect:
            pass
        except IcestreamError as error:
            await _fail(socket, error)
        except Exception as error:  # noqa: BLE001 (logged; the client hears that it is not its fault)
            _log.error("websocket_failed", exc_info=error)
            await _fail(socket, IcestreamError(f"internal error: {type(error).__name__}", operation=_SOCKET_OPERATION))

    async def _serve(self, socket: WebSocket) -> None:
        """Returns when the door closes; a client that leaves is a WebSocketDisconnect."""
        query = parse_query(socket, SocketQuery, operation=_SOCKET_OPERATION)
        subscription = await open_for_stream(self._storage, socket, query, operation=_SOCKET_OPERATION)
        kept = await self._consumers.connect(
            subscription, query.consumer, max_messages=query.credit, max_bytes=NO_LIMIT_BYTES
        )
        listening = asyncio.create_task(_listen(socket, kept.feed.session))
        closing = asyncio.create_task(self._closing.wait())
        try:
            described = {"consumer": kept.token, "topic": str(subscription.topic), "subscription": subscription.name}
            await _send(socket, {"subscribed": {**described, "credit": query.credit}})
            await self._deliver(socket, kept, ends=[listening, closing])
            if listening.done():
                listening.result()
        finally:
            for task in (listening, closing):
                task.cancel()
            await asyncio.gather(listening, closing, return_exceptions=True)
            await self._consumers.close(kept)

    async def _deliver(self, socket: WebSocket, kept: KeptConsumer, *, ends: "list[asyncio.Task[Any]]") -> None:
        while not any(end.done() for end in ends):
            batch = await kept.feed.receive(
                max_messages=DELIVERED_MESSAGES, max_bytes=DELIVERED_BYTES, seconds=_WAIT_SECONDS, ends=ends
            )
            if batch is None:
                continue
            await socket.send_text(await run_in_threadpool(_messages, batch))
            self._metrics.delivered(batch.num_rows, batch.nbytes)


async def _refuse_elsewhere(socket: WebSocket) -> None:
    error = NoSuchRouteError("there is no WebSocket here", operation="route", place=shorten(socket.scope["path"]))
    await error_response(error)(socket.scope, socket.receive, socket.send)


async def _listen(socket: WebSocket, session: ConsumerSession) -> None:
    """Apply what the client sends until it leaves or sends something wrong."""
    while True:
        message = await socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", GOING_AWAY))
        if (text := message.get("text")) is None:
            raise InvalidRequestError("frames are text", operation=_SOCKET_OPERATION, remedy="send JSON in text frames")
        await run_in_threadpool(_apply_control, session, text)


def _apply_control(session: ConsumerSession, text: str) -> None:
    control = parse_json(bytearray(text, "utf-8", "replace"), SocketControl, operation=_SOCKET_OPERATION)
    if control.ack_cumulative is not None:
        session.ack_cumulative(control.ack_cumulative)
    if control.ack or control.ack_ranges:
        session.ack(ranges_of(control.ack, control.ack_ranges))
    if control.nack or control.nack_ranges:
        session.nack(ranges_of(control.nack, control.nack_ranges), delay_ms=control.delay_ms)
    if control.grant:
        session.grant(control.grant, 0)


def _messages(batch: pa.RecordBatch) -> str:
    return _text({"messages": delivered_as_json(batch)})


async def _send(socket: WebSocket, content: dict[str, Any]) -> None:
    await socket.send_text(_text(content))


def _text(content: dict[str, Any]) -> str:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace").decode()


async def _fail(socket: WebSocket, error: IcestreamError) -> None:
    try:
        await _send(socket, {"error": error.to_dict()})
        await socket.close(CODE_BASE + STATUS.get(error.code, 500), error.code)
    except WebSocketDisconnect:
        pass
