"""Writing the active segment: frames behind each other, room reserved ahead, a footer at the end.

`synced_position` is the position up to which all is durable. It goes into every frame's header, where it
lets recovery tell a torn tail from damage.
"""

import errno
from collections.abc import Sequence
from pathlib import Path

from icestream.model.frame_bytes import Bytes
from icestream.model.frames import Frame
from icestream.model.sparse_index import SparseIndex
from icestream.wal.files import Files, write_all, write_durably
from icestream.wal.full import is_full
from icestream.wal.index_file import save_index
from icestream.wal.options import LogOptions
from icestream.wal.recovery import ActiveSegment, SealedSegment
from icestream.wal.segment import (
    FOOTER_BYTES,
    HEADER_BYTES,
    INDEX_SUFFIX,
    SegmentFooter,
    SegmentHeader,
    encode_footer,
    encode_header,
    segment_path,
)

_FIRST_STEP_BYTES = 16 * 1024
_ZEROS = memoryview(bytes(256 * 1024))


def create_segment(files: Files, directory: Path, header: SegmentHeader, index_interval_bytes: int) -> ActiveSegment:
    """A new segment, durable but for its directory entry: the caller syncs the directory."""
    path = segment_path(directory, header.base_offset)
    if files.exists(path):
        files.remove(path)  # left by a try that failed before anything was written to it
    file = files.open(path, create=True)
    write_all(file, [encode_header(header)], 0)
    file.datasync()
    return ActiveSegment(header, path, file, HEADER_BYTES, SparseIndex(index_interval_bytes))


class SegmentWriter:
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
        """Whether the active segment should make way for a new one before `nbytes` are written."""
        active, options = self.active, self._options
        if active.frame_count == 0:
            return False
        too_old = options.max_age_us is not None and now_us - active.header.created_us >= options.max_age_us
        return too_old or active.position + nbytes > options.max_file_bytes

    def append(self, buffers: Sequence[Bytes], frames: Sequence[Frame], sizes: Sequence[int], *, durable: bool) -> None:
        """Write frames, of these sizes in the file; `durable`: they are so when it returns."""
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
        """Have zeros on the disk ahead of the writer: a sync that changes nothing but bytes is the cheapest."""
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
        return max(end, min(end + step, self._options.max_file_bytes + FOOTER_BYTES))

    def _reserve(self, end: int) -> None:
        """Grow the file ahead of the writer: a sync that need not change the file's size is cheaper."""
        if end <= self._allocated:
            return
        target = self._next_end(end, self._step)
        try:
            self.active.file.allocate(target)
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:  # a file system that cannot do it does without
                raise
        self._allocated = target
        self._step *= 2

    def _note(self, frame: Frame, nbytes: int) -> None:
        """Take a frame into account that was just written."""
        position = self.active.position
        self.active.note(frame.base_offset, position, position + nbytes, frame.publish_time_us)
        self.end_offset = frame.end_offset

    def trim(self) -> None:
        """Give back the room reserved ahead."""
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
        """Finish the active segment: footer, exact length, durable; then its index, which may be made anew."""
        active = self.active
        footer = SegmentFooter(
            self.end_offset, active.position, active.first_time_us, active.last_time_us, active.frame_count
        )
        write_all(active.file, [encode_footer(footer)], active.position)
        active.file.truncate(active.position + FOOTER_BYTES)
        active.file.datasync()
        save_index(active.index, self._files, segment_path(active.path.parent, active.header.base_offset, INDEX_SUFFIX))
        return SealedSegment(active.header, footer, active.path)
