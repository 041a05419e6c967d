"""The segments of an open log: the active one, the sealed ones before it, and the checkpoint that names them.

Only the thread that commits changes them. Any thread may read `snapshot`.
"""

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from icestream.model.sparse_index import SparseIndex
from icestream.wal.files import File, Files
from icestream.wal.options import LogContext
from icestream.wal.producers import Producers
from icestream.wal.read_leases import ReadLeases
from icestream.wal.records import Checkpoint, StreamInfo
from icestream.wal.recovery import RecoveredLog
from icestream.wal.segment import (
    INDEX_SUFFIX,
    PRODUCERS_SUFFIX,
    SEGMENT_HEADER_BYTES,
    ActiveSegment,
    SealedSegment,
    SegmentHeader,
    SegmentWriter,
    create_segment,
    load_index,
    remove_segment,
    save_index,
    scan_sound,
    segment_path,
)


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
    """`producers_before` returns the producers' state before an offset."""

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
