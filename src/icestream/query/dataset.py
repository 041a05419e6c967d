"""A topic as DuckDB scans it: an Arrow dataset of which only what DuckDB uses is there.

DuckDB asks a dataset for its schema, and for each scan for a scanner, with the columns and the conditions that its own
optimizer chose. A topic that is named twice is scanned twice, each time for what is needed there.
"""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.types as kinds

from icestream.model.filters import And, Compare, Field, Filter, In, Instant, Operator, Or, Predicate, Value
from icestream.query.sources import Source

# --------------------
# What an Arrow expression is made of, which Arrow itself does not tell: it only serializes them.
#
# The serialized form is a batch. Its columns hold the literals and the options of functions; its schema's metadata
# spells the expression out, as pairs in order::
#
#     call and_kleene
#       call greater_equal · field_ref offset · literal 0 · end greater_equal
#       call is_in · field_ref name · options 1 · end is_in
#     end and_kleene
#
# The same key comes many times, so the pairs are read through Arrow's C data interface, which keeps them all.


@dataclass(frozen=True)
class FieldRef:
    name: str


@dataclass(frozen=True)
class Call:
    function: str
    arguments: "tuple[Expression, ...]"
    options: pa.Scalar | None


Expression: TypeAlias = "FieldRef | Call | pa.Scalar | None"
"""None stands for what is not known here."""


class _CSchema(ctypes.Structure):
    """The beginning of an `ArrowSchema` of the C data interface, and room for the rest of it."""

    _fields_ = (
        ("format", ctypes.c_char_p),
        ("name", ctypes.c_char_p),
        ("metadata", ctypes.c_void_p),
        ("rest", ctypes.c_char * 128),
    )


def read_expression(expression: pc.Expression) -> Expression:
    """The expression's parts; None if it is not written as it is known here."""
    try:
        _, (serialized,) = expression.__reduce__()
        batch = pa.ipc.open_file(serialized).get_batch(0)
        return _Parts(batch, _metadata(batch.schema)).read()
    except (ValueError, KeyError, IndexError, TypeError, pa.ArrowException):
        return None


class _Parts:
    def __init__(self, batch: pa.RecordBatch, pairs: list[tuple[str, str]]) -> None:
        self._batch = batch
        self._pairs = pairs[::-1]

    def read(self) -> Expression:
        kind, text = self._pairs.pop()
        match kind:
            case "field_ref":
                return FieldRef(text)
            case "nested_field_ref":
                for _ in range(int(text)):
                    self.read()
                return None
            case "literal":
                return self._batch.column(int(text))[0]
            case "call":
                return self._call(text)
        raise ValueError(kind)

    def _call(self, function: str) -> Expression:
        arguments: list[Expression] = []
        options = None
        while (kind := self._pairs[-1][0]) != "end":
            if kind == "options":
                options = self._batch.column(int(self._pairs.pop()[1]))[0]
            else:
                arguments.append(self.read())
        self._pairs.pop()
        return Call(function, tuple(arguments), options)


def _metadata(schema: pa.Schema) -> list[tuple[str, str]]:
    exported = _CSchema()
    schema._export_to_c(ctypes.addressof(exported))  # noqa: SLF001 - the name that the C data interface has in pyarrow
    try:
        return _pairs(exported.metadata)
    finally:
        pa.Schema._import_from_c(ctypes.addressof(exported))  # noqa: SLF001 - who imports it frees it


def _pairs(address: int | None) -> list[tuple[str, str]]:
    """A count, then for each key and value its length and its bytes."""
    if not address:
        return []

    def number() -> int:
        nonlocal address
        assert address is not None
        found = ctypes.c_int32.from_address(address).value
        address += 4
        return found

    def text() -> str:
        nonlocal address
        length = number()
        assert address is not None
        found = ctypes.string_at(address, length)
        address += length
        return found.decode()

    return [(text(), text()) for _ in range(number())]


# --------------------
# Conditions of a scan that the reader can use, to read less than all.
#
# DuckDB gives each scan its conditions as an Arrow expression, which `topic_dataset` applies to every batch. What is
# taken from it here is weaker or the same, never stronger: parts that are not understood are left out, which is right
# as long as they are joined by AND and OR alone. So it never changes a result.


_OPERATORS: dict[str, Operator] = {
    "equal": "=",
    "not_equal": "!=",
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
}
_PER_UNIT_US = {"s": 1_000_000, "ms": 1_000, "us": 1}
_MAX_VALUES = 1_000


class Wanted(NamedTuple):
    """What a scan has to read: offsets from `start` to before `end`, and of these what meets `where`."""

    start: int
    end: int
    where: Filter | None


def wanted(expression: pc.Expression | None, schema: pa.Schema, start: int, end: int) -> Wanted:
    """Of rows of `schema`, whose first column is the offset."""
    predicate = None if expression is None else _predicate(read_expression(expression), schema)
    if predicate is None:
        return Wanted(start, end, None)
    offset = schema.names[0]
    low, high = reduce(_narrowed, (part for part in _parts(predicate) if _is_about(part, offset)), (start, end))
    rest = tuple(part for part in _parts(predicate) if not _is_about(part, offset))
    return Wanted(low, max(low, high), Filter("a query's condition", And(rest)) if rest else None)


def _parts(predicate: Predicate) -> tuple[Predicate, ...]:
    return predicate.parts if isinstance(predicate, And) else (predicate,)


def _is_about(part: Predicate, offset: str) -> bool:
    return isinstance(part, Compare) and part.field.column == offset and part.operator != "!="


def _narrowed(bounds: tuple[int, int], part: Predicate) -> tuple[int, int]:
    assert isinstance(part, Compare)
    assert isinstance(part.value, Decimal)
    (start, end), value = bounds, int(part.value)
    match part.operator:
        case ">=":
            return max(start, value), end
        case ">":
            return max(start, value + 1), end
        case "<":
            return start, min(end, value)
        case "<=":
            return start, min(end, value + 1)
    return max(start, value), min(end, value + 1)


def _predicate(found: Expression, schema: pa.Schema) -> Predicate | None:
    match found:
        case Call("and_kleene" | "and", arguments):
            parts = [part for part in (_predicate(argument, schema) for argument in arguments) if part is not None]
            flat = tuple(inner for part in parts for inner in _parts(part))
            return And(flat) if flat else None
        case Call("or_kleene" | "or", arguments):
            alternatives = [_predicate(argument, schema) for argument in arguments]
            known = tuple(part for part in alternatives if part is not None)
            return Or(known) if known and len(known) == len(alternatives) else None
        case Call(function, (FieldRef(name), pa.Scalar() as literal)) if function in _OPERATORS:
            value = _value(literal, name, schema)
            return None if value is None else Compare(Field(name), _OPERATORS[function], value)
        case Call("is_in", (FieldRef(name),), pa.StructScalar() as options):
            return _in(name, options, schema)
    return None


def _in(name: str, options: pa.StructScalar, schema: pa.Schema) -> Predicate | None:
    literals = options["value_set"].values
    if not 0 < len(literals) <= _MAX_VALUES:
        return None
    values = [_value(literal, name, schema) for literal in literals]
    known = tuple(value for value in values if value is not None)
    return In(Field(name), known) if len(known) == len(values) else None


def _value(literal: pa.Scalar, name: str, schema: pa.Schema) -> Value | None:
    """Only of types whose values compare in a filter just as they do in Arrow."""
    place = schema.get_field_index(name)
    if place < 0 or not literal.is_valid:
        return None
    kind = literal.type
    if kinds.is_integer(kind):
        return Decimal(literal.as_py()) if _compares_exactly(schema.field(place).type, kind) else None
    if not schema.field(place).type.equals(kind):
        return None
    if kinds.is_string(kind) or kinds.is_binary(kind) or kinds.is_boolean(kind):
        found: Value = literal.as_py()
        return found
    if kinds.is_timestamp(kind) and kind.unit in _PER_UNIT_US:
        return Instant(literal.value * _PER_UNIT_US[kind.unit])
    return None


def _compares_exactly(column: pa.DataType, literal: pa.DataType) -> bool:
    """Whether Arrow compares these whole numbers by their values: where types differ it makes both signed.

    DuckDB gives literals for columns of 32 bits in 64.
    """
    return bool(column.equals(literal)) or (kinds.is_integer(column) and pa.uint64() not in (column, literal))


# --------------------
# Maps without repeated keys, as DuckDB wants them; Arrow, and so a producer, may repeat a key.
#
# The first value of a key counts, as in filters. Batches without repetitions, which are nearly all, are not copied.


def with_unique_keys(maps: pa.MapArray) -> pa.MapArray:
    if pa.types.is_nested(maps.type.key_type) or not _repeats(maps):
        return maps
    return pa.array([None if pairs is None else _firsts(pairs) for pairs in maps.to_pylist()], maps.type)


def _firsts(pairs: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    found: dict[Any, Any] = {}
    for key, value in pairs:
        found.setdefault(key, value)
    return list(found.items())


def _repeats(maps: pa.MapArray) -> bool:
    """Whether a map has a key twice: the number of its map and that of its key, as one number, come twice."""
    offsets = maps.offsets.to_numpy()
    sizes = np.diff(offsets)
    if not len(sizes) or sizes.max() <= 1:
        return False
    keys = maps.keys.slice(offsets[0], offsets[-1] - offsets[0]).dictionary_encode()
    codes = keys.indices.to_numpy().astype(np.int64)
    numbers = np.repeat(np.arange(len(sizes)), sizes) * len(keys.dictionary) + codes
    numbers.sort(kind="stable")
    return bool((numbers[1:] == numbers[:-1]).any())


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
