"""Reading a topic: an iterator of messages, or of Arrow batches."""

import json
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.flight as fl

from icestream.client.transport import Connection
from icestream.model.clock import Backoff
from icestream.model.errors import DamagedError, IcestreamError, InvalidRequestError, is_temporary
from icestream.model.messages import STREAM_SCHEMA, Message, end_offset, first_offset, messages_of, slice_from
from icestream.model.offsets import StartPosition

PREFETCH_BYTES = 16 * 1024 * 1024
_JOIN_TIMEOUT_S = 2.0
_log = logging.getLogger(__name__)

_MESSAGE_COLUMNS = (STREAM_SCHEMA.names, [*STREAM_SCHEMA.names, "redelivery_count"])
"""What a consumer gets, and what a subscription gets."""


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

    A thread of its own reads ahead, at most `PREFETCH_BYTES` or one batch: it gets the next batch while the caller
    works on the last, and a call into Flight can be neither timed nor interrupted. When following, it survives the loss
    of the broker: it reads on at the offset after the last one it got.
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
        self._batches: deque[pa.RecordBatch] = deque()
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
        self._thread = threading.Thread(target=self._run, name="icestream-consumer", daemon=True)
        self._thread.start()

    # ---- the caller's side

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield Arrow batches in offset order. What was iterated as messages before is not given again."""
        while (batch := self.poll()) is not None:
            yield batch

    def poll(self, timeout: float | None = None) -> pa.RecordBatch | None:
        """Return the next batch; None when none came within `timeout` seconds or the stream has ended (see `ended`).

        Raises what ended the stream.
        """
        with self._lock:
            self._changed.wait_for(lambda: self._batches or self._is_finished or self._is_closed, timeout)
            return self._take()

    def poll_now(self) -> tuple[pa.RecordBatch | None, bool]:
        """Return a batch if one is there, and whether the stream has ended; never waits."""
        with self._lock:
            batch = self._take()
            return batch, batch is None and (self._is_finished or self._is_closed)

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener`, from the reading thread, whenever `poll_now` may have something new."""
        self._listener = listener

    def _take(self) -> pa.RecordBatch | None:
        if self._batches and not self._is_closed:
            batch = self._batches.popleft()
            self._held_bytes -= batch.nbytes
            self._changed.notify_all()
            return batch
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
            batch = self.poll()
            if batch is None:
                raise StopIteration
            self._rows = messages(batch)

    @property
    def ended(self) -> bool:
        """Whether no more messages will come."""
        with self._lock:
            return self._is_closed or (self._is_finished and not self._batches)

    def close(self) -> None:
        """Stop reading, from any thread. An iteration that waits for the next message ends."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            reader = self._reader
            self._batches.clear()
            self._changed.notify_all()
        if reader is not None:
            reader.cancel()
        self._notify()
        if self._thread is not threading.current_thread():
            self._thread.join(_JOIN_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # ---- the reading thread

    def _run(self) -> None:
        error: IcestreamError | None = None
        backoff = Backoff()
        while not self._is_closed:
            try:
                for batch in self._read():
                    backoff.reset()
                    self._put(batch)
                error = None
            except IcestreamError as failure:
                error = failure
            if not self._follow or self._is_complete():
                break
            if error is not None and not (self._is_accepted and is_temporary(error)):
                break
            self.interruption = error
            with self._lock:
                self._changed.wait_for(lambda: self._is_closed, backoff.next())
        with self._lock:
            self._is_finished = True
            self._error = error
            self._changed.notify_all()
        self._notify()

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

    def _pass_over_lost(self, lost: int, removed: int) -> None:
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
                lambda: self._is_closed or not self._batches or self._held_bytes + batch.nbytes <= PREFETCH_BYTES
            )
            if not self._is_closed:
                self._batches.append(batch)
                self._held_bytes += batch.nbytes
                self._changed.notify_all()
        self._notify()

    def _notify(self) -> None:
        if self._listener is not None:
            self._listener()
