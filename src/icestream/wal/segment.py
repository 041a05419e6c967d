"""One segment file: a header, frames, and a footer once it is sealed. `docs/formats/wal.md` has the drawing."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import xxhash

from icestream.model.errors import DamagedError
from icestream.model.frame_bytes import Corrupt, Decoded, Incomplete, segment_seed
from icestream.model.frame_scan import Scan
from icestream.model.frames import Frame
from icestream.wal.files import File, Files

SUFFIX = ".log"
INDEX_SUFFIX = ".index"
PRODUCERS_SUFFIX = ".producers"
HEADER_BYTES = 64
FOOTER_BYTES = 64
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
    """Written when a segment is sealed, before its successor is made: all that stands before it was durable."""

    end_offset: int
    position: int
    first_time_us: int
    last_time_us: int
    frame_count: int


def segment_path(directory: Path, base_offset: int, suffix: str = SUFFIX) -> Path:
    return directory / f"{base_offset:020d}{suffix}"


def segment_offsets(files: Files, directory: Path, suffix: str = SUFFIX) -> list[int]:
    """The base offsets of the files of one kind in a log's directory, in order."""
    return [int(name.removesuffix(suffix)) for name in files.names(directory) if name.endswith(suffix)]


def remove_segment(files: Files, directory: Path, base_offset: int) -> None:
    """Remove a segment and what was derived from it; the segment last, so that nothing derived is left alone."""
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
    if len(data) != HEADER_BYTES or not _intact(data, _HEADER_MAGIC):
        return None
    _, number, base_offset, created_us, stream_id, salt, _ = _HEADER.unpack(data)
    return SegmentHeader(number, base_offset, created_us, UUID(bytes=stream_id), salt)


def encode_footer(footer: SegmentFooter) -> bytes:
    return _sealed(_FOOTER.pack(_FOOTER_MAGIC, *footer, 0))


def decode_footer(data: bytes) -> SegmentFooter | None:
    if len(data) != FOOTER_BYTES or not _intact(data, _FOOTER_MAGIC):
        return None
    return SegmentFooter(*_FOOTER.unpack(data)[1:6])


def read_footer(file: File) -> SegmentFooter | None:
    """The footer at the file's end, if there is a sound one that agrees with the file's size."""
    position = file.size() - FOOTER_BYTES
    if position < HEADER_BYTES:
        return None
    footer = decode_footer(file.read(FOOTER_BYTES, position))
    return footer if footer is not None and footer.position == position else None


def scan_sound(file: File, path: Path, position: int, limit: int, seed: int) -> Iterator[tuple[int, Frame]]:
    """The frames between two positions that are known to be durable; anything but a frame is damage."""
    scan = Scan(file, position, limit, seed=seed)
    offset = -1
    for found, complete in scan:
        offset = complete.frame.end_offset
        yield found, complete.frame
    if scan.stop is not None:
        raise damaged(path, scan.position, scan.stop, offset)


def damaged(path: Path, position: int, outcome: Decoded | str, offset: int, end: int | None = None) -> DamagedError:
    """The error for bytes that had been durable; `offset` and `end` are the offsets that cannot be read."""
    reason = outcome if isinstance(outcome, str) else _reason(outcome)
    upto = f" up to {end - 1}" if end is not None and end > offset + 1 else " and following"
    return DamagedError(
        f"durable bytes are lost: {reason}" + (f"; offsets {offset}{upto} are affected" if offset >= 0 else ""),
        operation="read log",
        place=f"{path} at byte {position}",
        remedy="restore the file from a copy, or look with `icestream wal inspect` and give the loss up for good "
        "with `icestream wal repair`, which keeps a copy of what it removes",
        details={"file": str(path), "position": position, "first_offset": offset, "end_offset": end},
    )


def _reason(outcome: Decoded) -> str:
    match outcome:
        case Corrupt(reason):
            return reason
        case Incomplete():
            return "the file ends within a frame"
    return "a frame that does not fit what stands before it"
