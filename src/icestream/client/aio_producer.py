"""Publishing from asyncio."""

import asyncio
import contextlib
import functools
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import pyarrow as pa

from icestream.client import producer as sync
from icestream.client import receipt as sync_receipt
from icestream.client.publisher import PendingBatch
from icestream.client.receipt import CommittedSnapshot
from icestream.model.errors import DeadlineError, IcestreamError, OverloadedError

R = TypeVar("R", sync_receipt.Receipt, sync_receipt.BatchReceipt)


def _resolve(loop: asyncio.AbstractEventLoop, waiter: "asyncio.Future[None]") -> None:
    """From any thread. A loop that is closed by now has nobody waiting."""
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


class _Acknowledgement(Generic[R]):
    """What both receipts are: `await` waits for the acknowledgement and gives the first offset."""

    __slots__ = ("_batches", "_receipt")

    def __init__(self, receipt: R) -> None:
        self._receipt: R = receipt
        self._batches = receipt.batches

    @property
    def offset(self) -> Coroutine[Any, Any, int]:
        return self.result()

    async def result(self) -> int:
        await _settled(self._batches)
        return self._receipt.result()

    async def wait_committed(self, timeout: float | None = None) -> CommittedSnapshot:  # noqa: ASYNC109 - as in Client
        """Wait until it is in the topic's table; names a snapshot that holds it."""
        await _settled(self._batches)
        return await asyncio.to_thread(self._receipt.wait_committed, timeout)

    async def exception(self) -> IcestreamError | None:
        await _settled(self._batches)
        return self._receipt.exception()

    def done(self) -> bool:
        return self._receipt.done()

    def __await__(self) -> Generator[Any, Any, int]:
        return self.result().__await__()


class Receipt(_Acknowledgement[sync_receipt.Receipt]):
    """One message's acknowledgement: `await receipt`, or `await receipt.offset`, gives its offset."""

    __slots__ = ()

    @property
    def publish_time(self) -> Coroutine[Any, Any, datetime]:
        return self._publish_time()

    async def _publish_time(self) -> datetime:
        await _settled(self._batches)
        return self._receipt.publish_time


class BatchReceipt(_Acknowledgement[sync_receipt.BatchReceipt]):
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


class Producer:
    """Like the synchronous one. `await send(…)` waits only while the buffer is full; the receipt is awaited apart."""

    def __init__(self, producer: sync.Producer) -> None:
        self._producer = producer

    @property
    def topic(self) -> str:
        return self._producer.topic

    @property
    def name(self) -> str:
        return self._producer.name

    async def send(
        self, payload: bytes, key: bytes | None = None, attributes: Mapping[str, str] | None = None
    ) -> Receipt:
        receipt = self._producer.offer(payload, key, attributes)
        if receipt is None:
            receipt = await self._when_room(lambda: self._producer.offer(payload, key, attributes))
        return Receipt(receipt)

    async def send_batch(self, data: "pa.Table | pa.RecordBatch") -> BatchReceipt:
        batches = await asyncio.to_thread(self._producer.prepare, data)
        receipt = self._producer.offer_batch(batches)
        if receipt is None:
            receipt = await self._when_room(lambda: self._producer.offer_batch(batches))
        return BatchReceipt(receipt)

    async def _when_room(self, offer: Callable[[], R | None]) -> R:
        """Offer again whenever something was acknowledged, until the buffer has room."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._producer.block_timeout):
                while True:
                    waiter: asyncio.Future[None] = loop.create_future()
                    self._producer.when_room(functools.partial(_resolve, loop, waiter))
                    await waiter
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
        """Wait until all that was sent is acknowledged; see the synchronous one for what it raises."""
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
