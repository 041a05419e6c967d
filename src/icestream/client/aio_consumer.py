"""Reading a topic from asyncio."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import Self

import pyarrow as pa

from icestream.client import consumer as sync
from icestream.client.consumer import messages
from icestream.model.messages import Message


class Consumer:
    """`async for message in consumer`, or `async for batch in consumer.batches()`. Make it in the loop that uses it."""

    def __init__(self, consumer: sync.Consumer) -> None:
        self._consumer = consumer
        self._feed = consumer.feed
        self._rows: Iterator[Message] = iter(())
        self._news = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._feed.listen(self._tell)

    def _tell(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._news.set)

    async def _next(self) -> pa.RecordBatch | None:
        while True:
            # Cleared before looking, so that what comes after the look is not missed.
            self._news.clear()
            batch, ended = self._feed.poll()
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
