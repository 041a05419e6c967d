"""What is known of a cloud object without opening it, and how far a topic is in the cloud."""

import json
from base64 import b64decode, b64encode
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple, Self

from icestream.model.errors import DamagedError
from icestream.model.sparse_index import SparseIndex

MAX_INLINE_INDEX_BYTES = 4 * 1024
"""A larger index is read from the object's own trailer; the metadata store is no place for it."""
_MASK = (1 << 64) - 1


class Part(NamedTuple):
    """A run of frames that came from one segment, byte for byte."""

    position: int
    """Where it begins in the object."""
    seed: int
    """With a frame's position in the object added, what the checksum of the frame's header is seeded with."""

    @classmethod
    def of(cls, position: int, segment_seed: int, segment_position: int) -> Self:
        return cls(position, (segment_seed + segment_position - position) & _MASK)


@dataclass(frozen=True)
class ObjectDescriptor:
    """One object of a topic. The frames in it are those of `first_offset` up to `end_offset`, without a gap."""

    key: str
    """The object's name in the store."""
    topic: str
    stream_id: str
    epoch: int
    """The owner's that made it; the frames in it have this epoch or an earlier one."""
    first_offset: int
    end_offset: int
    first_time_us: int
    last_time_us: int
    frame_count: int
    data_bytes: int
    """The frames; the trailer follows."""
    size: int
    """Of the whole object."""
    checksum: int
    """XXH3-64 of the frames' bytes."""
    parts: tuple[Part, ...]
    file_seq: int
    byte_pos: int
    """The number of the segment, and the position in it, of the first byte that the object does not have."""
    created_us: int
    index: str | None = None
    """The sparse index, as base64 of its bytes; None where it is too large for here."""

    def part_at(self, position: int) -> Part:
        """The part that holds a position."""
        return next(part for part in reversed(self.parts) if part.position <= position)

    def part_end(self, part: Part) -> int:
        """Where a part ends in the object."""
        following = (other.position for other in self.parts if other.position > part.position)
        return min(following, default=self.data_bytes)

    def sparse_index(self) -> SparseIndex | None:
        return SparseIndex.from_bytes(b64decode(self.index)) if self.index is not None else None

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        found = _known_fields(cls, json.loads(data))
        return cls(**(found | {"parts": tuple(Part(*part) for part in found["parts"])}))


def inline_index(index: SparseIndex) -> str | None:
    """The index as a descriptor carries it, if it is small enough."""
    data = index.to_bytes()
    return b64encode(data).decode() if len(data) <= MAX_INLINE_INDEX_BYTES else None


@dataclass(frozen=True)
class Head:
    """How far a topic is in the cloud: one record for each topic, which every change of its objects replaces.

    That makes a change of objects one compare-and-swap, and keeps an owner of the past from making any.
    """

    stream_id: str
    epoch: int
    first_offset: int = 0
    """The first offset that the objects have; equal to `uploaded_end` where there is none."""
    uploaded_end: int = 0
    """The offset below which everything was uploaded, read back and described."""
    file_seq: int = 0
    byte_pos: int = 0
    """The number of the segment, and the position in it, where the next object begins."""
    reserved_end: int = 0
    """The owner gives no message an offset from here on before it has moved this. So it is known, when its disk is
    lost, which offsets may have been seen."""
    object_count: int = 0
    object_bytes: int = 0
    updated_us: int = 0

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        return cls.from_fields(json.loads(data))

    @classmethod
    def from_fields(cls, found: dict[str, Any]) -> Self:
        return cls(**_known_fields(cls, found))


def _known_fields(kind: type[ObjectDescriptor | Head], found: dict[str, Any]) -> dict[str, Any]:
    """A later version may have written more; what it means is not needed here."""
    known = {field.name for field in fields(kind)}
    return {name: value for name, value in found.items() if name in known}


def damaged_object(
    descriptor: ObjectDescriptor, reason: str, *, position: int | None = None, first: int | None = None
) -> DamagedError:
    """The error for an object that is not there or not what was written; `first` is the first offset concerned."""
    first = descriptor.first_offset if first is None else first
    where = descriptor.key if position is None else f"{descriptor.key} at byte {position}"
    return DamagedError(
        f"{reason}; offsets {first} to {descriptor.end_offset - 1} are affected",
        operation="read cloud object",
        place=where,
        remedy="restore the object from a copy or an older version of it; messages that the table has are read there",
        details={
            "object": descriptor.key,
            "topic": descriptor.topic,
            "position": position,
            "first_offset": first,
            "end_offset": descriptor.end_offset,
        },
    )
