"""A topic as DuckDB scans it: an Arrow dataset of which only what DuckDB uses is there.

DuckDB asks a dataset for its schema, and for each scan for a scanner, with the columns and the conditions that its own
optimizer chose. A topic that is named twice is scanned twice, each time for what is needed there.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from icestream.query.maps import with_unique_keys
from icestream.query.pushdown import wanted
from icestream.query.sources import Source

Reading = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class TopicDataset(ds.Dataset):  # type: ignore[misc]  # pyarrow ships no types
    def __init__(self, source: Source, reading: Reading) -> None:
        """`reading` is put around the batches of each scan: who has it sees them begin, fail and end."""
        self._source = source
        self._reading = reading
        self._schema = pa.schema([_presented(field) for field in source.schema])

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def scanner(
        self,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,  # noqa: A002 - as DuckDB calls it
        **_: Any,
    ) -> "TopicScanner":
        """What DuckDB calls, with names that are Arrow's."""
        names = self._schema.names if columns is None else list(columns)
        return TopicScanner(self._rows(names, filter), [self._schema.field(name) for name in names], self._reading)

    def _rows(self, columns: list[str], condition: pc.Expression | None) -> Iterator[pa.RecordBatch]:
        source = self._source
        start, end, where = wanted(condition, self._schema, source.start, source.end)
        for batch in source.batches(columns or source.schema.names[:1], where, start, end):
            arrays = [_as(batch.column(name), self._schema.field(name).type) for name in batch.schema.names]
            rows = pa.RecordBatch.from_arrays(arrays, batch.schema.names)
            found = rows if condition is None else rows.filter(condition)
            if found.num_rows:
                yield found.select(columns)


class TopicScanner:
    def __init__(self, rows: Iterator[pa.RecordBatch], fields: list[pa.Field], reading: Reading) -> None:
        self._rows = rows
        self._schema = pa.schema(fields)
        self._reading = reading

    def to_reader(self) -> pa.RecordBatchReader:
        batches = (pa.RecordBatch.from_arrays(rows.columns, schema=self._schema) for rows in self._rows)
        return pa.RecordBatchReader.from_batches(self._schema, self._reading(batches))


def _presented(field: pa.Field) -> pa.Field:
    """The column in a type that DuckDB has, without the promise that nothing is null, which it does not need."""
    return pa.field(field.name, _type(field.type))


def _type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("ns")  # DuckDB's times with a zone have microseconds; these are UTC, and exact
    return pa.float32() if pa.types.is_float16(kind) else kind


def _as(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_map(kind):
        return with_unique_keys(values)
    return values if values.type.equals(kind) else values.cast(kind)
