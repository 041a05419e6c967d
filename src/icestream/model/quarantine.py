"""Messages that a pipeline has put aside: which offsets, why, and where their bytes are kept.

A frame in quarantine is durable twice: in the log until retention takes it, and as a file of its own beside the table.
The table has no row for its offsets. They count among its lost ranges too, so that whoever only wants to know where the
gaps are need not know of quarantine; this list tells which of them can be had back.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import xxhash

from icestream.model.errors import DamagedError
from icestream.model.frame_bytes import Complete, Incomplete, decode, encode, prepare, segment_seed
from icestream.model.frames import Frame
from icestream.model.offsets import OffsetRanges

MAX_QUARANTINED = 1000
"""Of one table: the list of them is part of its properties."""
MAX_REASON_LENGTH = 300


@dataclass(frozen=True)
class Quarantined:
    """One frame, or what of it is not in the table: the messages `first_offset` to before `end_offset`."""

    first_offset: int
    end_offset: int
    reason: str
    file: str
    """Where the whole frame is kept."""
    quarantined_us: int

    @property
    def messages(self) -> int:
        return self.end_offset - self.first_offset

    def to_json(self) -> dict[str, Any]:
        return {
            "first_offset": self.first_offset,
            "end_offset": self.end_offset,
            "reason": self.reason,
            "file": self.file,
            "quarantined_us": self.quarantined_us,
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Self:
        """Raises ValueError for what `to_json` did not make."""
        try:
            return cls(
                int(fields["first_offset"]),
                int(fields["end_offset"]),
                str(fields["reason"]),
                str(fields["file"]),
                int(fields["quarantined_us"]),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not the description of a frame in quarantine: {error!r}") from error


def quarantine_text(entries: Iterable[Quarantined]) -> str:
    return json.dumps([entry.to_json() for entry in entries], separators=(",", ":"))


def parse_quarantine(text: str | None) -> tuple[Quarantined, ...]:
    """What `quarantine_text` made, by offset; none of none. Raises ValueError for anything else."""
    found = json.loads(text) if text is not None else []
    if not isinstance(found, list):
        raise ValueError("not a list of frames in quarantine")  # noqa: TRY004 - the text is wrong, not an argument
    return tuple(sorted(map(Quarantined.from_json, found), key=lambda entry: entry.first_offset))


def quarantined_ranges(entries: Iterable[Quarantined]) -> OffsetRanges:
    return OffsetRanges.of((entry.first_offset, entry.end_offset) for entry in entries)


def frame_file(frame: Frame, stream_id: str) -> bytes:
    """A frame as a file of its own: the bytes of a log's frame, sound only as a file of this stream."""
    payload = prepare(
        frame.body,
        message_count=frame.message_count,
        encoding=frame.encoding,
        schema_id=frame.schema_id,
        producer=frame.producer,
        sequence=frame.sequence,
    )
    seed = _seed(stream_id)
    buffers = encode(payload, frame.base_offset, frame.publish_time_us, epoch=frame.epoch, synced_position=0, seed=seed)
    return b"".join(map(bytes, buffers))


def open_frame_file(data: bytes, stream_id: str, *, place: str) -> Frame:
    """The frame of such a file, if every byte of it is as it was written."""
    outcome = decode(memoryview(data), 0, _seed(stream_id))
    if isinstance(outcome, Complete) and outcome.end == len(data):
        return outcome.frame
    if isinstance(outcome, Complete):
        reason = f"{len(data) - outcome.end} bytes follow the frame"
    else:
        reason = "it is cut off" if isinstance(outcome, Incomplete) else outcome.reason
    raise DamagedError(f"the file is no sound frame: {reason}", operation="read quarantine", place=place)


def _seed(stream_id: str) -> int:
    return segment_seed(xxhash.xxh3_64_intdigest(stream_id.encode()), 0)
