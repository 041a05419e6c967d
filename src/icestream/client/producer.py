"""Publishing to one topic."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from icestream.client.publisher import Outbox, Publisher
from icestream.client.receipt import BatchReceipt, PendingBatch, Receipt
from icestream.model.errors import (
    ClosedError,
    DeadlineError,
    IcestreamError,
    InvalidMessageError,
    InvalidRequestError,
    OverloadedError,
    TooLargeError,
)
from icestream.model.messages import MESSAGE_SCHEMA, check_batch, check_message_sizes

# --------------------
# Arrow data from users, made into batches that the topic and the broker take.


def to_batches(
    data: Any, schema: pa.Schema, *, max_batch_bytes: int, max_message_bytes: int
) -> Iterator[pa.RecordBatch]:
    """`data` as sound batches of `schema`, none larger than allowed. Columns that fit are not copied."""
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
    """The columns of `schema` by name, in its order, each cast where its type differs.

    One that is missing is null where it may be: a topic may have got columns since its senders were written.
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
    """Slices of whole rows, each at most `max_bytes` on the wire; slices share the batch's memory."""
    if batch.num_rows == 0:
        return
    size = pa.ipc.get_record_batch_size(batch)
    if size <= max_bytes:
        yield batch
        return
    if batch.num_rows == 1:
        raise TooLargeError(f"a message has {size} bytes, the broker's limit is {max_bytes}", operation="send_batch")
    # A little more parts than the average needs, so that uneven rows seldom have to be halved again.
    rows = max(1, min(batch.num_rows // 2, int(batch.num_rows * max_bytes / size * 0.95)))
    for start in range(0, batch.num_rows, rows):
        yield from _split(batch.slice(start, rows), max_bytes)


# --------------------
# What a single message may be made of, checked before it joins others in a batch that it could spoil.


MESSAGE_OVERHEAD_BYTES = 24
"""Arrow's offsets and null bits a message, rounded up; so the client's limits are never wider than the broker's."""

ATTRIBUTE_OVERHEAD_BYTES = 16


def checked(
    payload: Any, key: Any, attributes: Mapping[str, str] | None
) -> tuple[bytes, bytes | None, list[tuple[str, str]] | None, int]:
    """Values that Arrow will take, copied where the caller could still change them, and their size."""
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
        publisher: Publisher,
        outbox: Outbox,
        *,
        schema: pa.Schema,
        batch_bytes: int,
        batch_messages: int,
        max_message_bytes: int,
        broker_batch_bytes: int,
        max_buffer_bytes: int,
        block_timeout: float | None,
        on_close: Callable[["Producer"], None],
    ) -> None:
        self.topic = outbox.topic
        self._publisher = publisher
        self._outbox = outbox
        self._lock = publisher.lock
        self._schema = schema
        self._takes_messages = schema.equals(MESSAGE_SCHEMA)
        self._batch_bytes = batch_bytes
        self._batch_messages = batch_messages
        self._max_message_bytes = max_message_bytes
        self._broker_batch_bytes = broker_batch_bytes
        self._max_buffer_bytes = max_buffer_bytes
        self.block_timeout = block_timeout
        self._eager = not outbox.linger_s
        self._closed = False
        self._on_close = on_close
        publisher.attach(outbox)

    @property
    def name(self) -> str:
        return self._outbox.name

    @property
    def next_sequence(self) -> int:
        """The number of the next message, of this producer's own."""
        return self._outbox.next_sequence

    @property
    def connected(self) -> bool:
        """Whether there is a stream to the broker at the moment."""
        return self._publisher.connected

    def trouble(self, patience_s: float) -> IcestreamError | None:
        """What the broker answered last, if it has accepted nothing for so long and is to be asked again."""
        with self._lock:
            outbox = self._outbox
            if outbox.sent or not outbox.busy or time.monotonic() - outbox.progress_at < patience_s:
                return None
            return self._publisher.last_error or outbox.last_error

    def send(self, payload: bytes, key: bytes | None = None, attributes: Mapping[str, str] | None = None) -> Receipt:
        """Publish one message. Returns at once, unless `max_buffer_bytes` wait for their acknowledgement already."""
        receipt = self.offer(payload, key, attributes, direct=True, block=True)
        assert receipt is not None
        return receipt

    def offer(
        self,
        payload: bytes,
        key: bytes | None = None,
        attributes: Mapping[str, str] | None = None,
        *,
        direct: bool = False,
        block: bool = False,
    ) -> Receipt | None:
        """`send`, for callers that must not wait: None when the buffer is full and `block` is off.

        `direct` lets the calling thread write a lone message to the network itself.
        """
        pairs: list[tuple[str, str]] | None = None
        if type(payload) is bytes and key is None and attributes is None:
            size = len(payload) + MESSAGE_OVERHEAD_BYTES
        else:
            payload, key, pairs, size = checked(payload, key, attributes)
        outbox = self._outbox
        work: list[PendingBatch] = []
        with self._lock:
            batch = outbox.open
            fresh = (
                batch is None
                or batch.nbytes + size > self._batch_bytes
                or batch.count >= self._batch_messages
                or outbox.buffered_bytes + size > self._max_buffer_bytes
                or size > self._max_message_bytes
            )
            if fresh:
                batch = self._room(size, block=block)
                if batch is None:
                    return None
            assert batch is not None
            receipt = Receipt(batch, batch.append(payload, key, pairs, size))
            outbox.buffered_bytes += size
            if fresh or (self._eager and not outbox.sent):
                work = self._start(direct=direct)
        if work:
            self._publisher.write(work)
        return receipt

    def send_batch(self, data: "pa.Table | pa.RecordBatch") -> BatchReceipt:
        """Publish Arrow data as it is; the broker's size limits may make several batches of it.

        An ordinary topic takes a `payload` column (binary or text) and, where there are, `key` and `attributes`; a
        topic with its own schema takes exactly that, where columns that may be null may be left out.
        """
        receipt = self.offer_batch(self.prepare(data), direct=True, block=True)
        assert receipt is not None
        return receipt

    def prepare(self, data: Any) -> list[pa.RecordBatch]:
        """The batches that `data` becomes; all are made before the first is sent, so a bad row sends nothing."""
        batches = list(
            to_batches(
                data,
                self._schema,
                max_batch_bytes=self._broker_batch_bytes,
                max_message_bytes=self._max_message_bytes,
            )
        )
        if not batches:
            raise InvalidMessageError("the batch has no messages", operation="send_batch")
        return batches

    def offer_batch(
        self, batches: list[pa.RecordBatch], *, direct: bool = False, block: bool = False
    ) -> BatchReceipt | None:
        """Send what `prepare` gave. Without `block`, None if the buffer is full; else all goes into it."""
        parts: list[PendingBatch] = []
        for record in batches:
            nbytes = record.nbytes
            with self._lock:
                if not self._wait_for_room(nbytes, block=block, force=bool(parts) and not block):
                    return None
                outbox = self._outbox
                outbox.seal()
                part = outbox.new_batch(time.monotonic(), record, nbytes)
                outbox.queue.append(part)
                outbox.buffered_bytes += nbytes
                parts.append(part)
                work = self._start(direct=direct)
            if work:
                self._publisher.write(work)
        return BatchReceipt(parts)

    # ---- with the lock held

    def _start(self, *, direct: bool) -> list[PendingBatch]:
        now = time.monotonic()
        if not self._outbox.sendable(now):
            return []  # what it waits for, an acknowledgement or a timer, brings the sender thread to it
        if direct:
            return self._publisher.begin(self._outbox, now)
        self._publisher.schedule(self._outbox)
        return []

    def _room(self, size: int, *, block: bool) -> PendingBatch | None:
        """An open batch that the message fits into."""
        if not self._takes_messages:
            raise InvalidRequestError(
                f"topic {self.topic} has its own schema", operation="send", remedy="use send_batch with those columns"
            )
        if size > self._max_message_bytes:
            raise TooLargeError(
                f"the message has {size} bytes with its overhead, the limit is {self._max_message_bytes}",
                operation="send",
                place=self.topic,
            )
        if not self._wait_for_room(size, block=block):
            return None
        outbox = self._outbox
        batch = outbox.open
        if batch is not None and (batch.nbytes + size > self._batch_bytes or batch.count >= self._batch_messages):
            outbox.seal()
            batch = None
        if batch is None:
            now = time.monotonic()
            batch = outbox.open = outbox.new_batch(now)
            if not self._eager:
                self._publisher.seal_at(now + outbox.linger_s, outbox, batch)
        return batch

    def _wait_for_room(self, size: int, *, block: bool, force: bool = False) -> bool:
        """Wait until the buffer takes `size` more bytes; an empty one takes anything."""
        outbox = self._outbox
        deadline = None
        while True:
            self._check_open()
            if force or not outbox.buffered_bytes or outbox.buffered_bytes + size <= self._max_buffer_bytes:
                return True
            if not block:
                return False
            # What is collected must be on its way, or nothing would ever free the buffer.
            outbox.seal()
            self._publisher.schedule(outbox)
            if outbox.space is None:
                outbox.space = threading.Condition(self._lock)
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
            outbox.space.wait(None if deadline is None else deadline - now)

    def _check_open(self) -> None:
        if self._outbox.failure is not None:
            raise self._outbox.failure
        if self._closed:
            raise ClosedError("the producer is closed", operation="send", place=self.topic)

    def when_room(self, callback: Callable[[], None]) -> None:
        """Call back, once, when something was acknowledged or failed; at once if nothing waits."""
        with self._lock:
            outbox = self._outbox
            if outbox.buffered_bytes:
                outbox.seal()
                self._publisher.schedule(outbox)
                outbox.space_callbacks.append(callback)
                return
        callback()

    # ---- the end

    def pending(self) -> list[PendingBatch]:
        """Start sending all that was collected, without lingering, and tell what is not acknowledged."""
        with self._lock:
            self._outbox.seal()
            self._publisher.schedule(self._outbox)
            return self._outbox.pending()

    def take_failure(self) -> IcestreamError | None:
        """The first failure since the last call that no receipt was asked about."""
        with self._lock:
            failed, self._outbox.unseen_failures = self._outbox.unseen_failures, []
        return next((batch.error for batch in failed if not batch.seen), None)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all that was sent is acknowledged.

        Raises DeadlineError after `timeout` seconds, or the error of a message that failed since the last flush and
        whose receipt nobody has looked at.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        for batch in self.pending():
            if not batch.wait(None if deadline is None else deadline - time.monotonic()):
                raise DeadlineError(f"not all messages were acknowledged within {timeout} s", operation="flush")
        error = self.take_failure()
        if error is not None:
            raise error

    def close(self, timeout: float | None = None) -> None:
        """Flush and take no more. Closing again does nothing."""
        if not self.shut():
            return
        try:
            self.flush(timeout)
        finally:
            self.release(ClosedError("the producer was closed", operation="send", place=self.topic))

    def shut(self) -> bool:
        """Take no more messages; False if that was so before."""
        with self._lock:
            was_open, self._closed = not self._closed, True
            # The fast path of `send` looks at nothing but the open batch.
            self._outbox.seal()
            return was_open

    def release(self, error: IcestreamError) -> None:
        """Let go of the stream; what is not acknowledged yet fails."""
        self._closed = True
        self._publisher.detach(self._outbox, error)
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
