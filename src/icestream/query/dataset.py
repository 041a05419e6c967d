"""A topic as DuckDB scans it: an Arrow dataset that implements only what DuckDB calls.

DuckDB asks the dataset for its schema. For each scan it asks for a scanner, with the columns and the condition that
its optimizer chose. A topic that a query names twice is scanned twice, each time with its own columns and condition.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from icestream.model.messages import OFFSET
from icestream.query.pushdown import scan_range
from icestream.query.topics import QueryTopic


def with_unique_keys(values: pa.Array) -> pa.Array:
    """Return values whose maps, also in structs and lists, have no repeated keys. The first value of a key counts.

    DuckDB refuses repeated keys, and Arrow allows them. A batch without repeated keys is not copied.
    """
    kind = values.type
    if pa.types.is_map(kind):
        return _unique(values)
    if pa.types.is_struct(kind):
        columns = [values.field(index) for index in range(kind.num_fields)]
        unique = [with_unique_keys(column) for column in columns]
        if all(new is old for new, old in zip(unique, columns, strict=True)):
            return values
        return pa.StructArray.from_arrays(unique, fields=list(kind), mask=values.is_null())
    if pa.types.is_list(kind):
        items = values.flatten()
        if (found := with_unique_keys(items)) is items:
            return values
        ends = np.cumsum(values.value_lengths().fill_null(0).to_numpy(), dtype=np.int32)
        offsets = pa.array(np.concatenate((np.zeros(1, np.int32), ends)))
        return pa.ListArray.from_arrays(offsets, found, type=kind, mask=values.is_null())
    return values


def _unique(maps: pa.MapArray) -> pa.MapArray:
    if pa.types.is_nested(maps.type.key_type) or not _repeats(maps):
        return maps
    return pa.array([None if pairs is None else _firsts(pairs) for pairs in maps.to_pylist()], maps.type)


def _firsts(pairs: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    found: dict[Any, Any] = {}
    for key, value in pairs:
        found.setdefault(key, value)
    return list(found.items())


def _repeats(maps: pa.MapArray) -> bool:
    """Return whether a map has a key twice: a number made of the map's index and the key's code occurs twice."""
    offsets = maps.offsets.to_numpy()
    sizes = np.diff(offsets)
    if not len(sizes) or sizes.max() <= 1:
        return False
    keys = maps.keys.slice(offsets[0], offsets[-1] - offsets[0]).dictionary_encode()
    codes = keys.indices.to_numpy().astype(np.int64)
    numbers = np.repeat(np.arange(len(sizes)), sizes) * len(keys.dictionary) + codes
    numbers.sort(kind="stable")
    return bool((numbers[1:] == numbers[:-1]).any())


BatchWrapper = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class TopicDataset(ds.Dataset):  # type: ignore[misc]  # pyarrow ships no types
    def __init__(self, topic: QueryTopic, wrap: BatchWrapper) -> None:
        """`wrap` wraps the batches of each scan, so that the query sees them start, fail and end."""
        self._topic = topic
        self._wrap = wrap
        self._schema = pa.schema([_presented(field) for field in topic.schema])

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def scanner(
        self,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,  # noqa: A002 - as DuckDB calls it
        **_: Any,
    ) -> "TopicScanner":
        """Return a scanner. DuckDB calls this, with Arrow's argument names."""
        names = self._schema.names if columns is None else list(columns)
        return TopicScanner(self._rows(names, filter), [self._schema.field(name) for name in names], self._wrap)

    def _rows(self, columns: list[str], condition: pc.Expression | None) -> Iterator[pa.RecordBatch]:
        topic = self._topic
        start, end, where = scan_range(condition, self._schema, topic.start, topic.end)
        for batch in topic.batches(columns or [topic.schema.names[OFFSET]], where, start, end):
            arrays = [_as(batch.column(name), self._schema.field(name).type) for name in batch.schema.names]
            rows = pa.RecordBatch.from_arrays(arrays, batch.schema.names)
            found = rows if condition is None else rows.filter(condition)
            if found.num_rows:
                yield found.select(columns)


class TopicScanner:
    def __init__(self, rows: Iterator[pa.RecordBatch], fields: list[pa.Field], wrap: BatchWrapper) -> None:
        self._rows = rows
        self._schema = pa.schema(fields)
        self._wrap = wrap

    def to_reader(self) -> pa.RecordBatchReader:
        batches = (pa.RecordBatch.from_arrays(rows.columns, schema=self._schema) for rows in self._rows)
        return pa.RecordBatchReader.from_batches(self._schema, self._wrap(batches))


def _presented(field: pa.Field) -> pa.Field:
    """Return the column with a type that DuckDB has. It is nullable: DuckDB does not need the promise."""
    return pa.field(field.name, _type(field.type))


def _type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("ns")  # DuckDB's times with a zone have microseconds; these keep nanoseconds, in UTC
    return pa.float32() if pa.types.is_float16(kind) else kind


def _as(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_map(kind):
        return with_unique_keys(values)
    if pa.types.is_nested(kind):
        values = with_unique_keys(values)
    return values if values.type.equals(kind) else values.cast(kind)
