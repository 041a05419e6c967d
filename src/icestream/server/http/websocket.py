"""A subscription's consumer over a WebSocket, for browsers: JSON in text frames, both ways.

The client says how many messages it can take (`credit`, then `grant`), and no more are sent. An error is the last frame
before the socket is closed; its close code is 4000 and the HTTP status that fits.
"""

import asyncio
import json
from typing import Any

import pyarrow as pa
import structlog
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from icestream.model.callers import Callers
from icestream.model.errors import IcestreamError, InvalidRequestError
from icestream.server.http.authorization import admit
from icestream.server.http.bodies import parse_json
from icestream.server.http.consumers import (
    NO_LIMIT_BYTES,
    PIECE_BYTES,
    PIECE_MESSAGES,
    Consumers,
    KeptConsumer,
    delivered_as_json,
    open_for_stream,
    ranges_of,
)
from icestream.server.http.errors import STATUS, NoSuchRouteError, error_response, shorten
from icestream.server.http.events import allowed_origins, check_origin
from icestream.server.http.models import SocketControl, SocketQuery
from icestream.server.http.operations import Operation, ResponseSpec, parse_query
from icestream.server.http.subscriptions import SUBSCRIPTION_PATH
from icestream.server.metrics import BrokerMetrics
from icestream.storage import IcebergStorage
from icestream.subscription import ConsumerSession

SOCKET_PATH = f"{SUBSCRIPTION_PATH}/ws"
CODE_BASE = 4000
GOING_AWAY = 1001
_OPERATION = "websocket"
_SOCKET = "subscription_socket"
_WAIT_SECONDS = 60.0
_log = structlog.get_logger(__name__)


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

    def operations(self) -> list[Operation]:
        return [
            Operation(
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
            "this is a WebSocket", operation=_OPERATION, remedy="connect with a WebSocket client, or use …/events"
        )

    async def serve(self, socket: WebSocket) -> None:
        try:
            admit(socket, self._callers, _SOCKET)
            check_origin(socket, self._origins, operation=_OPERATION)
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
            _log.error("a WebSocket failed", exc_info=error)
            await _fail(socket, IcestreamError(f"internal error: {type(error).__name__}", operation=_OPERATION))

    async def _serve(self, socket: WebSocket) -> None:
        """Returns when the door closes; a client that leaves is a WebSocketDisconnect."""
        query = parse_query(socket, SocketQuery, operation=_OPERATION)
        subscription = await open_for_stream(self._storage, socket, query, operation=_OPERATION)
        kept = await self._consumers.connect(
            subscription, query.consumer, max_messages=query.credit, max_bytes=NO_LIMIT_BYTES
        )
        listening = asyncio.create_task(_listen(socket, kept.feed.session))
        closing = asyncio.create_task(self._closing.wait())
        try:
            told = {"consumer": kept.token, "topic": str(subscription.topic), "subscription": subscription.name}
            await _send(socket, {"subscribed": {**told, "credit": query.credit}})
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
                max_messages=PIECE_MESSAGES, max_bytes=PIECE_BYTES, seconds=_WAIT_SECONDS, ends=ends
            )
            if batch is None:
                continue
            await socket.send_text(await run_in_threadpool(_messages, batch))
            self._metrics.delivered(batch.num_rows, batch.nbytes)


async def _refuse_elsewhere(socket: WebSocket) -> None:
    error = NoSuchRouteError("there is no WebSocket here", operation="route", place=shorten(socket.scope["path"]))
    await error_response(error)(socket.scope, socket.receive, socket.send)


async def _listen(socket: WebSocket, session: ConsumerSession) -> None:
    """Do what the client says until it leaves or says something wrong."""
    while True:
        message = await socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", GOING_AWAY))
        if (text := message.get("text")) is None:
            raise InvalidRequestError("frames are text", operation=_OPERATION, remedy="send JSON in text frames")
        await run_in_threadpool(_obey, session, text)


def _obey(session: ConsumerSession, text: str) -> None:
    said = parse_json(bytearray(text, "utf-8", "replace"), SocketControl, operation=_OPERATION)
    if said.ack_cumulative is not None:
        session.ack_cumulative(said.ack_cumulative)
    if said.ack or said.ack_ranges:
        session.ack(ranges_of(said.ack, said.ack_ranges))
    if said.nack or said.nack_ranges:
        session.nack(ranges_of(said.nack, said.nack_ranges), delay_ms=said.delay_ms)
    if said.grant:
        session.grant(said.grant, 0)


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
