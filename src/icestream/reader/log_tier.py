"""The log as a tier: the decoded tail if it holds the offset, else the cache, else the segment files.

The tail is the newest messages of a topic, decoded once for all readers near its end. It is a sequence of blocks
without gaps. The first reader that reaches its end decodes what the log's cache has after it; the other readers take
the decoded block. One byte limit holds for the tails of all topics together: the oldest block goes first. A reader that
is before its topic's tail decodes for itself, so it neither slows the others down nor evicts their blocks.
"""

import threading
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from icestream.model.errors import OffsetOutOfRangeError
from icestream.model.messages import JOIN_BYTES, OFFSET, Frame, slice_from
from icestream.reader.tiers import MovedError, Selection
from icestream.wal import Log, LogCache, LogReader

Decode = Callable[[list[Frame]], Iterator[pa.RecordBatch]]
_BLOCK_OVERHEAD_BYTES = 2_000  # the objects around the columns
_MANY_BATCHES = 1
_JOINED_BYTES = 4 * JOIN_BYTES
_BLOCK_BYTES = 4 * JOIN_BYTES


class DecodedMessages(NamedTuple):
    """What a reader gets from a tail."""

    batches: list[pa.RecordBatch]
    """The first one holds the requested offset."""
    end_offset: int


@dataclass(eq=False)
class DecodedBlock:
    """Batches of one tail, for the offsets from `first_offset` to before `end_offset`."""

    owner: "Tail"
    first_offset: int
    end_offset: int
    batches: list[pa.RecordBatch]
    nbytes: int


class Tails:
    """All tails, and their common byte limit. One lock serves all: nothing is decoded under it."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.max_block_bytes = min(_BLOCK_BYTES, max_bytes // 8)
        """A block grows up to this size: what comes next is joined to it."""
        self._lock = threading.Lock()
        self._blocks: OrderedDict[DecodedBlock, None] = OrderedDict()  # in order of arrival
        self._bytes = 0

    @property
    def nbytes(self) -> int:
        return self._bytes

    def tail(self, cache: LogCache, decode: Decode) -> "Tail":
        return Tail(self, cache, decode)

    def last(self, tail: "Tail") -> DecodedBlock | None:
        with self._lock:
            return tail.blocks[-1] if tail.blocks else None

    def add(self, block: DecodedBlock, joined: DecodedBlock | None = None) -> DecodedBlock:
        """Append a block to its tail; or replace the last block by `joined`, which is that block and this one."""
        with self._lock:
            blocks = block.owner.blocks
            if joined is not None and blocks and blocks[-1].first_offset == joined.first_offset:
                self._forget(blocks.pop())
                block = joined
            blocks.append(block)
            self._blocks[block] = None
            self._bytes += block.nbytes
            while self._bytes > self._max_bytes:
                oldest = next(iter(self._blocks))
                oldest.owner.blocks.popleft()  # arrival is offset order within a tail
                self._forget(oldest)
            return block

    def read(self, tail: "Tail", offset: int, max_bytes: int) -> list[DecodedBlock]:
        """Return the block that holds the offset and those after it, up to about `max_bytes`; at least that one."""
        with self._lock:
            blocks = tail.blocks
            if not blocks or not blocks[0].first_offset <= offset < blocks[-1].end_offset:
                return []
            place = bisect_right(blocks, offset, key=lambda block: block.first_offset) - 1
            found = []
            for number in range(place, len(blocks)):
                found.append(blocks[number])
                max_bytes -= blocks[number].nbytes
                if max_bytes <= 0:
                    break
            return found

    def bounds(self, tail: "Tail") -> tuple[int, int]:
        with self._lock:
            return (tail.blocks[0].first_offset, tail.blocks[-1].end_offset) if tail.blocks else (0, 0)

    def clear(self, tail: "Tail") -> None:
        with self._lock:
            for block in tail.blocks:
                self._forget(block)
            tail.blocks.clear()

    def _forget(self, block: DecodedBlock) -> None:
        del self._blocks[block]
        self._bytes -= block.nbytes


class Tail:
    """The tail of one topic."""

    def __init__(self, tails: Tails, cache: LogCache, decode: Decode) -> None:
        self._tails = tails
        self._cache = cache
        self._decode = decode
        self._filling = threading.Lock()
        self.blocks: deque[DecodedBlock] = deque()
        """Guarded by the lock of `Tails`, which alone uses it."""

    def read(self, offset: int, max_bytes: int) -> DecodedMessages | None:
        """Return decoded messages from the batch that holds the offset on; None: the reader reads the log itself."""
        found = self._tails.read(self, offset, max_bytes)
        if not found and self._cache.holds(offset) and offset >= self._tails.bounds(self)[0]:
            with self._filling:  # one decodes, the others wait for it
                found = self._tails.read(self, offset, max_bytes) or self._fill(offset)
        if not found:
            return None
        batches = [batch for block in found for batch in block.batches]
        while batches and batches[0].column(OFFSET)[-1].as_py() < offset:
            del batches[0]
        if batches and batches[0].nbytes > max_bytes:
            part = _first_rows(slice_from(batches[0], offset), max_bytes)
            return DecodedMessages([part], part.column(OFFSET)[-1].as_py() + 1)
        return DecodedMessages(_joined(batches), found[-1].end_offset)

    def clear(self) -> None:
        self._tails.clear(self)

    def _fill(self, offset: int) -> list[DecodedBlock]:
        """Decode what the cache has from the offset on, if that extends the tail or begins a new one."""
        first, end = self._tails.bounds(self)
        if offset < first:
            return []
        frames = self._cache.read(offset, JOIN_BYTES)
        if not frames:
            return []
        if offset != end or frames[0].base_offset != end:
            self._tails.clear(self)
        batches = list(self._decode(frames))
        nbytes = _BLOCK_OVERHEAD_BYTES + sum(batch.nbytes for batch in batches)
        block = DecodedBlock(self, frames[0].base_offset, frames[-1].end_offset, batches, nbytes)
        return [self._tails.add(block, joined=self._joined_with_last(block))]

    def _joined_with_last(self, block: DecodedBlock) -> DecodedBlock | None:
        """Return the last block and this one joined: copied here once, instead of by each reader."""
        last = self._tails.last(self)
        if (
            last is None
            or last.nbytes + block.nbytes > self._tails.max_block_bytes
            or len(last.batches) != 1
            or len(block.batches) != 1
        ):
            return None
        (old,), (new,) = last.batches, block.batches
        if not old.schema.equals(new.schema):
            return None
        nbytes = last.nbytes + block.nbytes - _BLOCK_OVERHEAD_BYTES
        return DecodedBlock(self, last.first_offset, block.end_offset, [pa.concat_batches([old, new])], nbytes)


def _first_rows(batch: pa.RecordBatch, max_bytes: int) -> pa.RecordBatch:
    """Return the first rows of a batch, about `max_bytes`, at least one row."""
    return batch.slice(0, max(1, -(-batch.num_rows * max_bytes // max(1, batch.nbytes))))


def _joined(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Join many small batches, so that a reader does not pay for each commit of its topic."""
    if len(batches) <= _MANY_BATCHES:
        return batches
    joined: list[pa.RecordBatch] = []
    run: list[pa.RecordBatch] = []
    run_bytes = 0
    for batch in batches:
        if run and (run_bytes + batch.nbytes > _JOINED_BYTES or not run[0].schema.equals(batch.schema)):
            joined.append(_concat(run))
            run, run_bytes = [], 0
        run.append(batch)
        run_bytes += batch.nbytes
    joined.append(_concat(run))
    return joined


def _concat(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


class LogTier:
    def __init__(self, log: Log, decode: Decode, tail: Tail) -> None:
        self._log = log
        self.decode = decode
        self.tail = tail

    def next_start(self, offset: int) -> int | None:
        start = self._log.start_offset
        return start if start > offset else None

    def begin(self, offset: int, nearer: int | None, selection: Selection) -> "LogTierRead | None":
        del nearer
        try:
            return LogTierRead(self, LogReader(self._log, offset), selection)
        except OffsetOutOfRangeError:
            if offset < self._log.start_offset:
                return None
            raise

    def wait(self, offset: int, timeout: float | None) -> bool:
        return self._log.wait_past(offset, timeout)

    def close(self) -> None:
        # The log itself ends the waits.
        self.tail.clear()


class LogTierRead:
    """Reads up to the durable end, and goes on when there is more."""

    def __init__(self, tier: LogTier, reader: LogReader, selection: Selection) -> None:
        self._tier = tier
        self._reader = reader
        self._selection = selection

    @property
    def offset(self) -> int:
        return self._reader.offset

    def read(self, max_bytes: int) -> list[pa.RecordBatch]:
        reader = self._reader
        while True:
            start = reader.offset
            decoded = self._tier.tail.read(start, max_bytes)
            if decoded is not None:
                batches = decoded.batches
                reader.jump(decoded.end_offset)
            else:
                try:
                    frames = reader.read(max_bytes)
                except OffsetOutOfRangeError as error:
                    raise MovedError from error
                if not frames:
                    return []
                batches = list(self._tier.decode(frames))
            if batches:  # none if a repair gave up everything in these frames
                batches[0] = slice_from(batches[0], start)
                return [self._selection.apply(batch) for batch in batches]

    def close(self) -> None:
        self._reader.close()
