"""Conditions of a scan that the reader can use, to read less than all.

DuckDB gives each scan its conditions as an Arrow expression, which `topic_dataset` applies to every batch. What is
taken from it here is weaker or the same, never stronger: parts that are not understood are left out, which is right
as long as they are joined by AND and OR alone. So it never changes a result.
"""

from decimal import Decimal
from functools import reduce
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from icestream.model.filters import Filter
from icestream.model.predicates import And, Compare, Field, In, Instant, Operator, Or, Predicate, Value
from icestream.query.expression import Call, Expression, FieldRef, read_expression

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
