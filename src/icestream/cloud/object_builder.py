"""Makes one object out of a range of the log: steps 2 and 3 of an upload."""

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import xxhash

from icestream.cloud.object import (
    ObjectDescriptor,
    ObjectName,
    SegmentPart,
    Trailer,
    damaged_object,
    inline_index,
    read_trailer,
)
from icestream.cloud.store import ObjectStore
from icestream.model.clock import Clock, now_us
from icestream.model.errors import (
    ClosedError,
    ConflictError,
    DamagedError,
    IcestreamError,
    ObjectExistsError,
    UnavailableError,
)
from icestream.model.frames import HEADER_BYTES, Complete, Incomplete, Readable, SparseIndex, decode
from icestream.model.messages import Frame
from icestream.model.names import TopicName

READ_BYTES = 8 << 20
INDEX_INTERVAL_BYTES = 1 << 20
"""With it the index of a 1 GiB object has 24 KiB, and a seek reads at most 1 MiB too much."""
_FRAMES_IN_A_ROW = 32


class LogPosition(NamedTuple):
    """A position in the log, at the beginning or the end of a frame."""

    file_seq: int
    """The segment's number."""
    byte_pos: int


class LogRange(NamedTuple):
    """Consecutive durable frames of the log."""

    first_offset: int
    end_offset: int
    start: LogPosition
    end: LogPosition


class SegmentSlice(NamedTuple):
    """The part of a range that lies in one segment."""

    file: Readable
    name: str
    file_seq: int
    seed: int
    """The segment's."""
    start: int
    end: int


class ProducerTracker(Protocol):
    """The state of producers up to the frame that was noted last."""

    def note(self, frame: Frame, /) -> None: ...

    def to_bytes(self) -> bytes: ...


class FrameSource(Protocol):
    """A log as the uploader sees it. Everything that it returns is durable on disk."""

    @property
    def epoch(self) -> int: ...

    @property
    def schemas(self) -> dict[int, str]: ...

    def bounds(self) -> tuple[int, int]:
        """Return the first offset of the log, and the durable end."""

    def plan(self, first_offset: int, hint: LogPosition, max_bytes: int | None) -> LogRange | None:
        """Return whole frames from an offset on, as many as fit and at least one; None if there are none.

        `hint` is the likely position of the offset.
        """

    def find_range(self, first_offset: int, end_offset: int) -> LogRange | None:
        """Return the frames between two offsets; None if the log does not hold all of them."""

    def slices(self, log_range: LogRange) -> AbstractContextManager[Iterator[SegmentSlice]]:
        """Give the range segment by segment. Retention keeps it for a bounded time."""

    def producers(self, log_range: LogRange) -> ProducerTracker:
        """Return the state of producers before a range."""


class FramePacker:
    """Iterates over the bytes of a range, checks each frame, and collects what the descriptor says about them."""

    def __init__(self, source: FrameSource, log_range: LogRange, read_bytes: int = READ_BYTES) -> None:
        self._source = source
        self._read_bytes = read_bytes
        self._hash = xxhash.xxh3_64()
        self._producers = source.producers(log_range)
        self.log_range = log_range
        self.index = SparseIndex(INDEX_INTERVAL_BYTES)
        self.parts: list[SegmentPart] = []
        self.data_bytes = 0
        self.frame_count = 0
        self.first_time_us = 0
        self.last_time_us = 0
        self.end_offset = log_range.first_offset

    @property
    def checksum(self) -> int:
        return self._hash.intdigest()

    @property
    def producers(self) -> bytes:
        return self._producers.to_bytes()

    def __iter__(self) -> Generator[memoryview, None, None]:
        """Yield chunks of whole, sound frames; raise `DamagedError` if the log does not hold them."""
        with self._source.slices(self.log_range) as slices:
            for segment in slices:
                self.parts.append(SegmentPart.of(self.data_bytes, segment.seed, segment.start))
                position = segment.start
                while position < segment.end:
                    chunk = self._chunk(segment, position)
                    position += len(chunk)
                    self.data_bytes += len(chunk)
                    self._hash.update(chunk)
                    yield chunk
        if self.end_offset != self.log_range.end_offset:
            raise self._damaged(self.log_range.end, "frames are missing")

    def _chunk(self, segment: SegmentSlice, position: int) -> memoryview:
        """Read whole frames at a position, at least one. A frame larger than a read is read again, whole."""
        buffer = memoryview(segment.file.read(min(self._read_bytes, segment.end - position), position))
        end = self._check(segment, position, buffer)
        if not end:
            needed = _frame_bytes(buffer, segment.seed + position)
            if needed <= len(buffer) or needed > segment.end - position:
                raise self._damaged(LogPosition(segment.file_seq, position), "the frames end within one", segment.name)
            buffer = memoryview(segment.file.read(needed, position))
            end = self._check(segment, position, buffer)
            if not end:
                raise self._damaged(
                    LogPosition(segment.file_seq, position), "the file ends within a frame", segment.name
                )
        return buffer[:end]

    def _check(self, segment: SegmentSlice, position: int, buffer: memoryview) -> int:
        """Check and note the frames in a buffer, and return the end of the last whole one."""
        end, seed, object_position = 0, segment.seed + position, self.data_bytes
        while end < len(buffer):
            outcome = decode(buffer, end, seed + end)
            if isinstance(outcome, Incomplete):
                return end
            if not isinstance(outcome, Complete):
                raise self._damaged(LogPosition(segment.file_seq, position + end), outcome.reason, segment.name)
            frame = outcome.frame
            if frame.base_offset != self.end_offset:
                reason = "a frame does not follow the one before"
                raise self._damaged(LogPosition(segment.file_seq, position + end), reason, segment.name)
            self._note(frame, object_position + end)
            end = outcome.end
            if self.frame_count % _FRAMES_IN_A_ROW == 0:
                time.sleep(0)  # let publishing threads take the global lock
        return end

    def _note(self, frame: Frame, position: int) -> None:
        self.frame_count += 1
        if frame.publish_time_us:  # frames by which a repair replaced lost ones have no time
            self.first_time_us = self.first_time_us or frame.publish_time_us
            self.last_time_us = frame.publish_time_us
        self.end_offset = frame.end_offset
        self.index.add(frame.base_offset, position, frame.publish_time_us)
        self._producers.note(frame)

    def _damaged(self, at: LogPosition, reason: str, name: str = "the log") -> IcestreamError:
        return DamagedError(
            f"durable bytes are lost: {reason}; messages from offset {self.end_offset} on are affected and not "
            "uploaded",
            operation="upload",
            place=f"{name} at byte {at.byte_pos}",
            remedy="restore the file from a copy; or inspect it with `icestream wal inspect`, and accept the loss with "
            "`icestream wal repair`",
            details={"file": name, "position": at.byte_pos, "first_offset": self.end_offset},
        )


def _frame_bytes(buffer: memoryview, seed: int) -> int:
    """Return the length of a frame that does not fit into the buffer; 0 if not even its header fits."""
    outcome = decode(buffer, 0, seed) if len(buffer) >= HEADER_BYTES else None
    return outcome.needed if isinstance(outcome, Incomplete) else 0


class ObjectBuilder:
    """Builds objects of one topic. `record` returns the topic's settings; `cancelled` returns whether to stop."""

    def __init__(
        self,
        topic: TopicName,
        stream_id: str,
        source: FrameSource,
        store: ObjectStore,
        *,
        record: Callable[[], dict[str, Any]] = dict,
        cancelled: Callable[[], bool] = lambda: False,
        read_bytes: int = READ_BYTES,
        clock: Clock = now_us,
    ) -> None:
        self.topic = topic
        self.stream_id = stream_id
        self.source = source
        self.store = store
        self._record = record
        self._cancelled = cancelled
        self._read_bytes = read_bytes
        self._clock = clock

    def build(self, key: str, log_range: LogRange) -> ObjectDescriptor:
        """Run steps 2 and 3. An object that an earlier attempt finished is adopted."""
        if (adopted := self.adopt(key, log_range)) is not None:
            return adopted
        packer = FramePacker(self.source, log_range, self._read_bytes)
        writer = self.store.writer(key)
        try:
            with closing(iter(packer)) as chunks:
                for chunk in chunks:
                    self._check_cancelled()
                    writer.write(chunk)
            trailer = self._trailer(key, packer).to_bytes()
            writer.write(trailer)
            descriptor = self._descriptor(key, packer, packer.data_bytes + len(trailer))
            writer.finish()
        except ObjectExistsError as error:
            writer.abort()
            if (adopted := self.adopt(key, log_range)) is not None:
                return adopted
            raise ConflictError(str(error), operation="upload", place=key, retryable=True) from error
        except BaseException:
            writer.abort()
            raise
        try:
            self._read_back(descriptor)
        except DamagedError as error:
            raise UnavailableError(
                f"the store does not hold the object as it was sent: {error.message}",
                operation="upload",
                place=f"{self.store.name}: {key}",
                remedy="wait: the broker sends the object again",
            ) from error
        return descriptor

    def adopt(self, key: str, log_range: LogRange) -> ObjectDescriptor | None:
        """Return the object of that name if it holds exactly the range's bytes. Another object is removed."""
        info = self.store.stat(key)
        if info is None:
            return None
        packer = FramePacker(self.source, log_range, self._read_bytes)
        with closing(iter(packer)) as chunks:
            for _ in chunks:
                self._check_cancelled()
        expected = self._descriptor(key, packer, info.size)
        try:
            made = self._read_back(expected)
        except DamagedError:
            self.store.delete(key)
            return None
        return replace(expected, created_us=made.descriptor.created_us)

    def _check_cancelled(self) -> None:
        if self._cancelled():
            raise ClosedError("the upload was cancelled", operation="upload", place=str(self.topic))

    def _read_back(self, descriptor: ObjectDescriptor) -> Trailer:
        """Run step 3; raise `DamagedError` if the store holds other bytes than were sent."""
        info = self.store.stat(descriptor.key)
        found = info.size if info is not None else 0
        if found != descriptor.size or found <= descriptor.data_bytes:
            raise damaged_object(descriptor, f"the object has {found} bytes, {descriptor.size} were sent")
        return read_trailer(self.store, descriptor)

    def _trailer(self, key: str, packer: FramePacker) -> Trailer:
        _, durable_end = self.source.bounds()
        return Trailer(
            packer.index,
            self._descriptor(key, packer, 0, indexed=False),
            schemas=self.source.schemas,
            record=self._record(),
            durable_end=durable_end,
            producers=packer.producers,
        )

    def _descriptor(self, key: str, packer: FramePacker, size: int, *, indexed: bool = True) -> ObjectDescriptor:
        log_range = packer.log_range
        return ObjectDescriptor(
            key=key,
            topic=str(self.topic),
            stream_id=self.stream_id,
            epoch=_epoch_of(key, self.source.epoch),
            first_offset=log_range.first_offset,
            end_offset=log_range.end_offset,
            first_time_us=packer.first_time_us,
            last_time_us=packer.last_time_us,
            frame_count=packer.frame_count,
            data_bytes=packer.data_bytes,
            size=size,
            checksum=packer.checksum,
            parts=tuple(packer.parts),
            file_seq=log_range.end.file_seq,
            byte_pos=log_range.end.byte_pos,
            created_us=self._clock(),
            index=inline_index(packer.index) if indexed else None,
        )


def _epoch_of(key: str, own: int) -> int:
    name = ObjectName.parse(key)
    return name.epoch if name is not None else own
