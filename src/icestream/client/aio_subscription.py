"""Consuming from a subscription in asyncio."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from icestream.client import subscription as sync
from icestream.model.messages import Message


class Subscription:
    """`async for message in subscription`, or `await` its calls. Make it in the loop that uses it."""

    def __init__(self, subscription: sync.Subscription) -> None:
        self._subscription = subscription
        self.topic = subscription.topic
        self.name = subscription.name
        self.type = subscription.type
        self.consumer = subscription.consumer
        self._news = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        subscription.feed.listen(self._tell)

    @property
    def ended(self) -> bool:
        return self._subscription.ended

    # ---- messages in

    async def receive(self, timeout: float | None = None) -> Message | None:  # noqa: ASYNC109 - as in the other client
        """The next message; None when none came within `timeout` seconds, or after `close`."""
        found: Message | None = await self._wait(self._subscription.receive, timeout)
        return found

    async def receive_batch(
        self,
        max_messages: int | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - as in the other client
    ) -> pa.RecordBatch | None:
        """The next messages that are there, as Arrow; None when none came in time, or after `close`."""
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
        """What `take` finds without waiting, as soon as there is something to find."""
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

    def _tell(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
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

    async def close(self) -> None:
        await asyncio.to_thread(self._subscription.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
