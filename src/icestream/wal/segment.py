"""Segments: one segment file, and the segments of an open log.

A segment file is a header, frames, and a footer once it is sealed. `docs/formats/wal.md` shows the bytes.
"""

import contextlib
import errno
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import xxhash

from icestream.model.errors import DamagedError
from icestream.model.frames import Bytes, Corrupt, Decoded, Incomplete, Scan, SparseIndex, segment_seed
from icestream.model.messages import Frame
from icestream.wal.disk_errors import is_full
from icestream.wal.files import File, Files, write_all, write_durably
from icestream.wal.options import LogContext, LogOptions
from icestream.wal.producers import Producers
from icestream.wal.read_leases import ReadLeases
from icestream.wal.records import Checkpoint, StreamInfo

SUFFIX = ".log"
INDEX_SUFFIX = ".index"
PRODUCERS_SUFFIX = ".producers"
SEGMENT_HEADER_BYTES = 64
SEGMENT_FOOTER_BYTES = 64
_HEADER = struct.Struct("<8sQQq16sQQ")
_HEADER_MAGIC = b"ICESEG\x00\x01"
_FOOTER = struct.Struct("<8sQQqqQ8xQ")
_FOOTER_MAGIC = b"ICEEND\x00\x01"


class SegmentHeader(NamedTuple):
    number: int
    base_offset: int
    created_us: int
    stream_id: UUID
    salt: int

    @property
    def seed(self) -> int:
        return segment_seed(self.salt, self.base_offset)


class SegmentFooter(NamedTuple):
    """Written when a segment is sealed, before the next one is created. All bytes before it are durable."""

    end_offset: int
    position: int
    first_time_us: int
    last_time_us: int
    frame_count: int


def segment_path(directory: Path, base_offset: int, suffix: str = SUFFIX) -> Path:
    return directory / f"{base_offset:020d}{suffix}"


def segment_offsets(files: Files, directory: Path, suffix: str = SUFFIX) -> list[int]:
    """Return the base offsets of the files with a suffix in a log's directory, in order."""
    return [int(name.removesuffix(suffix)) for name in files.names(directory) if name.endswith(suffix)]


def remove_segment(files: Files, directory: Path, base_offset: int) -> None:
    """Remove a segment and the files derived from it. The segment goes last, so no derived file is left behind."""
    for suffix in (PRODUCERS_SUFFIX, INDEX_SUFFIX, SUFFIX):
        path = segment_path(directory, base_offset, suffix)
        if files.exists(path):
            files.remove(path)


def _sealed(fields: bytes) -> bytes:
    return fields[:-8] + xxhash.xxh3_64_intdigest(fields[:-8]).to_bytes(8, "little")


def _intact(data: bytes, magic: bytes) -> bool:
    return data.startswith(magic) and xxhash.xxh3_64_intdigest(data[:-8]) == int.from_bytes(data[-8:], "little")


def encode_header(header: SegmentHeader) -> bytes:
    number, base_offset, created_us, stream_id, salt = header
    return _sealed(_HEADER.pack(_HEADER_MAGIC, number, base_offset, created_us, stream_id.bytes, salt, 0))


def decode_header(data: bytes) -> SegmentHeader | None:
    if len(data) != SEGMENT_HEADER_BYTES or not _intact(data, _HEADER_MAGIC):
        return None
    _, number, base_offset, created_us, stream_id, salt, _ = _HEADER.unpack(data)
    return SegmentHeader(number, base_offset, created_us, UUID(bytes=stream_id), salt)


def encode_footer(footer: SegmentFooter) -> bytes:
    return _sealed(_FOOTER.pack(_FOOTER_MAGIC, *footer, 0))


def decode_footer(data: bytes) -> SegmentFooter | None:
    if len(data) != SEGMENT_FOOTER_BYTES or not _intact(data, _FOOTER_MAGIC):
        return None
    return SegmentFooter(*_FOOTER.unpack(data)[1:6])


def read_footer(file: File) -> SegmentFooter | None:
    """Return the footer at the file's end, if there is a sound one that agrees with the file's size."""
    position = file.size() - SEGMENT_FOOTER_BYTES
    if position < SEGMENT_HEADER_BYTES:
        return None
    footer = decode_footer(file.read(SEGMENT_FOOTER_BYTES, position))
    return footer if footer is not None and footer.position == position else None


def scan_sound(file: File, path: Path, position: int, limit: int, seed: int) -> Iterator[tuple[int, Frame]]:
    """Yield the frames between two positions whose bytes are durable. Raise `DamagedError` for anything else."""
    scan = Scan(file, position, limit, seed=seed)
    offset = -1
    for found, complete in scan:
        offset = complete.frame.end_offset
        yield found, complete.frame
    if scan.stop is not None:
        raise damaged_segment(path, scan.position, scan.stop, offset)


def damaged_segment(
    path: Path, position: int, outcome: Decoded | str, offset: int, end: int | None = None
) -> DamagedError:
    """Return the error for durable bytes that cannot be read, with the offsets from `offset` to before `end`."""
    reason = outcome if isinstance(outcome, str) else _reason(outcome)
    upto = f" up to {end - 1}" if end is not None and end > offset + 1 else " and following"
    return DamagedError(
        f"durable bytes are lost: {reason}" + (f"; offsets {offset}{upto} are affected" if offset >= 0 else ""),
        operation="read log",
        place=f"{path} at byte {position}",
        remedy="restore the file from a copy; or look with `icestream wal inspect` and accept the loss with "
        "`icestream wal repair`, which keeps a copy of what it removes",
        details={"file": str(path), "position": position, "first_offset": offset, "end_offset": end},
    )


def _reason(outcome: Decoded) -> str:
    match outcome:
        case Corrupt(reason):
            return reason
        case Incomplete():
            return "the file ends within a frame"
    return "a frame does not follow the one before it"


# The sparse index of a sealed segment


def save_index(index: SparseIndex, files: Files, path: Path) -> None:
    if files.exists(path):
        files.remove(path)
    file = files.open(path, create=True)
    try:
        file.write([index.to_bytes()], 0)
    finally:
        file.close()


def load_index(files: Files, path: Path) -> SparseIndex | None:
    """Return the saved index, or None if it is missing or damaged."""
    try:
        return SparseIndex.from_bytes(files.read_bytes(path))
    except FileNotFoundError:
        return None


# A log has sealed segments and, after them, one active segment


@dataclass
class SealedSegment:
    header: SegmentHeader
    footer: SegmentFooter
    path: Path


@dataclass
class ActiveSegment:
    header: SegmentHeader
    path: Path
    file: File
    position: int
    index: SparseIndex
    frame_count: int = 0
    first_time_us: int = 0
    last_time_us: int = 0

    def note(self, base_offset: int, position: int, end: int, time_us: int) -> None:
        """Count a frame that lies between two positions."""
        if self.frame_count == 0:
            self.first_time_us = time_us
        self.last_time_us = time_us
        self.frame_count += 1
        self.index.add(base_offset, position, time_us)
        self.position = end


# Writing the active segment


_FIRST_STEP_BYTES = 16 * 1024
_ZEROS = memoryview(bytes(256 * 1024))


def create_segment(files: Files, directory: Path, header: SegmentHeader, index_interval_bytes: int) -> ActiveSegment:
    """Create a segment. It is durable except for its directory entry: the caller syncs the directory."""
    path = segment_path(directory, header.base_offset)
    if files.exists(path):
        files.remove(path)  # left by a creation that failed before a frame was written
    file = files.open(path, create=True)
    try:
        write_all(file, [encode_header(header)], 0)
        file.datasync()
    except BaseException:
        file.close()
        raise
    return ActiveSegment(header, path, file, SEGMENT_HEADER_BYTES, SparseIndex(index_interval_bytes))


class SegmentWriter:
    """Writes frames one after the other, reserves room ahead of them, and writes the footer at the end.

    All bytes up to `synced_position` are durable. Every frame's header holds it, so that recovery can tell a torn tail
    from damage.
    """

    def __init__(self, files: Files, options: LogOptions, active: ActiveSegment, end_offset: int) -> None:
        self._files = files
        self._options = options
        self._allocated = self._filled = active.position
        self._step = _FIRST_STEP_BYTES
        self.active = active
        self.seed = active.header.seed
        self.end_offset = end_offset
        self.synced_position = active.position
        self.synced_offset = end_offset

    def must_rotate(self, nbytes: int, now_us: int) -> bool:
        """Return whether a new segment is due before `nbytes` are written."""
        active, options = self.active, self._options
        if active.frame_count == 0:
            return False
        too_old = options.max_age_us is not None and now_us - active.header.created_us >= options.max_age_us
        return too_old or active.position + nbytes > options.max_file_bytes

    def append(self, buffers: Sequence[Bytes], frames: Sequence[Frame], sizes: Sequence[int], *, durable: bool) -> None:
        """Write frames that take these sizes in the file. With `durable`, they are durable on return."""
        position, nbytes = self.active.position, sum(sizes)
        if self._options.preallocate_bytes:
            if durable and nbytes <= self._options.small_commit_bytes:
                self._fill(position + nbytes)
            else:
                self._reserve(position + nbytes)
        if durable:
            write_durably(self.active.file, buffers, position)
        else:
            write_all(self.active.file, buffers, position)
        for frame, size in zip(frames, sizes, strict=True):
            self._note(frame, size)
        if durable:
            self._note_synced()

    def _fill(self, end: int) -> None:
        """Write zeros ahead, durably: a sync that changes only bytes of a file is the cheapest."""
        if end <= self._filled:
            return
        target = self._next_end(end, min(self._step, len(_ZEROS)))
        if target > end:
            try:
                write_durably(self.active.file, [_ZEROS[: target - end]], end)
            except OSError as error:
                if not is_full(error):
                    raise
                return  # the frame itself may still fit
        self._filled = target
        self._step *= 2

    def _next_end(self, end: int, step: int) -> int:
        step = min(step, self._options.preallocate_bytes)
        return max(end, min(end + step, self._options.max_file_bytes + SEGMENT_FOOTER_BYTES))

    def _reserve(self, end: int) -> None:
        """Grow the file ahead: a sync that leaves the file's size alone is cheaper."""
        if end <= self._allocated:
            return
        target = self._next_end(end, self._step)
        try:
            self.active.file.allocate(target)
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:  # some file systems cannot reserve room
                raise
        self._allocated = target
        self._step *= 2

    def _note(self, frame: Frame, nbytes: int) -> None:
        """Count a frame that was just written."""
        position = self.active.position
        self.active.note(frame.base_offset, position, position + nbytes, frame.publish_time_us)
        self.end_offset = frame.end_offset

    def trim(self) -> None:
        """Cut off the room reserved ahead."""
        self.active.file.truncate(self.active.position)
        self.active.file.datasync()
        self._allocated = self._filled = self.active.position

    def sync(self) -> None:
        self.active.file.datasync()
        self._note_synced()

    def _note_synced(self) -> None:
        self.synced_position = self.active.position
        self.synced_offset = self.end_offset

    def seal(self) -> SealedSegment:
        """Write the footer, cut the file to its length, sync it; then save its index, which can be rebuilt."""
        active = self.active
        footer = SegmentFooter(
            self.end_offset, active.position, active.first_time_us, active.last_time_us, active.frame_count
        )
        write_all(active.file, [encode_footer(footer)], active.position)
        active.file.truncate(active.position + SEGMENT_FOOTER_BYTES)
        active.file.datasync()
        save_index(active.index, self._files, segment_path(active.path.parent, active.header.base_offset, INDEX_SUFFIX))
        return SealedSegment(active.header, footer, active.path)


# The segments of an open log


@dataclass
class RecoveredLog:
    """What recovery found in a log's directory."""

    stream: StreamInfo
    sealed: list[SealedSegment]
    active: ActiveSegment | None
    """None if the last segment is sealed and the next one is still to be created."""
    start_offset: int
    next_offset: int
    last_time_us: int
    producers: Producers
    checkpoint: Checkpoint


class LogSnapshot(NamedTuple):
    """What readers may see of a log. It is replaced as a whole, so readers need no lock."""

    start_offset: int
    end_offset: int
    sealed: tuple[SealedSegment, ...]
    active: ActiveSegment
    active_position: int

    @property
    def nbytes(self) -> int:
        return sum(segment.footer.position for segment in self.sealed) + self.active_position


class Segments:
    """The segments of an open log: the active one, the sealed ones before it, and the checkpoint that names them.

    Only the thread that commits changes them. Any thread may read `snapshot`. `producers_before` returns the producers'
    state before an offset.
    """

    snapshot: LogSnapshot
    writer: SegmentWriter
    _stream: StreamInfo
    _checkpoint: Checkpoint

    def __init__(self, context: LogContext, directory: Path, producers_before: Callable[[int], Producers]) -> None:
        self._context = context
        self._directory = directory
        self._producers_before = producers_before

    def resume(self, found: RecoveredLog) -> None:
        """Continue with the segments that recovery has found."""
        self._stream = found.stream
        sealed = tuple(found.sealed)
        if found.active is not None:
            self._use(found.active, found.next_offset, found.start_offset, sealed)
            self._checkpoint = found.checkpoint
            if not self.is_checkpointed:
                self.save_checkpoint()
        else:
            number = sealed[-1].header.number + 1 if sealed else 0
            self._begin(number, found.next_offset, found.start_offset, sealed)

    def show(self) -> None:
        """Let readers see all written frames."""
        self.snapshot = self.snapshot._replace(
            end_offset=self.writer.end_offset, active_position=self.writer.active.position
        )

    @property
    def is_synced(self) -> bool:
        return self.writer.synced_position >= self.writer.active.position

    def sync(self) -> None:
        if not self.is_synced:
            self.writer.sync()

    def finish(self) -> None:
        """Sync, cut off reserved room, and save the checkpoint."""
        self.sync()
        self.writer.trim()
        self.save_checkpoint()

    @property
    def is_checkpointed(self) -> bool:
        return self._checkpoint == self._current_checkpoint()

    def save_checkpoint(self) -> None:
        checkpoint = self._current_checkpoint()
        checkpoint.save(self._context.files, self._directory)
        self._checkpoint = checkpoint

    def _current_checkpoint(self) -> Checkpoint:
        header = self.writer.active.header
        return Checkpoint(
            segment_number=header.number,
            base_offset=header.base_offset,
            position=self.writer.synced_position,
            durable_end=self.writer.synced_offset,
            start_offset=self.snapshot.start_offset,
        )

    def rotate(self) -> None:
        """Continue in a new segment.

        What a crash after each step leaves behind:

        1. Seal the active segment. *Recovery finds the footer and creates the next segment.*
        2. Create the new segment and save the producers' state. *An empty segment that no checkpoint names; recovery
           uses it.*
        3. Save its number in the checkpoint. Only then may it hold frames. So a segment whose header cannot be read
           is known to be empty, or known to be damaged.
        """
        self.sync()
        sealed = self.writer.seal()
        finished = self.writer.active.file
        snapshot = self.snapshot
        self._begin(sealed.header.number + 1, snapshot.end_offset, snapshot.start_offset, (*snapshot.sealed, sealed))
        finished.close()

    def _begin(self, number: int, base_offset: int, start: int, sealed: tuple[SealedSegment, ...]) -> None:
        """Run steps 2 and 3."""
        context = self._context
        producers = self._producers_before(base_offset)
        producers.save(context.files, segment_path(self._directory, base_offset, PRODUCERS_SUFFIX))
        header = SegmentHeader(number, base_offset, context.clock(), self._stream.stream_id, self._stream.salt)
        active = create_segment(context.files, self._directory, header, context.options.index_interval_bytes)
        context.files.sync_directory(self._directory)
        self._use(active, base_offset, start, sealed)
        self.save_checkpoint()

    def _use(self, active: ActiveSegment, end: int, start: int, sealed: tuple[SealedSegment, ...]) -> None:
        self.writer = SegmentWriter(self._context.files, self._context.options, active, end)
        self.snapshot = LogSnapshot(start, end, sealed, active, active.position)

    def prune(self, below_offset: int, leases: ReadLeases) -> int:
        """Remove the sealed segments that end at or before an offset and have no reader. Return how many there were.

        1. Save the new start offset. *The segments are no longer part of the log; recovery removes them.*
        2. Remove the files.
        """
        with leases.lock:
            below_offset = leases.floor(below_offset)
            sealed = self.snapshot.sealed
            removed = [segment for segment in sealed if segment.footer.end_offset <= below_offset]
            if not removed:
                return 0
            start = removed[-1].footer.end_offset
            self.snapshot = self.snapshot._replace(start_offset=start, sealed=sealed[len(removed) :])
        self.save_checkpoint()
        for segment in removed:
            remove_segment(self._context.files, self._directory, segment.header.base_offset)
        self._context.files.sync_directory(self._directory)
        return len(removed)


class IndexCache:
    """The indexes of sealed segments. One is loaded when needed, and rebuilt if missing or damaged; a few are kept."""

    def __init__(self, files: Files, interval_bytes: int, max_indexes: int = 16) -> None:
        self._files = files
        self._interval_bytes = interval_bytes
        self._max_indexes = max_indexes
        self._lock = threading.Lock()
        self._indexes: OrderedDict[Path, SparseIndex] = OrderedDict()

    def get(self, segment: SealedSegment, file: File) -> SparseIndex:
        with self._lock:
            index = self._indexes.get(segment.path)
            if index is None:
                index = self._indexes[segment.path] = self._load(segment, file)
            self._indexes.move_to_end(segment.path)
            if len(self._indexes) > self._max_indexes:
                self._indexes.popitem(last=False)
            return index

    def _load(self, segment: SealedSegment, file: File) -> SparseIndex:
        path = segment_path(segment.path.parent, segment.header.base_offset, INDEX_SUFFIX)
        index = load_index(self._files, path)
        if index is None:
            index = SparseIndex(self._interval_bytes)
            for position, frame in scan_sound(
                file, segment.path, SEGMENT_HEADER_BYTES, segment.footer.position, segment.header.seed
            ):
                index.add(frame.base_offset, position, frame.publish_time_us)
            with contextlib.suppress(OSError):  # a reader needs the index, not the file
                save_index(index, self._files, path)
        return index
