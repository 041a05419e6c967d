"""A subscription's messages for an asyncio program, one by one, with their answers."""

import asyncio
import contextlib
from collections import deque
from functools import partial
from types import TracebackType
from typing import Self

import pyarrow as pa

from icestream.model.errors import ClosedError
from icestream.model.message import Message, messages_of
from icestream.subscription import ConsumerSession

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
