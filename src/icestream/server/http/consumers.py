"""Consumers of subscriptions, as the HTTP door has them.

`Feed` awaits a consumer's deliveries without holding a thread. `Consumers` keeps those that live longer than a request,
by a token that only their client knows: a client that uses plain requests is a consumer for as long as it goes on
asking. The engine closes a session that is silent for too long; its token is then as good as never given.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection

from icestream.model.errors import ClosedError, IcestreamError, OverloadedError
from icestream.model.messages import STREAM_SCHEMA, messages_of
from icestream.model.offsets import merge_ranges
from icestream.server.access import open_subscription
from icestream.server.http.authorization import caller_of
from icestream.server.http.errors import NotAcceptableError
from icestream.server.http.models import SubscribeQuery
from icestream.server.http.operations import ARROW_STREAM
from icestream.server.http.reading import message_as_json, parse_start
from icestream.server.http.subscriptions import subscription_name
from icestream.server.http.topics import topic_name
from icestream.server.http.waiting import Ends, wait_for
from icestream.storage import IcebergStorage
from icestream.subscription import BrokerSubscription, ConsumerSession

_TOUCHES_A_TIMEOUT = 3


class ConsumerGoneError(IcestreamError):
    """A token that stands for no consumer, or for none any more."""

    code = "consumer_gone"


class Feed:
    """As long as somebody awaits it, its consumer counts as alive."""

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
    feed: Feed
    subscription: BrokerSubscription
    receiving: asyncio.Lock = field(default_factory=asyncio.Lock)
    taken_messages: int = 0
    """Of the last answer, which its client has once it asks again."""
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
        feed = Feed(session, session_timeout_ms=self._session_timeout_ms)
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
        """Calls on a consumer; one whose session turns out to be closed, and has done nothing of it, is forgotten."""
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


# --------------------
# Batches that a subscription delivers, as JSON messages.


_STREAM_COLUMNS = STREAM_SCHEMA.names


def delivered_as_json(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Each message as a plain read gives it, and how often it was sent before."""
    return [
        {**message_as_json(message), "redelivery_count": message.redelivery_count} for message in messages_of(batch)
    ]


def check_has_json(subscription: BrokerSubscription, *, operation: str) -> None:
    if subscription.schema.names[: len(_STREAM_COLUMNS)] != _STREAM_COLUMNS:
        raise NotAcceptableError(
            "the topic has columns of its own, which have no JSON form here",
            operation=operation,
            place=str(subscription.topic),
            remedy=f"receive with Accept: {ARROW_STREAM}",
        )


def ranges_of(offsets: list[int], ranges: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Messages named one by one and in stretches, as stretches; neighbours are joined."""
    named = [*((offset, offset + 1) for offset in offsets), *((first, end) for first, end in ranges)]
    return merge_ranges(named)


# --------------------
# How the streams that connect a consumer open their subscription.


PIECE_MESSAGES = 500
PIECE_BYTES = 256 << 10
"""What is made into JSON and written at a time, when the connection has taken what was before."""
NO_LIMIT_BYTES = 1 << 50
"""The connection itself is the limit: there is no queue behind it."""


async def open_for_stream(
    storage: IcebergStorage, connection: HTTPConnection, query: SubscribeQuery, *, operation: str
) -> BrokerSubscription:
    """The subscription that a path names, made where it is missing; what the query says of it is changed."""
    topic, name = topic_name(connection), subscription_name(connection)
    start, caller = parse_start(query.start), caller_of(connection)
    options = {"type": query.type, "filter": query.filter}
    changes = {option: value for option, value in options.items() if value is not None}

    def run() -> BrokerSubscription:
        subscription, _ = open_subscription(
            storage, topic, name, changes, start=start, caller=caller, operation=operation
        )
        check_has_json(subscription, operation=operation)
        return subscription

    return await run_in_threadpool(run)
