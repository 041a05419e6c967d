"""The client for asyncio: the same engine, awaited.

Nothing here blocks the event loop: network writes are left to the engine's sender thread, acknowledgements come back
through `loop.call_soon_threadsafe`, one call for each batch, and administrative calls run in the loop's thread pool.
Open a producer or a consumer with `await client.producer(…)` or `async with client.producer(…) as producer`.
"""

import asyncio
import functools
from collections.abc import Coroutine, Generator
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import pyarrow as pa

from icestream.client import client as sync
from icestream.client.admin import Start, SubscriptionDescription, TopicDescription
from icestream.client.aio_consumer import Consumer
from icestream.client.aio_producer import BatchReceipt, Producer, Receipt
from icestream.client.aio_subscription import Subscription
from icestream.client.endpoint import DEFAULT_URL, BrokerEndpoint
from icestream.model.names import TopicName

__all__ = ["BatchReceipt", "Client", "Consumer", "Producer", "Receipt", "Subscription"]

T = TypeVar("T", bound=Producer | Consumer | Subscription)


class Opening(Generic[T]):
    """Something that opens when it is awaited, or entered with `async with`, which closes it too."""

    def __init__(self, opening: Coroutine[Any, Any, T]) -> None:
        self._opening: Coroutine[Any, Any, T] = opening
        self._opened: T | None = None

    def __await__(self) -> Generator[Any, Any, T]:
        return self._opening.__await__()

    async def __aenter__(self) -> T:
        self._opened = await self._opening
        return self._opened

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._opened is not None:
            await self._opened.__aexit__(kind, error, traceback)


class Client:
    """Like `icestream.Client`, with the same arguments everywhere. Use it in one event loop."""

    def __init__(
        self,
        url: str | BrokerEndpoint = DEFAULT_URL,
        *,
        token: str | None = None,
        tls: str | Path | bytes | None = None,
        timeout: float = 30.0,
    ) -> None:
        self._client = sync.Client(url, token=token, tls=tls, timeout=timeout)

    @property
    def url(self) -> str:
        return self._client.url

    def producer(self, topic: str | TopicName, **options: Any) -> Opening[Producer]:
        return Opening(self._open_producer(topic, options))

    async def _open_producer(self, topic: str | TopicName, options: dict[str, Any]) -> Producer:
        return Producer(await asyncio.to_thread(functools.partial(self._client.producer, topic, **options)))

    def consume(self, topic: str | TopicName, start: Start = "earliest", **options: Any) -> Opening[Consumer]:
        return Opening(self._open_consumer(topic, start, options))

    async def _open_consumer(self, topic: str | TopicName, start: Start, options: dict[str, Any]) -> Consumer:
        return Consumer(await asyncio.to_thread(functools.partial(self._client.consume, topic, start, **options)))

    def subscribe(self, topic: str | TopicName, name: str, **options: Any) -> Opening[Subscription]:
        return Opening(self._open_subscription(topic, name, options))

    async def _open_subscription(self, topic: str | TopicName, name: str, options: dict[str, Any]) -> Subscription:
        return Subscription(await asyncio.to_thread(functools.partial(self._client.subscribe, topic, name, **options)))

    async def read(
        self, topic: str | TopicName, start: Start = "earliest", end: int | None = None, **options: Any
    ) -> pa.Table:
        return await asyncio.to_thread(functools.partial(self._client.read, topic, start, end, **options))

    async def sql(self, query: str, *, fresh: bool = True) -> pa.Table:
        return await asyncio.to_thread(functools.partial(self._client.sql, query, fresh=fresh))

    async def create_topic(
        self, topic: str | TopicName, schema: pa.Schema | None = None, **options: Any
    ) -> TopicDescription:
        return await asyncio.to_thread(functools.partial(self._client.create_topic, topic, schema, **options))

    async def list_topics(self, prefix: str | None = None) -> list[TopicDescription]:
        return await asyncio.to_thread(self._client.list_topics, prefix)

    async def describe_topic(self, topic: str | TopicName) -> TopicDescription:
        return await asyncio.to_thread(self._client.describe_topic, topic)

    async def update_topic(self, topic: str | TopicName, **changes: Any) -> TopicDescription:
        return await asyncio.to_thread(functools.partial(self._client.update_topic, topic, **changes))

    async def delete_topic(self, topic: str | TopicName) -> None:
        await asyncio.to_thread(self._client.delete_topic, topic)

    async def flush_topic(
        self,
        topic: str | TopicName,
        timeout: float | None = 60.0,  # noqa: ASYNC109 - the broker's patience, not the loop's
    ) -> int:
        return await asyncio.to_thread(self._client.flush_topic, topic, timeout)

    async def recover_topic(self, topic: str | TopicName) -> dict[str, Any]:
        return await asyncio.to_thread(self._client.recover_topic, topic)

    async def subscriptions(self, topic: str | TopicName | None = None) -> list[SubscriptionDescription]:
        return await asyncio.to_thread(self._client.subscriptions, topic)

    async def create_subscription(self, topic: str | TopicName, name: str, **options: Any) -> SubscriptionDescription:
        return await asyncio.to_thread(functools.partial(self._client.create_subscription, topic, name, **options))

    async def describe_subscription(self, topic: str | TopicName, name: str) -> SubscriptionDescription:
        return await asyncio.to_thread(self._client.describe_subscription, topic, name)

    async def seek_subscription(self, topic: str | TopicName, name: str, position: Start) -> int:
        return await asyncio.to_thread(self._client.seek_subscription, topic, name, position)

    async def delete_subscription(self, topic: str | TopicName, name: str) -> None:
        await asyncio.to_thread(self._client.delete_subscription, topic, name)

    async def stats(self, topic: str | TopicName | None = None) -> dict[str, Any]:
        return await asyncio.to_thread(self._client.stats, topic)

    async def ping(self) -> dict[str, Any]:
        return await asyncio.to_thread(self._client.ping)

    async def close(self, timeout: float = 5.0) -> None:  # noqa: ASYNC109 - how long messages on their way may take
        await asyncio.to_thread(self._client.close, timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
