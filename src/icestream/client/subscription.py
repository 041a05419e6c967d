"""Consuming from a subscription: messages or Arrow batches in, acknowledgements out.

What was not acknowledged is delivered again: to this consumer, to another one, or to the next. So every message is
processed at least once, whichever process crashes; `redelivery_count` says how often it was delivered before.

`Subscription` owns all state: the stream, the delivered batches, the credit, the acknowledgements. Two threads serve
it. One connects and reads. The other sends acknowledgements and credit, collected for a few milliseconds. `AckBuffer`
and `DoExchangeStream` are its parts and know nothing of each other.
"""

import contextlib
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.flight as fl

from icestream.client.consumer import check_messages, messages
from icestream.client.transport import Connection
from icestream.model.clock import Backoff
from icestream.model.errors import (
    ClosedError,
    DeadlineError,
    IcestreamError,
    InvalidRequestError,
    UnavailableError,
    error_from_dict,
    is_temporary,
)
from icestream.model.messages import JOIN_BYTES, Message, offset_ranges
from icestream.model.offsets import Range, merge_ranges
from icestream.protocol.subscribe import MAX_OFFSET, Subscribed

LINGER_S = 0.02
MAX_COLLECTED = 1_000
"""So many acknowledgements of single messages are sent at once."""
_MAX_RANGES = 10_000
"""In one message to the broker."""
_IDLE_S = 10.0
_FLUSH_S = 10.0
_END_S = 1.0
_JOIN_TIMEOUT_S = 2.0
_PINGS_PER_TIMEOUT = 3
_OPERATION = "subscribe"
_OFFSET_COLUMNS = ("offset", "_offset")


class DoExchangeStream:
    """One DoExchange call: batches in; acknowledgements, credit and pings out. Any thread may send; one thread reads.

    The broker cannot break off a stream that it reads from, so it announces the end with `{"error": …}`. The client
    then ends the stream, and the broker ends the call with that error.
    """

    def __init__(self, connection: Connection, request: dict[str, Any]) -> None:
        self._connection = connection
        self._write_lock = threading.Lock()
        self._writer, self._reader = connection.exchange(_OPERATION)
        self.send(request)

    def send(self, fields: dict[str, Any]) -> bool:
        """Write a message; False if the stream is broken. The reading thread gets the reason."""
        with self._write_lock:
            try:
                self._writer.write_metadata(json.dumps(fields).encode())
            except (fl.FlightError, pa.ArrowException):
                return False
            return True

    def read(self) -> Iterator[tuple[pa.RecordBatch | None, dict[str, Any]]]:
        """Yield the broker's batches, and its messages without one. Always ends by raising what ended the stream."""
        announced: IcestreamError | None = None
        failure: Exception | None = None
        try:
            while True:
                chunk = self._reader.read_chunk()
                fields = json.loads(chunk.app_metadata.to_pybytes()) if chunk.app_metadata is not None else {}
                if "error" in fields:
                    announced = error_from_dict(fields["error"])
                    self.finish()
                elif announced is None:
                    yield chunk.data, fields
        except StopIteration:
            pass
        except (fl.FlightError, pa.ArrowException) as error:
            failure = error
        except ValueError as error:  # not the protocol: the broker does not know that the stream is over
            failure = error
            self.cancel()
        finally:
            failure = self._close() or failure
        if announced is None and failure is not None:
            raise self._connection.typed(failure, _OPERATION) from failure
        raise announced or UnavailableError(
            f"the broker at {self._connection.url} ended the stream", operation=_OPERATION
        )

    def finish(self) -> None:
        """Write no more; the broker then ends the stream."""
        with self._write_lock, contextlib.suppress(fl.FlightError, pa.ArrowException):
            self._writer.done_writing()  # if it is broken already, the reading thread notices it too

    def cancel(self) -> None:
        """End the reading thread's wait."""
        self._reader.cancel()

    def _close(self) -> Exception | None:
        """Close the stream; return why it is broken, if it is."""
        failure: Exception | None = None
        with self._write_lock:
            try:
                self._writer.close()
            except (fl.FlightError, pa.ArrowException) as error:
                failure = error
        return failure


class CollectedAcks(NamedTuple):
    """What an `AckBuffer` held at one moment."""

    ranges: list[Range]
    cumulative: int | None
    nacks: list[tuple[int | None, list[Range]]]

    @property
    def is_empty(self) -> bool:
        return not (self.ranges or self.nacks or self.cumulative is not None)

    def messages(self) -> list[dict[str, Any]]:
        """Return it as messages of the protocol."""
        found: list[dict[str, Any]] = [{"ack": ranges} for ranges in _cut(self.ranges)]
        if self.cumulative is not None:
            found.append({"ack_cumulative": self.cumulative})
        for delay_ms, nacked in self.nacks:
            delay = {} if delay_ms is None else {"delay_ms": delay_ms}
            found += [{"nack": ranges, **delay} for ranges in _cut(nacked)]
        return found


class AckBuffer:
    """Acknowledgements and nacks until they are sent. No network.

    Any thread may add, without a lock: a single acknowledged message costs an append to a deque, and no message on the
    wire. What could not be sent is put back and sent on the next connection. That is harmless: the broker ignores
    acknowledgements of messages that it did not deliver there.
    """

    def __init__(self) -> None:
        self._offsets: deque[int] = deque()
        self._ranges: deque[Range] = deque()
        self._cumulative: deque[int] = deque()
        self._nacks: deque[tuple[int | None, list[Range]]] = deque()
        self._has_work = threading.Event()
        self._is_urgent = threading.Event()

    def ack(self, offset: int) -> None:
        self._offsets.append(offset)
        if not self._has_work.is_set():
            self._has_work.set()
        elif len(self._offsets) >= MAX_COLLECTED and not self._is_urgent.is_set():
            self._is_urgent.set()

    def ack_ranges(self, ranges: list[Range]) -> None:
        self._ranges.extend(ranges)
        self._has_work.set()

    def ack_cumulative(self, offset: int) -> None:
        self._cumulative.append(offset)
        self._has_work.set()

    def nack(self, ranges: list[Range], delay_ms: int | None) -> None:
        self._nacks.append((delay_ms, ranges))
        self._has_work.set()

    def wake(self, *, urgent: bool) -> None:
        """End the sending thread's wait for something to send; `urgent` also ends its linger."""
        self._has_work.set()
        if urgent:
            self._is_urgent.set()

    def wait(self, idle_s: float) -> None:
        """Wait until there is something to send, and a moment longer for more; at most about `idle_s` seconds."""
        if self._has_work.wait(idle_s):
            self._is_urgent.wait(LINGER_S)
        # Cleared before `take`, so that what is added after it is not missed.
        self._is_urgent.clear()
        self._has_work.clear()

    @property
    def is_empty(self) -> bool:
        return not (self._offsets or self._ranges or self._cumulative or self._nacks)

    def take(self) -> CollectedAcks:
        """Empty the buffer."""
        offsets = _drained(self._offsets)
        ranges = _drained(self._ranges)
        if offsets:
            ranges += offset_ranges(pa.array(offsets, pa.int64()))
        return CollectedAcks(merge_ranges(ranges), max(_drained(self._cumulative), default=None), _drained(self._nacks))

    def put_back(self, collected: CollectedAcks) -> None:
        self._ranges.extend(collected.ranges)
        self._nacks.extend(collected.nacks)
        if collected.cumulative is not None:
            self._cumulative.append(collected.cumulative)


def _cut(ranges: list[Range]) -> Iterator[list[Range]]:
    """Yield as many ranges at a time as one message may have."""
    for start in range(0, len(ranges), _MAX_RANGES):
        yield ranges[start : start + _MAX_RANGES]


def _drained(items: deque[Any]) -> list[Any]:
    """Take what is there now; other threads may append meanwhile."""
    return [items.popleft() for _ in range(len(items))]


def _joined(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join neighbouring messages that have no field in common."""
    joined: list[dict[str, Any]] = []
    for message in messages:
        if joined and not joined[-1].keys() & message.keys():
            joined[-1] = joined[-1] | message
        else:
            joined.append(message)
    return joined


class Subscription:
    """Iterate over it, or `receive`. Safe to use from several threads, which then share the messages.

    The broker sends no more than it has credit for, so the delivered batches that wait here are bounded by
    `receiver_queue` messages and `max_bytes`. Credit goes back as the application takes batches. When the connection
    breaks, the reading thread connects again, for as long as it takes, and drops what waited here: the broker delivers
    it again, here or to another consumer.
    """

    def __init__(
        self,
        connection: Connection,
        request: dict[str, Any],
        *,
        timeout_s: float,
        on_close: Callable[["Subscription"], None],
    ) -> None:
        """Subscribe; raises why the broker refuses, or DeadlineError after `timeout_s`."""
        self._connection = connection
        self._request = request
        self._on_close = on_close
        self._acks = AckBuffer()
        self._lock = threading.Lock()
        """Guards the state down to `_listener`. Never held during input or output."""
        self._changed = threading.Condition(self._lock)
        self._stream: DoExchangeStream | None = None
        self._accepted: Subscribed | None = None
        """What the broker said when it accepted this consumer; None before."""
        self._is_subscribed = False
        """Whether the broker has accepted this consumer on the present stream."""
        self._delivered: deque[pa.RecordBatch] = deque()
        self._used_messages = 0
        self._used_bytes = 0
        """Credit that was used on the present stream and not given back."""
        self._grant_is_due = False
        self._has_unconfirmed = False
        """Whether acknowledgements were sent that no flush has confirmed."""
        self._flushes = 0
        self._flushed = 0
        self._flush_error: IcestreamError | None = None
        self._error: IcestreamError | None = None
        self._is_finished = False
        self._is_closing = False
        self._is_closed = False
        self._listener: Callable[[], None] | None = None
        self.interruption: IcestreamError | None = None
        """Why the broker cannot be reached at the moment; None while it can."""
        self._receiving = threading.Lock()
        """One thread at a time takes the next batch."""
        self._batch: pa.RecordBatch | None = None
        self._rows: Iterator[Message] = iter(())
        """What is left of `_batch`. Threads take rows without a lock."""
        self._sending = threading.Lock()
        """One thread at a time sends what was collected."""
        self._reader = threading.Thread(target=self._read_loop, name="icestream-subscription", daemon=True)
        self._sender = threading.Thread(target=self._send_loop, name="icestream-consumer-acks", daemon=True)
        self._reader.start()
        self._sender.start()
        try:
            accepted = self._wait_accepted(timeout_s)
        except BaseException:
            self._end()
            raise
        self.topic = accepted.topic
        self.name = accepted.subscription
        self.type = accepted.type
        self.consumer = accepted.consumer

    def _wait_accepted(self, timeout: float) -> Subscribed:
        with self._lock:
            self._changed.wait_for(lambda: self._accepted or self._is_finished, timeout)
            if self._accepted is not None:
                return self._accepted
            raise self._error or DeadlineError(
                f"no response from the broker at {self._connection.url} within {timeout} s", operation=_OPERATION
            )

    # ---- messages in

    def receive(self, timeout: float | None = None) -> Message | None:
        """Return the next message; None when none came within `timeout` seconds, or after `close`."""
        message = next(self._rows, None)
        return message if message is not None else self._next(timeout)

    def receive_batch(self, max_messages: int | None = None, timeout: float | None = None) -> pa.RecordBatch | None:
        """Return the messages that are there, as Arrow; None when none came within `timeout` seconds, or after `close`.

        Small batches are joined. The last column, `redelivery_count`, says how often a message was delivered before.
        """
        if max_messages is not None and max_messages < 1:
            raise InvalidRequestError("max_messages is 1 or more", operation="receive")
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._turn(deadline) as is_mine:
            if not is_mine:
                return None
            batch = self._rest()
            if batch is None:
                return self._take_delivered(_left(deadline), max_messages=max_messages)
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
        """Return the first message of the next batch, whose others then follow without a lock."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._turn(deadline) as is_mine:
            if not is_mine:
                return None
            while (message := next(self._rows, None)) is None:  # another thread may have taken a batch
                batch = self._take_delivered(_left(deadline), check=check_messages)
                if batch is None:
                    return None
                self._begin(batch)
            return message

    def _begin(self, batch: pa.RecordBatch) -> None:
        self._batch = batch
        self._rows = messages(batch)

    def _rest(self) -> pa.RecordBatch | None:
        """Return what is left of the batch that is being iterated over.

        Other threads take rows without a lock, also while this one takes the rest: what they got is left out.
        """
        batch, rows = self._batch, self._rows
        self._forget_rows()
        left = pa.array([message.offset for message in rows], pa.int64())
        if batch is None or not len(left):
            return None
        rest = batch.slice(batch.num_rows - len(left))
        if rest.column("offset").equals(left):
            return rest
        return batch.filter(pc.is_in(batch.column("offset"), value_set=left))

    def _forget_rows(self) -> None:
        self._batch = None
        self._rows = iter(())

    @contextlib.contextmanager
    def _turn(self, deadline: float | None) -> Iterator[bool]:
        """Take batches one thread at a time; gives False when the deadline passes before."""
        left = _left(deadline)
        is_mine = self._receiving.acquire(timeout=-1 if left is None else left)
        try:
            yield is_mine
        finally:
            if is_mine:
                self._receiving.release()

    def _take_delivered(
        self,
        timeout: float | None,
        *,
        max_messages: int | None = None,
        check: Callable[[pa.RecordBatch], None] | None = None,
    ) -> pa.RecordBatch | None:
        """Return the next batch, joined with those behind it while they are small; None in time, or when closed.

        Raises what ended the subscription. A batch for which `check` raises stays.
        """
        with self._lock:
            if not self._delivered:
                self._changed.wait_for(lambda: self._delivered or self._is_finished or self._is_closed, timeout)
            if self._is_closed:
                return None
            if not self._delivered:
                if self._error is not None:
                    raise self._error
                return None
            if check is not None:
                check(self._delivered[0])
            batches: list[pa.RecordBatch] = []
            count = nbytes = 0
            while self._delivered and nbytes < JOIN_BYTES and (max_messages is None or count < max_messages):
                batch = self._delivered.popleft()
                if max_messages is not None and count + batch.num_rows > max_messages:
                    self._delivered.appendleft(batch.slice(max_messages - count))
                    batch = batch.slice(0, max_messages - count)
                batches.append(batch)
                count += batch.num_rows
                nbytes += batch.nbytes
            self._give_back(count, nbytes)
        return batches[0] if len(batches) == 1 else pa.concat_batches(batches)

    def _give_back(self, count: int, nbytes: int) -> None:
        """Return credit: when half of it was used, and when there is nothing else to do."""
        self._used_messages += count
        self._used_bytes += nbytes
        is_half_used = (
            2 * self._used_messages >= self._request["max_messages"]
            or 2 * self._used_bytes >= self._request["max_bytes"]
        )
        if is_half_used or not self._delivered:
            self._grant_is_due = True
            self._acks.wake(urgent=is_half_used)

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener`, from the reading thread, whenever `receive` may have something new."""
        self._listener = listener

    def _notify(self) -> None:
        if self._listener is not None:
            self._listener()

    # ---- acknowledgements out

    def ack(self, done: "Message | pa.RecordBatch | pa.Table | int") -> None:
        """Acknowledge a message, all messages of a batch, or the one at an offset. Does not wait."""
        if self._is_closing:
            raise _closed("acknowledge")
        if type(done) is Message:
            self._acks.ack(done.offset)
        elif isinstance(done, pa.RecordBatch | pa.Table):
            self._acks.ack_ranges(offset_ranges(_offsets_of(done)))
        else:
            self._acks.ack(_offset(done))

    def ack_cumulative(self, last: Message | int) -> None:
        """Acknowledge this message and all before it. For exclusive and failover subscriptions."""
        if self._is_closing:
            raise _closed("acknowledge")
        if not self.type.acks_cumulatively:
            raise InvalidRequestError(
                f"consumers of a {self.type} subscription acknowledge each message", operation="acknowledge"
            )
        self._acks.ack_cumulative(_offset(last))

    def nack(self, failed: "Message | pa.RecordBatch | pa.Table | int", delay: float | None = None) -> None:
        """Have it delivered again after `delay` seconds (default: the subscription's): it could not be processed."""
        if self._is_closing:
            raise _closed("nack")
        if delay is not None and delay < 0:
            raise InvalidRequestError(f"a delay is 0 or more, not {delay}", operation="nack")
        if isinstance(failed, pa.RecordBatch | pa.Table):
            ranges = offset_ranges(_offsets_of(failed))
        else:
            ranges = [(_offset(failed), _offset(failed) + 1)]
        self._acks.nack(ranges, None if delay is None else round(delay * 1000))

    def flush(self, timeout: float = _FLUSH_S) -> None:
        """Wait until the broker has stored every acknowledgement given so far: those messages never come again."""
        deadline = time.monotonic() + timeout
        with self._sending:
            with self._lock:
                stream = self._stream if self._is_subscribed else None
                self._flushes += 1
                number = self._flushes
            if self._is_closed or stream is None or not self._send_collected(stream, {"flush": number}):
                raise self._not_flushed()
        with self._lock:
            is_decided = self._changed.wait_for(
                lambda: self._flushed >= number or self._stream is not stream, deadline - time.monotonic()
            )
            if self._flushed >= number:
                if self._flush_error is not None:
                    raise self._flush_error
                return
        raise self._not_flushed() if is_decided else DeadlineError(f"not flushed within {timeout} s", operation="flush")

    def _not_flushed(self) -> IcestreamError:
        if self._is_closed:
            return _closed("flush")
        return UnavailableError(
            "the connection to the broker is broken",
            operation="flush",
            remedy="what was acknowledged last may be delivered again",
        )

    def _send_loop(self) -> None:
        """Send what was collected, or at least a ping, until closed."""
        while not self._is_closed:
            self._acks.wait(self._ping_interval_s())
            with self._sending:
                stream = self._stream if self._is_subscribed else None
                if stream is not None:
                    self._send_collected(stream, {})

    def _ping_interval_s(self) -> float:
        accepted = self._accepted
        if accepted is None or not self._is_subscribed:
            return _IDLE_S
        return accepted.session_timeout_ms / 1000 / _PINGS_PER_TIMEOUT

    def _send_collected(self, stream: DoExchangeStream, last: dict[str, Any]) -> bool:
        """Send what was collected, and `last` behind it; False if the stream is broken."""
        collected = self._acks.take()
        to_send = collected.messages()
        with self._lock:
            if stream is self._stream and self._grant_is_due:  # credit belongs to a stream
                to_send.append({"grant": (self._used_messages, self._used_bytes)})
                self._used_messages = self._used_bytes = 0
                self._grant_is_due = False
            self._has_unconfirmed = not last and (self._has_unconfirmed or not collected.is_empty)
        if last:
            to_send.append(last)
        is_sent = all(stream.send(message) for message in _joined(to_send or [{"ping": 1}]))
        if not is_sent:
            self._acks.put_back(collected)
        return is_sent

    # ---- the reading thread

    def _read_loop(self) -> None:
        """Connect and read, again after each temporary error, until closed."""
        backoff = Backoff()
        error: IcestreamError | None = None
        while not self._is_closed:
            started = time.monotonic()
            try:
                self._read(DoExchangeStream(self._connection, self._request | {"create": self._may_create}))
            except IcestreamError as failure:
                error = failure
            except Exception as failure:  # noqa: BLE001 - the threads that wait for messages get it
                error = IcestreamError(f"the consumer failed: {failure!r}", operation=_OPERATION)
            self._drop_stream()
            if self._accepted is None or not (error is None or is_temporary(error)):
                break
            self.interruption = error
            if time.monotonic() - started > _END_S:
                backoff.reset()
            with self._lock:
                self._changed.wait_for(lambda: self._is_closed, backoff.next())
        with self._lock:
            self._is_finished = True
            self._error = error
            self._changed.notify_all()
        self._notify()

    @property
    def _may_create(self) -> bool:
        """Not the second time: a subscription that is gone was deleted, and would begin elsewhere."""
        return self._accepted is None and bool(self._request.get("create", True))

    def _read(self, stream: DoExchangeStream) -> None:
        """Take in what comes until the stream ends, which raises."""
        with self._lock:
            self._stream = stream
        if self._is_closed:
            stream.cancel()
        for batch, fields in stream.read():
            if batch is not None:
                self._deliver(batch)
            elif "flushed" in fields:
                self._flush_done(fields["flushed"], fields.get("failure"))
            elif "subscribed" in fields:
                self._subscribed(msgspec.convert(fields["subscribed"], Subscribed))

    def _subscribed(self, accepted: Subscribed) -> None:
        with self._lock:
            self._accepted = accepted
            self._is_subscribed = True
            self.interruption = None
            self._changed.notify_all()
        self._acks.wake(urgent=False)

    def _deliver(self, batch: pa.RecordBatch) -> None:
        with self._lock:
            if not self._is_closed and batch.num_rows:
                self._delivered.append(batch)
                self._changed.notify()
        self._notify()

    def _flush_done(self, number: int, failure: dict[str, Any] | None) -> None:
        """The broker has done this flush, and all before it."""
        with self._lock:
            self._flushed = max(self._flushed, number)
            self._flush_error = None if failure is None else error_from_dict(failure)
            self._changed.notify_all()

    def _drop_stream(self) -> None:
        """Forget the stream and what came by it: the broker delivers that again."""
        with self._lock:
            self._stream = None
            self._is_subscribed = False
            self._delivered.clear()
            self._used_messages = self._used_bytes = 0  # a new stream begins with all credit
            self._grant_is_due = False
            self._changed.notify_all()
            if not self._is_closed:
                self._forget_rows()

    # ---- the end

    @property
    def ended(self) -> bool:
        """Whether no more messages will come."""
        return self._is_closed or (self._is_finished and not self._delivered)

    def close(self, timeout: float = 5.0) -> None:
        """Stop, from any thread; iterations end. Acknowledgements get up to `timeout` seconds to reach the broker.

        What was received and not acknowledged goes to other consumers at once, or to the next.
        """
        if self._is_closing:
            return
        self._is_closing = True
        self._forget_rows()
        if self._is_subscribed and (self._has_unconfirmed or not self._acks.is_empty):
            with contextlib.suppress(IcestreamError):
                self.flush(timeout)
        self._end()
        self._on_close(self)

    def _end(self) -> None:
        """End the stream and both threads; threads that wait for messages get None."""
        with self._lock:
            self._is_closing = self._is_closed = True
            stream = self._stream
            self._delivered.clear()
            self._changed.notify_all()
        self._forget_rows()
        self._notify()
        if stream is not None:
            stream.finish()
            self._join(self._reader, _END_S)
            stream.cancel()
        self._join(self._reader, _JOIN_TIMEOUT_S)
        self._acks.wake(urgent=True)
        self._join(self._sender, None)

    @staticmethod
    def _join(thread: threading.Thread, timeout: float | None) -> None:
        if thread is not threading.current_thread():
            thread.join(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _closed(operation: str) -> IcestreamError:
    return ClosedError("the subscription is closed", operation=operation)


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def _offsets_of(data: Any) -> pa.Array:
    """Return the offsets of a delivered batch or table, or of what a filter left of it."""
    name = next((name for name in _OFFSET_COLUMNS if name in data.schema.names), None)
    if name is None:
        raise InvalidRequestError(
            "the batch has no column of offsets", operation="acknowledge", remedy="keep the column offset"
        )
    column = data.column(name)
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _offset(message: Any) -> int:
    offset = message.offset if isinstance(message, Message) else message
    if not isinstance(offset, int) or isinstance(offset, bool) or not 0 <= offset < MAX_OFFSET:
        raise InvalidRequestError(f"{message!r:.80} is not a message, batch or offset", operation="acknowledge")
    return offset
