"""A consumer of a subscription: messages or Arrow batches in, acknowledgements out.

What was not acknowledged is delivered again: to this consumer, to another one, or to the next. So every message is
processed at least once, whoever crashes; `redelivery_count` says how often it was delivered before.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from icestream.client.consumer import check_messages, messages
from icestream.client.offset_ranges import Ranges, offsets_of, ranges_of
from icestream.client.subscription_acks import Acks
from icestream.client.subscription_feed import SubscriptionFeed
from icestream.model.errors import ClosedError, IcestreamError, InvalidRequestError
from icestream.model.message import Message

_CUMULATIVE = frozenset({"exclusive", "failover"})
_FLUSH_S = 10.0


class Subscription:
    """Iterate over it, or `receive`. Safe to use from several threads, which then share the messages."""

    def __init__(self, feed: SubscriptionFeed, acks: Acks, *, on_close: Callable[["Subscription"], None]) -> None:
        self.feed = feed
        self._acks = acks
        self._on_close = on_close
        self._closed = False
        self._taking = threading.Lock()
        self._batch: pa.RecordBatch | None = None
        self._rows: Iterator[Message] = iter(())
        accepted = feed.subscribed or {}
        self.topic: str = accepted["topic"]
        self.name: str = accepted["subscription"]
        self.type: str = accepted["type"]
        self.consumer: str = accepted["consumer"]
        feed.on_break = self._forget

    # ---- messages in

    def receive(self, timeout: float | None = None) -> Message | None:
        """The next message; None when none came within `timeout` seconds, or after `close`."""
        message = next(self._rows, None)
        return message if message is not None else self._next(timeout)

    def receive_batch(self, max_messages: int | None = None, timeout: float | None = None) -> pa.RecordBatch | None:
        """The next messages that are there, as Arrow; None when none came within `timeout` seconds, or after `close`.

        Small batches are joined. The last column, `redelivery_count`, says how often a message was delivered before.
        """
        if max_messages is not None and max_messages < 1:
            raise InvalidRequestError("max_messages is 1 or more", operation="receive")
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._turn(deadline) as mine:
            if not mine:
                return None
            batch = self._rest()
            if batch is None:
                return self.feed.get(_left(deadline), max_messages=max_messages)
            if max_messages is not None and batch.num_rows > max_messages:
                self._begin(batch.slice(max_messages))
                batch = batch.slice(0, max_messages)
            return batch

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        message = next(self._rows, None)
        if message is None:
            message = self._next(None)
            if message is None:
                raise StopIteration
        return message

    def _next(self, timeout: float | None) -> Message | None:
        """The first message of the next batch, whose others then follow without a lock."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._turn(deadline) as mine:
            if not mine:
                return None
            while (message := next(self._rows, None)) is None:  # another thread may have brought some
                batch = self.feed.get(_left(deadline), check=check_messages)
                if batch is None:
                    return None
                self._begin(batch)
            return message

    def _begin(self, batch: pa.RecordBatch) -> None:
        self._batch = batch
        self._rows = messages(batch)

    def _rest(self) -> pa.RecordBatch | None:
        """What is left of the batch that is being iterated over."""
        batch, rows = self._batch, self._rows
        self._forget()
        left = sum(1 for _ in rows)
        return batch.slice(batch.num_rows - left) if batch is not None and left else None

    def _forget(self) -> None:
        self._batch = None
        self._rows = iter(())

    @contextlib.contextmanager
    def _turn(self, deadline: float | None) -> Iterator[bool]:
        """Take batches one thread at a time; False when the deadline passes before."""
        left = _left(deadline)
        mine = self._taking.acquire(timeout=-1 if left is None else left)
        try:
            yield mine
        finally:
            if mine:
                self._taking.release()

    # ---- acknowledgements out

    def ack(self, done: "Message | pa.RecordBatch | pa.Table | int") -> None:
        """It is processed: a message, all messages of a batch, or the one at an offset. Does not wait."""
        if self._closed:
            raise self._is_closed("acknowledge")
        if type(done) is Message:
            self._acks.ack(done.offset)
        elif isinstance(done, pa.RecordBatch | pa.Table):
            self._acks.ack_ranges(ranges_of(offsets_of(done)))
        else:
            self._acks.ack(_offset(done))

    def ack_cumulative(self, last: Message | int) -> None:
        """This message and all before it are processed. For exclusive and failover subscriptions."""
        if self._closed:
            raise self._is_closed("acknowledge")
        if self.type not in _CUMULATIVE:
            raise InvalidRequestError(
                f"consumers of a {self.type} subscription acknowledge each message", operation="acknowledge"
            )
        self._acks.ack_cumulative(_offset(last))

    def nack(self, failed: "Message | pa.RecordBatch | pa.Table | int", delay: float | None = None) -> None:
        """It could not be processed: deliver it again after `delay` seconds (default: the subscription's)."""
        if self._closed:
            raise self._is_closed("refuse")
        if delay is not None and delay < 0:
            raise InvalidRequestError(f"a delay is 0 or more, not {delay}", operation="refuse")
        ranges: Ranges
        if isinstance(failed, pa.RecordBatch | pa.Table):
            ranges = ranges_of(offsets_of(failed))
        else:
            ranges = [(_offset(failed), _offset(failed) + 1)]
        self._acks.nack(ranges, None if delay is None else round(delay * 1000))

    def flush(self, timeout: float = _FLUSH_S) -> None:
        """Wait until the broker has stored every acknowledgement given so far: those messages never come again."""
        self._acks.flush(timeout)

    # ---- the end

    @property
    def ended(self) -> bool:
        """No more will come."""
        return self.feed.ended

    @property
    def interruption(self) -> IcestreamError | None:
        """Why the broker cannot be reached at the moment; None while it can."""
        return self.feed.interruption

    def close(self, timeout: float = 5.0) -> None:
        """Stop, from any thread; iterations end. Acknowledgements get up to `timeout` seconds to reach the broker.

        What was received and not acknowledged goes to other consumers at once, or to the next.
        """
        if self._closed:
            return
        self._closed = True
        self._forget()
        if self.feed.connected and self._acks.unconfirmed:
            with contextlib.suppress(IcestreamError):
                self._acks.flush(timeout)
        self.feed.close()
        self._acks.close()
        self._forget()
        self._on_close(self)

    def _is_closed(self, operation: str) -> IcestreamError:
        return ClosedError("the subscription is closed", operation=operation)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def _offset(message: Any) -> int:
    offset = message.offset if isinstance(message, Message) else message
    if not isinstance(offset, int) or isinstance(offset, bool) or offset < 0:
        raise InvalidRequestError(f"{message!r:.80} is no message, batch or offset", operation="acknowledge")
    return offset
