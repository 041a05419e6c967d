"""Takes nested arrays apart and builds them again. Slices and nulls are handled."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as kinds

Lengths = npt.NDArray[np.int64]


def dense_parts(array: pa.Array) -> tuple[Lengths, list[pa.Array]]:
    """Return the lengths of an array's lists and their values; of a struct, its fields. The array has no nulls."""
    kind = array.type
    if kinds.is_struct(kind):
        return np.zeros(0, np.int64), list(array.flatten())
    if kinds.is_fixed_size_list(kind):
        return np.full(len(array), kind.list_size, np.int64), [array.flatten()]
    bounds = array.offsets.to_numpy()
    lengths = np.diff(bounds).astype(np.int64)
    if not kinds.is_map(kind):
        return lengths, [array.flatten()]
    first, count = (int(bounds[0]), int(bounds[-1] - bounds[0])) if len(bounds) else (0, 0)
    return lengths, [array.keys.slice(first, count), array.items.slice(first, count)]


def rebuilt(array: pa.Array, target: pa.DataType, lengths: Lengths, parts: list[pa.Array]) -> pa.Array:
    """Return an array of type `target` with the nulls of `array`, from the `dense_parts` of its other values."""
    absent = array.is_null()
    if kinds.is_struct(target):
        return pa.StructArray.from_arrays(parts, fields=list(target), mask=absent)
    spread = np.zeros(len(array), np.int64)
    spread[array.is_valid().to_numpy(zero_copy_only=False)] = lengths
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(spread)])
    offsets = pa.array(ends, pa.int64()).cast(pa.int32())
    make = pa.MapArray if kinds.is_map(target) else pa.ListArray
    return make.from_arrays(offsets, *parts, type=target, mask=absent)


def text_bytes(array: pa.Array) -> Any:
    """Return the joined values of strings or bytes without nulls."""
    _, offsets, data = array.buffers()
    if data is None or not len(array):
        return b""
    bounds = np.frombuffer(offsets, np.int32, len(array) + 1, array.offset * 4)
    return memoryview(data)[int(bounds[0]) : int(bounds[-1])]
