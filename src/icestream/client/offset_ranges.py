"""Offsets as ranges `(first, end)`, without a Python object a message where they come as a column."""

from collections.abc import Iterable
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from icestream.model.errors import InvalidRequestError

Ranges: TypeAlias = list[tuple[int, int]]

_COLUMNS = ("offset", "_offset")


def offsets_of(data: Any) -> pa.Array:
    """The offsets of a delivered batch or table, or of what is left of it after a filter."""
    name = next((name for name in _COLUMNS if name in data.schema.names), None)
    if name is None:
        raise InvalidRequestError(
            "the batch has no column of offsets", operation="acknowledge", remedy="keep the column offset"
        )
    column = data.column(name)
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def ranges_of(offsets: pa.Array) -> Ranges:
    """The ranges that the offsets make up, in order; they may come in any order, and twice."""
    count = len(offsets)
    if not count:
        return []
    steps = pc.pairwise_diff(offsets)
    if count > 1 and pc.min(steps).as_py() < 0:
        offsets = offsets.sort()
        steps = pc.pairwise_diff(offsets)
    # The first step is null, and so no start of another range.
    starts = pc.indices_nonzero(pc.fill_null(pc.greater(steps, 1), fill_value=False))
    firsts = [offsets[0].as_py(), *offsets.take(starts).to_pylist()]
    lasts = [*offsets.take(pc.subtract(starts, pa.scalar(1, starts.type))).to_pylist(), offsets[-1].as_py()]
    return [(first, last + 1) for first, last in zip(firsts, lasts, strict=True)]


def merge(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """The same offsets in as few ranges as possible, in order."""
    merged: Ranges = []
    for first, end in sorted(ranges):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((first, end))
    return merged
