"""Times that a table cannot hold.

A table's timestamps are microseconds and its dates days of 32 bits, so a time in seconds or milliseconds can lie far
outside what they reach. Such a value is refused when it is published: in the log it would be in the way of everything
behind it.
"""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from icestream.model.errors import InvalidMessageError

_MAX_INT64 = 2**63 - 1
_MILLIS_PER_DAY = 86_400_000
_LIMITS = {
    pa.timestamp("s"): _MAX_INT64 // 1_000_000,
    pa.timestamp("ms"): _MAX_INT64 // 1_000,
    pa.date64(): (2**31 - 1) * _MILLIS_PER_DAY,
}
"""The largest value of each unit, and its negative the smallest."""


def check_times(batch: pa.RecordBatch) -> None:
    """Raise if a time in the batch, in whatever depth, is beyond what a table holds. Other columns cost nothing."""
    for index, field in enumerate(batch.schema):
        if not _has_limit(field.type):
            continue
        for values in _leaves(batch.column(index)):
            _check(values, field.name)


def _limit(kind: pa.DataType) -> int | None:
    if kinds.is_timestamp(kind) and kind.unit in ("s", "ms"):
        return _LIMITS[pa.timestamp(kind.unit)]
    return _LIMITS[kind] if kinds.is_date64(kind) else None


def _has_limit(kind: pa.DataType) -> bool:
    if kinds.is_dictionary(kind):
        return _has_limit(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return _has_limit(kind.storage_type)
    if kind.num_fields:
        return any(_has_limit(kind.field(number).type) for number in range(kind.num_fields))
    return _limit(kind) is not None


def _leaves(array: pa.Array) -> Iterator[pa.Array]:
    """The arrays of limited times inside one."""
    kind = array.type
    if not _has_limit(kind):
        return
    if kinds.is_dictionary(kind):
        yield from _leaves(array.dictionary)
    elif isinstance(kind, pa.BaseExtensionType):
        yield from _leaves(array.storage)
    elif kinds.is_map(kind):
        first, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
        for part in (array.keys, array.items):
            yield from _leaves(part.slice(first, end - first))
    elif kinds.is_struct(kind):
        for part in array.flatten():
            yield from _leaves(part)
    elif kind.num_fields:
        yield from _leaves(array.flatten())
    else:
        yield array


def _check(values: pa.Array, column: str) -> None:
    limit = _limit(values.type)
    assert limit is not None
    bounds = pc.min_max(values.cast(pa.int64()))
    for bound in (bounds["min"].as_py(), bounds["max"].as_py()):
        if bound is not None and abs(bound) > limit:
            raise InvalidMessageError(
                f"column {column!r} has a {values.type} of {bound}; the furthest that a table holds is {limit}",
                operation="publish",
                remedy="send null where there is no time",
            )
