"""A batch of one ordinary message, as plain bytes.

Producers that do not batch make a frame of every message. Arrow's framing costs more than such a message itself, to
write, to keep and above all to read again, so its body is:

    key length: u32 | attributes length: u32 | key | attributes | payload

little-endian, the length 0xFFFFFFFF standing for null; the payload is the rest. Attributes are, behind each other,
name and value of each pair, each as a length (u32) and UTF-8.
"""

import struct
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

MAX_SINGLE_BYTES = 64 * 1024
"""Larger messages are kept as Arrow, which needs no copy."""

_HEAD = struct.Struct("<II")
_LENGTH = struct.Struct("<I")
_SPAN = struct.Struct("<ii")
_NULL = 0xFFFFFFFF
_NOTHING = _HEAD.pack(_NULL, _NULL)


class SingleMessage:
    """A message that came as its body; it stands where a batch does."""

    __slots__ = ("body",)
    num_rows = 1

    def __init__(self, body: bytes) -> None:
        self.body = body

    @property
    def nbytes(self) -> int:
        """Without what the body itself needs."""
        return len(self.body) - _HEAD.size


def encode_message(payload: bytes, key: bytes | None, pairs: Sequence[tuple[str, str]] | None) -> bytes:
    """The body for one message."""
    if key is None and pairs is None:
        return b"".join((_NOTHING, payload))
    tail = None if pairs is None else b"".join(_text(text) for pair in pairs for text in pair)
    head = _HEAD.pack(_NULL if key is None else len(key), _NULL if tail is None else len(tail))
    return b"".join((head, key or b"", tail or b"", payload))


def check_single(body: bytes) -> None:
    """Raise ValueError unless this is what `encode_message` makes of a small message."""
    if len(body) > MAX_SINGLE_BYTES:
        raise ValueError(f"it has {len(body)} bytes; more than {MAX_SINGLE_BYTES} travel as a batch")
    if body[: _HEAD.size] != _NOTHING:
        _fields(body)


def encode_single(batch: pa.RecordBatch) -> bytes | None:
    """The body for a batch of one message of `MESSAGE_SCHEMA`; None when it must be looked at, and kept, as Arrow.

    Nothing of the batch was checked before, so nothing in it is trusted.
    """
    payload = _only_value(batch.column(2))
    if payload is None or not _is_null(batch.column(1)):
        return None
    keys = batch.column(0)
    if _is_null(keys):
        return b"".join((_NOTHING, payload))
    key = _only_value(keys)
    return None if key is None else b"".join((_HEAD.pack(len(key), _NULL), key, payload))


def encode_checked_single(batch: pa.RecordBatch) -> bytes | None:
    """The same for a batch that was checked in full; None if it has what only Arrow can say: attributes of no value."""
    keys, attributes, payloads = batch.columns
    pairs = attributes[0].as_py()
    if pairs is not None and any(value is None for _, value in pairs):
        return None
    return encode_message(payloads[0].as_buffer(), keys[0].as_py(), pairs)


def decode_singles(bodies: list[Any], schema: pa.Schema) -> pa.RecordBatch:
    """One batch of many bodies; raises ValueError for one that is not what `encode_single` makes."""
    keys: list[Any] = []
    attributes: list[Any] = []
    payloads: list[Any] = []
    any_key = any_attributes = False
    for body in bodies:
        key, pairs, payload = _fields(body)
        any_key |= key is not None
        any_attributes |= pairs is not None
        keys.append(key)
        attributes.append(pairs)
        payloads.append(payload)
    count = len(bodies)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(keys, schema[0].type) if any_key else pa.nulls(count, schema[0].type),
            pa.array(attributes, schema[1].type) if any_attributes else pa.nulls(count, schema[1].type),
            pa.array(payloads, schema[2].type),
        ],
        schema=schema,
    )


def _fields(body: Any) -> tuple[Any, list[tuple[str, str]] | None, Any]:
    """Key, attributes and payload."""
    key_length, attributes_length = _HEAD.unpack_from(body)
    place = _HEAD.size
    key = pairs = None
    if key_length != _NULL:
        key = body[place : place + key_length]
        place += key_length
    if attributes_length != _NULL:
        pairs = list(_pairs(body, place, place + attributes_length))
        place += attributes_length
    if place > len(body):
        raise ValueError(f"the lengths in a body of {len(body)} bytes exceed it")
    return key, pairs, body[place:]


def _is_null(column: pa.Array) -> bool:
    """Whether the only value is null, by the bitmap and not by what the sender says of it."""
    validity, place = column.buffers()[0], column.offset
    return validity is not None and place // 8 < validity.size and not validity[place // 8] >> place % 8 & 1


def _only_value(column: pa.Array) -> memoryview | None:
    """The only value of a binary column; None if it is null or not as Arrow wants it."""
    validity, offsets, data = column.buffers()
    place = column.offset
    if offsets is None or offsets.size < place * _LENGTH.size + _SPAN.size:
        return None
    if validity is not None and (place // 8 >= validity.size or not validity[place // 8] >> place % 8 & 1):
        return None
    start, end = _SPAN.unpack_from(offsets, place * _LENGTH.size)
    size = data.size if data is not None else 0
    if not 0 <= start <= end <= size or end - start > MAX_SINGLE_BYTES:
        return None
    return memoryview(data)[start:end] if data is not None else memoryview(b"")


def _text(text: str) -> bytes:
    data = text.encode()
    return _LENGTH.pack(len(data)) + data


def _pairs(body: Any, place: int, end: int) -> Any:
    if end > len(body):
        raise ValueError(f"attributes that end at {end} in a body of {len(body)} bytes")
    while place < end:
        pair = []
        for _ in range(2):
            (length,) = _LENGTH.unpack_from(body, place)
            place += _LENGTH.size
            pair.append(bytes(body[place : place + length]).decode())
            place += length
        if place > end:
            raise ValueError("an attribute is longer than the attributes")
        yield tuple(pair)
