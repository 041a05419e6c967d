"""Legal but unusual wire forms of a protobuf message, as no serializer writes them and every parser must read them."""

import random
from collections.abc import Iterator

from google.protobuf.descriptor import Descriptor

_VARINT, _FIXED64, _LENGTH, _GROUP, _GROUP_END, _FIXED32 = range(6)
_UNKNOWN_FIELDS = (17, 100, 2**28)


def varint(number: int, padding: int = 0) -> bytes:
    """The number; padded with bytes that say nothing, which parsers must allow."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    for _ in range(padding):
        out[-1] |= 0x80
        out.append(0)
    return bytes(out)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        number |= (data[at] & 0x7F) << shift
        at += 1
        if not data[at - 1] & 0x80:
            return number, at
        shift += 7


def fields(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Number, wire type and content of each field of a serialized message without groups."""
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        start = at
        if tag & 7 == _VARINT:
            _, at = _read_varint(data, at)
        elif tag & 7 == _LENGTH:
            length, start = _read_varint(data, at)
            at = start + length
        else:
            at += 8 if tag & 7 == _FIXED64 else 4
        yield tag >> 3, tag & 7, data[start:at]


def field(number: int, kind: int, content: bytes) -> bytes:
    tag = varint(number << 3 | kind)
    return tag + varint(len(content)) + content if kind == _LENGTH else tag + content


def unusual(data: bytes, descriptor: Descriptor, source: random.Random) -> bytes:
    """The message with fields repeated, out of order, of members of a `oneof` at once, unknown, and in groups."""
    parts: list[bytes] = []
    for number, kind, content in fields(data):
        known = descriptor.fields_by_number.get(number)
        inner = known.message_type if known is not None else None
        made = field(number, kind, unusual(content, inner, source) if inner is not None else content)
        parts.append(made)
        if known is not None and not known.is_repeated and source.random() < 0.1:
            parts.append(made)
    if source.random() < 0.2:
        source.shuffle(parts)
    if source.random() < 0.1:
        parts.insert(source.randrange(len(parts) + 1), _unknown(source))
    if descriptor.name == "AnyValue" and source.random() < 0.3:
        parts.append(source.choice([field(1, _LENGTH, b"late"), field(3, _VARINT, varint(7, padding=2))]))
    return b"".join(parts)


def _unknown(source: random.Random) -> bytes:
    number = source.choice(_UNKNOWN_FIELDS)
    if source.random() < 0.5:
        return varint(number << 3 | _GROUP) + field(1, _LENGTH, b"inside") + varint(number << 3 | _GROUP_END)
    return field(number, _LENGTH, b"unknown")
