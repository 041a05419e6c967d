"""A cloud object: its name, its descriptor, its trailer; and the topic's head.

An object is its frames followed by a trailer that describes them. docs/formats/cloud.md has the drawing::

    frames | sparse index | producers | description | footer

The trailer is written last, so an object with a sound footer is whole. Because an object describes itself, topics can
be recovered from objects alone. The metadata store holds a copy of each description, the descriptor.

Names, relative to the store's prefix. Leading zeros make the order of names the order of offsets::

    {namespace}/{topic}/{stream id}/{first offset}-{end offset}-{epoch}.frames
    {namespace}/{topic}/{stream id}/topic.json        the topic's record and its reservation
"""

import json
import re
import struct
from base64 import b64decode, b64encode
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple, Self

import xxhash

from icestream.cloud.store import ObjectStore
from icestream.model.errors import DamagedError, ObjectNotFoundError
from icestream.model.frames import SparseIndex
from icestream.model.names import TopicName

MAX_INLINE_INDEX_BYTES = 4 * 1024
"""A larger index is not put into the metadata store; it is read from the object's trailer."""
_MASK = (1 << 64) - 1


class SegmentPart(NamedTuple):
    """Consecutive frames of an object that come from one segment, byte for byte."""

    position: int
    """The part's first byte in the object."""
    seed: int
    """Plus a frame's position in the object: the seed of the checksum of the frame's header."""

    @classmethod
    def of(cls, position: int, segment_seed: int, segment_position: int) -> Self:
        return cls(position, (segment_seed + segment_position - position) & _MASK)


@dataclass(frozen=True)
class ObjectDescriptor:
    """Describes one object of a topic, with the messages from `first_offset` to below `end_offset`, without a gap."""

    key: str
    """The object's key in the store."""
    topic: str
    stream_id: str
    epoch: int
    """The epoch of the owner that made it. Its frames have this epoch or an earlier one."""
    first_offset: int
    end_offset: int
    first_time_us: int
    last_time_us: int
    frame_count: int
    data_bytes: int
    """Bytes of the frames; the trailer follows."""
    size: int
    """Bytes of the whole object."""
    checksum: int
    """XXH3-64 of the frames' bytes."""
    parts: tuple[SegmentPart, ...]
    file_seq: int
    byte_pos: int
    """Segment number and position of the first byte of the log after the object."""
    created_us: int
    index: str | None = None
    """The sparse index in base64; None if it is too large for the metadata store."""

    def part_at(self, position: int) -> SegmentPart:
        """Return the part that holds a position."""
        return next(part for part in reversed(self.parts) if part.position <= position)

    def part_end(self, part: SegmentPart) -> int:
        """Return the position in the object after a part."""
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
    """Return the index as a descriptor carries it; None if it is too large."""
    data = index.to_bytes()
    return b64encode(data).decode() if len(data) <= MAX_INLINE_INDEX_BYTES else None


@dataclass(frozen=True)
class UploadHead:
    """How far a topic is uploaded: one record per topic, which every change of its objects replaces.

    So a change of objects is one compare-and-swap, and a former owner cannot make one.
    """

    stream_id: str
    epoch: int
    first_offset: int = 0
    """The first offset in the objects; equal to `uploaded_end` if there are none."""
    uploaded_end: int = 0
    """All messages below are uploaded, read back and described, or were removed by retention."""
    file_seq: int = 0
    byte_pos: int = 0
    """Segment number and position where the next object begins."""
    reserved_end: int = 0
    """The owner raises this before it assigns an offset at or above it. So if its disk is lost, it is known which
    offsets readers may have seen."""
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
    """Return the fields that this version knows. A later version may have written more."""
    known = {field.name for field in fields(kind)}
    return {name: value for name, value in found.items() if name in known}


def damaged_object(
    descriptor: ObjectDescriptor, reason: str, *, position: int | None = None, first: int | None = None
) -> DamagedError:
    """Return the error for an object that is missing or damaged; `first` is the first offset affected."""
    first = descriptor.first_offset if first is None else first
    where = descriptor.key if position is None else f"{descriptor.key} at byte {position}"
    return DamagedError(
        f"{reason}; offsets {first} to {descriptor.end_offset - 1} are affected",
        operation="read cloud object",
        place=where,
        remedy="restore the object from a copy or an older version; committed messages are still read from the table",
        details={
            "object": descriptor.key,
            "topic": descriptor.topic,
            "position": position,
            "first_offset": first,
            "end_offset": descriptor.end_offset,
        },
    )


FOOTER_BYTES = 64
_FOOTER = struct.Struct("<8sQQQQQQQ")
_MAGIC = b"ICEOBJ\x00\x01"


@dataclass(frozen=True)
class Trailer:
    """The end of an object, which describes the frames before it."""

    index: SparseIndex
    descriptor: ObjectDescriptor
    """Without inline index and size, which the object cannot know: `size` is 0."""
    schemas: dict[int, str] = field(default_factory=dict)
    """The topic's Arrow schemas by id, as in the log's `stream.json`."""
    record: dict[str, Any] = field(default_factory=dict)
    """The topic's settings when the object was made."""
    durable_end: int = 0
    """The durable end of the log when the object was made."""
    producers: bytes = b""
    """The state of producers before the object's end offset, in the log's own format."""

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
    """Return the position of the trailer by an object's last `FOOTER_BYTES`; None if they are no sound footer."""
    if len(footer) != FOOTER_BYTES or not footer.startswith(_MAGIC):
        return None
    if xxhash.xxh3_64_intdigest(footer[:-8]) != int.from_bytes(footer[-8:], "little"):
        return None
    return int(_FOOTER.unpack(footer)[1])


def decode_trailer(data: bytes, key: str) -> Trailer:
    """Decode the trailer that fills `data`; raise `DamagedError` if it is not sound."""
    footer = data[-FOOTER_BYTES:]
    if footer_data_bytes(footer) is None:
        raise _unsound("it has no sound footer", key)
    _, _, index_length, producers_length, description_length, _, checksum, _ = _FOOTER.unpack(footer)
    sections = data[:-FOOTER_BYTES]
    if len(sections) != index_length + producers_length + description_length:
        raise _unsound("the length of its trailer does not match its footer", key)
    if xxhash.xxh3_64_intdigest(sections) != checksum:
        raise _unsound("the checksum of its trailer does not match", key)
    index = SparseIndex.from_bytes(sections[:index_length])
    if index is None:
        raise _unsound("the checksum of its index does not match", key)
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
    """Decode the trailer of a described object; raise `DamagedError` if it does not match the descriptor."""
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
        raise damaged_object(descriptor, "the object does not match its descriptor")
    return trailer


def read_trailer(store: ObjectStore, descriptor: ObjectDescriptor) -> Trailer:
    """Read the trailer of a described object; raise `DamagedError` if it is gone or does not match the descriptor."""
    try:
        data = store.read(descriptor.key, descriptor.data_bytes, descriptor.size - descriptor.data_bytes)
    except ObjectNotFoundError as error:
        raise damaged_object(descriptor, "the object is gone") from error
    return check_trailer(data, descriptor)


def _unsound(reason: str, key: str) -> DamagedError:
    return DamagedError(f"the object is damaged: {reason}", operation="read cloud object", place=key)


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
        """Parse an object's key; None if it is not one of ours."""
        match = _PATTERN.fullmatch(key)
        return cls(*map(int, match.groups())) if match else None


def topic_prefix(topic: TopicName) -> str:
    """Return the prefix of all objects of a topic, of whatever stream."""
    return f"{topic.namespace}/{topic.name}/"


def stream_prefix(topic: TopicName, stream_id: str) -> str:
    return f"{topic_prefix(topic)}{stream_id}/"


def object_key(topic: TopicName, stream_id: str, name: ObjectName) -> str:
    first, end, epoch = name
    return f"{stream_prefix(topic, stream_id)}{first:0{_DIGITS}d}-{end:0{_DIGITS}d}-{epoch}{SUFFIX}"


def topic_key(topic: TopicName, stream_id: str) -> str:
    return stream_prefix(topic, stream_id) + TOPIC_FILE
