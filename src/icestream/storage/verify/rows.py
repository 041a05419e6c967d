"""Where rows of the same offsets differ. Whole columns are compared at once; only a difference is looked into."""

import math
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.types as kinds

_LEAF_ROWS = 16
MAX_DIFFERENCES = 10
"""Shown of one batch."""


def differences(found: pa.RecordBatch, expected: pa.RecordBatch) -> Iterator[tuple[int, str]]:
    """Row number and column of the first few values that differ, of two batches with the same schema."""
    left = MAX_DIFFERENCES
    for name in expected.schema.names:
        for row in _unequal(_exact(found.column(name)), _exact(expected.column(name)), 0):
            yield row, name
            left -= 1
            if not left:
                return


def _exact(column: pa.Array) -> pa.Array:
    """Floats as the bits they are: one that is not a number is equal to itself."""
    bits = {pa.float16(): pa.int16(), pa.float32(): pa.int32(), pa.float64(): pa.int64()}
    return column.view(bits[column.type]) if kinds.is_floating(column.type) else column


def _unequal(found: pa.Array, expected: pa.Array, base: int) -> Iterator[int]:
    if found.equals(expected):
        return
    count = len(expected)
    if count > _LEAF_ROWS:
        half = count // 2
        yield from _unequal(found.slice(0, half), expected.slice(0, half), base)
        yield from _unequal(found.slice(half), expected.slice(half), base + half)
        return
    for row in range(count):
        if not _same(found[row], expected[row]):
            yield base + row


def _same(one: pa.Scalar, other: pa.Scalar) -> bool:
    """Whether two values of a type are equal, also where they hold floats that are not numbers."""
    if one.equals(other):
        return True
    if not one.is_valid or not other.is_valid:
        return False
    kind = one.type
    if kinds.is_floating(kind):
        return math.isnan(one.as_py()) and math.isnan(other.as_py())
    if kinds.is_struct(kind):
        return all(_same(one[place], other[place]) for place in range(kind.num_fields))
    if kinds.is_nested(kind):  # lists and maps
        return len(one.values) == len(other.values) and all(
            _same(*pair) for pair in zip(one.values, other.values, strict=True)
        )
    return False
