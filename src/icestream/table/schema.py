"""The topic's stream schema as an Iceberg schema, and rows on their way between the two.

`Columns` is the mapping of one stream schema. It is made once per writer, is cheap to pickle, and touches only the
columns whose type changes.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

import pyarrow as pa
import pyarrow.types as kinds
from pyiceberg import types as iceberg
from pyiceberg.schema import Schema

from icestream.config.reserved import ENGINE_COLUMNS
from icestream.model.errors import IncompatibleTableError, InvalidMessageError, InvalidRequestError
from icestream.model.messages import ENVELOPE
from icestream.table.partitions import partition_spec, sort_order
from icestream.table.types import (
    NANOS_SUFFIX,
    check_names,
    check_nanos_names,
    from_stored,
    is_split,
    stored_fields,
    to_stored,
)

MAX_COLUMNS = 10_000
FIELD_ID = b"PARQUET:field_id"
"""Where Arrow keeps a column's id."""
_DOCS = {
    "offset": "The message's place in the topic: from 0, in order",
    "publish_time": "When the broker took the message",
    "producer": "Who published it",
    "sequence": "The producer's own number of the message",
}


@dataclass(frozen=True)
class Columns:
    """One stream schema and what its columns are in the table."""

    stream: pa.Schema
    stored: tuple[tuple[pa.Field, ...], ...]
    """For each column of the stream, the columns it becomes."""

    @classmethod
    def of(cls, stream: pa.Schema) -> "Columns":
        made = cls(stream, tuple(tuple(stored_fields(field)) for field in stream))
        names = [field.name for field in made.fields()]
        if len(names) > MAX_COLUMNS:
            raise InvalidRequestError(
                f"{len(names)} columns are too many, the limit is {MAX_COLUMNS}", operation="table schema"
            )
        check_nanos_names(stream)
        check_names(names, "the table")
        if taken := sorted(ENGINE_COLUMNS.intersection(names)):
            raise InvalidRequestError(
                f"columns {', '.join(taken)} have names that query engines use for columns of their own",
                operation="table schema",
                remedy="rename them",
            )
        return made

    @property
    def offset(self) -> str:
        """The name of the offset's column."""
        return str(self.stream[0].name)

    def fields(self) -> Iterator[pa.Field]:
        return (field for group in self.stored for field in group)

    def to_table(self, batches: list[pa.RecordBatch], file_schema: pa.Schema) -> pa.Table:
        """Rows of the stream as rows of a data file with `file_schema`."""
        for batch in batches:
            if not batch.schema.equals(self.stream):
                raise InvalidMessageError("a batch has other columns than the stream", operation="write table")
        rows = pa.Table.from_batches(batches, self.stream)
        columns = [
            values
            for column, field, stored in zip(rows.columns, self.stream, self.stored, strict=True)
            for values in to_stored(column, field, list(stored))
        ]
        return pa.Table.from_arrays(columns, schema=file_schema)

    def from_table(self, rows: pa.Table, names: Sequence[str]) -> pa.Table:
        """Rows of the table as rows of the stream's columns `names`; what a file does not have yet is null."""
        schema = pa.schema([self.stream.field(name) for name in names])
        stored_as, there = dict(zip(self.stream.names, self.stored, strict=True)), set(rows.column_names)
        columns = []
        for field in schema:
            stored = stored_as[field.name]
            if stored[0].name in there:
                columns.append(from_stored([rows.column(part.name) for part in stored], field))
            else:
                columns.append(pa.chunked_array([pa.nulls(rows.num_rows, field.type)]))
        return pa.Table.from_arrays(columns, schema=schema)


def iceberg_schema(columns: Columns) -> Schema:
    """The schema of a new table; the catalog gives the ids anew, in the same order."""
    ids = count(1)
    fields = [
        _nested_field(field, ids, doc) for field, doc in zip(columns.fields(), _documentation(columns), strict=True)
    ]
    return Schema(*fields)


def file_schema(columns: Columns, table: Schema) -> pa.Schema:
    """The stored columns with the table's field ids, as they stand in Parquet files."""
    by_name = {field.name: field for field in table.fields}
    try:
        return pa.schema([_with_ids(field, by_name[field.name]) for field in columns.fields()])
    except KeyError as missing:
        raise IncompatibleTableError(f"the table has lost its column {missing}", operation="write table") from None


def check_table_schema(schema: pa.Schema, partition_by: Iterable[str] = (), sort_by: Iterable[str] = ()) -> None:
    """Raise `InvalidRequestError` unless a topic with this stream schema can have a table so partitioned and sorted."""
    columns = Columns.of(schema)
    try:
        table = iceberg_schema(columns)
        table.find_field(columns.offset)  # builds the index of names, which must not be ambiguous
    except ValueError as error:
        raise InvalidRequestError(f"the columns cannot make a table: {error}", operation="table schema") from error
    partition_spec(partition_by, table)
    sort_order(tuple(sort_by), columns.offset, table)


def _documentation(columns: Columns) -> Iterator[str | None]:
    envelope = len(ENVELOPE)
    for number, (field, stored) in enumerate(zip(columns.stream, columns.stored, strict=True)):
        if number < envelope:
            yield _DOCS[ENVELOPE[number].name]
            continue
        kind = field.type
        if is_split(field):
            yield f"Microseconds; the nanoseconds beyond are in {field.name}{NANOS_SUFFIX}"
            yield f"Nanoseconds beyond {field.name}, 0 to 999"
        elif kinds.is_duration(kind) or kinds.is_time(kind):
            yield f"{'Duration' if kinds.is_duration(kind) else 'Time of day'} in {kind.unit}"
        else:
            yield from (None for _ in stored)


def _nested_field(field: pa.Field, ids: "count[int]", doc: str | None = None) -> iceberg.NestedField:
    number = next(ids)
    return iceberg.NestedField(number, field.name, _iceberg_type(field.type, ids), required=not field.nullable, doc=doc)


def _iceberg_type(kind: pa.DataType, ids: "count[int]") -> iceberg.IcebergType:
    if kinds.is_struct(kind):
        return iceberg.StructType(*(_nested_field(field, ids) for field in kind))
    if kinds.is_map(kind):
        key_id, value_id = next(ids), next(ids)
        return iceberg.MapType(
            key_id,
            _iceberg_type(kind.key_type, ids),
            value_id,
            _iceberg_type(kind.item_type, ids),
            value_required=False,
        )
    if kinds.is_list(kind):
        return iceberg.ListType(next(ids), _iceberg_type(kind.value_type, ids), element_required=False)
    if kinds.is_decimal(kind):
        return iceberg.DecimalType(kind.precision, kind.scale)
    if kinds.is_fixed_size_binary(kind):
        return iceberg.FixedType(kind.byte_width)
    if kinds.is_timestamp(kind):
        return iceberg.TimestamptzType() if kind.tz else iceberg.TimestampType()
    return _PRIMITIVES[kind]


_PRIMITIVES: dict[pa.DataType, iceberg.PrimitiveType] = {
    pa.bool_(): iceberg.BooleanType(),
    pa.int32(): iceberg.IntegerType(),
    pa.int64(): iceberg.LongType(),
    pa.float32(): iceberg.FloatType(),
    pa.float64(): iceberg.DoubleType(),
    pa.date32(): iceberg.DateType(),
    pa.string(): iceberg.StringType(),
    pa.binary(): iceberg.BinaryType(),
}


def _with_ids(field: pa.Field, table: iceberg.NestedField) -> pa.Field:
    kind, target = field.type, table.field_type
    if isinstance(target, iceberg.StructType):
        by_name = {nested.name: nested for nested in target.fields}
        kind = pa.struct([_with_ids(nested, by_name[nested.name]) for nested in kind])
    elif isinstance(target, iceberg.ListType):
        kind = pa.list_(_with_ids(kind.value_field, target.element_field))
    elif isinstance(target, iceberg.MapType):
        kind = pa.map_(_with_ids(kind.key_field, target.key_field), _with_ids(kind.item_field, target.value_field))
    return pa.field(field.name, kind, field.nullable, {FIELD_ID: str(table.field_id).encode()})
