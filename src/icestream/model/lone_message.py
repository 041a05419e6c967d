"""A batch of one ordinary message, as plain bytes.

A producer that does not batch makes a frame of every message. Arrow's framing of such a message costs more than the
message itself, to write, to keep and above all to read. So its body is::

    key length: u32 | attributes length: u32 | key | attributes | payload

Numbers are little-endian; the length 0xFFFFFFFF means null; the payload is the rest. Attributes are pairs of name and
value, one after the other, each as a length (u32) and UTF-8.
"""

import struct
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

MAX_LONE_BYTES = 64 * 1024
"""Larger messages are kept as Arrow, which needs no copy."""

_HEAD = struct.Struct("<II")
_LENGTH = struct.Struct("<I")
_SPAN = struct.Struct("<ii")
_NULL = 0xFFFFFFFF
_NOTHING = _HEAD.pack(_NULL, _NULL)
_KEY, _ATTRIBUTES, _PAYLOAD = range(3)  # the columns of `MESSAGE_SCHEMA`


class LoneMessage:
    """A message that arrived as its body. It takes the place of a batch."""

    __slots__ = ("body",)
    num_rows = 1

    def __init__(self, body: bytes) -> None:
        self.body = body

    @property
    def nbytes(self) -> int:
        """The size without the body's own header."""
        return len(self.body) - _HEAD.size


def encode_message(payload: bytes, key: bytes | None, pairs: Sequence[tuple[str, str]] | None) -> bytes:
    """Return the body for one message."""
    if key is None and pairs is None:
        return b"".join((_NOTHING, payload))
    tail = None if pairs is None else b"".join(_text(text) for pair in pairs for text in pair)
    head = _HEAD.pack(_NULL if key is None else len(key), _NULL if tail is None else len(tail))
    return b"".join((head, key or b"", tail or b"", payload))


def check_lone(body: bytes) -> None:
    """Raise ValueError unless this is the body of a small message, as `encode_message` makes it."""
    if len(body) > MAX_LONE_BYTES:
        raise ValueError(f"it has {len(body)} bytes; a message of more than {MAX_LONE_BYTES} must be a batch")
    if body[: _HEAD.size] != _NOTHING:
        _fields(body)


def encode_lone(batch: pa.RecordBatch) -> bytes | None:
    """Return the body for a batch of one message of `MESSAGE_SCHEMA`; None if it must be checked and kept as Arrow.

    The batch was not checked before, so nothing in it is trusted.
    """
    payload = _only_value(batch.column(_PAYLOAD))
    if payload is None or not _is_null(batch.column(_ATTRIBUTES)):
        return None
    keys = batch.column(_KEY)
    if _is_null(keys):
        return b"".join((_NOTHING, payload))
    key = _only_value(keys)
    return None if key is None else b"".join((_HEAD.pack(len(key), _NULL), key, payload))


def encode_checked_lone(batch: pa.RecordBatch) -> bytes | None:
    """Return the body for a batch that was checked in full; None if an attribute is null, which only Arrow can hold."""
    keys, attributes, payloads = batch.columns
    pairs = attributes[0].as_py()
    if pairs is not None and any(value is None for _, value in pairs):
        return None
    return encode_message(payloads[0].as_buffer(), keys[0].as_py(), pairs)


def decode_lone(bodies: list[Any], schema: pa.Schema) -> pa.RecordBatch:
    """Return one batch of many bodies. Raise ValueError for a body that `encode_lone` cannot have made."""
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
            pa.array(keys, schema[_KEY].type) if any_key else pa.nulls(count, schema[_KEY].type),
            pa.array(attributes, schema[_ATTRIBUTES].type)
            if any_attributes
            else pa.nulls(count, schema[_ATTRIBUTES].type),
            pa.array(payloads, schema[_PAYLOAD].type),
        ],
        schema=schema,
    )


def _fields(body: Any) -> tuple[Any, list[tuple[str, str]] | None, Any]:
    """Return key, attributes and payload."""
    key_length, attributes_length = _HEAD.unpack_from(body)
    position = _HEAD.size
    key = pairs = None
    if key_length != _NULL:
        key = body[position : position + key_length]
        position += key_length
    if attributes_length != _NULL:
        pairs = list(_pairs(body, position, position + attributes_length))
        position += attributes_length
    if position > len(body):
        raise ValueError(f"the lengths in a body of {len(body)} bytes exceed it")
    return key, pairs, body[position:]


def _is_null(column: pa.Array) -> bool:
    """Return whether the only value is null, by the bitmap and not by the null count that the sender gives."""
    validity, row = column.buffers()[0], column.offset
    return validity is not None and row // 8 < validity.size and not validity[row // 8] >> row % 8 & 1


def _only_value(column: pa.Array) -> memoryview | None:
    """Return the only value of a binary column; None if it is null or not valid Arrow."""
    validity, offsets, data = column.buffers()
    row = column.offset
    if offsets is None or offsets.size < row * _LENGTH.size + _SPAN.size:
        return None
    if validity is not None and (row // 8 >= validity.size or not validity[row // 8] >> row % 8 & 1):
        return None
    start, end = _SPAN.unpack_from(offsets, row * _LENGTH.size)
    size = data.size if data is not None else 0
    if not 0 <= start <= end <= size or end - start > MAX_LONE_BYTES:
        return None
    return memoryview(data)[start:end] if data is not None else memoryview(b"")


def _text(text: str) -> bytes:
    data = text.encode()
    return _LENGTH.pack(len(data)) + data


def _pairs(body: Any, position: int, end: int) -> Any:
    if end > len(body):
        raise ValueError(f"attributes that end at {end} in a body of {len(body)} bytes")
    while position < end:
        pair = []
        for _ in range(2):
            (length,) = _LENGTH.unpack_from(body, position)
            position += _LENGTH.size
            pair.append(bytes(body[position : position + length]).decode())
            position += length
        if position > end:
            raise ValueError("an attribute is longer than the attributes")
        yield tuple(pair)
