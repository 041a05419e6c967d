"""Operations on Arrow arrays that every signal needs. None of them loops over rows."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from icestream.telemetry.schemas import TIME

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_NANOS_PER_MICRO = 1000
_BITS_PER_BYTE = 8


def offsets_of(array: pa.Array) -> Ints:
    """Return where the elements of a list, map, string or binary array begin, and where the last one ends."""
    buffer = array.buffers()[1]
    if buffer is None or not len(array):
        return np.zeros(len(array) + 1, np.int64)
    return np.frombuffer(buffer, np.int32, len(array) + 1, array.offset * 4).astype(np.int64)


def lengths_of(array: pa.Array) -> Ints:
    return np.diff(offsets_of(array))


def owners_of(lists: pa.Array) -> Ints:
    """Return for each element the index of its list."""
    return np.repeat(np.arange(len(lists)), lengths_of(lists))


def valid(array: pa.Array) -> Mask:
    """Return which elements are not null. Reads the bitmap: Arrow's own conversion to numpy loops over elements."""
    bits = array.buffers()[0]
    if bits is None or not array.null_count:
        return np.full(len(array), array.null_count == 0)
    end = array.offset + len(array)
    found: Mask = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little", count=end)[array.offset :].view(
        np.bool_
    )
    return found


def relist(lists: pa.Array, parts: list[pa.Array], kind: pa.StructType) -> pa.Array:
    """Return lists of the same lengths, whose elements are structs of `parts`."""
    elements = pa.StructArray.from_arrays(parts, fields=list(kind))
    return pa.ListArray.from_arrays(lists.offsets, elements, type=pa.list_(pa.field("element", kind)))


def null_if_empty(ids: pa.Array) -> pa.Array:
    """Make empty ids null: in protobuf an absent id is an empty one."""
    empty = lengths_of(ids) == 0
    if not empty.any():
        return ids
    return pa.nulls(len(ids), ids.type) if empty.all() else pc.if_else(pa.array(~empty), ids, None)


def timestamps(nanos: pa.Array, fallback: pa.Array | None = None) -> pa.Array:
    """Return microseconds since 1970; null if the time is 0, which in OTLP means unknown.

    The nanoseconds are unsigned numbers in signed ones' bits, so times beyond the year 2262 are right too.
    """
    values = nanos.to_numpy().view(np.uint64)
    if fallback is not None:
        values = np.where(values == 0, fallback.to_numpy().view(np.uint64), values)
    micros = (values // _NANOS_PER_MICRO).view(np.int64)
    return pa.array(micros, mask=values == 0).cast(TIME)


def element_bytes(array: pa.Array) -> Ints:
    """Return the size of each element in Arrow with everything nested in it, without validity bits."""
    kind = array.type
    if kinds.is_binary(kind) or kinds.is_string(kind):
        return lengths_of(array) + 4
    if kinds.is_struct(kind):
        return sum((element_bytes(field) for field in _children(array)), np.zeros(len(array), np.int64))
    if kinds.is_list(kind) or kinds.is_map(kind):
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(sum(element_bytes(part) for part in _children(array)))])
        offsets = offsets_of(array)
        inside: Ints = ends[offsets[1:]] - ends[offsets[:-1]]
        return inside + 4
    return np.full(len(array), max(1, kind.bit_width // _BITS_PER_BYTE), np.int64)


def _children(array: pa.Array) -> list[Any]:
    if kinds.is_struct(array.type):
        return [array.field(number) for number in range(array.type.num_fields)]
    return [array.keys, array.items] if kinds.is_map(array.type) else [array.values]
