"""What is known of a cloud object without opening it, and how far a topic is in the cloud."""

import json
import re
import struct
from base64 import b64decode, b64encode
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple, Self

import xxhash

from icestream.model.errors import DamagedError
from icestream.model.names import TopicName
from icestream.model.sparse_index import SparseIndex

MAX_INLINE_INDEX_BYTES = 4 * 1024
"""A larger index is read from the object's own trailer; the metadata store is no place for it."""
_MASK = (1 << 64) - 1


class SegmentPart(NamedTuple):
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
    parts: tuple[SegmentPart, ...]
    file_seq: int
    byte_pos: int
    """The number of the segment, and the position in it, of the first byte that the object does not have."""
    created_us: int
    index: str | None = None
    """The sparse index, as base64 of its bytes; None where it is too large for here."""

    def part_at(self, position: int) -> SegmentPart:
        """The part that holds a position."""
        return next(part for part in reversed(self.parts) if part.position <= position)

    def part_end(self, part: SegmentPart) -> int:
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
        return cls(**(found | {"parts": tuple(SegmentPart(*part) for part in found["parts"])}))


def inline_index(index: SparseIndex) -> str | None:
    """The index as a descriptor carries it, if it is small enough."""
    data = index.to_bytes()
    return b64encode(data).decode() if len(data) <= MAX_INLINE_INDEX_BYTES else None


@dataclass(frozen=True)
class UploadHead:
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


def _known_fields(kind: type[ObjectDescriptor | UploadHead], found: dict[str, Any]) -> dict[str, Any]:
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


# --------------------
# The end of a cloud object, which says what the frames before it are. `docs/formats/cloud.md` has the drawing.
#
#     frames | sparse index | producers | description | footer
#
# An object tells all about itself: topics can be recovered from objects alone, when every other record is lost. The
# trailer is written last, so an object with a sound footer is a whole one.


FOOTER_BYTES = 64
_FOOTER = struct.Struct("<8sQQQQQQQ")
_MAGIC = b"ICEOBJ\x00\x01"


@dataclass(frozen=True)
class Trailer:
    index: SparseIndex
    descriptor: ObjectDescriptor
    """Without its inline index and its size, which the object cannot say about itself: `size` is 0."""
    schemas: dict[int, str] = field(default_factory=dict)
    """The topic's own Arrow schemas by id, as in the log's `stream.json`."""
    record: dict[str, Any] = field(default_factory=dict)
    """The topic's settings when the object was made."""
    durable_end: int = 0
    """The log's, when the object was made."""
    producers: bytes = b""
    """The producers' state before the object's end offset, as the log saves it; only the log looks into it."""

    def to_bytes(self) -> bytes:
        index = self.index.to_bytes()
        description = json.dumps(
            {
                "descriptor": json.loads(self.descriptor.to_bytes()),
                "schemas": {str(number): text for number, text in self.schemas.items()},
                "record": self.record,
                "durable_end": self.durable_end,
            },
            separators=(",", ":"),
        ).encode()
        sections = index + self.producers + description
        footer = _FOOTER.pack(
            _MAGIC,
            self.descriptor.data_bytes,
            len(index),
            len(self.producers),
            len(description),
            self.descriptor.checksum,
            xxhash.xxh3_64_intdigest(sections),
            0,
        )[:-8]
        return sections + footer + struct.pack("<Q", xxhash.xxh3_64_intdigest(footer))


def footer_data_bytes(footer: bytes) -> int | None:
    """Where the trailer begins, by the last `FOOTER_BYTES` of an object; None if they are not a sound footer."""
    if len(footer) != FOOTER_BYTES or not footer.startswith(_MAGIC):
        return None
    if xxhash.xxh3_64_intdigest(footer[:-8]) != int.from_bytes(footer[-8:], "little"):
        return None
    return int(_FOOTER.unpack(footer)[1])


def decode_trailer(data: bytes, place: str) -> Trailer:
    """The trailer that fills `data`; raises `DamagedError` where it is not sound."""
    footer = data[-FOOTER_BYTES:]
    if footer_data_bytes(footer) is None:
        raise _unsound("it has no sound footer", place)
    _, _, index_length, producers_length, description_length, _, checksum, _ = _FOOTER.unpack(footer)
    sections = data[:-FOOTER_BYTES]
    if len(sections) != index_length + producers_length + description_length:
        raise _unsound("its trailer has another length than its footer says", place)
    if xxhash.xxh3_64_intdigest(sections) != checksum:
        raise _unsound("the checksum of its trailer does not match", place)
    index = SparseIndex.from_bytes(sections[:index_length])
    if index is None:
        raise _unsound("the checksum of its index does not match", place)
    description = json.loads(sections[index_length + producers_length :])
    return Trailer(
        index=index,
        descriptor=ObjectDescriptor.from_bytes(json.dumps(description["descriptor"]).encode()),
        schemas={int(number): text for number, text in description["schemas"].items()},
        record=description["record"],
        durable_end=description["durable_end"],
        producers=sections[index_length : index_length + producers_length],
    )


def check_trailer(data: bytes, descriptor: ObjectDescriptor) -> Trailer:
    """The trailer of a described object; raises `DamagedError` where it is not the one that belongs to it."""
    try:
        trailer = decode_trailer(data, descriptor.key)
    except DamagedError as error:
        raise damaged_object(descriptor, error.message) from error
    found = trailer.descriptor
    same = (found.stream_id, found.first_offset, found.end_offset, found.data_bytes, found.checksum)
    if same != (
        descriptor.stream_id,
        descriptor.first_offset,
        descriptor.end_offset,
        descriptor.data_bytes,
        descriptor.checksum,
    ):
        raise damaged_object(descriptor, "the object is another one than the one that was described")
    return trailer


def _unsound(reason: str, place: str) -> DamagedError:
    return DamagedError(f"the object is damaged: {reason}", operation="read cloud object", place=place)


# --------------------
# Names of objects.
#
#     {root_prefix}/{namespace}/{topic}/{stream id}/{first offset}-{end offset}-{epoch}.frames
#     {root_prefix}/{namespace}/{topic}/{stream id}/topic.json        the topic's record and its reservation
#
# The prefix is the store's own matter; names here begin behind it. Leading zeros make the order of names that of
# offsets.


SUFFIX = ".frames"
TOPIC_FILE = "topic.json"
_DIGITS = 19  # the largest 64-bit offset
_PATTERN = re.compile(r"(?:.*/)?(\d{19})-(\d{19})-(\d+)\.frames")


class ObjectName(NamedTuple):
    first_offset: int
    end_offset: int
    epoch: int

    @classmethod
    def parse(cls, key: str) -> Self | None:
        """What an object's name says, or None if it is not one of ours."""
        match = _PATTERN.fullmatch(key)
        return cls(*map(int, match.groups())) if match else None


def topic_prefix(topic: TopicName) -> str:
    """Of everything of a topic, whatever stream."""
    return f"{topic.namespace}/{topic.name}/"


def stream_prefix(topic: TopicName, stream_id: str) -> str:
    return f"{topic_prefix(topic)}{stream_id}/"


def object_key(topic: TopicName, stream_id: str, name: ObjectName) -> str:
    first, end, epoch = name
    return f"{stream_prefix(topic, stream_id)}{first:0{_DIGITS}d}-{end:0{_DIGITS}d}-{epoch}{SUFFIX}"


def topic_key(topic: TopicName, stream_id: str) -> str:
    return stream_prefix(topic, stream_id) + TOPIC_FILE
