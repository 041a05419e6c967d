"""What `send` gives back: a future of the message's place in its topic."""

import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import TypeVar

from icestream.client.committed import CommittedSnapshot
from icestream.client.pending import PendingBatch
from icestream.model.errors import DeadlineError, IcestreamError

_log = logging.getLogger("icestream.client")
R = TypeVar("R")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_datetime(time_us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=time_us)


def _settle(batch: PendingBatch, timeout: float | None) -> None:
    """Wait for the acknowledgement; raise what it says."""
    if not batch.done and not batch.wait(timeout):
        raise DeadlineError(f"no acknowledgement within {timeout} s", operation="publish")
    if batch.error is not None:
        batch.seen = True
        raise batch.error


def _failure(batch: PendingBatch, timeout: float | None) -> IcestreamError | None:
    if not batch.done and not batch.wait(timeout):
        raise DeadlineError(f"no acknowledgement within {timeout} s", operation="publish")
    batch.seen = True
    return batch.error


def _wait_committed(batch: PendingBatch, index: int, timeout: float | None) -> CommittedSnapshot:
    started = monotonic()
    _settle(batch, timeout)
    left = None if timeout is None else max(0.0, timeout - (monotonic() - started))
    snapshot: CommittedSnapshot = batch.owner.wait_committed(batch.base_offset + index, left)
    return snapshot


class Receipt:
    """One message's acknowledgement. Every member but `done` and `add_done_callback` waits for it."""

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: PendingBatch, index: int) -> None:
        self._batch = batch
        self._index = index

    @property
    def offset(self) -> int:
        """The message's offset, as soon as it is acknowledged; raises the error that the message failed with."""
        _settle(self._batch, None)
        return self._batch.base_offset + self._index

    @property
    def publish_time(self) -> datetime:
        """When the broker took the message."""
        _settle(self._batch, None)
        return to_datetime(self._batch.publish_time_us)

    @property
    def snapshot_id(self) -> int | None:
        """A snapshot of the topic's table that holds the message, if the acknowledgement was to wait for one."""
        _settle(self._batch, None)
        return self._batch.snapshot_id

    def result(self, timeout: float | None = None) -> int:
        """The offset; DeadlineError after `timeout` seconds."""
        _settle(self._batch, timeout)
        return self._batch.base_offset + self._index

    def wait_committed(self, timeout: float | None = None) -> CommittedSnapshot:
        """Wait until the message is in the topic's table; names a snapshot that holds it."""
        return _wait_committed(self._batch, self._index, timeout)

    def exception(self, timeout: float | None = None) -> IcestreamError | None:
        return _failure(self._batch, timeout)

    def done(self) -> bool:
        return self._batch.done

    @property
    def batches(self) -> tuple[PendingBatch, ...]:
        return (self._batch,)

    def add_done_callback(self, callback: "Callable[[Receipt], object]") -> None:
        """Call `callback(receipt)` when the message is acknowledged or has failed.

        It runs in the client's own thread, or in this one if the receipt is done already: keep it short.
        """
        self._batch.seen = True
        self._batch.when_done(lambda: _guarded(callback, self))

    def __repr__(self) -> str:
        batch = self._batch
        if not batch.done:
            return "<Receipt pending>"
        return f"<Receipt failed: {batch.error}>" if batch.error else f"<Receipt offset={self.offset}>"


class BatchReceipt:
    """The acknowledgement of a `send_batch`, which may have become several batches on the wire."""

    __slots__ = ("_parts", "count")

    def __init__(self, parts: Sequence[PendingBatch]) -> None:
        self._parts = tuple(parts)
        self.count = sum(part.count for part in self._parts)

    @property
    def offset(self) -> int:
        """The first message's offset, once all are acknowledged."""
        return self.result()

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """Offset and count of each part. Other producers' messages may lie between two parts."""
        self.result()
        return [(part.base_offset, part.count) for part in self._parts]

    @property
    def publish_time(self) -> datetime:
        self.result()
        return to_datetime(self._parts[0].publish_time_us)

    def result(self, timeout: float | None = None) -> int:
        for part in self._parts:
            _settle(part, timeout)
        return self._parts[0].base_offset

    def wait_committed(self, timeout: float | None = None) -> CommittedSnapshot:
        """Wait until all messages are in the topic's table; names a snapshot that holds them."""
        self.result(timeout)
        last = max(self._parts, key=lambda part: part.base_offset)
        return _wait_committed(last, last.count - 1, timeout)

    def exception(self, timeout: float | None = None) -> IcestreamError | None:
        errors = [_failure(part, timeout) for part in self._parts]
        return next((error for error in errors if error is not None), None)

    @property
    def batches(self) -> tuple[PendingBatch, ...]:
        return self._parts

    def done(self) -> bool:
        return all(part.done for part in self._parts)

    def add_done_callback(self, callback: "Callable[[BatchReceipt], object]") -> None:
        """Call `callback(receipt)` when every part is acknowledged or has failed."""
        # Advancing an iterator is atomic, so exactly one of the threads that complete the parts counts to zero.
        countdown = iter(range(len(self._parts) - 1, -1, -1))

        def part_done() -> None:
            if next(countdown) == 0:
                _guarded(callback, self)

        for part in self._parts:
            part.seen = True
            part.when_done(part_done)

    def __repr__(self) -> str:
        return f"<BatchReceipt of {self.count} messages, {'done' if self.done() else 'pending'}>"


def _guarded(callback: Callable[[R], object], receipt: R) -> None:
    """A callback's error must not stop the thread that serves all other receipts."""
    try:
        callback(receipt)
    except Exception:  # noqa: BLE001 - other people's code, and it is logged
        _log.exception("a receipt's callback failed")
