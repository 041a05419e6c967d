"""Receipts: what `send` returns, a future of the message's offset."""

import logging
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, TypeVar

from icestream.client.connection import Connection
from icestream.client.publisher import PendingBatch
from icestream.model.errors import DeadlineError, IcestreamError, UnavailableError

R = TypeVar("R")
_log = logging.getLogger("icestream.client")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ASK_SECONDS = 5.0
_RETRY_SECONDS = 0.2


class CommittedSnapshot(NamedTuple):
    """A state of the table that holds the message."""

    snapshot_id: int
    committed_offset: int
    """All messages below it are in the snapshot."""


def wait_committed(
    connection: Connection, topic: str, offset: int, timeout: float | None, *, hurry: bool = True
) -> CommittedSnapshot:
    """Ask the broker until the message is in the table. A broker that is away is asked again when it is back.

    With `hurry` the pipeline writes the message without waiting for others to be written with it.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        left = _ASK_SECONDS if deadline is None else min(_ASK_SECONDS, deadline - time.monotonic())
        fields = {"topic": topic, "offset": offset, "wait_ms": max(0, int(left * 1000))}
        if not hurry:
            fields["hurry"] = False
        try:
            response = connection.action("wait_committed", fields)
        except UnavailableError:
            if deadline is None or time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_SECONDS)
            continue
        if response["committed"]:
            return CommittedSnapshot(response["snapshot_id"], response["committed_offset"])
        if deadline is not None and time.monotonic() >= deadline:
            raise DeadlineError(
                f"the table ends before offset {response['committed_offset']}: offset {offset} is not in it after "
                f"{timeout:.3g} s",
                operation="wait for the table",
                place=topic,
                remedy="see `icestream stats` for the state of the pipeline",
            )


WaitCommitted = Callable[[int, float | None], CommittedSnapshot]
"""Waits until the message at an offset of the producer's topic is in its table, at most so many seconds."""


def _wait(batch: PendingBatch, timeout: float | None) -> None:
    """Wait until the batch is acknowledged or has failed."""
    if not batch.done and not batch.wait(timeout):
        raise DeadlineError(f"no acknowledgement within {timeout} s", operation="publish")
    batch.seen = True


def _check(batch: PendingBatch, timeout: float | None = None) -> None:
    """Wait for the acknowledgement; raise the error that the batch failed with, if it did."""
    _wait(batch, timeout)
    if batch.error is not None:
        raise batch.error


def _left(started: float, timeout: float | None) -> float | None:
    return None if timeout is None else max(0.0, started + timeout - time.monotonic())


def _publish_time(batch: PendingBatch) -> datetime:
    return _EPOCH + timedelta(microseconds=batch.publish_time_us)


class Receipt:
    """One message's acknowledgement. Every member but `done` and `add_done_callback` waits for it."""

    __slots__ = ("_batch", "_index", "_wait_committed")

    def __init__(self, batch: PendingBatch, index: int, wait_committed: WaitCommitted) -> None:
        self._batch = batch
        self._index = index
        self._wait_committed = wait_committed

    @property
    def offset(self) -> int:
        """The message's offset, as soon as it is acknowledged; raises the error that the message failed with."""
        _check(self._batch)
        return self._batch.base_offset + self._index

    @property
    def publish_time(self) -> datetime:
        """When the broker took the message."""
        _check(self._batch)
        return _publish_time(self._batch)

    @property
    def snapshot_id(self) -> int | None:
        """A snapshot of the topic's table that holds the message, if the acknowledgement was to wait for one."""
        _check(self._batch)
        return self._batch.snapshot_id

    def result(self, timeout: float | None = None) -> int:
        """The offset; DeadlineError after `timeout` seconds."""
        _check(self._batch, timeout)
        return self._batch.base_offset + self._index

    def wait_committed(self, timeout: float | None = None) -> CommittedSnapshot:
        """Wait until the message is in the topic's table; return a snapshot that holds it."""
        started = time.monotonic()
        return self._wait_committed(self.result(timeout), _left(started, timeout))

    def exception(self, timeout: float | None = None) -> IcestreamError | None:
        """Wait, and return the error that the message failed with; None if it was acknowledged."""
        _wait(self._batch, timeout)
        return self._batch.error

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

    __slots__ = ("_parts", "_wait_committed", "count")

    def __init__(self, parts: Sequence[PendingBatch], wait_committed: WaitCommitted) -> None:
        self._parts = tuple(parts)
        self._wait_committed = wait_committed
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
        return _publish_time(self._parts[0])

    def result(self, timeout: float | None = None) -> int:
        for part in self._parts:
            _check(part, timeout)
        return self._parts[0].base_offset

    def wait_committed(self, timeout: float | None = None) -> CommittedSnapshot:
        """Wait until all messages are in the topic's table; return a snapshot that holds them."""
        started = time.monotonic()
        self.result(timeout)
        last = max(part.base_offset + part.count for part in self._parts) - 1
        return self._wait_committed(last, _left(started, timeout))

    def exception(self, timeout: float | None = None) -> IcestreamError | None:
        """Wait, and return the first error of a part; None if all were acknowledged."""
        for part in self._parts:
            _wait(part, timeout)
        return next((part.error for part in self._parts if part.error is not None), None)

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
    """Run the callback; its error must not stop the thread that serves all other receipts."""
    try:
        callback(receipt)
    except Exception:  # noqa: BLE001 - the application's code, and it is logged
        _log.exception("receipt_callback_failed")
