"""Messages in quarantine, which a pipeline could not write to the table: which offsets, why, and the file with them.

A frame in quarantine is durable twice: in the log until retention removes it, and as a file next to the table. The
table has no rows for its offsets. They are also among the table's lost ranges, so code that only needs the gaps can
ignore quarantine. This list says which of them can be published again.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import xxhash

from icestream.model.errors import DamagedError
from icestream.model.frames import Complete, Incomplete, decode, encode, prepare, segment_seed
from icestream.model.messages import Frame
from icestream.model.offsets import OffsetRanges

MAX_QUARANTINED = 1000
"""The most entries of one table: its properties hold the list."""
MAX_REASON_LENGTH = 300


@dataclass(frozen=True)
class Quarantined:
    """One frame, or the part of it that is not in the table: the messages `first_offset` to before `end_offset`."""

    first_offset: int
    end_offset: int
    reason: str
    file: str
    """The file with the whole frame."""
    quarantined_us: int

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
        """Read what `to_json` wrote. Raise ValueError for anything else."""
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
    """Read what `quarantine_text` wrote, by offset; None is an empty list. Raise ValueError for anything else."""
    found = json.loads(text) if text is not None else []
    if not isinstance(found, list):
        raise ValueError("not a list of frames in quarantine")  # noqa: TRY004 - the text is wrong, not an argument
    return tuple(sorted(map(Quarantined.from_json, found), key=lambda entry: entry.first_offset))


def quarantined_ranges(entries: Iterable[Quarantined]) -> OffsetRanges:
    return OffsetRanges.of((entry.first_offset, entry.end_offset) for entry in entries)


def frame_file(frame: Frame, stream_id: str) -> bytes:
    """Return a frame as a file: the bytes of a log's frame, sound only as a file of this stream."""
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
    """Return the frame of such a file. Raise if any byte of it has changed."""
    outcome = decode(memoryview(data), 0, _seed(stream_id))
    if isinstance(outcome, Complete) and outcome.end == len(data):
        return outcome.frame
    if isinstance(outcome, Complete):
        reason = f"{len(data) - outcome.end} bytes follow the frame"
    else:
        reason = "it is cut off" if isinstance(outcome, Incomplete) else outcome.reason
    raise DamagedError(f"the file is not a sound frame: {reason}", operation="read quarantine", place=place)


def _seed(stream_id: str) -> int:
    return segment_seed(xxhash.xxh3_64_intdigest(stream_id.encode()), 0)
