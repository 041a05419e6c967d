"""Messages as Server-Sent Events: of a subscription, or of a topic without one."""

import asyncio
from functools import partial

import pyarrow as pa
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from icestream.model.offsets import StartPosition
from icestream.server.http.consumers import Consumers, KeptConsumer
from icestream.server.http.deliveries import delivered_as_json, offset_ranges
from icestream.server.http.event_stream import (
    EVENT_STREAM,
    HEARTBEAT,
    HEARTBEAT_SECONDS,
    LAST_EVENT_HEADER,
    EventStream,
    EventWriter,
    event_text,
    last_event_of,
    message_events,
)
from icestream.server.http.messages import check_topic_has_json
from icestream.server.http.models_subscriptions import EventsQuery, FollowQuery
from icestream.server.http.operations import Answer, Operation, parse_query
from icestream.server.http.origin import check_origin
from icestream.server.http.reading import parse_start, piece_as_json, read_piece
from icestream.server.http.subscribing import NO_LIMIT_BYTES, PIECE_BYTES, PIECE_MESSAGES, open_subscription
from icestream.server.http.subscriptions import SUBSCRIPTION_PATH
from icestream.server.http.topics import TOPIC_PATH, topic_name
from icestream.server.http.waiting import Ends, wait_past
from icestream.server.metrics import BrokerMetrics
from icestream.storage import IcebergStorage, Topic
from icestream.subscription import SubscriptionType

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

    def operations(self) -> list[Operation]:
        return [
            Operation(
                "GET",
                f"{TOPIC_PATH}/events",
                "follow",
                "messages",
                "Follow a topic",
                self.follow,
                {200: Answer("An event a message; its id is the offset.", {EVENT_STREAM: None})},
                query=FollowQuery,
                errors=(400, 403, 404, 406, 416, 429, 503),
                details=f"Server-Sent Events. A client that comes back with `{LAST_EVENT_HEADER}` goes on behind it.",
            ),
            Operation(
                "GET",
                f"{SUBSCRIPTION_PATH}/events",
                "subscription_events",
                "subscriptions",
                "Receive messages of a subscription as events",
                self.events,
                {200: Answer("An event a message; its id is the offset.", {EVENT_STREAM: None})},
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
            check_topic_has_json(topic, operation=_OPERATION)
            return topic, topic.start_offset_of(start)

        topic, offset = await run_in_threadpool(begin)
        if request.method == "HEAD":
            return Response(headers=headers, media_type=EVENT_STREAM)
        return EventStream(request, self._closing, headers, partial(self._follow, topic, offset))

    async def _follow(self, topic: Topic, offset: int, writer: EventWriter, ends: Ends) -> None:
        def read() -> tuple[bytes, int]:
            piece = read_piece(self._storage, topic, offset, max_messages=PIECE_MESSAGES, max_bytes=PIECE_BYTES)
            rows, nbytes = sum(batch.num_rows for batch in piece.batches), sum(batch.nbytes for batch in piece.batches)
            if rows:
                self._metrics.delivered(rows, nbytes)
            return message_events(piece_as_json(piece)["messages"]), piece.next_offset

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
        subscription = await open_subscription(self._storage, request, query, operation=_OPERATION)
        kept = await self._consumers.connect(
            subscription, query.consumer, max_messages=PIECE_MESSAGES, max_bytes=NO_LIMIT_BYTES
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
            told = {"consumer": kept.token, "topic": str(subscription.topic), "subscription": subscription.name}
            listens = await writer.write(event_text(told, kind="subscribed"))
            while listens:
                batch = await kept.feed.receive(
                    max_messages=PIECE_MESSAGES, max_bytes=PIECE_BYTES, seconds=HEARTBEAT_SECONDS, ends=ends
                )
                if batch is None:
                    listens = await writer.write(HEARTBEAT)
                    continue
                listens = await writer.write(await run_in_threadpool(_events_of, batch))
                if listens:
                    self._metrics.delivered(batch.num_rows, batch.nbytes)
                    if is_auto:
                        await run_in_threadpool(session.ack, offset_ranges(batch))
                    session.grant(batch.num_rows, batch.nbytes)
        finally:
            await self._consumers.close(kept)


def _events_of(batch: pa.RecordBatch) -> bytes:
    return message_events(delivered_as_json(batch))


def allowed_origins(storage: IcebergStorage) -> frozenset[str]:
    given = storage.settings.server.allowed_origins.split(",")
    return frozenset(origin.strip().rstrip("/") for origin in given if origin.strip())
