"""Producers, the objects that applications publish with, and receipts, which `send` returns.

A producer checks what it is given and puts it into its outbox; `icestream.client.publisher` decides what is sent when.
A receipt is a future of the message's offset. It can also wait until the message is in the table.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

import pyarrow as pa

from icestream.client.publisher import Outbox, PendingBatch
from icestream.client.transport import Connection, PublishTransport
from icestream.model.errors import (
    ClosedError,
    DeadlineError,
    IcestreamError,
    InvalidMessageError,
    InvalidRequestError,
    OverloadedError,
    TooLargeError,
    UnavailableError,
)
from icestream.model.messages import MESSAGE_SCHEMA, check_batch, check_message_sizes

# ---- Receipts: futures of acknowledgements, and the wait for the table

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
        left = _ASK_SECONDS if deadline is None else max(0.0, min(_ASK_SECONDS, deadline - time.monotonic()))
        fields = {"topic": topic, "offset": offset, "wait_ms": int(left * 1000)}
        if not hurry:
            fields["hurry"] = False
        try:
            response = connection.action("wait_committed", fields, hold_s=left)
        except UnavailableError:
            if deadline is not None and time.monotonic() > deadline:
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


def _wait_for_ack(batch: PendingBatch, timeout: float | None, started: float | None = None) -> None:
    """Wait until the batch is acknowledged or has failed; the timeout counts from `started`, or from now."""
    if not batch.done and not batch.wait(timeout if started is None else _seconds_left(started, timeout)):
        raise DeadlineError(f"no acknowledgement within {timeout} s", operation="publish")
    batch.seen = True


def _raise_if_failed(batch: PendingBatch, timeout: float | None = None, started: float | None = None) -> None:
    """Wait for the acknowledgement; raise the error that the batch failed with, if it did."""
    _wait_for_ack(batch, timeout, started)
    if batch.error is not None:
        raise batch.error


def _seconds_left(started: float, timeout: float | None) -> float | None:
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
        _raise_if_failed(self._batch)
        return self._batch.base_offset + self._index

    @property
    def publish_time(self) -> datetime:
        """When the broker took the message."""
        _raise_if_failed(self._batch)
        return _publish_time(self._batch)

    @property
    def snapshot_id(self) -> int | None:
        """A snapshot of the topic's table that holds the message, if the acknowledgement was to wait for one."""
        _raise_if_failed(self._batch)
        return self._batch.snapshot_id

    def result(self, timeout: float | None = None) -> int:
        """The offset; DeadlineError after `timeout` seconds."""
        _raise_if_failed(self._batch, timeout)
        return self._batch.base_offset + self._index

    def wait_committed(self, timeout: float | None = None) -> CommittedSnapshot:
        """Wait until the message is in the topic's table; return a snapshot that holds it."""
        started = time.monotonic()
        return self._wait_committed(self.result(timeout), _seconds_left(started, timeout))

    def exception(self, timeout: float | None = None) -> IcestreamError | None:
        """Wait, and return the error that the message failed with; None if it was acknowledged."""
        _wait_for_ack(self._batch, timeout)
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
        self._batch.when_done(lambda: _call_guarded(callback, self))

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
        """When the broker took the first message."""
        self.result()
        return _publish_time(self._parts[0])

    @property
    def snapshot_id(self) -> int | None:
        """A snapshot of the topic's table that holds all messages, if the acknowledgement was to wait for one."""
        self.result()
        return self._parts[-1].snapshot_id

    def result(self, timeout: float | None = None) -> int:
        """The first message's offset, once all are acknowledged; DeadlineError after `timeout` seconds."""
        started = time.monotonic()
        for part in self._parts:
            _raise_if_failed(part, timeout, started)
        return self._parts[0].base_offset

    def wait_committed(self, timeout: float | None = None) -> CommittedSnapshot:
        """Wait until all messages are in the topic's table; return a snapshot that holds them."""
        started = time.monotonic()
        self.result(timeout)
        last = max(part.base_offset + part.count for part in self._parts) - 1
        return self._wait_committed(last, _seconds_left(started, timeout))

    def exception(self, timeout: float | None = None) -> IcestreamError | None:
        """Wait, and return the first error of a part; None if all were acknowledged."""
        started = time.monotonic()
        for part in self._parts:
            _wait_for_ack(part, timeout, started)
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
                _call_guarded(callback, self)

        for part in self._parts:
            part.seen = True
            part.when_done(part_done)

    def __repr__(self) -> str:
        return f"<BatchReceipt of {self.count} messages, {'done' if self.done() else 'pending'}>"


def _call_guarded(callback: Callable[[R], object], receipt: R) -> None:
    """Run the callback; its error must not stop the thread that serves all other receipts."""
    try:
        callback(receipt)
    except Exception:  # noqa: BLE001 - the application's code, and it is logged
        _log.exception("receipt_callback_failed")


# ---- Arrow data, made into batches that the topic and the broker take


def to_batches(
    data: Any, schema: pa.Schema, *, max_batch_bytes: int, max_message_bytes: int
) -> Iterator[pa.RecordBatch]:
    """Return `data` as valid batches of `schema`, none larger than allowed. Columns that fit are not copied."""
    if not isinstance(data, pa.Table | pa.RecordBatch):
        raise InvalidMessageError(
            f"a batch is a pyarrow Table or RecordBatch, not {type(data).__name__}", operation="send_batch"
        )
    if not data.schema.equals(schema):
        data = _conform(data, schema)
    batches = data.to_batches() if isinstance(data, pa.Table) else [data]
    for batch in batches:
        check_batch(batch, schema)
        if batch.nbytes > max_message_bytes:
            check_message_sizes(batch, max_message_bytes)
        yield from _split(batch, max_batch_bytes)


def _conform(data: Any, schema: pa.Schema) -> Any:
    """Return the columns of `schema` by name, in its order, each cast where its type differs.

    A missing column is null if it may be: a topic may have got columns since its producers were written.
    """
    names = data.schema.names
    if unknown := sorted(set(names) - set(schema.names)):
        raise InvalidMessageError(
            f"the topic has no column {', '.join(map(repr, unknown))}",
            operation="send_batch",
            remedy=f"its columns are {', '.join(schema.names)}",
        )
    columns = []
    for field in schema:
        if names.count(field.name) > 1:
            raise InvalidMessageError(f"column {field.name!r} is there twice", operation="send_batch")
        if field.name in names:
            columns.append(_cast(data.column(field.name), field))
        elif field.nullable:
            columns.append(pa.nulls(data.num_rows, field.type))
        else:
            raise InvalidMessageError(f"column {field.name!r} is missing", operation="send_batch")
    make = pa.Table if isinstance(data, pa.Table) else pa.RecordBatch
    return make.from_arrays(columns, schema=schema)


def _cast(column: Any, field: pa.Field) -> Any:
    if column.type.equals(field.type):
        return column
    try:
        return column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidMessageError(
            f"column {field.name!r} is {column.type}, which does not become {field.type}: {error}",
            operation="send_batch",
        ) from error


def _split(batch: pa.RecordBatch, max_bytes: int) -> Iterator[pa.RecordBatch]:
    """Return slices of whole rows, each at most `max_bytes` on the wire; slices share the batch's memory."""
    if batch.num_rows == 0:
        return
    size = pa.ipc.get_record_batch_size(batch)
    if size <= max_bytes:
        yield batch
        return
    if batch.num_rows == 1:
        raise TooLargeError(f"a message has {size} bytes, the broker's limit is {max_bytes}", operation="send_batch")
    # A few more slices than the average needs, so that uneven rows seldom have to be halved again.
    rows = max(1, min(batch.num_rows // 2, int(batch.num_rows * max_bytes / size * 0.95)))
    for start in range(0, batch.num_rows, rows):
        yield from _split(batch.slice(start, rows), max_bytes)


# ---- single messages, checked before they join others in a batch that they could spoil

MESSAGE_OVERHEAD_BYTES = 24
"""Arrow's offsets and null bits of a message, rounded up; so the client's limits are never wider than the broker's."""

ATTRIBUTE_OVERHEAD_BYTES = 16


def checked(
    payload: Any, key: Any, attributes: Mapping[str, str] | None
) -> tuple[bytes, bytes | None, list[tuple[str, str]] | None, int]:
    """Return values that Arrow takes, copied where the caller could still change them, and their size."""
    payload = _bytes(payload, "payload")
    size = len(payload) + MESSAGE_OVERHEAD_BYTES
    if key is not None:
        key = _bytes(key, "key")
        size += len(key)
    if attributes is None:
        return payload, key, None, size
    try:
        pairs = list(attributes.items())
        for name, value in pairs:
            size += len(name.encode()) + len(value.encode()) + ATTRIBUTE_OVERHEAD_BYTES
    except (AttributeError, UnicodeEncodeError) as error:
        raise InvalidMessageError(
            f"attributes are a dictionary of texts, not {attributes!r:.80}: {error}", operation="send"
        ) from error
    return payload, key, pairs, size


def _partly_sent(
    error: OverloadedError, parts: Sequence[PendingBatch], batches: Sequence[pa.RecordBatch]
) -> OverloadedError:
    """Return the error of a `send_batch` that was queued in part. Not retryable: the whole would be sent twice."""
    sent = sum(part.count for part in parts)
    return OverloadedError(
        f"{error.message}; of {sum(batch.num_rows for batch in batches)} messages the first {sent} are sent",
        operation="send_batch",
        place=error.place,
        remedy=f"send the rest alone: data.slice({sent})",
        retryable=False,
        details={"sent_messages": sent},
    )


def _bytes(value: Any, what: str) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise InvalidMessageError(
        f"a {what} is bytes, not {type(value).__name__}", operation="send", remedy='use text.encode() or b"…"'
    )


class Producer:
    """Sends messages to a topic in order, each stored once, whatever happens to the connection meanwhile.

    Safe to use from several threads; messages of one thread keep their order. Not across a fork. A producer without a
    given name takes a new one when its old numbering cannot be continued; see `icestream.client.publisher`.
    """

    def __init__(
        self,
        transport: PublishTransport,
        outbox: Outbox,
        *,
        schema: pa.Schema,
        broker_batch_bytes: int,
        block_timeout: float | None,
        wait_committed: WaitCommitted,
        on_close: Callable[["Producer"], None],
    ) -> None:
        self.topic = outbox.topic
        self.block_timeout = block_timeout
        self._transport = transport
        self._publisher = transport.publisher
        self._outbox = outbox
        self._lock = transport.lock
        self._schema = schema
        self._takes_messages = schema.equals(MESSAGE_SCHEMA)
        self._broker_batch_bytes = broker_batch_bytes
        self._is_eager = not outbox.linger_s
        self._wait_committed = wait_committed
        self._on_close = on_close
        transport.attach(outbox)

    @property
    def name(self) -> str:
        return self._outbox.name

    @property
    def next_sequence(self) -> int:
        """The number of the next message, in this producer's own count: messages that wait to be sent are counted."""
        with self._lock:
            return self._outbox.next_sequence + self._outbox.unnumbered

    @property
    def connected(self) -> bool:
        """Whether there is a stream to the broker at the moment, or the first one is about to be opened."""
        return self._publisher.is_reachable

    def trouble(self, patience_s: float) -> IcestreamError | None:
        """Return the last error if the broker has accepted nothing for `patience_s` seconds and is tried again."""
        with self._lock:
            return self._publisher.trouble_of(self._outbox, patience_s, time.monotonic())

    # ---- sending

    def send(self, payload: bytes, key: bytes | None = None, attributes: Mapping[str, str] | None = None) -> Receipt:
        """Publish one message. Returns at once, unless `max_buffer_bytes` wait for their acknowledgement already."""
        if type(payload) is bytes and key is None and attributes is None:
            # The usual case of a fast producer, without another call: messages collect while a batch is in flight.
            outbox = self._outbox
            with self._lock:
                if outbox.sent:
                    batch = outbox.add(payload, None, None, len(payload) + MESSAGE_OVERHEAD_BYTES)
                    if batch is not None:
                        return Receipt(batch, batch.count - 1, self._wait_committed)
        receipt = self.offer(payload, key, attributes, blocking=True)
        assert receipt is not None
        return receipt

    def offer(
        self,
        payload: bytes,
        key: bytes | None = None,
        attributes: Mapping[str, str] | None = None,
        *,
        blocking: bool = False,
    ) -> Receipt | None:
        """Publish like `send`; without `blocking`, return None when the buffer is full.

        A thread that may block also writes to the network itself where that saves a hand-over.
        """
        pairs: list[tuple[str, str]] | None = None
        if type(payload) is bytes and key is None and attributes is None:
            size = len(payload) + MESSAGE_OVERHEAD_BYTES
        else:
            payload, key, pairs, size = checked(payload, key, attributes)
        outbox = self._outbox
        work: list[PendingBatch] = []
        with self._lock:
            batch = outbox.add(payload, key, pairs, size)
            if batch is None:
                self._check_message(size)
                if not self._wait_for_room(size, blocking=blocking):
                    return None
                now = time.monotonic()
                self._publisher.open_batch(outbox, size, now)
                batch = outbox.add(payload, key, pairs, size, unchecked=True)
                assert batch is not None
                receipt = Receipt(batch, batch.count - 1, self._wait_committed)
                work = self._publisher.start(outbox, now, direct=blocking)
            else:
                receipt = Receipt(batch, batch.count - 1, self._wait_committed)
                if self._is_eager and not outbox.sent:
                    work = self._publisher.start(outbox, time.monotonic(), direct=blocking)
        if work:
            self._transport.write(work)
        return receipt

    def send_batch(self, data: "pa.Table | pa.RecordBatch") -> BatchReceipt:
        """Publish Arrow data as it is; the broker's size limits may make several batches of it.

        An ordinary topic takes a `payload` column (binary or text) and, if there are any, `key` and `attributes`. A
        topic with its own schema takes exactly those columns; nullable ones may be left out.

        Data of several batches that does not find room within `block_timeout` raises OverloadedError after some of them
        were queued: `error.details["sent_messages"]` messages from the beginning are sent, and the rest,
        `data.slice(sent_messages)`, is not. `flush` tells what became of those that are sent.
        """
        receipt = self.offer_batch(self.prepare(data), blocking=True)
        assert receipt is not None
        return receipt

    def prepare(self, data: Any) -> list[pa.RecordBatch]:
        """Return the batches that `data` becomes. All are made before the first is sent, so a bad row sends nothing."""
        batches = list(
            to_batches(
                data,
                self._schema,
                max_batch_bytes=self._broker_batch_bytes,
                max_message_bytes=self._outbox.max_message_bytes,
            )
        )
        if not batches:
            raise InvalidMessageError("the batch has no messages", operation="send_batch")
        return batches

    def offer_batch(self, batches: list[pa.RecordBatch], *, blocking: bool = False) -> BatchReceipt | None:
        """Send what `prepare` returned. Without `blocking`, return None if the buffer is full; else it takes all."""
        parts: list[PendingBatch] = []
        for record in batches:
            nbytes = record.nbytes
            with self._lock:
                try:
                    if not self._wait_for_room(nbytes, blocking=blocking, force=bool(parts) and not blocking):
                        return None
                except OverloadedError as error:
                    if parts:
                        raise _partly_sent(error, parts, batches) from None
                    raise
                now = time.monotonic()
                parts.append(self._outbox.add_record(record, nbytes, now))
                work = self._publisher.start(self._outbox, now, direct=blocking)
            if work:
                self._transport.write(work)
        return BatchReceipt(parts, self._wait_committed)

    # ---- with the lock held

    def _check_message(self, size: int) -> None:
        if not self._takes_messages:
            raise InvalidRequestError(
                f"topic {self.topic} has its own schema", operation="send", remedy="use send_batch with those columns"
            )
        if size > self._outbox.max_message_bytes:
            raise TooLargeError(
                f"the message has {size} bytes with its overhead, the limit is {self._outbox.max_message_bytes}",
                operation="send",
                place=self.topic,
            )

    def _wait_for_room(self, size: int, *, blocking: bool, force: bool = False) -> bool:
        """Wait, without the lock, until the buffer takes `size` more bytes; False if it is full and may not wait."""
        outbox = self._outbox
        deadline = None
        while True:
            outbox.check_open()
            if force or outbox.has_room(size):
                return True
            if not blocking:
                return False
            # What is collected must be sent, or nothing would ever free the buffer.
            self._publisher.send_all(outbox)
            now = time.monotonic()
            if deadline is None and self.block_timeout is not None:
                deadline = now + self.block_timeout
            if deadline is not None and now >= deadline:
                raise OverloadedError(
                    f"{outbox.buffered_bytes} bytes wait for their acknowledgement since {self.block_timeout} s",
                    operation="send",
                    place=self.topic,
                    remedy="send slower, raise max_buffer_bytes, or look at the broker",
                )
            has_room = threading.Event()
            wake = has_room.set
            outbox.when_room(wake)
            self._lock.release()
            try:
                has_room.wait(None if deadline is None else deadline - now)
            finally:
                self._lock.acquire()
                outbox.forget_room(wake)

    # ---- without

    def when_room(self, callback: Callable[[], None]) -> None:
        """Call back, once, when something was acknowledged or failed; at once if nothing waits."""
        with self._lock:
            if self._outbox.buffered_bytes:
                self._publisher.send_all(self._outbox)
                self._outbox.when_room(callback)
                return
        callback()

    def forget_room(self, callback: Callable[[], None]) -> None:
        """Do not call back any more."""
        with self._lock:
            self._outbox.forget_room(callback)

    def pending(self) -> list[PendingBatch]:
        """Start to send everything that was collected, without lingering; return what is not acknowledged."""
        with self._lock:
            self._publisher.send_all(self._outbox)
            return self._outbox.pending()

    def take_failure(self) -> IcestreamError | None:
        """Return the first failure since the last call that no receipt was asked about."""
        with self._lock:
            return self._outbox.take_failure()

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything that was sent is acknowledged.

        Raises DeadlineError after `timeout` seconds, or the error of a message that failed since the last flush and
        whose receipt was never asked for it.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        for batch in self.pending():
            if not batch.wait(None if deadline is None else deadline - time.monotonic()):
                raise DeadlineError(f"not all messages were acknowledged within {timeout} s", operation="flush")
        error = self.take_failure()
        if error is not None:
            raise error

    # ---- the end

    def close(self, timeout: float | None = None) -> None:
        """Flush and take no more. Closing again does nothing."""
        if not self.shut():
            return
        try:
            self.flush(timeout)
        finally:
            self.release()

    def shut(self) -> bool:
        """Take no more messages; False if that was so before."""
        with self._lock:
            return self._outbox.close()

    def release(self) -> None:
        """Leave the stream; what is not acknowledged yet fails with ClosedError."""
        error = ClosedError("the producer was closed", operation="send", place=self.topic)
        self._transport.detach(self._outbox, error)
        self._on_close(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        # What was sent is still sent, but the caller's error is the one to see.
        with contextlib.suppress(IcestreamError):
            self.close()
