"""Opening a log's directory, after a clean stop or any crash.

There are three outcomes. *Complete*: every durable frame is there. *Torn tail*: a crash interrupted the last writes,
which were never acknowledged; they are cut off, and a copy is kept in `torn/`. *Damage*: durable bytes are missing or
changed; `DamagedError` says which, and nothing is changed.

These tell a torn tail from damage. A sealed segment ends with a footer that was durable before the next segment was
created. The checkpoint names a position up to which the active segment was synced. Every frame holds the position that
was synced when it was written, so a sound frame proves that all bytes before its group were durable.

Steps:

1. Read `stream.json` and `checkpoint.json`.
2. Check that the segments follow each other without a gap from the start offset to the active one.
3. Drop a segment whose creation was interrupted. Its header never became durable, so it never held a frame.
4. Scan the active segment, and decide what the bytes after its last sound frame are.
5. Sync what was found, so that all that readers see is durable.
"""

from pathlib import Path

from icestream.model import frames
from icestream.model.errors import DamagedError
from icestream.model.frames import Corrupt, Decoded, Scan, SparseIndex
from icestream.wal.disk_errors import SafeLogger
from icestream.wal.files import File, Files, write_all, write_file
from icestream.wal.producers import Producers
from icestream.wal.records import CHECKPOINT_FILE, Checkpoint, StreamInfo, load_checkpoint, load_stream
from icestream.wal.segment import (
    PRODUCERS_SUFFIX,
    SEGMENT_FOOTER_BYTES,
    SEGMENT_HEADER_BYTES,
    ActiveSegment,
    RecoveredLog,
    SealedSegment,
    damaged_segment,
    decode_footer,
    decode_header,
    encode_footer,
    read_footer,
    remove_segment,
    scan_sound,
    segment_offsets,
    segment_path,
)

TORN_DIRECTORY = "torn"
_COPY_BYTES = 1 << 20
_log = SafeLogger(__name__)


class Recovery:
    """One pass over a directory.

    `cut_at` is the segment number and position up to which this process knows the bytes to be durable, after one of its
    writes failed.
    """

    def __init__(
        self,
        files: Files,
        directory: Path,
        *,
        index_interval_bytes: int,
        max_producers: int,
        cut_at: tuple[int, int] | None = None,
    ) -> None:
        self._files = files
        self._directory = directory
        self._index_interval_bytes = index_interval_bytes
        self._producers = Producers(max_producers)
        self._cut_at = cut_at
        self._synced_position = 0
        self._file: File | None = None
        """The segment that was opened last."""

    def run(self) -> RecoveredLog:
        try:
            return self._run()
        except BaseException:
            if self._file is not None:  # its unsynced bytes would keep the descriptor open for ever
                self._file.close()
            raise

    def _run(self) -> RecoveredLog:
        self._files.sync_directory(self._directory)  # the steps below rely on the names, so these must be durable
        stream = load_stream(self._files, self._directory)
        checkpoint = self._checkpoint()
        sealed, last = self._segments(stream, checkpoint)
        log = RecoveredLog(
            stream=stream,
            sealed=sealed,
            active=None,
            start_offset=checkpoint.start_offset,
            next_offset=sealed[-1].footer.end_offset if sealed else checkpoint.start_offset,
            last_time_us=sealed[-1].footer.last_time_us if sealed else 0,
            producers=self._producers,
            checkpoint=checkpoint,
        )
        if last is not None:
            self._scan_active(log, last, checkpoint)
        else:
            self._restore_producers(log, log.next_offset)
        if stream.clock_resets and stream.clock_resets[-1].offset == log.next_offset:
            log.last_time_us = stream.clock_resets[-1].time_us  # nothing was published since the reset
        return log

    def _checkpoint(self) -> Checkpoint:
        try:
            return load_checkpoint(self._files, self._directory)
        except FileNotFoundError:
            if self._is_unused():
                return Checkpoint(segment_number=-1, base_offset=0, position=0, durable_end=0, start_offset=0)
            raise DamagedError(
                "the checkpoint is missing",
                operation="open log",
                place=str(self._directory / CHECKPOINT_FILE),
                remedy="run `icestream wal repair` on the directory; it rebuilds the file from the segments",
                details={"file": str(self._directory / CHECKPOINT_FILE), "position": 0},
            ) from None

    def _is_unused(self) -> bool:
        """Return whether the log's creation was interrupted: it may have a first segment, but no frames."""
        offsets = segment_offsets(self._files, self._directory)
        if offsets != [0]:
            return not offsets
        data = self._files.read_bytes(segment_path(self._directory, 0))
        return not data[SEGMENT_HEADER_BYTES:].strip(b"\0")

    def _segments(self, stream: StreamInfo, checkpoint: Checkpoint) -> tuple[list[SealedSegment], ActiveSegment | None]:
        """Return the sealed segments and the active one. Raise if one is missing between them."""
        offsets = [
            offset for offset in segment_offsets(self._files, self._directory) if not self._pruned(offset, checkpoint)
        ]
        sealed: list[SealedSegment] = []
        expected_offset = checkpoint.start_offset
        for index, offset in enumerate(offsets):
            path = segment_path(self._directory, offset)
            is_last = index == len(offsets) - 1
            file = self._file = self._files.open(path)
            header = decode_header(file.read(SEGMENT_HEADER_BYTES, 0))
            before = sealed[-1].header.number if sealed else -1
            if header is None and is_last and before >= checkpoint.segment_number:
                self._remove_unfinished(path, file)
                return sealed, None
            if header is None or header.base_offset != offset or header.stream_id != stream.stream_id:
                raise damaged_segment(path, 0, "the segment's header is not that of this log", offset)
            if offset != expected_offset:
                raise self._missing(expected_offset, offset)
            footer = read_footer(file)
            if footer is None and is_last:
                self._check_reaches(checkpoint, header.number, checkpoint.durable_end)
                sparse_index = SparseIndex(self._index_interval_bytes)
                return sealed, ActiveSegment(header, path, file, SEGMENT_HEADER_BYTES, sparse_index)
            if footer is None:
                raise damaged_segment(
                    path, max(0, file.size() - SEGMENT_FOOTER_BYTES), "the segment's footer is lost", offset
                )
            if is_last:  # its sync may have failed or not happened, and the next segment relies on it
                write_all(file, [encode_footer(footer)], footer.position)
                file.datasync()
            file.close()
            sealed.append(SealedSegment(header, footer, path))
            expected_offset = footer.end_offset
        number = sealed[-1].header.number if sealed else -1
        self._check_reaches(checkpoint, number, expected_offset)
        return sealed, None

    def _pruned(self, offset: int, checkpoint: Checkpoint) -> bool:
        """Return whether a segment was pruned, and remove it: a crash may have come between."""
        if offset >= checkpoint.start_offset:
            return False
        remove_segment(self._files, self._directory, offset)
        return True

    def _check_reaches(self, checkpoint: Checkpoint, last_number: int, end_offset: int) -> None:
        if last_number < checkpoint.segment_number or end_offset < checkpoint.durable_end:
            raise self._missing(checkpoint.base_offset, None)

    def _missing(self, first: int, found: int | None) -> DamagedError:
        path = segment_path(self._directory, first)
        upto = f"offsets {first} to {found - 1}" if found is not None else f"offset {first} and following"
        return DamagedError(
            f"a segment is missing: {upto} are not there",
            operation="open log",
            place=str(path),
            remedy="restore the file from a copy, or give the loss up for good with `icestream wal repair`",
            details={"file": str(path), "position": 0, "first_offset": first, "end_offset": found},
        )

    def _remove_unfinished(self, path: Path, file: File) -> None:
        data = file.read(file.size(), 0)
        file.close()
        if data.strip(b"\0"):
            keep_torn(self._files, self._directory, f"{path.name}-0", data)
        self._files.remove(path)
        self._files.sync_directory(self._directory)

    def _scan_active(self, log: RecoveredLog, active: ActiveSegment, checkpoint: Checkpoint) -> None:
        """Run steps 4 and 5."""
        base_offset = active.header.base_offset
        log.next_offset = base_offset
        self._restore_producers(log, base_offset)
        size = active.file.size()
        limit = size
        if self._cut_at is not None and self._cut_at[0] == active.header.number:
            limit = min(size, self._cut_at[1])
        scan = Scan(active.file, SEGMENT_HEADER_BYTES, limit, seed=active.header.seed)
        stop: Decoded | None = None
        for position, complete in scan:
            frame = complete.frame
            if frame.base_offset != log.next_offset or frame.epoch > log.stream.epoch:
                stop = Corrupt("a frame does not follow the one before it")
                break
            active.note(frame.base_offset, position, scan.position, frame.publish_time_us)
            self._synced_position = max(self._synced_position, complete.synced_position)
            log.next_offset = frame.end_offset
            log.last_time_us = frame.publish_time_us
            self._producers.note_frame(frame)
        self._judge_end(log, active, stop or scan.stop, checkpoint)

    def _judge_end(
        self, log: RecoveredLog, active: ActiveSegment, stop: Decoded | None, checkpoint: Checkpoint
    ) -> None:
        """Decide what follows the last sound frame: nothing, a footer, a torn tail, or damage."""
        position, size = active.position, active.file.size()
        named = checkpoint.segment_number == active.header.number
        durable = checkpoint.position if named else SEGMENT_HEADER_BYTES
        if self._cut_at is not None and self._cut_at[0] == active.header.number:
            durable = max(durable, self._cut_at[1])
        footer = decode_footer(active.file.read(SEGMENT_FOOTER_BYTES, position))
        if footer is not None and footer.position == position and footer.end_offset == log.next_offset:
            write_all(active.file, [encode_footer(footer)], position)
            active.file.truncate(position + SEGMENT_FOOTER_BYTES)
            active.file.datasync()
            active.file.close()
            log.sealed.append(SealedSegment(active.header, footer, active.path))
            return
        tail = TailScan(active.file, position, size, active.header.seed)
        durable = max(durable, tail.proven_position)
        if position < durable:
            end = tail.next_offset if tail.next_offset is not None else checkpoint.durable_end
            raise damaged_segment(active.path, position, stop or "the file is too short", log.next_offset, end)
        if tail.length:
            if self._cut_at is None:
                tail.keep(self._files, self._directory, active.path)
            _log.warning(
                "torn_tail_cut",
                file=str(active.path),
                position=position,
                bytes=tail.length,
                next_offset=log.next_offset,
            )
        if size > position:
            active.file.truncate(position)
        _write_again(active.file, max(self._synced_position, checkpoint.position if named else 0), position)
        log.active = active

    def _restore_producers(self, log: RecoveredLog, base_offset: int) -> None:
        """Load the producers' state before the segment at `base_offset`, or rebuild it from the sealed segments."""
        if self._producers.load(self._files, segment_path(self._directory, base_offset, PRODUCERS_SUFFIX)):
            return
        if not log.sealed:
            return
        _log.info("producer_state_rebuild_started", directory=str(self._directory), base_offset=base_offset)
        replayed: list[SealedSegment] = []
        for segment in reversed(log.sealed):
            replayed.insert(0, segment)
            path = segment_path(self._directory, segment.header.base_offset, PRODUCERS_SUFFIX)
            if self._producers.load(self._files, path):
                break
        for segment in replayed:
            file = self._files.open(segment.path)
            try:
                for _, frame in scan_sound(
                    file, segment.path, SEGMENT_HEADER_BYTES, segment.footer.position, segment.header.seed
                ):
                    self._producers.note_frame(frame)
            finally:
                file.close()


def _write_again(file: File, start: int, end: int) -> None:
    """Make bytes durable for which no successful sync is known.

    After a failed sync the page cache may show bytes that the disk does not have. A later sync writes them only if they
    are written again.
    """
    for position in range(start, end, _COPY_BYTES):
        write_all(file, [file.read(min(_COPY_BYTES, end - position), position)], position)
    file.datasync()


class TailScan:
    """The bytes after the last sound frame: their length without trailing zeros, and what their frame headers say."""

    _STEP = 1 << 20

    def __init__(self, file: File, position: int, size: int, seed: int) -> None:
        self._file = file
        self._position = position
        self._seed = seed
        self.length = 0
        self.proven_position = 0
        self.next_offset: int | None = None
        while position < size:
            # One header more than the step: a header may lie across two steps.
            data = file.read(min(self._STEP + frames.HEADER_BYTES, size - position), position)
            if content := len(data.rstrip(b"\0")):
                self.length = position + content - self._position
                self._look_for_headers(data, position)
            position += self._STEP

    def _look_for_headers(self, data: bytes, position: int) -> None:
        """Collect what sound headers say: the first offset, and the highest synced position."""
        view = memoryview(data)
        index = data.find(frames.MAGIC)
        while index >= 0:
            found = frames.decode_header(view, index, self._seed + position + index)
            if found is not None:
                self.next_offset = found[0] if self.next_offset is None else self.next_offset
                self.proven_position = max(self.proven_position, found[1])
            index = data.find(frames.MAGIC, index + 1)

    def keep(self, files: Files, directory: Path, path: Path) -> None:
        keep_torn(files, directory, f"{path.name}-{self._position}", self._file.read(self.length, self._position))


def keep_torn(files: Files, directory: Path, name: str, data: bytes) -> None:
    """Keep a copy of bytes that are about to be cut off."""
    torn = directory / TORN_DIRECTORY
    files.make_directory(torn)
    files.sync_directory(directory)
    taken = set(files.names(torn))
    number = next(number for number in range(len(taken) + 1) if f"{name}.{number}" not in taken)
    write_file(files, torn / f"{name}.{number}", [data])
    files.sync_directory(torn)
