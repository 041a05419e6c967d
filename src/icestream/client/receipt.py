"""What `send` gives back: a future of the message's place in its topic."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

from icestream.client.connection import Connection
from icestream.model.errors import DeadlineError, IcestreamError, UnavailableError
from icestream.model.lone_message import MAX_SINGLE_BYTES, encode_message
from icestream.model.messages import message_batch

# --------------------
# A batch on its way to the broker, shared by the receipts of all its messages.


class PendingBatch:
    """Messages that are sent, acknowledged and failed together.

    Columns of Python values while it is open; one Arrow batch once it is written. What is said here about locking is
    kept by the callers: `lock` guards every field until `done`, and nothing changes after.
    """

    __slots__ = (
        "attributes",
        "base_offset",
        "callbacks",
        "count",
        "done",
        "error",
        "gate",
        "keys",
        "lock",
        "loop_waiter",
        "nbytes",
        "owner",
        "payloads",
        "publish_time_us",
        "record",
        "seen",
        "sequence",
        "snapshot_id",
        "writes",
    )

    def __init__(self, lock: threading.Lock, owner: Any, record: pa.RecordBatch | None = None, nbytes: int = 0) -> None:
        self.lock = lock
        self.owner = owner
        self.record = record
        self.payloads: list[bytes] = []
        self.keys: list[bytes | None] | None = None
        self.attributes: list[Any] | None = None
        self.count: int = 0 if record is None else record.num_rows
        self.nbytes = nbytes
        self.sequence: int | None = None
        self.writes = 0
        self.base_offset = -1
        self.publish_time_us = 0
        self.snapshot_id: int | None = None
        self.error: IcestreamError | None = None
        self.done = False
        self.seen = False
        self.gate: threading.Lock | None = None
        self.callbacks: list[Callable[[], None]] | None = None
        self.loop_waiter: Any = None

    def append(self, payload: bytes, key: bytes | None, attributes: Any, size: int) -> int:
        """The message's place in the batch. Columns for keys and attributes exist once a message has one."""
        index = self.count
        self.payloads.append(payload)
        if key is not None or self.keys is not None:
            if self.keys is None:
                self.keys = [None] * index
            self.keys.append(key)
        if attributes is not None or self.attributes is not None:
            if self.attributes is None:
                self.attributes = [None] * index
            self.attributes.append(attributes)
        self.count = index + 1
        self.nbytes += size
        return index

    @property
    def is_lone_message(self) -> bool:
        """Whether it is one small message in Python values, which need not become Arrow to be sent."""
        return self.count == 1 and self.record is None and self.nbytes <= MAX_SINGLE_BYTES

    def lone_body(self) -> bytes:
        """The body of a lone message. With the lock held."""
        key = self.keys[0] if self.keys is not None else None
        return encode_message(self.payloads[0], key, self.attributes[0] if self.attributes is not None else None)

    def arrow(self) -> pa.RecordBatch:
        """The batch as Arrow, made once; the Python values are let go."""
        if self.record is None:
            self.record = message_batch(self.payloads, self.keys, self.attributes)
            self.payloads = []
            self.keys = self.attributes = None
        return self.record

    def succeed(self, base_offset: int, publish_time_us: int, snapshot_id: int | None) -> None:
        """Lock held; `announce` must follow when it is not."""
        self.base_offset = base_offset
        self.publish_time_us = publish_time_us
        self.snapshot_id = snapshot_id
        self.record = None
        self.keys = self.attributes = None
        self.payloads = []
        self.done = True

    def fail(self, error: IcestreamError) -> None:
        """Lock held; `announce` must follow when it is not."""
        self.error = error
        self.record = None
        # The payloads go last: a thread in `arrow` must not meet none of them beside the keys of all.
        self.keys = self.attributes = None
        self.payloads = []
        self.done = True

    def announce(self) -> None:
        """Let the waiting threads go and run the callbacks. Without the lock: callbacks are other people's code."""
        if self.gate is not None:
            self.gate.release()
        for callback in self.callbacks or ():
            callback()
        self.callbacks = None

    def wait(self, timeout: float | None = None) -> bool:
        """Wait; whether the batch is done.

        The gate is a lock that each waiting thread opens for the next: cheaper than an Event, and made only when
        somebody really has to wait.
        """
        with self.lock:
            if self.done:
                return True
            gate = self.gate
            if gate is None:
                gate = self.gate = threading.Lock()
                gate.acquire()
        if not gate.acquire(timeout=-1 if timeout is None else max(0.0, timeout)):
            return False
        gate.release()
        return True

    def when_done(self, callback: Callable[[], None]) -> None:
        """Run `callback` once, now or in the thread that completes the batch."""
        with self.lock:
            if not self.done:
                if self.callbacks is None:
                    self.callbacks = []
                self.callbacks.append(callback)
                return
        callback()


# --------------------
# Waiting until a message is in its topic's table.


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
    """Ask the broker until it says so. A broker that is away meanwhile is asked again when it is back.

    In a hurry the pipeline is told not to let the message wait for others to be written with it.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        left = _ASK_SECONDS if deadline is None else min(_ASK_SECONDS, deadline - time.monotonic())
        fields = {"topic": topic, "offset": offset, "wait_ms": max(0, int(left * 1000))}
        if not hurry:
            fields["hurry"] = False
        try:
            answer = connection.action("wait_committed", fields)
        except UnavailableError:
            if deadline is None or time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_SECONDS)
            continue
        if answer["committed"]:
            return CommittedSnapshot(answer["snapshot_id"], answer["committed_offset"])
        if deadline is not None and time.monotonic() >= deadline:
            raise DeadlineError(
                f"the table reaches to {answer['committed_offset']} and not over {offset} after {timeout:.3g} s",
                operation="wait for the table",
                place=topic,
                remedy="look at `icestream stats` for what the pipeline says",
            )


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
