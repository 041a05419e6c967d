"""A subscription's position in its topic while it has consumers: what was read, and the state of each message.

`SubscriptionSource` is what a subscription needs of a topic. The storage implements it; tests use a list of batches.

The cursor reads a few batches ahead, within `max_buffer_bytes`. A message that comes again and is in none of them is
read again: nothing that was delivered is kept. A `ReadJob` reads without the subscription's lock and has its reader for
itself; everything else is done under the lock.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa

from icestream.model.errors import IcestreamError
from icestream.model.filters import Filter
from icestream.model.messages import OFFSET, PUBLISH_TIME, conform
from icestream.model.names import TopicName
from icestream.model.offsets import StartPosition
from icestream.subscription.modes import slots_of
from icestream.subscription.progress import MAX_OFFSET, Offsets, Progress, Ranges, clipped, expanded, merged
from icestream.subscription.window import Mask, Rows, Window

READ_BYTES = 1 << 20
_SKIP_MESSAGES = 10_000
_LOOK_AHEAD = 4_096
_MAX_TIMES = 512


class SourceReader(Protocol):
    """A position in a topic. For one thread at a time."""

    @property
    def offset(self) -> int:
        """The offset of the next message."""

    @property
    def schema(self) -> pa.Schema: ...

    def read(self, max_bytes: int, /) -> list[pa.RecordBatch]:
        """Return what follows in offset order, about `max_bytes`; nothing if `offset` is the durable end.

        Offsets between the old and the new position that are in no batch are not wanted: a repair gave them up, or the
        filter does not match.
        """

    def close(self) -> None: ...


class SubscriptionSource(Protocol):
    """A topic."""

    @property
    def name(self) -> TopicName: ...

    @property
    def stream_id(self) -> str: ...

    @property
    def stream_schema(self) -> pa.Schema:
        """The schema of the batches of a new reader."""

    @property
    def durable_end(self) -> int: ...

    @property
    def listeners(self) -> set[Callable[[], None]]:
        """Called, by any thread and briefly, when the durable end has moved or the topic is closed."""

    @property
    def mean_message_bytes(self) -> float: ...

    def start_offset_of(self, position: StartPosition, /) -> int: ...

    def time_at(self, offset: int, /) -> int | None:
        """Return when a message was published, in microseconds since 1970; None if there is none at the offset."""

    def in_memory(self, offset: int, /) -> bool:
        """Return whether a read at this offset needs neither disk nor network."""

    def reader(self, offset: int, /, *, where: Filter | None = None) -> SourceReader:
        """Return a reader of the messages that match, from an offset on."""

    def gone_error(self) -> IcestreamError | None:
        """Return why the topic cannot be read any more: it was deleted, or its storage is closing; None if it can."""


@dataclass(frozen=True)
class CursorLimits:
    max_unacknowledged_messages: int
    max_buffer_bytes: int

    @property
    def read_bytes(self) -> int:
        return min(READ_BYTES, self.max_buffer_bytes // 2)


class BufferedBatch:
    """A batch that was read, and its offsets."""

    __slots__ = ("batch", "low", "nbytes", "offsets")

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch
        self.offsets: Offsets = batch.column(OFFSET).to_numpy()
        self.nbytes: int = batch.nbytes
        self.low = int(self.offsets[0])
        """No offset below it is ready in this batch."""

    @property
    def end(self) -> int:
        return int(self.offsets[-1]) + 1

    def index_of(self, offset: int) -> int | None:
        row = int(np.searchsorted(self.offsets, offset))
        return row if row < len(self.offsets) and self.offsets[row] == offset else None


@dataclass
class ReadJob:
    """One read, owned by the thread that does it."""

    source: SubscriptionSource
    where: Filter | None
    offset: int
    reader: SourceReader | None
    advances: bool
    """Whether it reads on from the cursor's end; otherwise it reads messages again."""
    max_bytes: int
    batches: list[pa.RecordBatch] = field(default_factory=list)

    def run(self) -> None:
        if self.reader is None:
            self.reader = self.source.reader(self.offset, where=self.where)
        self.batches = [batch for batch in self.reader.read(self.max_bytes) if batch.num_rows]

    def close(self) -> None:
        if self.reader is not None:
            self.reader.close()


class Cursor:
    def __init__(
        self,
        source: SubscriptionSource,
        progress: Progress,
        *,
        where: Filter | None,
        by_key: bool,
        limits: CursorLimits,
    ) -> None:
        self.source = source
        self.window = Window(progress.floor)
        self._known = progress
        """For the offsets after the window: what is acknowledged, and what comes again."""
        self._where = where
        self._by_key = by_key
        self._limits = limits
        self._schema = source.stream_schema
        self._readers: dict[bool, SourceReader] = {}
        """The reader that reads on (True), and the one that reads again (False); absent while a job has it."""
        self._buffer: list[BufferedBatch] = []
        self._times: deque[tuple[int, int]] = deque()
        self._read_rows = 0
        self._read_bytes = 0
        self._has_restored = False
        """Messages were read that had been delivered before the cursor was made."""
        self._restored_due_ms: int | None = None
        """When the first of them is due, if they are delayed."""

    # Reading

    @property
    def limit(self) -> int:
        """Deliveries stay below it until something is acknowledged."""
        return self.window.floor + self._limits.max_unacknowledged_messages

    @property
    def can_read_on(self) -> bool:
        return self.window.end < self.limit and self.source.durable_end > self.window.end

    def use_schema(self, schema: pa.Schema) -> None:
        """Read with this schema of the topic from now on."""
        if not schema.equals(self._schema):
            self._schema = schema
            self._drop()

    def job(self, again_from: int | None) -> ReadJob:
        """Return a read of what follows, or of a message that is not buffered."""
        advances = again_from is None
        offset = self.window.end if again_from is None else again_from
        if advances:
            offset = self._skip(offset)
        reader = self._readers.pop(advances, None)
        if reader is not None and reader.offset != offset:
            reader.close()
            reader = None
        return ReadJob(self.source, self._where, offset, reader, advances, self._limits.read_bytes)

    def _skip(self, offset: int) -> int:
        """Skip a long range that is known to be acknowledged, without reading it."""
        ahead = clipped(self._known.acknowledged, offset, self.source.durable_end)
        if not len(ahead) or ahead[0, 0] > offset or ahead[0, 1] - offset < _SKIP_MESSAGES:
            return offset
        end = int(ahead[0, 1])
        if len(self.window):
            self.window.extend(min(end, max(self.limit, offset)))
            self.window.settle()
        else:
            self.window.jump(end)
        return self.window.end

    def finish(self, job: ReadJob) -> list[BufferedBatch]:
        """Take in what a job has read; return the batches in which something is ready."""
        assert job.reader is not None
        end = job.reader.offset
        if job.reader.schema.equals(self._schema):
            self._readers[job.advances] = job.reader
        else:
            job.close()
        if job.advances and (again := self._readers.pop(False, None)) is not None:
            again.close()
        found = [BufferedBatch(batch) for batch in job.batches]
        self._read_rows += sum(len(buffered.offsets) for buffered in found)
        self._read_bytes += sum(buffered.nbytes for buffered in found)
        if job.advances:
            self._admit(found, end)
        else:
            self._pass_over_missing(found, job.offset, min(end, self.window.end))
        waiting = [buffered for buffered in found if self._waits(buffered)]
        self._buffer += waiting
        self._forget(len(self._buffer) - len(waiting))
        return waiting

    def _forget(self, older: int) -> None:
        """Drop batches that exceed the buffer: older ones first, then the last ones of this read."""
        excess = sum(buffered.nbytes for buffered in self._buffer) - self._limits.max_buffer_bytes
        while excess > 0 and len(self._buffer) > 1:
            excess -= self._buffer.pop(0 if older > 0 else -1).nbytes
            older -= 1

    def _waits(self, buffered: BufferedBatch) -> bool:
        first = self.window.first_ready(buffered.low, buffered.end)
        buffered.low = buffered.end if first is None else first
        return first is not None

    def _admit(self, found: list[BufferedBatch], end: int) -> None:
        window, start = self.window, self.window.end
        window.extend(end)
        for buffered in found:
            self._note_time(buffered)
            slots = slots_of(buffered.batch, buffered.offsets) if self._by_key else None
            window.put_ready(window.rows(buffered.offsets), slots)
        if len(done := clipped(self._known.acknowledged, start, end)):
            window.put_acknowledged(window.rows(expanded(done)))
        for first, last, redeliveries, failures, due_ms in self._known.pending.tolist():
            low, high = max(first, start), min(last, end)
            if low < high:
                rows = window.rows(np.arange(low, high))
                window.restore(rows[window.ready(rows)], redeliveries, failures, due_ms)
                self._has_restored = True
                if due_ms:
                    self._restored_due_ms = min(due_ms, self._restored_due_ms or due_ms)
        window.settle()

    def take_restored(self) -> tuple[bool, int | None]:
        """Return whether messages were read since the last call that had been delivered earlier, and their due time."""
        found = self._has_restored, self._restored_due_ms
        self._has_restored, self._restored_due_ms = False, None
        return found

    def _note_time(self, buffered: BufferedBatch) -> None:
        """Note when a batch was published, to estimate the age of the floor."""
        self._times.append((int(buffered.offsets[0]), buffered.batch.column(PUBLISH_TIME)[0].value))
        while len(self._times) > 1 and (self._times[1][0] <= self.window.floor or len(self._times) > _MAX_TIMES):
            self._times.popleft()

    @property
    def mean_message_bytes(self) -> float | None:
        return self._read_bytes / self._read_rows if self._read_rows else None

    def floor_time_us(self) -> int | None:
        """Return about when the message at the floor was published; None if that is not known."""
        found = None
        for offset, time_us in self._times:
            if offset > self.window.floor:
                break
            found = time_us
        return found

    def _pass_over_missing(self, found: list[BufferedBatch], start: int, end: int) -> None:
        """Acknowledge messages that a repair gave up since they were read first: they cannot be delivered."""
        offsets = np.concatenate([buffered.offsets for buffered in found]) if found else np.empty(0, np.int64)
        if len(offsets) and offsets[0] <= start and offsets[-1] - offsets[0] + 1 == len(offsets):
            return
        wanted = np.arange(max(start, self.window.floor), end)
        missing = self.window.rows(np.setdiff1d(wanted, offsets, assume_unique=True))
        self.window.put_acknowledged(missing[self.window.ready(missing)])
        self.window.settle()

    # Delivering

    def buffered(self, offset: int) -> tuple[BufferedBatch, int] | None:
        """Return the buffered batch that has a message, and its row there."""
        for buffered in self._buffer:
            row = buffered.index_of(offset)
            if row is not None:
                return buffered, row
        return None

    @property
    def buffered_rows(self) -> int:
        """How many messages the buffered batches have."""
        return sum(len(buffered.offsets) for buffered in self._buffer)

    def cut(
        self, buffered: BufferedBatch, row: int, allowed: Mask | None, max_messages: int, max_bytes: int
    ) -> tuple[pa.RecordBatch, Rows, int]:
        """Return the messages of a batch from a row on that may be delivered, at least one; their rows and bytes."""
        high = int(np.searchsorted(buffered.offsets, min(self.limit, self.window.end)))
        high = min(high, row + max(4 * max_messages, _LOOK_AHEAD))
        rows = self.window.rows(buffered.offsets[row:high])
        chosen = np.flatnonzero(self.window.ready(rows, allowed))[:max_messages]
        if len(chosen) == len(buffered.offsets) and buffered.nbytes <= max_bytes:
            return buffered.batch, rows[chosen], buffered.nbytes
        batch = _select(buffered.batch, chosen + row)
        while (nbytes := batch.nbytes) > max_bytes and len(chosen) > 1:
            count = max(1, min(len(chosen) - 1, len(chosen) * max_bytes // nbytes))
            chosen, batch = chosen[:count], batch.slice(0, count)
        return batch, rows[chosen], nbytes

    def delivered_from(self, buffered: BufferedBatch) -> None:
        """Drop a batch in which nothing is ready any more."""
        if not self._waits(buffered):
            self._buffer.remove(buffered)

    # Acknowledging and ending

    def acknowledge_ahead(self, ranges: Ranges) -> None:
        """Acknowledge messages that were not read yet, as far as they are within the limit."""
        ahead = clipped(ranges, self.window.end, MAX_OFFSET)
        near = ahead[(ahead[:, 0] < self.limit)]
        acknowledged = merged(np.concatenate((self._known.acknowledged, near)))
        self._known = Progress(self._known.floor, acknowledged, self._known.pending)

    def progress(self) -> Progress:
        window = self.window
        ahead = clipped(self._known.acknowledged, window.end, MAX_OFFSET)
        later = self._known.pending[self._known.pending[:, 0] >= window.end]
        known = Progress(window.floor, window.acknowledged(), np.concatenate((window.pending(), later)))
        return known.acknowledge(ahead, MAX_OFFSET - window.floor) if len(ahead) else known

    def _drop(self) -> None:
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()
        self._buffer.clear()

    def close(self) -> None:
        self._drop()


def _select(batch: pa.RecordBatch, rows: Rows) -> pa.RecordBatch:
    first, count = int(rows[0]), len(rows)
    if int(rows[-1]) - first + 1 == count:
        return batch.slice(first, count)
    return batch.take(pa.array(rows))


def delivery_schema(stream_schema: pa.Schema) -> pa.Schema:
    """Return the schema of deliveries: the topic's columns, and how often a message was delivered before."""
    own = stream_schema.field(OFFSET).name.startswith("_")
    name = "_redelivery_count" if own else "redelivery_count"
    return stream_schema.append(pa.field(name, pa.int32(), nullable=False))


_ZEROS = pa.array(np.zeros(10_000, np.int32))


def as_delivery(batch: pa.RecordBatch, counts: "np.ndarray | None", schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch with the column of redelivery counts; None for counts means that all are 0."""
    last = len(schema) - 1
    if counts is not None:
        column = pa.array(counts.astype(np.int32))
    elif batch.num_rows <= len(_ZEROS):
        column = _ZEROS.slice(0, batch.num_rows)
    else:
        column = pa.array(np.zeros(batch.num_rows, np.int32))
    if batch.num_columns == last:
        whole = batch.append_column(schema.field(last), column)
        if whole.schema.equals(schema):
            return whole
    stream = pa.schema(list(schema)[:-1])  # the topic has gained columns since the consumer connected, or before
    return pa.RecordBatch.from_arrays([*conform(batch, stream).columns, column], schema=schema)
