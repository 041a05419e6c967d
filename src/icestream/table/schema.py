"""Maps a topic's stream schema to an Iceberg schema, and converts rows between the two.

`Columns` is the mapping of one stream schema. It is made once per writer, is cheap to pickle, and copies only the
columns whose type changes.

A table's columns have types that every engine reads. Iceberg's `time`, `uuid` and nanosecond timestamps are not among
them: Spark cannot read a table that has one. So each Arrow type is either stored as a type that keeps every value, or
refused with its name:

- integers of up to 32 bits are `int`; those of up to 64 bits, and unsigned ones of 32 bits, are `long`; unsigned ones
  of 64 bits are `decimal(20, 0)`; half-precision floats are `float`
- timestamps in seconds, milliseconds and microseconds are `timestamp` in microseconds (`timestamptz` with a zone)
- a column of timestamps in nanoseconds becomes two: microseconds under its own name, which can be partitioned and
  sorted by, and the remaining 0 to 999 nanoseconds in `{name}_nanos`; inside structs, lists and maps it is a `long` of
  nanoseconds
- times of day and durations are `int` or `long`, in the unit of the topic's schema
- dictionaries are stored as their values, extension types as their storage type, large and view forms of a type as the
  ordinary form
- nested fields are nullable in the table, whatever the topic's schema says

The topic's own schema is kept in the table's properties, so that readers get the published types back.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds
from pyiceberg import types as iceberg
from pyiceberg.schema import Schema

from icestream.config import ENGINE_COLUMNS
from icestream.model.errors import IncompatibleTableError, InvalidMessageError, InvalidRequestError
from icestream.model.messages import EnvelopeNames
from icestream.table.partitions import partition_spec, sort_order

NANOS_SUFFIX = "_nanos"
MAX_DECIMAL_DIGITS = 38
MAX_NESTING = 64
_NANOS_PER_MICRO = 1000

_PLAIN: tuple[tuple[Callable[[pa.DataType], bool], pa.DataType], ...] = (
    (kinds.is_boolean, pa.bool_()),
    (kinds.is_uint64, pa.decimal128(20, 0)),
    (lambda kind: kinds.is_int64(kind) or kinds.is_uint32(kind), pa.int64()),
    (kinds.is_integer, pa.int32()),
    (kinds.is_float64, pa.float64()),
    (kinds.is_floating, pa.float32()),
    (kinds.is_date, pa.date32()),
    (kinds.is_time32, pa.int32()),
    (lambda kind: kinds.is_time64(kind) or kinds.is_duration(kind), pa.int64()),
    (lambda kind: kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind), pa.string()),
    (lambda kind: kinds.is_binary(kind) or kinds.is_large_binary(kind) or kinds.is_binary_view(kind), pa.binary()),
)


def stored_type(kind: pa.DataType, where: str, depth: int = 0) -> pa.DataType:
    """Return the Arrow type of `kind` in the table's files. `where` names the field in errors."""
    if depth > MAX_NESTING:
        raise _refused(where, f"is nested deeper than {MAX_NESTING} levels")
    for is_kind, stored in _PLAIN:
        if is_kind(kind):
            return stored
    if kinds.is_timestamp(kind):
        return pa.int64() if kind.unit == "ns" else pa.timestamp("us", tz="UTC" if kind.tz else None)
    if kinds.is_decimal(kind):
        return _stored_decimal(kind, where)
    if kinds.is_fixed_size_binary(kind) and kind.byte_width > 0:
        return kind
    if (wrapped := _wrapped(kind)) is not None:
        return stored_type(wrapped, where, depth + 1)
    if kinds.is_struct(kind):
        return _stored_struct(kind, where, depth)
    return _stored_collection(kind, where, depth)


def _wrapped(kind: pa.DataType) -> pa.DataType | None:
    """Return the type that a dictionary or an extension type holds; None for other types."""
    if kinds.is_dictionary(kind):
        return kind.value_type
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else None


def _holds_views(kind: pa.DataType) -> bool:
    if kinds.is_string_view(kind) or kinds.is_binary_view(kind):
        return True
    return any(_holds_views(kind.field(number).type) for number in range(kind.num_fields))


def _stored_collection(kind: pa.DataType, where: str, depth: int) -> pa.DataType:
    if kinds.is_fixed_size_list(kind) and _holds_views(kind):
        raise _refused(where, "is a fixed-size list of views, which Arrow cannot restore from a table")
    if kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind):
        return pa.list_(pa.field("element", stored_type(kind.value_type, f"{where}.element", depth + 1)))
    if kinds.is_map(kind):
        return pa.map_(
            pa.field("key", stored_type(kind.key_type, f"{where}.key", depth + 1), nullable=False),
            pa.field("value", stored_type(kind.item_type, f"{where}.value", depth + 1)),
        )
    raise _refused(where, f"has the type {kind}, which a table cannot hold")


def _stored_decimal(kind: pa.DataType, where: str) -> pa.DataType:
    if kind.precision > MAX_DECIMAL_DIGITS or not 0 <= kind.scale <= kind.precision:
        raise _refused(
            where,
            f"has the type {kind}; a table's decimals have at most {MAX_DECIMAL_DIGITS} digits "
            "and a scale from 0 to their number",
        )
    return pa.decimal128(kind.precision, kind.scale)


def _stored_struct(kind: pa.DataType, where: str, depth: int) -> pa.DataType:
    names = [field.name for field in kind]
    if not names:
        raise _refused(where, "is a struct without fields, which a table cannot hold")
    check_names(names, f"column {where!r}")
    return pa.struct([pa.field(f.name, stored_type(f.type, f"{where}.{f.name}", depth + 1)) for f in kind])


def check_names(names: list[str], where: str) -> None:
    """Raise for names that engines cannot tell apart or cannot write. `where` is the subject of the error text."""
    for name in names:
        if not name.strip() or not name.isprintable():
            raise _misnamed(f"{where} has a name that is empty or not printable: {name!r}")
    folded: dict[str, str] = {}
    for name in names:
        other = folded.setdefault(name.casefold(), name)
        if other is not name:
            raise _misnamed(f"{where} has two names that are equal or differ only in case, {other!r} and {name!r}")


def check_nanos_names(stream: pa.Schema) -> None:
    """Raise for a column with the name of one that the table adds for nanoseconds."""
    given = {name.casefold(): name for name in stream.names}
    for field in filter(is_split, stream):
        added = field.name + NANOS_SUFFIX
        if (other := given.get(added.casefold())) is not None:
            raise _misnamed(
                f"column {field.name!r} is a timestamp in nanoseconds, for which the table adds a column {added!r}, "
                f"and the topic has a column {other!r}"
            )


def is_split(field: pa.Field) -> bool:
    """Return whether a column becomes two: microseconds, and the remaining nanoseconds."""
    return bool(kinds.is_timestamp(field.type)) and field.type.unit == "ns"


def stored_fields(field: pa.Field) -> Iterator[pa.Field]:
    """Yield the table's columns for a column of the stream."""
    if is_split(field):
        yield pa.field(field.name, pa.timestamp("us", tz="UTC" if field.type.tz else None), field.nullable)
        yield pa.field(field.name + NANOS_SUFFIX, pa.int32(), field.nullable)
    else:
        yield pa.field(field.name, stored_type(field.type, field.name), field.nullable)


def to_stored(column: pa.ChunkedArray, field: pa.Field, stored: list[pa.Field]) -> Iterator[pa.ChunkedArray]:
    """Yield the values for `stored_fields(field)`. A column whose type stays is not copied."""
    try:
        if is_split(field):
            yield from _split_nanos(column, stored)
        else:
            yield column if column.type.equals(stored[0].type) else column.cast(stored[0].type)
    except pa.ArrowInvalid as error:
        raise InvalidMessageError(
            f"a value of column {field.name!r} does not fit the table's type {stored[0].type}: {error}",
            operation="write table",
        ) from error


def from_stored(columns: list[pa.ChunkedArray], field: pa.Field) -> pa.ChunkedArray:
    """Return the stream's column, from the values of its `stored_fields`."""
    if not is_split(field):
        return columns[0] if columns[0].type.equals(field.type) else columns[0].cast(field.type)
    micros, nanos = (column.cast(pa.int64()) for column in columns)
    return pc.add(pc.multiply(micros, _NANOS_PER_MICRO), nanos).cast(field.type)


def _split_nanos(column: pa.ChunkedArray, stored: list[pa.Field]) -> Iterator[pa.ChunkedArray]:
    nanos = column.cast(pa.int64())
    towards_zero = pc.divide(nanos, _NANOS_PER_MICRO)
    beyond = pc.subtract(nanos, pc.multiply(towards_zero, _NANOS_PER_MICRO))
    early = pc.less(beyond, 0)  # before 1970: round down to the earlier microsecond
    yield pc.if_else(early, pc.subtract(towards_zero, 1), towards_zero).cast(stored[0].type)
    yield pc.if_else(early, pc.add(beyond, _NANOS_PER_MICRO), beyond).cast(stored[1].type)


def _refused(where: str, problem: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"column {where!r} {problem}", operation="table schema", remedy="give the column another type or name"
    )


def _misnamed(problem: str) -> InvalidRequestError:
    return InvalidRequestError(problem, operation="table schema", remedy="give the column another name")


MAX_COLUMNS = 10_000
FIELD_ID = b"PARQUET:field_id"
"""The key of Arrow's field metadata that holds a column's field id."""
_ENVELOPE_DOCS = EnvelopeNames(
    offset="The message's number in its topic, from 0",
    publish_time="When the broker took the message",
    producer="Who published it",
    sequence="The producer's own number of the message",
)
"""The documentation of the envelope's columns in the table's schema."""


@dataclass(frozen=True)
class Columns:
    """One stream schema, and its columns in the table."""

    stream: pa.Schema
    stored: tuple[tuple[pa.Field, ...], ...]
    """For each column of the stream, its columns in the table."""

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
                f"columns {', '.join(taken)} have names that query engines reserve",
                operation="table schema",
                remedy="rename them",
            )
        return made

    @cached_property
    def envelope(self) -> EnvelopeNames:
        return EnvelopeNames.of(self.stream)

    @property
    def offset(self) -> str:
        """The name of the offset's column."""
        return self.envelope.offset

    def fields(self) -> Iterator[pa.Field]:
        return (field for group in self.stored for field in group)

    def to_table(self, batches: list[pa.RecordBatch], file_schema: pa.Schema) -> pa.Table:
        """Convert rows of the stream to rows of a data file with `file_schema`."""
        for batch in batches:
            if not batch.schema.equals(self.stream):
                raise InvalidMessageError("the columns of a batch are not the stream's", operation="write table")
        rows = pa.Table.from_batches(batches, self.stream)
        columns = [
            values
            for column, field, stored in zip(rows.columns, self.stream, self.stored, strict=True)
            for values in to_stored(column, field, list(stored))
        ]
        return pa.Table.from_arrays(columns, schema=file_schema)

    def from_table(self, rows: pa.Table, names: Sequence[str]) -> pa.Table:
        """Convert rows of the table to the stream's columns `names`. A column that the file lacks is null."""
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
    """Return the schema of a new table. The catalog assigns field ids of its own, in the same order."""
    ids = count(1)
    fields = [
        _nested_field(field, ids, doc) for field, doc in zip(columns.fields(), _documentation(columns), strict=True)
    ]
    return Schema(*fields)


def file_schema(columns: Columns, table: Schema) -> pa.Schema:
    """Return the columns of Parquet files, with the table's field ids."""
    by_name = {field.name: field for field in table.fields}
    try:
        return pa.schema([_with_ids(field, by_name[field.name]) for field in columns.fields()])
    except KeyError as missing:
        raise IncompatibleTableError(f"the table no longer has the column {missing}", operation="write table") from None


def check_table_schema(schema: pa.Schema, partition_by: Iterable[str] = (), sort_by: Iterable[str] = ()) -> None:
    """Raise `InvalidRequestError` unless a topic with this schema, partitioning and sort order can have a table."""
    columns = Columns.of(schema)
    try:
        table = iceberg_schema(columns)
        table.find_field(columns.offset)  # builds the index of names, which must not be ambiguous
    except ValueError as error:
        raise InvalidRequestError(f"the columns cannot make a table: {error}", operation="table schema") from error
    partition_spec(partition_by, table)
    sort_order(tuple(sort_by), columns.offset, table)


def _documentation(columns: Columns) -> Iterator[str | None]:
    documented = dict(zip(columns.envelope, _ENVELOPE_DOCS, strict=True))
    for field, stored in zip(columns.stream, columns.stored, strict=True):
        if field.name in documented:
            yield documented[field.name]
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
