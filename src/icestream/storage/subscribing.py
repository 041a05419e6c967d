"""Dead letters into their topic, and a subscription's messages for asyncio programs."""

import asyncio
import contextlib
from collections import deque
from functools import partial
from types import TracebackType
from typing import Self

import pyarrow as pa

from icestream.model.errors import ClosedError, InvalidMessageError
from icestream.model.messages import MESSAGE_SCHEMA, Message, conform, messages_of
from icestream.model.names import TopicName
from icestream.model.units import GIB
from icestream.storage.topics import Topics
from icestream.subscription import ConsumerSession


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
