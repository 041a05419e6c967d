"""Files of frames: the bytes of a frame, the scan of a file, and its sparse index. See `docs/formats/wal.md`.

Decoding has three outcomes: `Complete`, `Incomplete` (more bytes are needed to decide) and `Corrupt`. Recovery decides
whether an incomplete or corrupt frame is a torn tail or damage.

There are two checksums: the header holds the body's, and the header's own covers it. So the body is hashed before the
log's lock is taken, and only the few bytes of the header under it.

The header's checksum is seeded with a secret of the stream, the segment and the position. So a frame is sound only at
the position where it was written: a copy of log bytes inside a message is never taken for a frame.
"""

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol, Self, TypeAlias

import xxhash

from icestream.model.messages import Frame

Bytes: TypeAlias = bytes | bytearray | memoryview

MAGIC = b"IFRM"
VERSION = 1
ALIGNMENT = 8
_FIELDS = struct.Struct("<4sBBBBHHIQQQqqQQ")
_CHECKSUM = struct.Struct("<Q")
HEADER_BYTES = _FIELDS.size + _CHECKSUM.size
MAX_FRAME_BYTES = 1 << 31
_NO_COMPRESSION = 0
_NO_FLAGS = 0
_MASK = (1 << 64) - 1
_SEED = struct.Struct("<QQ")


class Payload(NamedTuple):
    """A batch from a producer, hashed and ready for the log."""

    producer: bytes
    sequence: int
    message_count: int
    encoding: int
    schema_id: int
    body: Bytes
    checksum: int
    frame_bytes: int

    def frame(self, base_offset: int, publish_time_us: int, epoch: int) -> Frame:
        return Frame(
            base_offset,
            self.message_count,
            publish_time_us,
            epoch,
            self.producer.decode(),
            self.sequence,
            self.encoding,
            self.schema_id,
            self.body,
        )


class Complete(NamedTuple):
    frame: Frame
    synced_position: int
    end: int


class Incomplete(NamedTuple):
    needed: int


class Corrupt(NamedTuple):
    reason: str


Decoded: TypeAlias = Complete | Incomplete | Corrupt


def segment_seed(salt: int, base_offset: int) -> int:
    """Return the seed of a segment. A header's seed is this plus its position."""
    return xxhash.xxh3_64_intdigest(_SEED.pack(salt, base_offset))


def padded(length: int) -> int:
    return (length + ALIGNMENT - 1) & -ALIGNMENT


def prepare(
    body: Any, *, message_count: int, encoding: int, schema_id: int = 0, producer: str = "", sequence: int = 0
) -> Payload:
    """Hash a batch. `body` is any object with the buffer protocol."""
    name, view = producer.encode(), memoryview(body)
    frame_bytes = HEADER_BYTES + padded(len(name)) + padded(len(view))
    return Payload(name, sequence, message_count, encoding, schema_id, view, _hash(name, view), frame_bytes)


def encode(
    payload: Payload, base_offset: int, publish_time_us: int, *, epoch: int, synced_position: int, seed: int
) -> list[Bytes]:
    """Return the frame as buffers to write one after the other. The body is not copied."""
    fields = _FIELDS.pack(
        MAGIC,
        VERSION,
        payload.encoding,
        _NO_COMPRESSION,
        _NO_FLAGS,
        payload.schema_id,
        len(payload.producer),
        payload.message_count,
        len(payload.body),
        epoch,
        base_offset,
        publish_time_us,
        payload.sequence,
        synced_position,
        payload.checksum,
    )
    name = payload.producer
    head = b"".join(
        (
            fields,
            _CHECKSUM.pack(xxhash.xxh3_64_intdigest(fields, seed & _MASK)),
            name,
            bytes(padded(len(name)) - len(name)),
        )
    )
    tail = bytes(padded(len(payload.body)) - len(payload.body))
    return [head, payload.body, tail] if tail else [head, payload.body]


def decode(buffer: memoryview, start: int, seed: int) -> Decoded:
    """Decode the frame at `start`. `seed` is that of its position in the segment.

    The outcome's `end` counts from the beginning of the buffer, its `needed` from `start`.
    """
    available = len(buffer) - start
    if available < HEADER_BYTES:
        return Incomplete(HEADER_BYTES)
    (
        magic,
        version,
        encoding,
        compression,
        flags,
        schema_id,
        producer_length,
        message_count,
        body_length,
        epoch,
        base_offset,
        publish_time_us,
        sequence,
        synced_position,
        checksum,
    ) = _FIELDS.unpack_from(buffer, start)
    if magic != MAGIC:
        return Corrupt("no frame begins here")
    body_field = start + HEADER_BYTES + padded(producer_length)
    fields = buffer[start : start + _FIELDS.size]
    if _CHECKSUM.unpack_from(buffer, start + _FIELDS.size)[0] != xxhash.xxh3_64_intdigest(fields, seed & _MASK):
        return Corrupt("the header's checksum does not match")
    if version != VERSION or compression != _NO_COMPRESSION or flags != _NO_FLAGS:
        return Corrupt(f"written by a newer version (frame version {version})")
    body_end = body_field + body_length
    end = body_field + padded(body_length)
    if end - start > MAX_FRAME_BYTES:
        return Corrupt("longer than a frame can be")
    if end > len(buffer):
        return Incomplete(end - start)
    name_end = start + HEADER_BYTES + producer_length
    name = bytes(buffer[start + HEADER_BYTES : name_end])
    body = buffer[body_field:body_end]
    if _hash(name, body) != checksum:
        return Corrupt("the body's checksum does not match")
    if any(buffer[name_end:body_field]) or any(buffer[body_end:end]):
        return Corrupt("the padding is not zero")
    frame = Frame(
        base_offset, message_count, publish_time_us, epoch, name.decode(), sequence, encoding, schema_id, body
    )
    return Complete(frame, synced_position, end)


def decode_header(buffer: memoryview, start: int, seed: int) -> tuple[int, int] | None:
    """Return base offset and synced position of a sound header at `start`, without checking its body."""
    if len(buffer) - start < HEADER_BYTES:
        return None
    fields = buffer[start : start + _FIELDS.size]
    if _CHECKSUM.unpack_from(buffer, start + _FIELDS.size)[0] != xxhash.xxh3_64_intdigest(fields, seed & _MASK):
        return None
    unpacked = _FIELDS.unpack(fields)
    return unpacked[10], unpacked[13]


def _hash(producer: bytes, body: Bytes) -> int:
    return xxhash.xxh3_64_intdigest(body, seed=xxhash.xxh3_64_intdigest(producer))


# Scanning consecutive frames, in a segment or in a cloud object

_READ_BYTES = 1 << 20


class Readable(Protocol):
    def read(self, length: int, position: int, /) -> Bytes:
        """Return `length` bytes; fewer only at the end of the file."""


class Scan:
    """Scans a file's frames from a position on, with bounded memory. `stop` says why it ended, and `position` where.

    `stop` is None if the limit was reached exactly, else the undecodable outcome at `position`. With `one_read` it
    also ends, without a stop, after at least one frame when the next one would need another read.
    """

    def __init__(
        self,
        file: Readable,
        position: int,
        limit: int,
        *,
        seed: int,
        read_bytes: int = _READ_BYTES,
        one_read: bool = False,
    ) -> None:
        self._file = file
        self._seed = seed
        self._limit = limit
        self._read_bytes = read_bytes
        self._one_read = one_read
        self.position = position
        self.stop: Decoded | None = None

    def __iter__(self) -> Iterator[tuple[int, Complete]]:
        """Yield each frame with its position. Bodies are slices of the buffer that was read."""
        buffer, start = memoryview(b""), self.position
        while self.position < self._limit:
            seed = self._seed + self.position
            outcome = decode(buffer, self.position - start, seed)
            if isinstance(outcome, Incomplete):
                if self._one_read and self.position > start:
                    return
                buffer, start = self._read(outcome.needed), self.position
                outcome = decode(buffer, 0, seed)
                if isinstance(outcome, Incomplete) and outcome.needed <= self._limit - self.position:
                    buffer = self._read(outcome.needed)  # the header has the length of the frame
                    outcome = decode(buffer, 0, seed)
            if not isinstance(outcome, Complete):
                self.stop = outcome
                return
            found = self.position
            self.position = start + outcome.end
            yield found, outcome

    def _read(self, needed: int) -> memoryview:
        length = min(max(needed, self._read_bytes), self._limit - self.position)
        return memoryview(self._file.read(length, self.position))


# The sparse index

_INDEX_HEADER = struct.Struct("<8sQQ")
_INDEX_MAGIC = b"ICEIDX\x00\x01"


class SparseIndex:
    """Offset, position and publish time of about one frame per interval of bytes, for a file of frames.

    It is derived from the frames and has a checksum. A missing or damaged index is rebuilt.
    """

    def __init__(self, interval_bytes: int) -> None:
        self.interval_bytes = interval_bytes
        self._offsets = array("q")
        self._positions = array("q")
        self._times = array("q")
        self._latest_us = 0
        """Of all frames so far, also those that have no entry."""

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, offset: int, position: int, time_us: int) -> None:
        """Add the frame at `position`, unless the last added one is within the interval.

        A frame that stands for lost messages may have no time. Its entry has the latest time before it: the times are
        searched by halves, so they must not go back.
        """
        self._latest_us = max(self._latest_us, time_us)
        if not self._positions or position - self._positions[-1] >= self.interval_bytes:
            # Readers look up offsets and times without a lock, so the position must be there first.
            self._positions.append(position)
            self._times.append(self._latest_us)
            self._offsets.append(offset)

    def position_of_offset(self, offset: int) -> int | None:
        """Return a position at or before the frame with `offset`."""
        index = bisect_right(self._offsets, offset) - 1
        return self._positions[index] if index >= 0 else None

    def position_of_time(self, time_us: int) -> int | None:
        """Return a position at or before the first frame published at `time_us` or later."""
        index = bisect_left(self._times, time_us) - 1
        return self._positions[index] if index >= 0 else None

    def frame_within(self, start: int, limit: int) -> tuple[int, int] | None:
        """Return offset and position of the last entry after `start` up to `limit`; the first after `start` if none."""
        positions, count = self._positions, len(self._offsets)
        first = bisect_right(positions, start, hi=count)
        index = max(first, bisect_right(positions, limit, hi=count) - 1)
        return (self._offsets[index], positions[index]) if index < count else None

    def to_bytes(self) -> bytes:
        """Return the bytes, with a checksum at the end."""
        columns = self._offsets.tobytes() + self._positions.tobytes() + self._times.tobytes()
        data = _INDEX_HEADER.pack(_INDEX_MAGIC, self.interval_bytes, len(self)) + columns
        return data + struct.pack("<Q", xxhash.xxh3_64_intdigest(data))

    @classmethod
    def from_bytes(cls, data: bytes) -> Self | None:
        """Return the index that `to_bytes` wrote, or None if the bytes are damaged."""
        if len(data) < _INDEX_HEADER.size + 8 or xxhash.xxh3_64_intdigest(data[:-8]) != int.from_bytes(
            data[-8:], "little"
        ):
            return None
        magic, interval_bytes, count = _INDEX_HEADER.unpack_from(data)
        if magic != _INDEX_MAGIC or len(data) != _INDEX_HEADER.size + 24 * count + 8:
            return None
        index = cls(interval_bytes)
        width = 8 * count
        for number, column in enumerate((index._offsets, index._positions, index._times)):
            start = _INDEX_HEADER.size + number * width
            column.frombytes(data[start : start + width])
        return index
