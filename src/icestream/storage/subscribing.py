"""A topic as the source of subscriptions, the store of dead letters, and messages for asyncio programs."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Self

import pyarrow as pa

from icestream.model.errors import ClosedError, IcestreamError, InvalidMessageError
from icestream.model.filters import Filter
from icestream.model.messages import MESSAGE_SCHEMA, PUBLISH_TIME, Message, conform, messages_of
from icestream.model.names import TopicName
from icestream.model.offsets import StartPosition
from icestream.model.units import GIB
from icestream.reader import TopicReader
from icestream.storage.topic import Topic
from icestream.storage.topics import Topics
from icestream.subscription import ConsumerSession
from icestream.wal import LogState


class TopicSource:
    """A topic as `icestream.subscription.SubscriptionSource`. Its log is opened when a consumer comes."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._known_time: tuple[int, int | None] = (-1, None)

    @property
    def name(self) -> TopicName:
        return self._topic.name

    @property
    def stream_id(self) -> str:
        return self._topic.record.stream_id

    @property
    def stream_schema(self) -> pa.Schema:
        return self._topic.stream_schema

    @property
    def durable_end(self) -> int:
        return self._topic.log.durable_end

    @property
    def listeners(self) -> set[Callable[[], None]]:
        return self._topic.log.listeners

    @property
    def mean_message_bytes(self) -> float:
        log = self._topic.log
        return log.nbytes / max(1, log.durable_end - log.start_offset)

    def start_offset_of(self, position: StartPosition, /) -> int:
        return self._topic.start_offset_of(position)

    def time_at(self, offset: int, /) -> int | None:
        if self._known_time[0] != offset:
            reader = self.reader(offset)
            with contextlib.closing(reader):
                batches = [batch for batch in reader.read(1) if batch.num_rows]
            self._known_time = offset, batches[0].column(PUBLISH_TIME)[0].value if batches else None
        return self._known_time[1]

    def in_memory(self, offset: int, /) -> bool:
        return self._topic.log.cache.holds(offset)

    def reader(self, offset: int, /, *, where: Filter | None = None) -> TopicReader:
        return self._topic.reader(StartPosition.offset(offset), where=where)

    def gone_error(self) -> IcestreamError | None:
        try:
            return self._topic.gone_error() if self._topic.log.state is LogState.CLOSED else None
        except IcestreamError as error:
            return error


def store_dead_letters(topics: Topics, name: TopicName, origin: TopicName, batch: pa.RecordBatch) -> None:
    """Append dead letters to a topic, which is created with their columns; return when they are durable.

    Size limits do not apply: the messages were within them, and only their origin was added.
    """
    plain = batch.schema.equals(MESSAGE_SCHEMA)
    topic = topics.create(name, schema=None if plain else batch.schema, if_not_exists=True)
    try:
        letters = conform(batch, topic.body_schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise InvalidMessageError(
            f"messages of {origin} do not fit into this topic: {error}",
            operation="dead letters",
            place=str(name),
            remedy="give the subscription another dead_letter_topic",
        ) from error
    topic.log.append(topic.payload(letters, "", 0, max_message_bytes=GIB, max_batch_bytes=GIB))


_BATCH_MESSAGES = 1_000


class MessageStream:
    """A subscription's messages as an async iterator, with ack and nack. It waits without holding a thread."""

    def __init__(self, session: ConsumerSession) -> None:
        self._session = session
        self._loop, self._ready = asyncio.get_running_loop(), asyncio.Event()
        self._messages: deque[Message] = deque()
        self._receiving: asyncio.Future[pa.RecordBatch | None] | None = None
        """A running call. If its waiter is cancelled, the next one gets what it returns."""
        session.listeners.add(self._wake)

    def _wake(self) -> None:
        """Wake the loop; any thread calls it."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._ready.set)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """Return the next message; the iteration ends when the stream is closed."""
        while not self._messages:
            batch = await self._receive()
            if batch is None:
                await self._ready.wait()
                continue
            self._session.grant(batch.num_rows, batch.nbytes)
            self._messages.extend(messages_of(batch))
        return self._messages.popleft()

    async def _receive(self) -> pa.RecordBatch | None:
        if self._receiving is None:
            self._ready.clear()
            receive = partial(self._session.receive, max_messages=_BATCH_MESSAGES, timeout_seconds=0)
            self._receiving = asyncio.ensure_future(asyncio.to_thread(receive))
        receiving = self._receiving
        try:
            return await asyncio.shield(receiving)
        except ClosedError:
            raise StopAsyncIteration from None
        finally:
            if receiving.done():
                self._receiving = None

    async def ack(self, message: Message | int) -> None:
        """Acknowledge a message. The metadata store has that within the progress interval."""
        offset = _offset(message)
        await asyncio.to_thread(self._session.ack, [(offset, offset + 1)])

    async def ack_cumulative(self, message: Message | int) -> None:
        """Acknowledge a message and all before it; for exclusive and failover subscriptions."""
        await asyncio.to_thread(self._session.ack_cumulative, _offset(message))

    async def nack(self, message: Message | int, *, delay_ms: int | None = None) -> None:
        """Refuse a message: it comes again, after a delay."""
        offset = _offset(message)
        await asyncio.to_thread(self._session.nack, [(offset, offset + 1)], delay_ms)

    async def flush(self) -> None:
        """Return when all acknowledgements so far are durable."""
        await asyncio.to_thread(self._session.subscription.flush)

    async def close(self) -> None:
        """Disconnect. Other consumers, or the next one, get what is not acknowledged."""
        self._messages.clear()
        await asyncio.to_thread(self._session.close)
        self._session.listeners.discard(self._wake)
        self._ready.set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _offset(message: Message | int) -> int:
    return message if isinstance(message, int) else message.offset
