"""Creating a log that begins at an offset, for a topic whose disk was lost and whose earlier messages are elsewhere.

The log is built in a temporary directory and renamed when it is durable. So there is a whole log or none:

1. Write identity, producers' state, one segment and checkpoint to the temporary directory. *The next attempt removes
   it.*
2. Rename the directory. *The log is there, as if it had always begun at this offset.*

Offsets of messages that may have been acknowledged and are lost are not used again: the segment begins with a *lost*
frame for them, as in a repair.
"""

from pathlib import Path
from typing import NamedTuple

from icestream.model.errors import ConflictError
from icestream.model.frames import encode, prepare
from icestream.model.messages import Encoding
from icestream.wal.files import Files, make_directories, write_file
from icestream.wal.records import STREAM_FILE, Checkpoint, StreamInfo
from icestream.wal.repair import MAX_LOST_MESSAGES
from icestream.wal.segment import PRODUCERS_SUFFIX, SEGMENT_HEADER_BYTES, SegmentHeader, encode_header, segment_path


class LogStart(NamedTuple):
    """Where a restored log begins, and with what."""

    offset: int
    end_offset: int
    """The end of the lost messages from `offset` on; equal to `offset` if none are lost."""
    segment_number: int
    time_us: int
    """The publish time of the newest known message, or the present."""
    producers: bytes = b""
    """The producers' state before `offset`, as a log saves it; empty if unknown."""


def restore_log(files: Files, directory: Path, aside: Path, stream: StreamInfo, start: LogStart) -> None:
    """Create a log in `directory`, which must hold none. `aside` is the temporary directory."""
    _remove(files, aside)
    make_directories(files, aside)
    stream.save(files, aside)
    if start.producers:
        write_file(files, segment_path(aside, start.offset, PRODUCERS_SUFFIX), [start.producers])
    position = _write_segment(files, aside, stream, start)
    Checkpoint(
        segment_number=start.segment_number,
        base_offset=start.offset,
        position=position,
        durable_end=start.end_offset,
        start_offset=start.offset,
    ).save(files, aside)
    make_directories(files, directory.parent)
    if files.exists(directory / STREAM_FILE):  # the topic was opened meanwhile, and may have messages
        _remove(files, aside)
        raise ConflictError(
            "the directory has a log now", operation="recover topic", place=str(directory), remedy="use that log"
        )
    _remove(files, directory)
    files.replace(aside, directory)
    files.sync_directory(directory.parent)


def _write_segment(files: Files, directory: Path, stream: StreamInfo, start: LogStart) -> int:
    """Write the active segment. Return the position after its last frame."""
    number, offset = start.segment_number, start.offset
    header = SegmentHeader(number, offset, start.time_us, stream.stream_id, stream.salt)
    buffers = [encode_header(header)]
    position = SEGMENT_HEADER_BYTES
    while offset < start.end_offset:
        count = min(start.end_offset - offset, MAX_LOST_MESSAGES)
        payload = prepare(b"", message_count=count, encoding=Encoding.LOST, schema_id=0, producer="", sequence=0)
        frame = encode(
            payload,
            offset,
            start.time_us,
            epoch=stream.epoch,
            synced_position=SEGMENT_HEADER_BYTES,
            seed=header.seed + position,
        )
        buffers += [bytes(part) for part in frame]
        position += payload.frame_bytes
        offset += count
    write_file(files, segment_path(directory, start.offset), buffers)
    return position


def _remove(files: Files, directory: Path) -> None:
    if files.exists(directory):
        files.remove_tree(directory)
