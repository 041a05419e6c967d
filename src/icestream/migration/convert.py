"""Values of one Arrow type as another one's, where nothing can be lost on the way.

Whether a type fits is decided once, by the types; what depends on values (a number that is too large, a text that is no
UTF-8) is checked as they are converted, and raises `pa.ArrowInvalid`. Nested types are converted field by field, by
name.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from icestream.migration.nested import dense_parts, rebuilt, text_bytes

Converter = Callable[[pa.Array], pa.Array]

IDS = frozenset({"trace_id", "span_id", "parent_span_id"})
"""Columns, and fields of links and exemplars, whose texts are hexadecimal."""

_NANOS = pa.timestamp("ns", tz="UTC")
_HEX = np.full(256, 255, np.uint8)
for _digits in (b"0123456789abcdef", b"0123456789ABCDEF"):
    _HEX[np.frombuffer(_digits, np.uint8)] = np.arange(16, dtype=np.uint8)
_NO_DIGIT = 255


class UnfitError(Exception):
    """A type that does not become another one. The text begins with the place inside the column, if any."""


def converter(source: pa.DataType, target: pa.DataType, name: str) -> Converter | None:
    """How values of a column of this name are converted; None where they are taken as they are."""
    if kinds.is_dictionary(source):
        inner = converter(source.value_type, target, name) or _same
        return lambda array: inner(array.dictionary_decode())
    if (special := _by_name(source, target, name)) is not None:
        return special
    if source.equals(target):
        return None
    if kinds.is_null(source):
        return lambda array: pa.nulls(len(array), target)
    if kinds.is_nested(target):
        return _nested(source, target)
    if kinds.is_timestamp(source) and kinds.is_timestamp(target) and target.tz is not None:
        return partial(_moment, target=target)
    if _casts(source, target):
        return lambda array: array.cast(target)
    raise UnfitError(f"{source} does not become {target}")


def _by_name(source: pa.DataType, target: pa.DataType, name: str) -> Converter | None:
    """Columns whose meaning is known: ids may be written as texts, and times as timestamps."""
    if name in IDS and kinds.is_binary(target) and (_is_text(source) or _is_bytes(source)):
        return _hex_ids if _is_text(source) else _ids
    if name.endswith("_unix_nano") and kinds.is_int64(target) and kinds.is_timestamp(source):
        return _nanos
    return None


def truncated(target: pa.DataType) -> Converter:
    """Timestamps cut off to a coarser unit: for columns beside which the exact time is kept."""
    return lambda array: _in_utc(array).cast(target, safe=False)


def _same(array: pa.Array) -> pa.Array:
    return array


def _is_text(kind: pa.DataType) -> bool:
    return bool(kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    plain = kinds.is_binary(kind) or kinds.is_large_binary(kind) or kinds.is_binary_view(kind)
    return bool(plain or kinds.is_fixed_size_binary(kind))


def _casts(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether Arrow's checked cast keeps the value, or fails."""
    both = (source, target)
    if _is_text(source) or _is_bytes(source):
        return _is_text(target) or _is_bytes(target)
    if kinds.is_integer(source):
        return bool(kinds.is_integer(target) or kinds.is_floating(target) or kinds.is_decimal(target))
    if kinds.is_floating(source):
        return bool(kinds.is_floating(target)) and bool(target.bit_width >= source.bit_width)
    same = (kinds.is_timestamp, kinds.is_decimal, kinds.is_date, kinds.is_time, kinds.is_duration)
    return any(all(map(is_kind, both)) for is_kind in same)


def _in_utc(array: pa.Array) -> pa.Array:
    """Times without a zone are taken as UTC."""
    return pc.assume_timezone(array, "UTC") if array.type.tz is None else array


def _moment(array: pa.Array, target: pa.DataType) -> pa.Array:
    return _in_utc(array).cast(target)


def _nanos(array: pa.Array) -> pa.Array:
    return _in_utc(array).cast(_NANOS).cast(pa.int64())


def _ids(array: pa.Array) -> pa.Array:
    """As OTLP has it, an id without bytes is none."""
    found = array.cast(pa.binary())
    empty = pc.equal(pc.binary_length(found), 0)
    return pc.if_else(empty, pa.scalar(None, pa.binary()), found) if pc.any(empty).as_py() else found


def _hex_ids(array: pa.Array) -> pa.Array:
    """Bytes from their hexadecimal digits."""
    texts = array.cast(pa.string())
    dense = texts.drop_null()
    lengths = pc.binary_length(dense).to_numpy().astype(np.int64)
    digits = _HEX[np.frombuffer(text_bytes(dense), np.uint8)]
    if (lengths % 2).any() or (digits == _NO_DIGIT).any():
        raise pa.ArrowInvalid("a text is no hexadecimal id")
    values = (digits[0::2] << 4 | digits[1::2]).tobytes()
    spread = np.zeros(len(texts), np.int64)
    spread[texts.is_valid().to_numpy(zero_copy_only=False)] = lengths // 2
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(spread)]).astype(np.int32)
    found = pa.Array.from_buffers(pa.binary(), len(texts), [None, pa.py_buffer(ends), pa.py_buffer(values)])
    return _ids(pc.if_else(texts.is_valid(), found, pa.scalar(None, pa.binary())))


def _nested(source: pa.DataType, target: pa.DataType) -> Converter:
    if kinds.is_struct(source) and kinds.is_struct(target):
        return _struct(source, target)
    if kinds.is_map(source) and kinds.is_map(target):
        pairs = ((source.key_type, target.key_type), (source.item_type, target.item_type))
        inner = [_inside(found, wanted, "entry", "") for found, wanted in pairs]
    elif _is_list(source) and _is_list(target) and not kinds.is_fixed_size_list(target):
        inner = [_inside(source.value_type, target.value_type, "element", "")]
    else:
        raise UnfitError(f"{source} does not become {target}")

    def convert(array: pa.Array) -> pa.Array:
        lengths, parts = dense_parts(array.drop_null())
        return rebuilt(array, target, lengths, [one(part) for one, part in zip(inner, parts, strict=True)])

    return convert


def _struct(source: pa.StructType, target: pa.StructType) -> Converter:
    names = [field.name for field in source]
    if unknown := [name for name in names if target.get_field_index(name) < 0]:
        raise UnfitError(f"there is no field {', '.join(map(repr, unknown))}")
    made: list[tuple[int, Converter, pa.DataType]] = []
    for field in target:
        place = names.index(field.name) if field.name in names else -1
        one = _inside(source.field(place).type, field.type, field.name, field.name) if place >= 0 else _same
        made.append((place, one, field.type))

    def convert(array: pa.Array) -> pa.Array:
        parts = array.flatten()
        found = [one(parts[place]) if place >= 0 else pa.nulls(len(array), kind) for place, one, kind in made]
        return rebuilt(array, target, np.zeros(0, np.int64), found)

    return convert


def _inside(source: pa.DataType, target: pa.DataType, place: str, name: str) -> Converter:
    try:
        return converter(source, target, name) or _same
    except UnfitError as error:
        raise UnfitError(f"{place}: {error}") from None


def _is_list(kind: pa.DataType) -> bool:
    return bool(kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind))
