"""A log begun anew at an offset, for a topic whose earlier messages are elsewhere: its disk was lost.

It is built aside and moved to its place when all of it is durable, so there is a whole log there or none:

1. identity, the producers' state, one segment, checkpoint, in a directory of another name. *Removed by the next try.*
2. rename it. *The log is there, as if it had always begun at this offset.*

Offsets that may have been given to messages which nobody has any more are not used again: the segment begins with a
*lost* frame for them, as a repair writes it.
"""

from pathlib import Path
from typing import NamedTuple

from icestream.model.errors import ConflictError
from icestream.model.frame_bytes import encode, prepare
from icestream.model.messages import Encoding
from icestream.wal.files import Files, make_directories, write_all
from icestream.wal.records import STREAM_FILE, Checkpoint, StreamInfo
from icestream.wal.segment import PRODUCERS_SUFFIX, SEGMENT_HEADER_BYTES, SegmentHeader, encode_header, segment_path

_MAX_LOST_MESSAGES = (1 << 32) - 1  # what one frame's header can count


class LogStart(NamedTuple):
    """Where a log begins, and with what."""

    offset: int
    end_offset: int
    """Of the messages from `offset` on that are lost; the same where none are."""
    segment_number: int
    time_us: int
    """The newest message's that is known, or now."""
    producers: bytes = b""
    """Their state before `offset`, as a log saves it; none where it is not known."""


def restore_log(files: Files, directory: Path, aside: Path, stream: StreamInfo, beginning: LogStart) -> None:
    """Make a log in `directory`, which holds none, by way of the directory `aside`."""
    _remove(files, aside)
    make_directories(files, aside)
    stream.save(files, aside)
    if beginning.producers:
        _write(files, segment_path(aside, beginning.offset, PRODUCERS_SUFFIX), [beginning.producers])
    position = _write_segment(files, aside, stream, beginning)
    Checkpoint(
        segment_number=beginning.segment_number,
        base_offset=beginning.offset,
        position=position,
        durable_end=beginning.end_offset,
        start_offset=beginning.offset,
    ).save(files, aside)
    make_directories(files, directory.parent)
    if files.exists(directory / STREAM_FILE):  # somebody has opened the topic meanwhile, and it may have messages
        _remove(files, aside)
        raise ConflictError(
            "a log is there by now", operation="recover topic", place=str(directory), remedy="use it as it is"
        )
    _remove(files, directory)
    files.replace(aside, directory)
    files.sync_directory(directory.parent)


def _write_segment(files: Files, directory: Path, stream: StreamInfo, beginning: LogStart) -> int:
    """The segment, not sealed: the log goes on in it. The position behind its last frame."""
    number, offset = beginning.segment_number, beginning.offset
    header = SegmentHeader(number, offset, beginning.time_us, stream.stream_id, stream.salt)
    buffers = [encode_header(header)]
    position = SEGMENT_HEADER_BYTES
    while offset < beginning.end_offset:
        count = min(beginning.end_offset - offset, _MAX_LOST_MESSAGES)
        payload = prepare(b"", message_count=count, encoding=Encoding.LOST, schema_id=0, producer="", sequence=0)
        frame = encode(
            payload,
            offset,
            beginning.time_us,
            epoch=stream.epoch,
            synced_position=SEGMENT_HEADER_BYTES,
            seed=header.seed + position,
        )
        buffers += [bytes(part) for part in frame]
        position += payload.frame_bytes
        offset += count
    _write(files, segment_path(directory, beginning.offset), buffers)
    return position


def _remove(files: Files, directory: Path) -> None:
    if files.exists(directory):
        files.remove_tree(directory)


def _write(files: Files, path: Path, buffers: list[bytes]) -> None:
    file = files.open(path, create=True)
    try:
        write_all(file, buffers, 0)
        file.datasync()
    finally:
        file.close()
