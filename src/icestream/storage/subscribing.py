"""How subscriptions see a topic, and where their dead letters go."""

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
from icestream.model.messages import MESSAGE_SCHEMA, Message, conform, messages_of
from icestream.model.names import TopicName
from icestream.model.offsets import StartPosition
from icestream.model.units import GIB
from icestream.reader import TopicReader
from icestream.storage.topic import Topic
from icestream.storage.topics import Topics
from icestream.subscription import ConsumerSession
from icestream.wal import LogState

_TIME_COLUMN = 1


class TopicSource:
    """A topic, as `icestream.subscription.Source`. Its log is opened when somebody consumes."""

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
            self._known_time = offset, batches[0].column(_TIME_COLUMN)[0].value if batches else None
        return self._known_time[1]

    def in_memory(self, offset: int, /) -> bool:
        return self._topic.log.cache.holds(offset)

    def reader(self, offset: int, /, *, where: Filter | None = None) -> TopicReader:
        return self._topic.reader(StartPosition.offset(offset), where=where)

    def gone(self) -> IcestreamError | None:
        try:
            return self._topic.gone() if self._topic.log.state is LogState.CLOSED else None
        except IcestreamError as error:
            return error


def store_dead_letters(topics: Topics, name: TopicName, origin: TopicName, batch: pa.RecordBatch) -> None:
    """Append messages to a topic, which is made with the columns that they have; returns when they are durable.

    No limit of size applies: they were within it as they came, and it is their origin that was added.
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


# --------------------
# A subscription's messages for an asyncio program, one by one, with their answers.


_BATCH_MESSAGES = 1_000


class MessageStream:
    """An async iterator. It waits without holding a thread, and its consumer lives until it is closed."""

    def __init__(self, session: ConsumerSession) -> None:
        self._session = session
        self._loop, self._ready = asyncio.get_running_loop(), asyncio.Event()
        self._messages: deque[Message] = deque()
        self._receiving: asyncio.Future[pa.RecordBatch | None] | None = None
        """A call that goes on when whoever waits for it is cancelled: what it brings is the next one's."""
        session.listeners.add(self._wake)

    def _wake(self) -> None:
        """Called by whichever thread has something for the session."""
        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits any more
            self._loop.call_soon_threadsafe(self._ready.set)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """The next message; the iteration ends when the stream is closed."""
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
        """The message is done. It is kept in memory now, and in the metadata store within the progress interval."""
        offset = _offset(message)
        await asyncio.to_thread(self._session.ack, [(offset, offset + 1)])

    async def ack_cumulative(self, message: Message | int) -> None:
        """This message and all before are done; of exclusive and failover subscriptions."""
        await asyncio.to_thread(self._session.ack_cumulative, _offset(message))

    async def nack(self, message: Message | int, *, delay_ms: int | None = None) -> None:
        """The message is to come again, after a while."""
        offset = _offset(message)
        await asyncio.to_thread(self._session.nack, [(offset, offset + 1)], delay_ms)

    async def flush(self) -> None:
        """Returns when what was acknowledged so far is durable."""
        await asyncio.to_thread(self._session.subscription.flush)

    async def close(self) -> None:
        """What is not acknowledged goes to other consumers, or to the next one."""
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
