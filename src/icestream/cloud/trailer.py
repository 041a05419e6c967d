"""The end of a cloud object, which says what the frames before it are. `docs/formats/cloud.md` has the drawing.

    frames | sparse index | producers | description | footer

An object tells all about itself: topics can be recovered from objects alone, when every other record is lost. The
trailer is written last, so an object with a sound footer is a whole one.
"""

import json
import struct
from dataclasses import dataclass, field
from typing import Any

import xxhash

from icestream.cloud.descriptor import ObjectDescriptor, damaged_object
from icestream.model.errors import DamagedError
from icestream.model.sparse_index import SparseIndex

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
