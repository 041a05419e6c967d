"""Reading a topic: an iterator of messages, or of Arrow batches."""

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self, TypeAlias

import pyarrow as pa
import pyarrow.flight as fl

from icestream.client.socket import SocketReader
from icestream.client.transport import Connection
from icestream.model.clock import Backoff
from icestream.model.errors import DamagedError, IcestreamError, InvalidRequestError, UnavailableError, is_temporary
from icestream.model.messages import (
    MESSAGE_SCHEMA,
    MESSAGES_SCHEMA_ID,
    STREAM_SCHEMA,
    Encoding,
    Frame,
    Message,
    end_offset,
    first_offset,
    messages_of,
    messages_of_frames,
    slice_from,
    stream_batches,
)
from icestream.model.offsets import StartPosition

PREFETCH_BYTES = 16 * 1024 * 1024
_JOIN_TIMEOUT_S = 2.0
_log = logging.getLogger(__name__)

_MESSAGE_COLUMNS = (STREAM_SCHEMA.names, [*STREAM_SCHEMA.names, "redelivery_count"])
"""What a consumer gets, and what a subscription gets."""


_SCHEMAS = {MESSAGES_SCHEMA_ID: MESSAGE_SCHEMA}

Delivery: TypeAlias = pa.RecordBatch | list[Frame]
"""Messages as they came: decoded, or as the log stores them."""


def _nbytes(delivery: Delivery) -> int:
    return sum(frame.nbytes for frame in delivery) if isinstance(delivery, list) else delivery.nbytes


def check_messages(batch: pa.RecordBatch) -> None:
    """Raise unless the batch's rows are messages."""
    if batch.schema.names not in _MESSAGE_COLUMNS:
        raise InvalidRequestError(
            "the topic has its own schema, so its rows are no messages",
            operation="consume",
            remedy="take batches instead: .batches(), .receive_batch()",
        )


def messages(batch: pa.RecordBatch) -> Iterator[Message]:
    check_messages(batch)
    return messages_of(batch)


class Consumer:
    """Reads from its start to the end of the topic, or on and on when following. Iterate over it once.

    The caller's thread reads the broker's socket door by itself. Where there is none, or the broker selects messages, a
    thread of its own reads from Flight, at most `PREFETCH_BYTES` or one batch ahead: a call into Flight can be neither
    timed nor interrupted. When following, the consumer survives the loss of the broker: it reads on at the offset after
    the last one it got.
    """

    def __init__(
        self,
        connection: Connection,
        topic: str,
        start: StartPosition,
        *,
        end: int | None,
        follow: bool,
        max_messages: int | None,
        where: str | None = None,
        committed: bool = False,
    ) -> None:
        self._connection = connection
        self._topic = topic
        self._start = start
        self._end = end
        self._follow = follow
        self._where = where
        self._committed = committed
        self._remaining = max_messages
        self._next_offset = start.value if start.kind == "offset" else None
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._delivered: deque[Delivery] = deque()
        self._held_bytes = 0
        self._is_finished = False
        self._error: IcestreamError | None = None
        self._is_closed = False
        self._reader: Any = None
        self._is_accepted = False
        self._listener: Callable[[], None] | None = None
        self._rows: Iterator[Message] = iter(())
        self.interruption: IcestreamError | None = None
        """When following: why the broker cannot be read from at the moment; None while it can."""
        self._backoff = Backoff()
        self._socket: SocketReader | None = None
        self._connect_at = 0.0
        self._reading = threading.Lock()
        """One thread at a time reads the socket."""
        self._thread: threading.Thread | None = None
        if where is not None or committed:
            self._start_thread(self._run)

    def _start_thread(self, run: Callable[[], None]) -> None:
        thread = threading.Thread(target=run, name="icestream-consumer", daemon=True)
        thread.start()
        self._thread = thread

    # ---- the caller's side

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield Arrow batches in offset order. What was iterated as messages before is not given again."""
        while (batch := self.poll()) is not None:
            yield batch

    def poll(self, timeout: float | None = None) -> pa.RecordBatch | None:
        """Return the next batch; None when none came within `timeout` seconds or the stream has ended (see `ended`).

        Raises what ended the stream.
        """
        return self._as_batch(self._next(timeout))

    def _next(self, timeout: float | None) -> "Delivery | None":
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._thread is None:
            with self._lock:
                if self._delivered or self._is_finished or self._is_closed:
                    return self._take()
            left = None if deadline is None else deadline - time.monotonic()
            if (left is not None and left < 0 and timeout) or not self._read_socket(left):
                return None
        with self._lock:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            self._changed.wait_for(lambda: self._delivered or self._is_finished or self._is_closed, left)
            return self._take()

    def _as_batch(self, delivery: "Delivery | None") -> pa.RecordBatch | None:
        """Return what was delivered as Arrow. Frames that make several batches stay, but for the first."""
        if not isinstance(delivery, list):
            return delivery
        first, *others = stream_batches(delivery, _SCHEMAS)
        with self._lock:
            self._delivered.extendleft(reversed(others))
            self._held_bytes += sum(batch.nbytes for batch in others)
        return first

    def poll_now(self) -> tuple[pa.RecordBatch | None, bool]:
        """Return a batch if one is there, and whether the stream has ended; never waits. Only after `listen`."""
        with self._lock:
            delivery = self._take()
            has_ended = delivery is None and (self._is_finished or self._is_closed)
        return self._as_batch(delivery), has_ended

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener`, from a thread that reads ahead, whenever `poll_now` may have something new."""
        self._listener = listener
        if self._thread is None:
            self._start_thread(self._read_socket_ahead)

    def _take(self) -> "Delivery | None":
        if self._delivered and not self._is_closed:
            delivery = self._delivered.popleft()
            self._held_bytes -= _nbytes(delivery)
            self._changed.notify_all()
            return delivery
        if self._error is not None and not self._is_closed:
            raise self._error
        return None

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        while True:
            message = next(self._rows, None)
            if message is not None:
                return message
            delivery = self._next(None)
            if delivery is None:
                raise StopIteration
            self._rows = messages_of_frames(delivery) if isinstance(delivery, list) else messages(delivery)

    @property
    def ended(self) -> bool:
        """Whether no more messages will come."""
        with self._lock:
            return self._is_closed or (self._is_finished and not self._delivered)

    def close(self) -> None:
        """Stop reading, from any thread. An iteration that waits for the next message ends."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            reader, socket = self._reader, self._socket
            self._delivered.clear()
            self._changed.notify_all()
        if reader is not None:
            reader.cancel()
        if socket is not None:
            socket.end()
        self._notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_TIMEOUT_S)
        if self._reading.acquire(timeout=_JOIN_TIMEOUT_S):
            self._drop_socket()
            self._reading.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # ---- reading the socket

    def _read_socket(self, timeout: float | None) -> bool:
        """Take in what comes next, or note why nothing comes; False if that takes more than `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        if not self._reading.acquire(timeout=-1 if timeout is None else max(0.0, timeout)):
            return False
        try:
            if self._is_finished or self._is_closed or (self._delivered and self._thread is None):
                return True  # another thread has read meanwhile
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if self._socket is None and not self._open_socket(left):
                return self._thread is not None
            assert self._socket is not None
            self._receive(self._socket.next(left))
        except TimeoutError:
            return False
        except OSError as error:
            self._connection.renew_channel()  # Flight's connection to that broker is likely to be broken too
            self._interrupt(UnavailableError(f"the connection broke: {error}", operation="read"))
        except IcestreamError as error:
            self._interrupt(error)
        except BaseException:
            self._drop_socket()  # an interrupt may have come within a message
            raise
        finally:
            self._reading.release()
        return True

    def _open_socket(self, timeout: float | None) -> bool:
        """Connect, after a pause if a connection broke; False if that takes too long, or if Flight has to do it."""
        pause = self._connect_at - time.monotonic()
        if pause > 0:
            with self._lock:
                self._changed.wait_for(lambda: self._is_closed, pause if timeout is None else min(pause, timeout))
            if self._is_closed or (timeout is not None and timeout < pause):
                return False
        peer = self._connection.open_socket("read")
        reader = None if peer is None else SocketReader(peer, self._ticket())
        if reader is None or not reader.is_served:
            if reader is not None:
                reader.close()
            self._start_thread(self._run)
            return False
        with self._lock:
            self._socket = reader
        if self._is_closed:
            reader.end()
        self._is_accepted = True
        self.interruption = None
        if self._next_offset is None:
            self._next_offset = reader.offset
        return True

    def _receive(self, delivery: "Delivery | dict[str, int] | None") -> None:
        if delivery is None:
            self._drop_socket()
            self._finish(None)
            return
        if isinstance(delivery, dict):
            self._pass_over_lost(delivery.get("lost", 0), delivery.get("removed", 0))
            return
        self._backoff.reset()
        for part in self._checked(delivery):
            with self._lock:
                if not self._is_closed:
                    self._delivered.append(part)
                    self._held_bytes += _nbytes(part)
        if self._is_complete():
            self._drop_socket()
            self._finish(None)

    def _checked(self, delivery: "Delivery") -> "Iterator[Delivery]":
        """Yield what follows on the messages before, and what the limits leave of it."""
        if not isinstance(delivery, list):
            batch = self._within_end(self._following(delivery))
            if batch.num_rows:
                yield batch
            return
        first, end, expected = delivery[0].base_offset, delivery[-1].end_offset, self._next_offset
        assert expected is not None
        if first > expected:
            raise DamagedError(
                f"the broker sent offset {first} after {expected - 1}", operation="read", place=self._topic
            )
        is_whole = (
            first == expected
            and (self._end is None or end <= self._end)
            and (self._remaining is None or end - first <= self._remaining)
            and all(frame.encoding != Encoding.LOST for frame in delivery)
        )
        if is_whole:
            self._next_offset = end
            if self._remaining is not None:
                self._remaining -= end - first
            yield delivery
            return
        for batch in stream_batches(delivery, _SCHEMAS):
            self._pass_over_lost(max(0, first_offset(batch) - self._reached))
            part = self._within_end(self._following(batch))
            if part.num_rows:
                yield part
        if self._remaining is None or self._remaining > 0:
            self._pass_over_lost(max(0, (end if self._end is None else min(end, self._end)) - self._reached))

    @property
    def _reached(self) -> int:
        offset: int | None = self._next_offset
        assert offset is not None
        return offset

    def _within_end(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch if self._end is None else slice_from(batch, 0, self._end)

    def _interrupt(self, error: IcestreamError) -> None:
        """Connect again later if that may help, else end."""
        self._drop_socket()
        if not self._follow or self._is_complete() or not (self._is_accepted and is_temporary(error)):
            self._finish(error)
            return
        self.interruption = error
        self._connect_at = time.monotonic() + self._backoff.next()

    def _drop_socket(self) -> None:
        with self._lock:
            socket, self._socket = self._socket, None
        if socket is not None:
            socket.close()

    def _read_socket_ahead(self) -> None:
        """Read for listeners, which cannot wait. Ends when Flight takes over."""
        me = threading.current_thread()
        while not (self._is_finished or self._is_closed):
            with self._lock:
                self._changed.wait_for(lambda: self._is_closed or self._held_bytes <= PREFETCH_BYTES)
            try:
                self._read_socket(None)
            except Exception as error:  # noqa: BLE001 - whoever listens gets it
                self._finish(IcestreamError(f"the consumer failed: {error!r}", operation="read"))
            self._notify()
            if self._thread is not me and self._thread is not None:
                return

    def _finish(self, error: IcestreamError | None) -> None:
        with self._lock:
            self._is_finished = True
            self._error = error
            self._changed.notify_all()
        self._notify()

    # ---- the reading thread

    def _run(self) -> None:
        error: IcestreamError | None = None
        while not self._is_closed:
            try:
                for batch in self._read():
                    self._backoff.reset()
                    self._put(batch)
                error = None
            except IcestreamError as failure:
                error = failure
            except Exception as failure:  # noqa: BLE001 - the thread that polls gets it
                error = IcestreamError(f"the consumer failed: {failure!r}", operation="read", place=self._topic)
            if not self._follow or self._is_complete():
                break
            if error is not None and not (self._is_accepted and is_temporary(error)):
                break
            self.interruption = error
            with self._lock:
                self._changed.wait_for(lambda: self._is_closed, self._backoff.next())
        self._finish(error)

    def _is_complete(self) -> bool:
        if self._remaining is not None and self._remaining <= 0:
            return True
        return self._end is not None and self._next_offset is not None and self._next_offset >= self._end

    def _read(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches of one call, each checked to follow on the last."""
        reader = self._connection.get(self._ticket())
        with self._lock:
            self._reader = reader
        if self._is_closed:
            reader.cancel()
            return
        try:
            _ = reader.schema  # comes before any message: so the broker has accepted the call
            self._is_accepted = True
            self.interruption = None
            while True:
                try:
                    chunk = reader.read_chunk()
                except StopIteration:
                    return
                batch = self._received(chunk.data, chunk.app_metadata)
                if batch.num_rows:
                    yield batch
        except (fl.FlightError, pa.ArrowException) as error:
            raise self._connection.typed(error, "read") from error
        except Exception:  # what came is not the protocol: the broker does not know that the read is over
            reader.cancel()
            raise

    def _ticket(self) -> dict[str, Any]:
        start = self._start.to_json() if self._next_offset is None else self._next_offset
        ticket = {
            "topic": self._topic,
            "start": start,
            "end": self._end,
            "max_messages": self._remaining,
            "filter": self._where,
        }
        if self._follow:
            ticket["follow"] = True
        if self._committed:
            ticket["committed"] = True
        return {key: value for key, value in ticket.items() if value is not None}

    def _received(self, batch: pa.RecordBatch, metadata: pa.Buffer | None) -> pa.RecordBatch:
        fields = json.loads(metadata.to_pybytes()) if metadata is not None else {}
        if "next_offset" in fields:  # filtered: messages are missing on purpose
            self._next_offset = int(fields["next_offset"])
            return self._counted(batch)
        self._pass_over_lost(int(fields.get("lost", 0)), int(fields.get("removed", 0)))
        return self._following(batch)

    def _pass_over_lost(self, lost: int, removed: int = 0) -> None:
        """Log the messages that are missing for good, and read on behind them.

        A repair of the log gave them up, or another engine deleted their rows, which is no loss.
        """
        if lost and self._next_offset is not None:
            first, end = self._next_offset, self._next_offset + lost
            if removed:
                _log.info(
                    "removed_messages_skipped topic=%s first_offset=%d end_offset=%d removed=%d",
                    *(self._topic, first, end, removed),
                )
            if removed < lost:
                _log.warning("lost_messages_skipped topic=%s first_offset=%d end_offset=%d", self._topic, first, end)
            self._next_offset = end

    def _following(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.num_rows == 0:
            return batch
        first = first_offset(batch)
        if self._next_offset is not None and first < self._next_offset:
            batch = slice_from(batch, self._next_offset)
        elif self._next_offset is not None and first > self._next_offset:
            raise DamagedError(
                f"the broker sent offset {first} after {self._next_offset - 1}", operation="read", place=self._topic
            )
        if batch.num_rows:
            self._next_offset = end_offset(batch)
        return self._counted(batch)

    def _counted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._remaining is not None:
            batch = batch.slice(0, self._remaining)
            self._remaining -= batch.num_rows
        return batch

    def _put(self, batch: pa.RecordBatch) -> None:
        with self._lock:
            self._changed.wait_for(
                lambda: self._is_closed or not self._delivered or self._held_bytes + batch.nbytes <= PREFETCH_BYTES
            )
            if not self._is_closed:
                self._delivered.append(batch)
                self._held_bytes += batch.nbytes
                self._changed.notify_all()
        self._notify()

    def _notify(self) -> None:
        if self._listener is not None:
            self._listener()
