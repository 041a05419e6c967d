"""Conditions of a scan that the reader can use to read less.

DuckDB passes each scan its condition as an Arrow expression, and `dataset` applies that to every batch. The filter made
here is weaker or equal, never stronger. A part that is not understood is left out, which is safe because only AND and
OR join the parts. So a pushed-down filter never changes a result.

Arrow does not expose the parts of an expression, it only serializes it. The serialized form is a record batch. Its
columns hold literals and function options; its schema metadata spells the expression out, as ordered pairs::

    call and_kleene
      call greater_equal · field_ref offset · literal 0 · end greater_equal
      call is_in · field_ref name · options 1 · end is_in
    end and_kleene

A key occurs many times, so the pairs are read through Arrow's C data interface, which keeps them all.
"""

import ctypes
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from typing import NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from icestream.model.filters import And, Compare, Field, Filter, In, Instant, Operator, Or, Predicate, Value
from icestream.model.messages import OFFSET


@dataclass(frozen=True)
class FieldRef:
    name: str


@dataclass(frozen=True)
class FunctionCall:
    function: str
    arguments: "tuple[Expression, ...]"
    options: pa.Scalar | None


Expression: TypeAlias = "FieldRef | FunctionCall | pa.Scalar | None"
"""None stands for a part that is not understood."""


class _CSchema(ctypes.Structure):
    """The first fields of an `ArrowSchema` of the C data interface."""

    _fields_ = (
        ("format", ctypes.c_char_p),
        ("name", ctypes.c_char_p),
        ("metadata", ctypes.c_void_p),
    )


_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def read_expression(expression: pc.Expression) -> Expression:
    """Return the parts of an expression; None if its serialized form is not understood."""
    try:
        _, (serialized,) = expression.__reduce__()
        batch = pa.ipc.open_file(serialized).get_batch(0)
        return _ExpressionReader(batch, _metadata(batch.schema)).read()
    except (ValueError, KeyError, IndexError, TypeError, pa.ArrowException):
        return None


class _ExpressionReader:
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
        return FunctionCall(function, tuple(arguments), options)


def _metadata(schema: pa.Schema) -> list[tuple[str, str]]:
    """Return all metadata pairs of a schema, through Arrow's C data interface."""
    capsule = schema.__arrow_c_schema__()  # releases the exported schema when it is garbage-collected
    return _pairs(_CSchema.from_address(_capsule_pointer(capsule, b"arrow_schema")).metadata)


def _pairs(address: int | None) -> list[tuple[str, str]]:
    """Read a count, then the length and the bytes of each key and value."""
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


class ScanRange(NamedTuple):
    """What a scan has to read: rows with `start <= offset < end` that match `where`."""

    start: int
    end: int
    where: Filter | None


def scan_range(expression: pc.Expression | None, schema: pa.Schema, start: int, end: int) -> ScanRange:
    """Return what a scan of rows of `schema` has to read. The first column of `schema` is the offset."""
    predicate = None if expression is None else _predicate(read_expression(expression), schema)
    if predicate is None:
        return ScanRange(start, end, None)
    offset = schema.names[OFFSET]
    low, high = reduce(_narrowed, (part for part in _parts(predicate) if _is_bound(part, offset)), (start, end))
    rest = tuple(part for part in _parts(predicate) if not _is_bound(part, offset))
    return ScanRange(low, max(low, high), Filter("a query's condition", And(rest)) if rest else None)


def _parts(predicate: Predicate) -> tuple[Predicate, ...]:
    return predicate.parts if isinstance(predicate, And) else (predicate,)


def _is_bound(part: Predicate, offset: str) -> bool:
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
        case FunctionCall("and_kleene" | "and", arguments):
            parts = [part for part in (_predicate(argument, schema) for argument in arguments) if part is not None]
            flat = tuple(inner for part in parts for inner in _parts(part))
            return And(flat) if flat else None
        case FunctionCall("or_kleene" | "or", arguments):
            alternatives = [_predicate(argument, schema) for argument in arguments]
            known = tuple(part for part in alternatives if part is not None)
            return Or(known) if known and len(known) == len(alternatives) else None
        case FunctionCall(function, (FieldRef(name), pa.Scalar() as literal)) if function in _OPERATORS:
            value = _value(literal, name, schema)
            return None if value is None else Compare(Field(name), _OPERATORS[function], value)
        case FunctionCall("is_in", (FieldRef(name),), pa.StructScalar() as options):
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
    """Return a literal's value; None for a type that a filter does not compare exactly as Arrow does."""
    index = schema.get_field_index(name)
    if index < 0 or not literal.is_valid:
        return None
    kind = literal.type
    if kinds.is_integer(kind):
        return Decimal(literal.as_py()) if _compares_exactly(schema.field(index).type, kind) else None
    if not schema.field(index).type.equals(kind):
        return None
    if kinds.is_string(kind) or kinds.is_binary(kind) or kinds.is_boolean(kind):
        found: Value = literal.as_py()
        return found
    if kinds.is_timestamp(kind) and kind.unit in _PER_UNIT_US:
        return Instant(literal.value * _PER_UNIT_US[kind.unit])
    return None


def _compares_exactly(column: pa.DataType, literal: pa.DataType) -> bool:
    """Return whether Arrow compares these integers by value. Where the types differ, Arrow makes both signed.

    DuckDB passes 64-bit literals for 32-bit columns.
    """
    return bool(column.equals(literal)) or (kinds.is_integer(column) and pa.uint64() not in (column, literal))
