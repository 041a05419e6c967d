"""Subscriptions over HTTP: administration, consumers and their plain requests."""

import asyncio
import contextlib
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from icestream.model.errors import ClosedError, IcestreamError, InvalidRequestError, OverloadedError
from icestream.model.messages import messages_of
from icestream.model.names import check_part
from icestream.model.offsets import StartPosition, merge_ranges
from icestream.protocol.parsing import given
from icestream.protocol.subscribe import SeekResult, SubscriptionDescription, SubscriptionList
from icestream.server.access import check_dead_letters
from icestream.server.calls import check_change, open_subscription
from icestream.server.http.errors import json_response
from icestream.server.http.messages import (
    Ends,
    check_has_json,
    ends_of,
    message_as_json,
    parse_start,
    wait_for,
    wants_arrow,
)
from icestream.server.http.models import (
    MAX_READ_BYTES,
    MAX_READ_MESSAGES,
    AckBody,
    NackBody,
    OfConsumer,
    Position,
    PositionObject,
    PutSubscription,
    ReceiveBody,
    ReceivedMessages,
    Seek,
    SubscribeQuery,
)
from icestream.server.http.requests import (
    ARROW_STREAM,
    JSON,
    HttpOperation,
    ResponseSpec,
    caller_of,
    json_body,
    refuse_query,
    write_stream,
)
from icestream.server.http.topics import TOPIC_PATH, topic_name
from icestream.server.metrics import BrokerMetrics
from icestream.storage import IcebergStorage
from icestream.subscription import BrokerSubscription, ConsumerSession, describe

SUBSCRIPTIONS_PATH = f"{TOPIC_PATH}/subscriptions"
SUBSCRIPTION_PATH = f"{SUBSCRIPTIONS_PATH}/{{subscription}}"


def subscription_name(connection: HTTPConnection) -> str:
    return check_part(connection.path_params["subscription"], what="subscription name")


def position_of(value: Position) -> StartPosition:
    """A position as text, or as JSON."""
    if isinstance(value, str):
        return parse_start(value)
    return StartPosition.from_json(value.to_json() if isinstance(value, PositionObject) else value)


class SubscriptionsApi:
    def __init__(self, storage: IcebergStorage) -> None:
        self._storage = storage

    def operations(self) -> list[HttpOperation]:
        group, described = "subscriptions", {JSON: SubscriptionDescription}
        return [
            HttpOperation(
                "GET",
                SUBSCRIPTIONS_PATH,
                "list_subscriptions",
                group,
                "List a topic's subscriptions by name",
                self.list,
                {200: ResponseSpec("The subscriptions.", {JSON: SubscriptionList})},
                errors=(400, 404, 503),
            ),
            HttpOperation(
                "GET",
                SUBSCRIPTION_PATH,
                "describe_subscription",
                group,
                "Describe a subscription, its progress and its consumers",
                self.describe,
                {200: ResponseSpec("The subscription.", described)},
                errors=(400, 404, 503),
            ),
            HttpOperation(
                "PUT",
                SUBSCRIPTION_PATH,
                "put_subscription",
                group,
                "Create a subscription, or change its options",
                self.put,
                {
                    201: ResponseSpec("The subscription was created.", described),
                    200: ResponseSpec("The subscription as it is now.", described),
                },
                body={JSON: PutSubscription},
                errors=(400, 404, 409, 413, 415, 429, 503),
                details="Type and filter cannot change while consumers are connected.",
            ),
            HttpOperation(
                "DELETE",
                SUBSCRIPTION_PATH,
                "delete_subscription",
                group,
                "Delete a subscription and its progress",
                self.delete,
                {204: ResponseSpec("The subscription is gone; its consumers were disconnected.")},
                errors=(400, 404, 503),
            ),
            HttpOperation(
                "POST",
                f"{SUBSCRIPTION_PATH}/seek",
                "seek_subscription",
                group,
                "Move a subscription to another position",
                self.seek,
                {200: ResponseSpec("The offset that the position means.", {JSON: SeekResult})},
                body={JSON: Seek},
                errors=(400, 404, 413, 415, 416, 503),
                details="Consumers stay connected; what they have not acknowledged is forgotten.",
            ),
        ]

    async def list(self, request: Request) -> Response:
        refuse_query(request, operation="list subscriptions")
        name = topic_name(request)

        def run() -> SubscriptionList:
            topic = self._storage.topic(name)
            return SubscriptionList([describe(found) for found in self._storage.subscriptions.find(topic.name)])

        return json_response(await run_in_threadpool(run))

    async def describe(self, request: Request) -> Response:
        refuse_query(request, operation="describe subscription")
        topic, name = topic_name(request), subscription_name(request)
        return json_response(await run_in_threadpool(lambda: describe(self._storage.subscriptions.get(topic, name))))

    async def put(self, request: Request) -> Response:
        operation = "put subscription"
        refuse_query(request, operation=operation)
        topic, name = topic_name(request), subscription_name(request)
        body = await json_body(request, PutSubscription, self._storage.budget, operation=operation)
        start, caller = position_of(body.start), caller_of(request)

        changes = given(body)
        del changes["start"]

        def run() -> tuple[SubscriptionDescription, int]:
            subscription, existed = open_subscription(
                self._storage, topic, name, changes, start=start, caller=caller, operation=operation
            )
            return describe(subscription), 200 if existed else 201

        return json_response(*await run_in_threadpool(run))

    async def delete(self, request: Request) -> Response:
        operation = "delete subscription"
        refuse_query(request, operation=operation)
        topic, name, caller = topic_name(request), subscription_name(request), caller_of(request)

        def run() -> None:
            check_change(self._storage, caller, topic, name, operation=operation)
            self._storage.subscriptions.delete(topic, name)

        await run_in_threadpool(run)
        return Response(status_code=204)

    async def seek(self, request: Request) -> Response:
        operation = "seek subscription"
        refuse_query(request, operation=operation)
        topic, name, caller = topic_name(request), subscription_name(request), caller_of(request)
        body = await json_body(request, Seek, self._storage.budget, operation=operation)
        position = position_of(body.position)

        def run() -> int:
            check_change(self._storage, caller, topic, name, operation=operation)
            return self._storage.subscriptions.seek(topic, name, position)

        return json_response(SeekResult(await run_in_threadpool(run)))


# Consumers. `ConsumerFeed` awaits deliveries without holding a thread. `Consumers` keeps consumers that live longer
# than a request, by a token that only their client has: a client with plain requests is a consumer while it keeps
# asking. A session that is silent for too long is closed, and its token is unknown from then on.


_TOUCHES_A_TIMEOUT = 3


class ConsumerGoneError(IcestreamError):
    """A token that stands for no consumer, or for none any more."""

    code = "consumer_gone"


class ConsumerFeed:
    """Awaits a consumer's deliveries. While a task awaits it, the consumer counts as alive."""

    def __init__(self, session: ConsumerSession, *, session_timeout_ms: int) -> None:
        self.session = session
        self._touch_seconds = session_timeout_ms / 1000 / _TOUCHES_A_TIMEOUT
        self._loop, self._ready = asyncio.get_running_loop(), asyncio.Event()
        session.listeners.add(self._wake)

    def _wake(self) -> None:
        """Called by whichever thread has something for the session."""
        with contextlib.suppress(RuntimeError):  # the door's loop has ended; the engine must not hear of it
            self._loop.call_soon_threadsafe(self._ready.set)

    async def receive(self, *, max_messages: int, max_bytes: int, seconds: float, ends: Ends) -> pa.RecordBatch | None:
        """What comes next; nothing when the time is up or one of the ends is reached."""
        receive = partial(self.session.receive, max_messages=max_messages, max_bytes=max_bytes, timeout_seconds=0)
        deadline = self._loop.time() + seconds
        while True:
            batch = await run_in_threadpool(receive)
            left = deadline - self._loop.time()
            if batch is not None or left <= 0 or any(end.done() for end in ends):
                return batch
            await wait_for(self._ready, ends, min(left, self._touch_seconds))
            self.session.touch()

    async def close(self) -> None:
        """What the consumer holds goes to others."""
        self.session.listeners.discard(self._wake)
        await run_in_threadpool(self.session.close)


@dataclass(eq=False)
class KeptConsumer:
    token: str
    feed: ConsumerFeed
    subscription: BrokerSubscription
    receiving: asyncio.Lock = field(default_factory=asyncio.Lock)
    taken_messages: int = 0
    """Of the last response; the client has it once it asks again."""
    taken_bytes: int = 0


class Consumers:
    """Used on the event loop alone."""

    def __init__(self, *, max_consumers: int, session_timeout_ms: int) -> None:
        self._max_consumers = max_consumers
        self._session_timeout_ms = session_timeout_ms
        self._by_token: dict[str, KeptConsumer] = {}
        self._connecting = 0

    @property
    def receiving(self) -> int:
        """How many of them a request receives for."""
        return sum(kept.receiving.locked() for kept in self._by_token.values())

    async def connect(
        self, subscription: BrokerSubscription, name: str, *, max_messages: int, max_bytes: int
    ) -> KeptConsumer:
        if len(self._by_token) + self._connecting >= self._max_consumers:
            self._forget_closed()
        if len(self._by_token) + self._connecting >= self._max_consumers:
            raise OverloadedError(
                f"{self._max_consumers} consumers are connected over HTTP already",
                operation="receive",
                remedy="wait and try again, or raise server.max_connections",
            )
        connect = partial(subscription.connect, max_messages=max_messages, max_bytes=max_bytes)
        self._connecting += 1
        try:
            session = await run_in_threadpool(connect, name or f"http-{secrets.token_hex(4)}")
        finally:
            self._connecting -= 1
        feed = ConsumerFeed(session, session_timeout_ms=self._session_timeout_ms)
        kept = KeptConsumer(secrets.token_urlsafe(16), feed, subscription)
        self._by_token[kept.token] = kept
        return kept

    def _forget_closed(self) -> None:
        for token, kept in list(self._by_token.items()):
            if kept.feed.session.closed:
                del self._by_token[token]

    def find(self, token: str, subscription: BrokerSubscription, *, operation: str) -> KeptConsumer:
        kept = self._by_token.get(token)
        if kept is None or (kept.subscription.topic, kept.subscription.name) != (subscription.topic, subscription.name):
            raise _gone(subscription, operation)
        return kept

    @contextlib.contextmanager
    def using(self, kept: KeptConsumer, *, operation: str) -> Iterator[None]:
        """Run calls on a consumer; forget it if its session is closed."""
        with contextlib.suppress(ClosedError):
            yield
        if kept.feed.session.closed:
            self._by_token.pop(kept.token, None)
            raise _gone(kept.subscription, operation)

    async def close(self, kept: KeptConsumer) -> None:
        if self._by_token.pop(kept.token, None) is not None:
            await kept.feed.close()


def _gone(subscription: BrokerSubscription, operation: str) -> ConsumerGoneError:
    return ConsumerGoneError(
        "there is no such consumer, or it was silent for too long",
        operation=operation,
        place=f"{subscription.topic} {subscription.name}",
        remedy="receive without naming one to connect anew; what it had not acknowledged is sent again",
    )


# Delivered batches as JSON messages.


def delivered_as_json(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Each message as a plain read gives it, and how often it was sent before."""
    return [
        {**message_as_json(message), "redelivery_count": message.redelivery_count} for message in messages_of(batch)
    ]


def ranges_of(offsets: list[int], ranges: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Messages named one by one and in stretches, as stretches; neighbours are joined."""
    named = [*((offset, offset + 1) for offset in offsets), *((first, end) for first, end in ranges)]
    return merge_ranges(named)


# Streams that connect a consumer.


DELIVERED_MESSAGES = 500
DELIVERED_BYTES = 256 << 10
"""What is made into JSON and written at a time, when the connection has taken what was before."""
NO_LIMIT_BYTES = 1 << 50
"""The connection itself is the limit: there is no queue behind it."""


async def open_for_stream(
    storage: IcebergStorage, connection: HTTPConnection, query: SubscribeQuery, *, operation: str
) -> BrokerSubscription:
    """Open the subscription in the path, create it if missing, and apply the query's options."""
    topic, name = topic_name(connection), subscription_name(connection)
    start, caller = parse_start(query.start), caller_of(connection)
    options = {"type": query.type, "filter": query.filter}
    changes = {option: value for option, value in options.items() if value is not None}

    def run() -> BrokerSubscription:
        subscription, _ = open_subscription(
            storage, topic, name, changes, start=start, caller=caller, operation=operation
        )
        check_has_json(subscription.schema, subscription.topic, operation=operation)
        return subscription

    return await run_in_threadpool(run)


# Plain requests of a consumer: receive, ack, nack, leave. Nothing is kept for a consumer between its
# requests. If a client hangs up before it gets a response with messages, its consumer is disconnected and the
# messages are delivered again: the client cannot believe that it has them all.


CONSUMER_HEADER = "Icestream-Consumer"
Named = TypeVar("Named", bound=OfConsumer)


class ReceivingApi:
    def __init__(
        self, storage: IcebergStorage, metrics: BrokerMetrics, consumers: Consumers, closing: asyncio.Event
    ) -> None:
        self._storage = storage
        self._metrics = metrics
        self._consumers = consumers
        self._closing = closing

    def operations(self) -> list[HttpOperation]:
        group, done = "subscriptions", {204: ResponseSpec("Done.")}
        return [
            HttpOperation(
                "POST",
                f"{SUBSCRIPTION_PATH}/receive",
                "receive",
                group,
                "Receive messages of a subscription",
                self.receive,
                {
                    200: ResponseSpec(
                        "Messages; none when there was nothing in time.",
                        {JSON: ReceivedMessages, ARROW_STREAM: None},
                        {CONSUMER_HEADER: "The consumer, as in JSON."},
                    )
                },
                body={JSON: ReceiveBody},
                errors=(400, 404, 406, 409, 410, 413, 415, 429, 503),
                details="The first request connects a consumer and tells its token; later ones name it. One that is "
                "silent for `subscriptions.session_timeout_ms` is disconnected, and what it has not acknowledged goes "
                f"to others. Ask with `Accept: {ARROW_STREAM}` for Arrow.",
            ),
            HttpOperation(
                "POST",
                f"{SUBSCRIPTION_PATH}/ack",
                "ack",
                group,
                "Acknowledge messages",
                self.ack,
                done,
                body={JSON: AckBody},
                errors=(400, 404, 410, 413, 415, 503),
            ),
            HttpOperation(
                "POST",
                f"{SUBSCRIPTION_PATH}/nack",
                "nack",
                group,
                "Have messages sent again",
                self.nack,
                done,
                body={JSON: NackBody},
                errors=(400, 404, 410, 413, 415, 503),
            ),
            HttpOperation(
                "DELETE",
                f"{SUBSCRIPTION_PATH}/consumers/{{consumer}}",
                "disconnect",
                group,
                "Disconnect a consumer",
                self.disconnect,
                {204: ResponseSpec("What it has not acknowledged goes to others at once.")},
                errors=(400, 404, 410, 503),
            ),
        ]

    async def receive(self, request: Request) -> Response:
        operation = "receive"
        refuse_query(request, operation=operation)
        body = await json_body(request, ReceiveBody, self._storage.budget, operation=operation)
        subscription = await self._subscription(request)
        as_arrow = wants_arrow(request)
        if not as_arrow:
            check_has_json(subscription.schema, subscription.topic, operation=operation)
        if body.consumer is None:
            kept = await self._consumers.connect(
                subscription, body.name or "", max_messages=MAX_READ_MESSAGES, max_bytes=MAX_READ_BYTES
            )
        else:
            kept = self._consumers.find(body.consumer, subscription, operation=operation)
        if kept.receiving.locked():
            raise InvalidRequestError(
                "another request receives for this consumer",
                operation=operation,
                remedy="wait for its response, or connect another consumer",
            )
        with self._consumers.using(kept, operation=operation):
            async with kept.receiving, ends_of(request, self._closing) as ends:
                batch = await self._next(kept, body, ends)
                caller_gone = ends[0].done()
                if batch is not None and caller_gone:
                    await self._consumers.close(kept)
        return await run_in_threadpool(partial(self._respond, subscription, kept.token, batch, as_arrow=as_arrow))

    async def _next(self, kept: KeptConsumer, body: ReceiveBody, ends: Ends) -> pa.RecordBatch | None:
        kept.feed.session.touch()
        kept.feed.session.grant(kept.taken_messages, kept.taken_bytes)
        kept.taken_messages = kept.taken_bytes = 0
        batch = await kept.feed.receive(
            max_messages=body.max_messages, max_bytes=body.max_bytes, seconds=body.timeout_ms / 1000, ends=ends
        )
        if batch is not None:
            kept.taken_messages, kept.taken_bytes = batch.num_rows, batch.nbytes
        return batch

    def _respond(
        self, subscription: BrokerSubscription, token: str, batch: pa.RecordBatch | None, *, as_arrow: bool
    ) -> Response:
        if batch is not None:
            self._metrics.delivered(batch.num_rows, batch.nbytes)
        batches = [] if batch is None else [batch]
        if as_arrow:
            response = Response(write_stream(subscription.schema, batches), media_type=ARROW_STREAM)
        else:
            messages = [message for part in batches for message in delivered_as_json(part)]
            response = json_response({"consumer": token, "messages": messages})
        response.headers[CONSUMER_HEADER] = token
        return response

    async def ack(self, request: Request) -> Response:
        body, kept = await self._named(request, AckBody, operation="ack")
        ranges, cumulative = ranges_of(body.offsets, body.ranges), body.cumulative
        if not body.offsets and not body.ranges and cumulative is None:
            raise InvalidRequestError("body: nothing is acknowledged", operation="ack", remedy="name offsets")

        def run() -> None:
            if cumulative is not None:
                kept.feed.session.ack_cumulative(cumulative)
            if ranges:
                kept.feed.session.ack(ranges)

        with self._consumers.using(kept, operation="ack"):
            await run_in_threadpool(run)
        return Response(status_code=204)

    async def nack(self, request: Request) -> Response:
        body, kept = await self._named(request, NackBody, operation="nack")
        if not body.offsets and not body.ranges:
            raise InvalidRequestError("body: nothing is nacked", operation="nack", remedy="name offsets")
        ranges = ranges_of(body.offsets, body.ranges)
        with self._consumers.using(kept, operation="nack"):
            await run_in_threadpool(partial(kept.feed.session.nack, ranges, delay_ms=body.delay_ms))
        return Response(status_code=204)

    async def disconnect(self, request: Request) -> Response:
        operation = "disconnect"
        refuse_query(request, operation=operation)
        subscription = await self._subscription(request)
        await self._consumers.close(
            self._consumers.find(request.path_params["consumer"], subscription, operation=operation)
        )
        return Response(status_code=204)

    async def _named(self, request: Request, model: type[Named], *, operation: str) -> tuple[Named, KeptConsumer]:
        """A body and the consumer that it names."""
        refuse_query(request, operation=operation)
        body = await json_body(request, model, self._storage.budget, operation=operation)
        subscription = await self._subscription(request)
        return body, self._consumers.find(body.consumer, subscription, operation=operation)

    async def _subscription(self, request: Request) -> BrokerSubscription:
        topic, name, caller = topic_name(request), subscription_name(request), caller_of(request)

        def run() -> BrokerSubscription:
            found = self._storage.subscriptions.get(topic, name)
            check_dead_letters(caller, topic, name, found.options, operation="receive")
            return found

        return await run_in_threadpool(run)
