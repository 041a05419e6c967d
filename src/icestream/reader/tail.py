"""The newest messages of all topics, decoded: one read and one decoding serve every reader near the end of a topic.

A topic's tail is a run of pieces without gaps. The first reader that comes to its end decodes what the log's cache has
behind it; the others find it here. All tails together are bounded by bytes: the piece that came first goes first. A
reader that is behind its topic's tail decodes for itself, so that it neither slows the others nor drives theirs out.
"""

import threading
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from icestream.model.frames import Frame
from icestream.model.messages import JOIN_BYTES, slice_from
from icestream.wal import LogCache

_PIECE_OVERHEAD_BYTES = 2_000  # the objects around the columns
_MANY_BATCHES = 1
_JOINED_BYTES = 4 * JOIN_BYTES
_PIECE_BYTES = 4 * JOIN_BYTES


class DecodedMessages(NamedTuple):
    batches: list[pa.RecordBatch]
    """From the one that holds the offset asked for."""
    end_offset: int


@dataclass(eq=False)
class DecodedBlock:
    owner: "Tail"
    first_offset: int
    end_offset: int
    batches: list[pa.RecordBatch]
    nbytes: int


class Tails:
    """The budget. A lock for all, since what is done under it is brief: no decoding."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.max_piece_bytes = min(_PIECE_BYTES, max_bytes // 8)
        """A piece takes in what comes after it up to this size."""
        self._lock = threading.Lock()
        self._pieces: OrderedDict[DecodedBlock, None] = OrderedDict()  # in order of arrival
        self._bytes = 0

    @property
    def nbytes(self) -> int:
        return self._bytes

    def tail(self, cache: LogCache, decode: Callable[[list[Frame]], Iterator[pa.RecordBatch]]) -> "Tail":
        return Tail(self, cache, decode)

    def last(self, tail: "Tail") -> DecodedBlock | None:
        with self._lock:
            return tail.pieces[-1] if tail.pieces else None

    def add(self, piece: DecodedBlock, joined: DecodedBlock | None = None) -> DecodedBlock:
        """Make a tail longer by a piece; or by `joined`, which is the tail's last piece with this one behind it."""
        with self._lock:
            pieces = piece.owner.pieces
            if joined is not None and pieces and pieces[-1].first_offset == joined.first_offset:
                self._forget(pieces.pop())
                piece = joined
            pieces.append(piece)
            self._pieces[piece] = None
            self._bytes += piece.nbytes
            while self._bytes > self._max_bytes:
                oldest = next(iter(self._pieces))
                oldest.owner.pieces.popleft()  # arrival is offset order within a tail
                self._forget(oldest)
            return piece

    def read(self, tail: "Tail", offset: int, max_bytes: int) -> list[DecodedBlock]:
        """The pieces from the one that holds the offset on; at least that one."""
        with self._lock:
            pieces = tail.pieces
            if not pieces or not pieces[0].first_offset <= offset < pieces[-1].end_offset:
                return []
            place = bisect_right(pieces, offset, key=lambda piece: piece.first_offset) - 1
            found = []
            for number in range(place, len(pieces)):
                found.append(pieces[number])
                max_bytes -= pieces[number].nbytes
                if max_bytes <= 0:
                    break
            return found

    def bounds(self, tail: "Tail") -> tuple[int, int]:
        with self._lock:
            return (tail.pieces[0].first_offset, tail.pieces[-1].end_offset) if tail.pieces else (0, 0)

    def clear(self, tail: "Tail") -> None:
        with self._lock:
            for piece in tail.pieces:
                self._forget(piece)
            tail.pieces.clear()

    def _forget(self, piece: DecodedBlock) -> None:
        del self._pieces[piece]
        self._bytes -= piece.nbytes


class Tail:
    """One topic's."""

    def __init__(
        self, tails: Tails, cache: LogCache, decode: Callable[[list[Frame]], Iterator[pa.RecordBatch]]
    ) -> None:
        self._tails = tails
        self._cache = cache
        self._decode = decode
        self._filling = threading.Lock()
        self.pieces: deque[DecodedBlock] = deque()
        """For `Tails` alone."""

    def read(self, offset: int, max_bytes: int) -> DecodedMessages | None:
        """Decoded messages from the batch that holds the offset on; None if the reader must find them itself."""
        found = self._tails.read(self, offset, max_bytes)
        if not found and self._cache.holds(offset) and offset >= self._tails.bounds(self)[0]:
            with self._filling:  # one decodes, the others wait for it
                found = self._tails.read(self, offset, max_bytes) or self._fill(offset)
        if not found:
            return None
        batches = [batch for piece in found for batch in piece.batches]
        while batches and batches[0].column(0)[-1].as_py() < offset:
            del batches[0]
        if batches and batches[0].nbytes > max_bytes:
            part = _first_rows(slice_from(batches[0], offset), max_bytes)
            return DecodedMessages([part], part.column(0)[-1].as_py() + 1)
        return DecodedMessages(_joined(batches), found[-1].end_offset)

    def clear(self) -> None:
        self._tails.clear(self)

    def _fill(self, offset: int) -> list[DecodedBlock]:
        """Decode what the cache has from the offset on, if that makes the tail longer or begins a new one."""
        first, end = self._tails.bounds(self)
        if offset < first:
            return []
        frames = self._cache.read(offset, JOIN_BYTES)
        if not frames:
            return []
        if offset != end or frames[0].base_offset != end:
            self._tails.clear(self)
        batches = list(self._decode(frames))
        nbytes = _PIECE_OVERHEAD_BYTES + sum(batch.nbytes for batch in batches)
        piece = DecodedBlock(self, frames[0].base_offset, frames[-1].end_offset, batches, nbytes)
        return [self._tails.add(piece, joined=self._joined_with_last(piece))]

    def _joined_with_last(self, piece: DecodedBlock) -> DecodedBlock | None:
        """The tail's last piece and this one as one: copied here once, for all the readers that would join them."""
        last = self._tails.last(self)
        if (
            last is None
            or last.nbytes + piece.nbytes > self._tails.max_piece_bytes
            or len(last.batches) != 1
            or len(piece.batches) != 1
        ):
            return None
        (old,), (new,) = last.batches, piece.batches
        if not old.schema.equals(new.schema):
            return None
        nbytes = last.nbytes + piece.nbytes - _PIECE_OVERHEAD_BYTES
        return DecodedBlock(self, last.first_offset, piece.end_offset, [pa.concat_batches([old, new])], nbytes)


def _first_rows(batch: pa.RecordBatch, max_bytes: int) -> pa.RecordBatch:
    """About so many bytes of a batch, and at least a row."""
    return batch.slice(0, max(1, -(-batch.num_rows * max_bytes // max(1, batch.nbytes))))


def _joined(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Many small batches as few: a reader that fell behind a little need not pay for each commit of its topic."""
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
