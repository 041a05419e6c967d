"""The client for asyncio: the same engine, awaited. `icestream.aio` exports these classes without the prefix `Async`.

Nothing here blocks the event loop: network writes are left to the engine's sender thread, acknowledgements come back
through `loop.call_soon_threadsafe`, one call for each batch, and administrative calls run in the loop's thread pool.
Open a producer, a consumer or a subscription with `await client.producer(…)` or `async with client.producer(…) as p`.
"""

import asyncio
import contextlib
import functools
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import pyarrow as pa

from icestream.client.admin import RECOVERY_S, Start
from icestream.client.client import Client
from icestream.client.consumer import Consumer, messages
from icestream.client.endpoint import BrokerEndpoint
from icestream.client.producer import BatchReceipt, CommittedSnapshot, Producer, Receipt
from icestream.client.publisher import PendingBatch
from icestream.client.subscription import Subscription
from icestream.model.errors import DeadlineError, IcestreamError, OverloadedError
from icestream.model.messages import Message
from icestream.model.names import DEFAULT_URL, TopicName
from icestream.protocol.admin import TopicDescription, TopicSummary
from icestream.protocol.subscribe import SubscriptionDescription

R = TypeVar("R", Receipt, BatchReceipt)
S = TypeVar("S", bound="Producer | Consumer | Subscription")
T = TypeVar("T", bound="AsyncProducer | AsyncConsumer | AsyncSubscription")
V = TypeVar("V")


async def _in_thread(call: Callable[..., V], *args: Any, **options: Any) -> V:
    return await asyncio.to_thread(functools.partial(call, *args, **options))


def _resolve(loop: asyncio.AbstractEventLoop, waiter: "asyncio.Future[None]") -> None:
    """Resolve the future, from any thread. A closed loop has no waiting tasks."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(_set, waiter)


def _set(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)


async def _settled(batches: Sequence[PendingBatch]) -> None:
    """Wait until all are done. The tasks that wait for one batch share one future."""
    loop = asyncio.get_running_loop()
    for batch in batches:
        if batch.done:
            continue
        waiter = batch.loop_waiter
        if waiter is None or waiter.get_loop() is not loop:
            waiter = batch.loop_waiter = loop.create_future()
            batch.when_done(functools.partial(_resolve, loop, waiter))
        await asyncio.shield(waiter)


class _AsyncAcknowledgement(Generic[R]):
    """The base of both receipts: `await` waits for the acknowledgement and gives the first offset."""

    __slots__ = ("_batches", "_receipt")

    def __init__(self, receipt: R) -> None:
        self._receipt: R = receipt
        self._batches = receipt.batches

    @property
    def offset(self) -> Coroutine[Any, Any, int]:
        return self.result()

    @property
    def publish_time(self) -> Coroutine[Any, Any, datetime]:
        """When the broker took the message, or the first message of a batch."""
        return self._publish_time()

    @property
    def snapshot_id(self) -> Coroutine[Any, Any, int | None]:
        """A snapshot of the topic's table that holds it, if the acknowledgement was to wait for one."""
        return self._snapshot_id()

    async def _publish_time(self) -> datetime:
        await _settled(self._batches)
        return self._receipt.publish_time

    async def _snapshot_id(self) -> int | None:
        await _settled(self._batches)
        return self._receipt.snapshot_id

    async def result(self) -> int:
        await _settled(self._batches)
        return self._receipt.result()

    async def wait_committed(self, timeout: float | None = None) -> CommittedSnapshot:  # noqa: ASYNC109 - as in Client
        """Wait until it is in the topic's table; return a snapshot that holds it."""
        await _settled(self._batches)
        return await asyncio.to_thread(self._receipt.wait_committed, timeout)

    async def exception(self) -> IcestreamError | None:
        await _settled(self._batches)
        return self._receipt.exception()

    def done(self) -> bool:
        return self._receipt.done()

    def __await__(self) -> Generator[Any, Any, int]:
        return self.result().__await__()


class AsyncReceipt(_AsyncAcknowledgement[Receipt]):
    """One message's acknowledgement: `await receipt`, or `await receipt.offset`, gives its offset."""

    __slots__ = ()


class AsyncBatchReceipt(_AsyncAcknowledgement[BatchReceipt]):
    """The acknowledgement of a `send_batch`: `await receipt` gives the first message's offset."""

    __slots__ = ()

    @property
    def count(self) -> int:
        return self._receipt.count

    @property
    def ranges(self) -> Coroutine[Any, Any, list[tuple[int, int]]]:
        return self._ranges()

    async def _ranges(self) -> list[tuple[int, int]]:
        await _settled(self._batches)
        return self._receipt.ranges


class AsyncProducer:
    """Like the synchronous one. `await send(…)` waits only while the buffer is full; the receipt is awaited apart."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    @property
    def topic(self) -> str:
        return self._producer.topic

    @property
    def name(self) -> str:
        return self._producer.name

    async def send(
        self, payload: bytes, key: bytes | None = None, attributes: Mapping[str, str] | None = None
    ) -> AsyncReceipt:
        receipt = self._producer.offer(payload, key, attributes)
        if receipt is None:
            receipt = await self._when_room(lambda: self._producer.offer(payload, key, attributes))
        return AsyncReceipt(receipt)

    async def send_batch(self, data: "pa.Table | pa.RecordBatch") -> AsyncBatchReceipt:
        batches = await asyncio.to_thread(self._producer.prepare, data)
        receipt = self._producer.offer_batch(batches)
        if receipt is None:
            receipt = await self._when_room(lambda: self._producer.offer_batch(batches))
        return AsyncBatchReceipt(receipt)

    async def _when_room(self, offer: Callable[[], R | None]) -> R:
        """Offer again whenever something was acknowledged, until the buffer has room."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._producer.block_timeout):
                while True:
                    waiter: asyncio.Future[None] = loop.create_future()
                    wake = functools.partial(_resolve, loop, waiter)
                    self._producer.when_room(wake)
                    try:
                        await waiter
                    finally:
                        self._producer.forget_room(wake)
                    receipt = offer()
                    if receipt is not None:
                        return receipt
        except TimeoutError:
            raise OverloadedError(
                f"the buffer was full for {self._producer.block_timeout} s",
                operation="send",
                place=self.topic,
                remedy="send slower, raise max_buffer_bytes, or look at the broker",
            ) from None

    async def flush(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - the synchronous client's signature
        """Wait until everything that was sent is acknowledged; raises like the synchronous one."""
        try:
            async with asyncio.timeout(timeout):
                await _settled(self._producer.pending())
        except TimeoutError:
            raise DeadlineError(
                f"not all messages were acknowledged within {timeout} s", operation="flush", place=self.topic
            ) from None
        error = self._producer.take_failure()
        if error is not None:
            raise error

    async def close(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - the synchronous client's signature
        """Flush and take no more."""
        if not self._producer.shut():
            return
        try:
            await self.flush(timeout)
        finally:
            self._producer.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
            return
        with contextlib.suppress(IcestreamError):
            await self.close()


class AsyncConsumer:
    """`async for message in consumer`, or `async for batch in consumer.batches()`. Make it in the loop that uses it."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._rows: Iterator[Message] = iter(())
        self._news = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        consumer.listen(self._notify)

    def _notify(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: no task waits any more
            self._loop.call_soon_threadsafe(self._news.set)

    async def _next(self) -> pa.RecordBatch | None:
        while True:
            # Cleared before looking, so that what comes after the look is not missed.
            self._news.clear()
            batch, ended = self._consumer.poll_now()
            if batch is not None or ended:
                return batch
            await self._news.wait()

    async def batches(self) -> AsyncIterator[pa.RecordBatch]:
        while (batch := await self._next()) is not None:
            yield batch

    async def close(self) -> None:
        await asyncio.to_thread(self._consumer.close)

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        while True:
            message = next(self._rows, None)
            if message is not None:
                return message
            batch = await self._next()
            if batch is None:
                raise StopAsyncIteration
            self._rows = messages(batch)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


class AsyncSubscription:
    """`async for message in subscription`, or `await` its calls. Make it in the loop that uses it."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self.topic = subscription.topic
        self.name = subscription.name
        self.type = subscription.type
        self.consumer = subscription.consumer
        self._news = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        subscription.listen(self._notify)

    @property
    def ended(self) -> bool:
        return self._subscription.ended

    # ---- messages in

    async def receive(self, timeout: float | None = None) -> Message | None:  # noqa: ASYNC109 - as in the other client
        """Return the next message; None when none came within `timeout` seconds, or after `close`."""
        found: Message | None = await self._wait(self._subscription.receive, timeout)
        return found

    async def receive_batch(
        self,
        max_messages: int | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - as in the other client
    ) -> pa.RecordBatch | None:
        """Return the messages that are there, as Arrow; None when none came in time, or after `close`."""
        return await self._wait(lambda now: self._subscription.receive_batch(max_messages, now), timeout)

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        message = self._subscription.receive(0)
        if message is None:
            message = await self.receive()
            if message is None:
                raise StopAsyncIteration
        return message

    async def _wait(self, take: Any, timeout: float | None) -> Any:  # noqa: ASYNC109 - see above
        """Call `take`, which does not wait, until it returns something; None after `timeout` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while True:
                    # Cleared before looking, so that what comes after the look is not missed.
                    self._news.clear()
                    found = take(0)
                    if found is not None or self._subscription.ended:
                        return found
                    await self._news.wait()
        return None

    def _notify(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: no task waits any more
            self._loop.call_soon_threadsafe(self._news.set)

    # ---- acknowledgements out

    async def ack(self, done: "Message | pa.RecordBatch | pa.Table | int") -> None:
        self._subscription.ack(done)

    async def ack_cumulative(self, last: Message | int) -> None:
        self._subscription.ack_cumulative(last)

    async def nack(self, failed: "Message | pa.RecordBatch | pa.Table | int", delay: float | None = None) -> None:
        self._subscription.nack(failed, delay)

    async def flush(self, timeout: float = 10.0) -> None:  # noqa: ASYNC109 - as in the other client
        """Wait until the broker has stored every acknowledgement given so far."""
        await asyncio.to_thread(self._subscription.flush, timeout)

    async def close(self, timeout: float = 5.0) -> None:  # noqa: ASYNC109 - as in the other client
        """Stop; acknowledgements get up to `timeout` seconds to reach the broker."""
        await asyncio.to_thread(self._subscription.close, timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


def _close_abandoned(opening: "asyncio.Future[S]") -> None:
    """Close what a thread opened for a task that was cancelled meanwhile. In a thread, because closing may wait."""
    if not opening.cancelled() and opening.exception() is None:
        threading.Thread(target=opening.result().close, name="icestream-close", daemon=True).start()


class AwaitableOpen(Generic[S, T]):
    """Opens something when it is awaited, or entered with `async with`, which closes it too."""

    def __init__(self, wrap: Callable[[S], T], open_it: Callable[[], S]) -> None:
        self._wrap = wrap
        self._open_it = open_it
        self._opened: T | None = None

    async def _open(self) -> T:
        opening = asyncio.get_running_loop().run_in_executor(None, self._open_it)
        try:
            return self._wrap(await asyncio.shield(opening))
        except asyncio.CancelledError:
            opening.add_done_callback(_close_abandoned)
            raise

    def __await__(self) -> Generator[Any, Any, T]:
        return self._open().__await__()

    async def __aenter__(self) -> T:
        self._opened = await self._open()
        return self._opened

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._opened is not None:
            await self._opened.__aexit__(kind, error, traceback)


class AsyncClient:
    """Like `icestream.Client`, with the same calls and arguments. Use it in one event loop.

    `sql_batches` and the calls of the pipeline are the synchronous client's alone.
    """

    def __init__(
        self,
        url: str | BrokerEndpoint = DEFAULT_URL,
        *,
        token: str | None = None,
        tls: str | Path | bytes | None = None,
        timeout: float = 30.0,
    ) -> None:
        self._client = Client(url, token=token, tls=tls, timeout=timeout)

    @property
    def url(self) -> str:
        return self._client.url

    @property
    def endpoint(self) -> BrokerEndpoint:
        return self._client.endpoint

    def producer(self, topic: str | TopicName, **options: Any) -> AwaitableOpen[Producer, AsyncProducer]:
        return AwaitableOpen(AsyncProducer, functools.partial(self._client.producer, topic, **options))

    def consume(
        self, topic: str | TopicName, start: Start = "earliest", **options: Any
    ) -> AwaitableOpen[Consumer, AsyncConsumer]:
        return AwaitableOpen(AsyncConsumer, functools.partial(self._client.consume, topic, start, **options))

    def subscribe(
        self, topic: str | TopicName, name: str, **options: Any
    ) -> AwaitableOpen[Subscription, AsyncSubscription]:
        return AwaitableOpen(AsyncSubscription, functools.partial(self._client.subscribe, topic, name, **options))

    async def read(
        self, topic: str | TopicName, start: Start = "earliest", end: int | None = None, **options: Any
    ) -> pa.Table:
        return await _in_thread(self._client.read, topic, start, end, **options)

    async def sql(self, query: str, *, fresh: bool = True) -> pa.Table:
        return await _in_thread(self._client.sql, query, fresh=fresh)

    async def create_topic(
        self, topic: str | TopicName, schema: pa.Schema | None = None, **options: Any
    ) -> TopicDescription:
        return await _in_thread(self._client.create_topic, topic, schema, **options)

    async def list_topics(self, prefix: str | None = None) -> list[TopicSummary]:
        return await _in_thread(self._client.list_topics, prefix)

    async def describe_topic(self, topic: str | TopicName) -> TopicDescription:
        return await _in_thread(self._client.describe_topic, topic)

    async def update_topic(self, topic: str | TopicName, **changes: Any) -> TopicDescription:
        return await _in_thread(self._client.update_topic, topic, **changes)

    async def delete_topic(self, topic: str | TopicName, *, keep_table: bool = False) -> None:
        await _in_thread(self._client.delete_topic, topic, keep_table=keep_table)

    async def wait_committed(
        self,
        topic: str | TopicName,
        offset: int,
        timeout: float | None = None,  # noqa: ASYNC109 - as in Client
        *,
        hurry: bool = True,
    ) -> CommittedSnapshot:
        return await _in_thread(self._client.wait_committed, topic, offset, timeout, hurry=hurry)

    async def flush_topic(
        self,
        topic: str | TopicName,
        timeout: float | None = 60.0,  # noqa: ASYNC109 - the broker's patience, not the loop's
    ) -> int:
        return await _in_thread(self._client.flush_topic, topic, timeout)

    async def reset_clock(self, topic: str | TopicName) -> dict[str, Any]:
        return await _in_thread(self._client.reset_clock, topic)

    async def recover_topic(
        self,
        topic: str | TopicName,
        timeout: float = RECOVERY_S,  # noqa: ASYNC109 - as in Client
    ) -> dict[str, Any]:
        return await _in_thread(self._client.recover_topic, topic, timeout)

    async def recoverable_topics(self) -> dict[str, list[str]]:
        return await _in_thread(self._client.recoverable_topics)

    async def cloud_objects(self, topic: str | TopicName) -> AsyncIterator[dict[str, Any]]:
        after: int | None = None
        while True:
            page = await self.cloud_page(topic, after)
            for found in page["objects"]:
                yield found
            after = page["next_after"]
            if after is None:
                return

    async def cloud_page(
        self, topic: str | TopicName, after: int | None = None, limit: int | None = None
    ) -> dict[str, Any]:
        return await _in_thread(self._client.cloud_page, topic, after, limit)

    async def subscriptions(self, topic: str | TopicName | None = None) -> list[SubscriptionDescription]:
        return await _in_thread(self._client.subscriptions, topic)

    async def create_subscription(self, topic: str | TopicName, name: str, **options: Any) -> SubscriptionDescription:
        return await _in_thread(self._client.create_subscription, topic, name, **options)

    async def describe_subscription(self, topic: str | TopicName, name: str) -> SubscriptionDescription:
        return await _in_thread(self._client.describe_subscription, topic, name)

    async def seek_subscription(self, topic: str | TopicName, name: str, position: Start) -> int:
        return await _in_thread(self._client.seek_subscription, topic, name, position)

    async def delete_subscription(self, topic: str | TopicName, name: str) -> None:
        await _in_thread(self._client.delete_subscription, topic, name)

    async def stats(self, topic: str | TopicName | None = None) -> dict[str, Any]:
        return await _in_thread(self._client.stats, topic)

    async def tenant_stats(self, tenant: str | None = None) -> list[dict[str, Any]]:
        return await _in_thread(self._client.tenant_stats, tenant)

    async def ping(self) -> dict[str, Any]:
        return await _in_thread(self._client.ping)

    async def close(self, timeout: float = 5.0) -> None:  # noqa: ASYNC109 - how long messages in flight may take
        await _in_thread(self._client.close, timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
