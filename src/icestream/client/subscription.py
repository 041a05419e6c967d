"""A consumer of a subscription: messages or Arrow batches in, acknowledgements out.

What was not acknowledged is delivered again: to this consumer, to another one, or to the next. So every message is
processed at least once, whoever crashes; `redelivery_count` says how often it was delivered before.
"""

import contextlib
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, NamedTuple, Self

import pyarrow as pa
import pyarrow.flight as fl

from icestream.client.connection import Backoff, Connection
from icestream.client.consumer import check_messages, messages
from icestream.model.enums import SubscriptionType
from icestream.model.errors import (
    ClosedError,
    DeadlineError,
    IcestreamError,
    InvalidRequestError,
    UnavailableError,
    error_from_dict,
)
from icestream.model.messages import JOIN_BYTES, Message, offset_ranges
from icestream.model.offsets import Range, merge_ranges

# --------------------
# One DoExchange stream of a subscription: batches in; acknowledgements, credit and signs of life out.
#
# The broker cannot break off a stream that it reads from, so it announces the end: `{"error": …}`. The stream is then
# ended from this side, and the broker ends the call with that error.


_OPERATION = "subscribe"


class Received(NamedTuple):
    """A batch and what it costs of the credit, or a message of the broker's."""

    batch: pa.RecordBatch | None
    fields: dict[str, Any]


class SubscriptionStream:
    """Any thread may send; one thread reads."""

    def __init__(self, connection: Connection, request: dict[str, Any]) -> None:
        self._connection = connection
        self._write_lock = threading.Lock()
        self._writer, self._reader = connection.exchange(_OPERATION)
        self.send(request)

    def send(self, fields: dict[str, Any]) -> bool:
        """Whether it went out. A broken stream is told to the reading thread, with the reason."""
        with self._write_lock:
            try:
                self._writer.write_metadata(json.dumps(fields).encode())
            except (fl.FlightError, pa.ArrowException):
                return False
            return True

    def read(self) -> Iterator[Received]:
        """What the broker sends; raises what ended the stream, always."""
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
                    yield Received(chunk.data, fields)
        except StopIteration:
            pass
        except (fl.FlightError, pa.ArrowException) as error:
            failure = error
        except ValueError as error:  # not the protocol: the broker does not know that it is over
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
        """Say that no more comes; the broker then ends the stream."""
        with self._write_lock, contextlib.suppress(fl.FlightError, pa.ArrowException):
            self._writer.done_writing()  # broken already? The reading thread sees it too

    def cancel(self) -> None:
        """End the reading thread's wait."""
        self._reader.cancel()

    def _close(self) -> Exception | None:
        """Let the stream go; the reason for its end, if it was broken."""
        failure: Exception | None = None
        with self._write_lock:
            try:
                self._writer.close()
            except (fl.FlightError, pa.ArrowException) as error:
                failure = error
        return failure


# --------------------
# The offsets of a batch that the caller may have filtered.


_COLUMNS = ("offset", "_offset")


def offsets_of(data: Any) -> pa.Array:
    """The offsets of a delivered batch or table, or of what is left of it after a filter."""
    name = next((name for name in _COLUMNS if name in data.schema.names), None)
    if name is None:
        raise InvalidRequestError(
            "the batch has no column of offsets", operation="acknowledge", remedy="keep the column offset"
        )
    column = data.column(name)
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


# --------------------
# What a consumer sends to the broker: acknowledgements, refusals, credit, signs of life.
#
# They are collected for a few milliseconds and sent together by a thread of their own, as ranges of offsets. Taking
# note
# of a single acknowledged message costs an append to a deque: no lock, and no message on the wire. What could not
# be sent
# when the connection broke is sent on the next one. That is harmless: the broker ignores what it did not deliver there.


LINGER_S = 0.02
MAX_COLLECTED = 1_000
"""Acknowledgements of single messages that go at once."""
_MAX_RANGES = 10_000
"""In one message to the broker."""
_IDLE_S = 10.0


class Acks:
    def __init__(self) -> None:
        self._offsets: deque[int] = deque()
        self._ranges: deque[tuple[int, int]] = deque()
        self._refused: deque[tuple[int | None, list[Range]]] = deque()
        self._cumulative = -1
        self._granted = (0, 0)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._sending = threading.Lock()
        self._pending = threading.Event()
        self._urgent = threading.Event()
        self._stream: SubscriptionStream | None = None
        self._ping_s = _IDLE_S
        self._sent_acks = False
        self._flushes = 0
        self._flushed = 0
        self._failure: IcestreamError | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="icestream-acks", daemon=True)
        self._thread.start()

    # ---- what the application says

    def ack(self, offset: int) -> None:
        self._offsets.append(offset)
        if not self._pending.is_set():
            self._pending.set()
        elif len(self._offsets) >= MAX_COLLECTED and not self._urgent.is_set():
            self._urgent.set()

    def ack_ranges(self, ranges: list[Range]) -> None:
        self._ranges.extend(ranges)
        self._pending.set()

    def ack_cumulative(self, offset: int) -> None:
        with self._lock:
            self._cumulative = max(self._cumulative, offset)
        self._pending.set()

    def nack(self, ranges: list[Range], delay_ms: int | None) -> None:
        self._refused.append((delay_ms, ranges))
        self._pending.set()

    def grant(self, messages: int, nbytes: int, *, urgent: bool) -> None:
        """Give back credit."""
        with self._lock:
            self._granted = (self._granted[0] + messages, self._granted[1] + nbytes)
        self._pending.set()
        if urgent:
            self._urgent.set()

    def flush(self, timeout: float) -> None:
        """Send all that was said so far, and wait until the broker has applied and stored it."""
        deadline = time.monotonic() + timeout
        with self._sending:
            with self._lock:
                stream = self._stream
                self._flushes += 1
                number = self._flushes
            if self._closed or stream is None or not self._send_collected(stream, {"flush": number}):
                raise self._not_flushed()
        with self._lock:
            done = self._changed.wait_for(
                lambda: self._flushed >= number or self._stream is not stream, deadline - time.monotonic()
            )
            if self._flushed >= number:
                if self._failure is not None:
                    raise self._failure
                return
        raise self._not_flushed() if done else DeadlineError(f"not flushed within {timeout} s", operation="flush")

    def _not_flushed(self) -> IcestreamError:
        if self._closed:
            return ClosedError("the subscription is closed", operation="flush")
        return UnavailableError(
            "the connection to the broker is broken",
            operation="flush",
            remedy="what was acknowledged last may be delivered again",
        )

    @property
    def unconfirmed(self) -> bool:
        """Whether acknowledgements were given that no flush has confirmed."""
        return bool(self._sent_acks or self._offsets or self._ranges or self._refused or self._cumulative >= 0)

    # ---- the connection

    def attach(self, stream: SubscriptionStream, ping_s: float) -> None:
        with self._lock:
            self._stream = stream
            self._granted = (0, 0)  # a new stream begins with all of it
            self._ping_s = ping_s
        self._pending.set()

    def detach(self) -> None:
        with self._lock:
            self._stream = None
            self._ping_s = _IDLE_S
            self._changed.notify_all()

    def flushed(self, number: int, failure: dict[str, Any] | None = None) -> None:
        """The broker's answer to a flush, and to all before it."""
        with self._lock:
            self._flushed = max(self._flushed, number)
            self._failure = None if failure is None else error_from_dict(failure)
            self._changed.notify_all()

    def close(self) -> None:
        self._closed = True
        self._pending.set()
        self._urgent.set()
        self._thread.join()

    # ---- the sending thread

    def _run(self) -> None:
        while not self._closed:
            if self._pending.wait(self._ping_s):
                self._urgent.wait(LINGER_S)
            # Cleared before looking, so that what is said after the look is not missed.
            self._urgent.clear()
            self._pending.clear()
            with self._sending:
                stream = self._stream
                if stream is not None:
                    self._send_collected(stream, {})

    def _send_collected(self, stream: SubscriptionStream, last: dict[str, Any]) -> bool:
        """Send what was collected, or at least a sign of life, and `last` behind it."""
        acks = self._take_acks()
        refused = [self._refused.popleft() for _ in range(len(self._refused))]
        with self._lock:
            cumulative, self._cumulative = self._cumulative, -1
            granted = (0, 0)
            if stream is self._stream:  # credit is a stream's own
                granted, self._granted = self._granted, granted
            self._sent_acks = not last and bool(self._sent_acks or acks or refused or cumulative >= 0)
        messages: list[dict[str, Any]] = [
            {"ack": acks[start : start + _MAX_RANGES]} for start in range(0, len(acks), _MAX_RANGES)
        ]
        if cumulative >= 0:
            messages.append({"ack_cumulative": cumulative})
        for delay_ms, ranges in refused:
            messages.append({"nack": ranges} if delay_ms is None else {"nack": ranges, "delay_ms": delay_ms})
        if granted != (0, 0):
            messages.append({"grant": granted})
        if last:
            messages.append(last)
        sent = all(stream.send(message) for message in _joined(messages or [{"ping": 1}]))
        if not sent:
            self._ranges.extend(acks)
            self._refused.extend(refused)
            with self._lock:
                self._cumulative = max(self._cumulative, cumulative)
        return sent

    def _take_acks(self) -> list[Range]:
        offsets = [self._offsets.popleft() for _ in range(len(self._offsets))]
        ranges = [self._ranges.popleft() for _ in range(len(self._ranges))]
        if offsets:
            ranges += offset_ranges(pa.array(offsets, pa.int64()))
        return merge_ranges(ranges)


def _joined(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Neighbours that say different things go as one message."""
    joined: list[dict[str, Any]] = []
    for message in messages:
        if joined and not joined[-1].keys() & message.keys():
            joined[-1] = joined[-1] | message
        else:
            joined.append(message)
    return joined


# --------------------
# A subscription's batches as they come, read by a thread of their own.
#
# The broker sends no more than it was given credit for, so what waits here is bounded by `receiver_queue` messages and
# `max_bytes`; credit goes back as the application takes batches. When the connection breaks, the thread connects again,
# as long as it takes. What waited is then forgotten: the broker delivers it again, here or to another consumer.


_END_S = 1.0
_JOIN_TIMEOUT_S = 2.0
_PINGS_PER_TIMEOUT = 3


class SubscriptionFeed:
    def __init__(self, connection: Connection, request: dict[str, Any], acks: Acks) -> None:
        self._connection = connection
        self._request = request
        self._acks = acks
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting: deque[pa.RecordBatch] = deque()
        self._taken_messages = 0
        self._taken_bytes = 0
        self._stream: SubscriptionStream | None = None
        self._finished = False
        self._error: IcestreamError | None = None
        self._closed = False
        self._listener: Callable[[], None] | None = None
        self.interruption: IcestreamError | None = None
        """Why nothing comes at the moment, while the broker is away and is looked for."""
        self.subscribed: dict[str, Any] | None = None
        """What the broker said when it accepted this consumer; None before."""
        self.on_break: Callable[[], None] = lambda: None
        """Called when deliveries were forgotten, because they come again."""
        self._thread = threading.Thread(target=self._run, name="icestream-subscription", daemon=True)
        self._thread.start()

    # ---- the caller's side

    def wait_subscribed(self, timeout: float) -> dict[str, Any]:
        """Wait until the broker has accepted this consumer; raises why it did not."""
        with self._lock:
            self._changed.wait_for(lambda: self.subscribed or self._finished, timeout)
            if self.subscribed is not None:
                return self.subscribed
            raise self._error or DeadlineError(
                f"no answer from the broker at {self._connection.url} within {timeout} s", operation="subscribe"
            )

    def get(
        self,
        timeout: float | None = None,
        *,
        max_messages: int | None = None,
        check: Callable[[pa.RecordBatch], None] | None = None,
    ) -> pa.RecordBatch | None:
        """The next batch; None after `timeout` seconds or when closed. Raises what ended the subscription.

        A batch for which `check` raises stays.
        """
        with self._lock:
            if not self._waiting:
                self._changed.wait_for(lambda: self._waiting or self._finished or self._closed, timeout)
            if self._waiting and check is not None:
                check(self._waiting[0])
            return self._take(max_messages)

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener`, from the reading thread, whenever `poll` may have something new."""
        self._listener = listener

    @property
    def ended(self) -> bool:
        return self._closed or (self._finished and not self._waiting)

    @property
    def _may_create(self) -> bool:
        """Not the second time: a subscription that is gone was deleted, and would begin elsewhere."""
        return self.subscribed is None and bool(self._request.get("create", True))

    @property
    def connected(self) -> bool:
        return self._stream is not None

    def _take(self, max_messages: int | None) -> pa.RecordBatch | None:
        """The next batch, joined with those behind it while they are small."""
        if self._closed:
            return None
        if not self._waiting:
            if self._error is not None:
                raise self._error
            return None
        batches: list[pa.RecordBatch] = []
        messages = nbytes = 0
        while self._waiting and nbytes < JOIN_BYTES and (max_messages is None or messages < max_messages):
            batch = self._waiting.popleft()
            if max_messages is not None and messages + batch.num_rows > max_messages:
                self._waiting.appendleft(batch.slice(max_messages - messages))
                batch = batch.slice(0, max_messages - messages)
            batches.append(batch)
            messages += batch.num_rows
            nbytes += batch.nbytes
        self._give_back(messages, nbytes)
        return batches[0] if len(batches) == 1 else pa.concat_batches(batches)

    def _give_back(self, messages: int, nbytes: int) -> None:
        """Return credit: when half of it was used, and when there is nothing else to do."""
        self._taken_messages += messages
        self._taken_bytes += nbytes
        much = (
            2 * self._taken_messages >= self._request["max_messages"]
            or 2 * self._taken_bytes >= self._request["max_bytes"]
        )
        if much or not self._waiting:
            self._acks.grant(self._taken_messages, self._taken_bytes, urgent=much)
            self._taken_messages = self._taken_bytes = 0

    def close(self) -> None:
        """End the stream, from any thread; who waits in `get` gets None."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            stream = self._stream
            self._waiting.clear()
            self._changed.notify_all()
        self._notify()
        if stream is not None:
            stream.finish()
            self._join(_END_S)
            stream.cancel()
        self._join(_JOIN_TIMEOUT_S)

    def _join(self, timeout: float) -> None:
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)

    # ---- the reading thread

    def _run(self) -> None:
        backoff = Backoff()
        error: IcestreamError | None = None
        while not self._closed:
            started = time.monotonic()
            try:
                self._read(SubscriptionStream(self._connection, self._request | {"create": self._may_create}))
            except IcestreamError as failure:
                error = failure
            except Exception as failure:  # noqa: BLE001 - who waits for messages is to hear of it
                error = IcestreamError(f"the consumer failed: {failure!r}", operation="subscribe")
            if self._detach():
                self.on_break()
            if self.subscribed is None or not _passes(error):
                break
            self.interruption = error
            if time.monotonic() - started > _END_S:
                backoff.reset()
            with self._lock:
                self._changed.wait_for(lambda: self._closed, backoff.next())
        with self._lock:
            self._finished = True
            self._error = error
            self._changed.notify_all()
        self._notify()

    def _read(self, stream: SubscriptionStream) -> None:
        """Take in what comes, until the stream ends, which raises."""
        with self._lock:
            self._stream = stream
        if self._closed:
            stream.cancel()
        for batch, fields in stream.read():
            if batch is not None:
                self._put(batch)
            elif "flushed" in fields:
                self._acks.flushed(fields["flushed"], fields.get("failure"))
            elif "subscribed" in fields:
                accepted = fields["subscribed"]
                self._acks.attach(stream, accepted["session_timeout_ms"] / 1000 / _PINGS_PER_TIMEOUT)
                with self._lock:
                    self.interruption = None
                    self.subscribed = accepted
                    self._changed.notify_all()

    def _put(self, batch: pa.RecordBatch) -> None:
        with self._lock:
            if not self._closed and batch.num_rows:
                self._waiting.append(batch)
                self._changed.notify()
        self._notify()

    def _detach(self) -> bool:
        """Forget the stream and what came by it."""
        self._acks.detach()
        with self._lock:
            self._stream = None
            self._waiting.clear()
            self._taken_messages = self._taken_bytes = 0
            return not self._closed

    def _notify(self) -> None:
        if self._listener is not None:
            self._listener()


def _passes(error: IcestreamError | None) -> bool:
    """Whether a broker that comes back would heal it. A broker that is stopping says that it is closed."""
    return error is None or error.retryable or isinstance(error, UnavailableError | ClosedError)


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
            self._acks.ack_ranges(offset_ranges(offsets_of(done)))
        else:
            self._acks.ack(_offset(done))

    def ack_cumulative(self, last: Message | int) -> None:
        """This message and all before it are processed. For exclusive and failover subscriptions."""
        if self._closed:
            raise self._is_closed("acknowledge")
        if not SubscriptionType(self.type).acks_cumulatively:
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
        ranges: list[Range]
        if isinstance(failed, pa.RecordBatch | pa.Table):
            ranges = offset_ranges(offsets_of(failed))
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
