"""The columns of a DataFrame: those of the topic's table, whether the rows come from the table or from the log.

`icestream.table.schema` says what Arrow types that Spark lacks become; no value is lost. So a query has the same result
over this source as over the table. Ordinary topics have no such columns: their batches pass as they are, and the
Iceberg library, which takes a second, is not loaded.
"""

from collections.abc import Iterable, Sequence

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import DataType, StructType

from icestream.client import TopicDescription
from icestream.model.errors import InvalidRequestError
from icestream.model.messages import STREAM_SCHEMA, stream_schema
from icestream.spark.options import OPERATION


def frame_schema(topic: TopicDescription, columns: Sequence[str] | None = None) -> StructType:
    """Return a topic's columns as Spark's schema: all of them, or those that were asked for."""
    stream = STREAM_SCHEMA if topic.schema is None else stream_schema(topic.schema)
    everything = from_arrow_schema(
        pa.schema([stored for group in _stored(stream) for stored in group]), prefer_timestamp_ntz=True
    )
    if columns is None:
        return everything
    if unknown := sorted(set(columns) - set(everything.names)):
        raise InvalidRequestError(
            f"the topic has no columns {', '.join(map(repr, unknown))}",
            operation=OPERATION,
            place=topic.topic,
            remedy=f"it has {', '.join(everything.names)}",
        )
    return StructType([everything[name] for name in columns])


def check_schema(asked: StructType, topic: TopicDescription) -> None:
    """Raise unless the columns that Spark will read are the topic's, with their types. A user may give a schema."""
    found = frame_schema(topic, asked.names)
    for ours, theirs in zip(found, asked, strict=True):
        if not _alike(ours.dataType, theirs.dataType):
            raise InvalidRequestError(
                f"the column {ours.name!r} is {ours.dataType.simpleString()}, not {theirs.dataType.simpleString()}",
                operation=OPERATION,
                place=topic.topic,
                remedy="leave the schema out, and convert what was read",
            )


class FrameRows:
    """Turns a topic's batches into a DataFrame's. Columns that the topic has gained since are left out."""

    def __init__(self, schema: StructType) -> None:
        self._schema = to_arrow_schema(schema)

    def stream_columns(self, stream: pa.Schema) -> list[str]:
        """Return the needed columns of the topic."""
        return [field.name for field, group in zip(stream, _stored(stream), strict=True) if self._wants(group)]

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        found: dict[str, pa.Array] = {}
        for field, group, column in zip(batch.schema, _stored(batch.schema), batch.columns, strict=True):
            if self._wants(group):
                found |= zip((part.name for part in group), _values(column, field, group), strict=True)
        try:
            columns = [_as(found[field.name], field.type) for field in self._schema]
        except KeyError as missing:
            raise InvalidRequestError(f"the topic has lost its column {missing}", operation=OPERATION) from None
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _wants(self, group: list[pa.Field]) -> bool:
        return any(field.name in self._schema.names for field in group)


def _stored(stream: pa.Schema) -> list[list[pa.Field]]:
    """Return for each column of a topic the columns of the table that it becomes."""
    if all(field in STREAM_SCHEMA for field in stream):
        return [[field] for field in stream]
    from icestream.table import stored_fields  # noqa: PLC0415 - loads the Iceberg library, a second

    return [list(stored_fields(field)) for field in stream]


def _values(column: pa.Array, field: pa.Field, group: list[pa.Field]) -> Iterable[pa.Array]:
    if group == [field]:
        return (column,)
    from icestream.table import to_stored  # noqa: PLC0415 - loads the Iceberg library, a second

    return to_stored(column, field, group)


def _as(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return column if column.type.equals(kind) else column.cast(kind)


def _alike(one: DataType, other: DataType) -> bool:
    """Return whether the types are the same, apart from nullability."""
    return one.simpleString() == other.simpleString()
