"""A subscription's position in its topic while it has consumers: what was read, and the state of each message.

The cursor reads a few batches ahead, within `max_buffer_bytes`. A message that comes again and is in none of them is
read again: nothing that was delivered is kept. A `ReadJob` reads without the subscription's lock and has its reader for
itself; everything else is done under the lock.
"""

from collections import deque
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from icestream.model.filters import Filter
from icestream.model.messages import OFFSET, PUBLISH_TIME, conform
from icestream.subscription.key_slots import slots_of
from icestream.subscription.offset_ranges import MAX_OFFSET, Offsets, Ranges, clipped, expanded, merged
from icestream.subscription.progress import Progress
from icestream.subscription.source import SourceReader, SubscriptionSource
from icestream.subscription.window import Mask, Rows, Window

READ_BYTES = 1 << 20
_SKIP_MESSAGES = 10_000
_LOOK_AHEAD = 4_096
_MAX_TIMES = 512


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
        """Nothing before it waits to be delivered, or it is read again."""

    @property
    def end(self) -> int:
        return int(self.offsets[-1]) + 1

    def index_of(self, offset: int) -> int | None:
        place = int(np.searchsorted(self.offsets, offset))
        return place if place < len(self.offsets) and self.offsets[place] == offset else None


@dataclass
class ReadJob:
    """One read, for the thread that does it."""

    source: SubscriptionSource
    where: Filter | None
    offset: int
    reader: SourceReader | None
    advances: bool
    """It goes on where the cursor has read to; otherwise it reads again."""
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
        """What of the offsets that are not in the window yet is done, or comes again."""
        self._where = where
        self._by_key = by_key
        self._limits = limits
        self._schema = source.stream_schema
        self._readers: dict[bool, SourceReader] = {}
        """The one that goes on, and the one that reads again; out while a job has it."""
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
        """The topic's schema has changed: from now on read with it."""
        if not schema.equals(self._schema):
            self._schema = schema
            self._drop()

    def job(self, again_from: int | None) -> ReadJob:
        """A read of what follows, or of a message that is not at hand."""
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
        """Pass over a long stretch that is known to be acknowledged, without reading it."""
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
        """Take in what a job has read; the pieces in which something waits to be delivered."""
        assert job.reader is not None
        end = job.reader.offset
        if job.reader.schema.equals(self._schema):
            self._readers[job.advances] = job.reader
        else:
            job.close()
        if job.advances and (again := self._readers.pop(False, None)) is not None:
            again.close()
        pieces = [BufferedBatch(batch) for batch in job.batches]
        self._read_rows += sum(len(piece.offsets) for piece in pieces)
        self._read_bytes += sum(piece.nbytes for piece in pieces)
        if job.advances:
            self._admit(pieces, end)
        else:
            self._pass_over_missing(pieces, job.offset, min(end, self.window.end))
        waiting = [piece for piece in pieces if self._waits(piece)]
        self._buffer += waiting
        self._forget(len(self._buffer) - len(waiting))
        return waiting

    def _forget(self, older: int) -> None:
        """Let pieces go that are beyond the buffer: older ones first, then what follows the one that was asked for."""
        excess = sum(piece.nbytes for piece in self._buffer) - self._limits.max_buffer_bytes
        while excess > 0 and len(self._buffer) > 1:
            excess -= self._buffer.pop(0 if older > 0 else -1).nbytes
            older -= 1

    def _waits(self, piece: BufferedBatch) -> bool:
        first = self.window.first_ready(piece.low, piece.end)
        piece.low = piece.end if first is None else first
        return first is not None

    def _admit(self, pieces: list[BufferedBatch], end: int) -> None:
        window, start = self.window, self.window.end
        window.extend(end)
        for piece in pieces:
            self._note_time(piece)
            slots = slots_of(piece.batch, piece.offsets) if self._by_key else None
            window.put_ready(window.rows(piece.offsets), slots)
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

    def _note_time(self, piece: BufferedBatch) -> None:
        """Remember when some messages were published: enough to tell about how old the floor is."""
        self._times.append((int(piece.offsets[0]), piece.batch.column(PUBLISH_TIME)[0].value))
        while len(self._times) > 1 and (self._times[1][0] <= self.window.floor or len(self._times) > _MAX_TIMES):
            self._times.popleft()

    @property
    def mean_message_bytes(self) -> float | None:
        return self._read_bytes / self._read_rows if self._read_rows else None

    def floor_time_us(self) -> int | None:
        """About when the message at the floor was published, if it was read lately."""
        found = None
        for offset, time_us in self._times:
            if offset > self.window.floor:
                break
            found = time_us
        return found

    def _pass_over_missing(self, pieces: list[BufferedBatch], start: int, end: int) -> None:
        """Messages that were there and are not any more, given up by a repair, cannot be delivered."""
        offsets = np.concatenate([piece.offsets for piece in pieces]) if pieces else np.empty(0, np.int64)
        if len(offsets) and offsets[0] <= start and offsets[-1] - offsets[0] + 1 == len(offsets):
            return
        wanted = np.arange(max(start, self.window.floor), end)
        missing = self.window.rows(np.setdiff1d(wanted, offsets, assume_unique=True))
        self.window.put_acknowledged(missing[self.window.ready(missing)])
        self.window.settle()

    # Delivering

    def buffered(self, offset: int) -> tuple[BufferedBatch, int] | None:
        """The piece that has a message, and its row in it."""
        for piece in self._buffer:
            place = piece.index_of(offset)
            if place is not None:
                return piece, place
        return None

    @property
    def buffered_rows(self) -> int:
        """Messages of the pieces in which something waits."""
        return sum(len(piece.offsets) for piece in self._buffer)

    def cut(
        self, piece: BufferedBatch, place: int, allowed: Mask | None, max_messages: int, max_bytes: int
    ) -> tuple[pa.RecordBatch, Rows, int]:
        """The messages of a piece from a row on that may be delivered, at least one, and their bytes."""
        high = int(np.searchsorted(piece.offsets, min(self.limit, self.window.end)))
        high = min(high, place + max(4 * max_messages, _LOOK_AHEAD))
        rows = self.window.rows(piece.offsets[place:high])
        chosen = np.flatnonzero(self.window.ready(rows, allowed))[:max_messages]
        if len(chosen) == len(piece.offsets) and piece.nbytes <= max_bytes:
            return piece.batch, rows[chosen], piece.nbytes
        batch = _select(piece.batch, chosen + place)
        while (nbytes := batch.nbytes) > max_bytes and len(chosen) > 1:
            count = max(1, min(len(chosen) - 1, len(chosen) * max_bytes // nbytes))
            chosen, batch = chosen[:count], batch.slice(0, count)
        return batch, rows[chosen], nbytes

    def delivered_from(self, piece: BufferedBatch) -> None:
        """Let a piece go in which nothing waits any more."""
        if not self._waits(piece):
            self._buffer.remove(piece)

    # Acknowledging and ending

    def acknowledge_ahead(self, ranges: Ranges) -> None:
        """Count messages as done that were not read yet: what follows at once, and what lies within the limit."""
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


def _select(batch: pa.RecordBatch, places: Rows) -> pa.RecordBatch:
    first, count = int(places[0]), len(places)
    if int(places[-1]) - first + 1 == count:
        return batch.slice(first, count)
    return batch.take(pa.array(places))


def delivery_schema(stream_schema: pa.Schema) -> pa.Schema:
    """What consumers get: the topic's columns, and how often a message was delivered before."""
    own = stream_schema.field(OFFSET).name.startswith("_")
    name = "_redelivery_count" if own else "redelivery_count"
    return stream_schema.append(pa.field(name, pa.int32(), nullable=False))


def as_delivery(batch: pa.RecordBatch, counts: "np.ndarray | None", schema: pa.Schema) -> pa.RecordBatch:
    stream = pa.schema(list(schema)[:-1])
    column = np.zeros(batch.num_rows, np.int32) if counts is None else counts.astype(np.int32)
    return pa.RecordBatch.from_arrays([*conform(batch, stream).columns, pa.array(column)], schema=schema)
