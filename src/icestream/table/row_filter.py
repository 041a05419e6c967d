"""A filter's predicate as an Iceberg expression over the table's columns, true of at least every row that matches.

Values are those of the stored types, see `types`. Not-a-number counts: it lies outside all bounds, and `not (x < 1)`
matches it, so a negated order of floating-point values says nothing about bounds.
"""

from functools import reduce
from math import isfinite
from typing import Any, Literal

import pyarrow as pa
import pyarrow.types as kinds
from pyiceberg import expressions as iceberg
from pyiceberg.expressions import AlwaysFalse, AlwaysTrue, BooleanExpression
from pyiceberg.expressions.visitors import bind
from pyiceberg.schema import Schema
from pyiceberg.utils.truncate import truncate_upper_bound_binary_string

from icestream.model.filter_values import comparison_with, plain_type
from icestream.model.predicates import (
    NEGATED,
    And,
    Compare,
    Field,
    In,
    IsNull,
    IsTrue,
    Like,
    Not,
    Operator,
    Or,
    Predicate,
    Value,
)
from icestream.table.schema import Columns

_TRUE = AlwaysTrue()
_OPERATORS: dict[str, Any] = {
    "=": iceberg.EqualTo,
    "!=": iceberg.NotEqualTo,
    "<": iceberg.LessThan,
    "<=": iceberg.LessThanOrEqual,
    ">": iceberg.GreaterThan,
    ">=": iceberg.GreaterThanOrEqual,
    "starts with": iceberg.StartsWith,
}
_ORDER = ("<", "<=", ">", ">=")


def translated(predicate: Predicate, columns: Columns, table: Schema) -> BooleanExpression:
    return _Translation(columns, table).of(predicate, negated=False)


def compared(column: str, operator: Operator | Literal["starts with"], value: Any) -> BooleanExpression:
    made: BooleanExpression = _OPERATORS[operator](column, value)
    return made


def without_bytes(expression: BooleanExpression) -> BooleanExpression:
    """For a server: JSON has no bytes and no infinity, so what compares with some is taken as true."""
    match expression:
        case iceberg.And(left=left, right=right):
            return iceberg.And(without_bytes(left), without_bytes(right))
        case iceberg.Or(left=left, right=right):
            return iceberg.Or(without_bytes(left), without_bytes(right))
        case iceberg.LiteralPredicate():
            value = expression.literal.value
            if isinstance(value, bytes) or (isinstance(value, float) and not isfinite(value)):
                return _TRUE
    return expression


class _Translation:
    def __init__(self, columns: Columns, table: Schema) -> None:
        self._stored = {
            field.name: stored[0]
            for field, stored in zip(columns.stream, columns.stored, strict=True)
            if len(stored) == 1
        }
        self._table = table

    def of(self, predicate: Predicate, *, negated: bool) -> BooleanExpression:
        match predicate:
            case And(parts) | Or(parts):
                join = iceberg.And if isinstance(predicate, And) != negated else iceberg.Or
                return reduce(join, (self.of(part, negated=negated) for part in parts))
            case Not(part):
                return self.of(part, negated=not negated)
            case IsTrue(field):
                return self._compared(field, "=", not negated)
            case Compare(field, operator, value):
                return self._comparison(field, operator, value, negated=negated)
            case IsNull(field):
                if (name := self._name(field)) is None:
                    return _TRUE
                term = iceberg.Reference(name)
                return self._bindable(iceberg.NotNull(term=term) if negated else iceberg.IsNull(term=term))
            case In(field, values):
                if negated:
                    return _TRUE
                return reduce(iceberg.Or, (self._compared(field, "=", value) for value in values))
            case Like():
                return _TRUE if negated or predicate.ignore_case else self._prefix(predicate)

    def _comparison(self, field: Field, operator: Operator, value: Value, *, negated: bool) -> BooleanExpression:
        kind = self._kind(field)
        if negated and kind is not None and kinds.is_floating(kind) and operator in _ORDER:
            return _TRUE
        return self._compared(field, NEGATED[operator] if negated else operator, value)

    def _compared(self, field: Field, operator: Operator, value: Value) -> BooleanExpression:
        kind = self._kind(field)
        if kind is None:
            return _TRUE
        test = comparison_with(operator, value, kind, str(field))
        if isinstance(test, bool):
            return _TRUE if test else AlwaysFalse()
        return self._bindable(compared(field.column, test.operator, _literal(test.scalar)))

    def _prefix(self, predicate: Like) -> BooleanExpression:
        kind, prefix = self._kind(predicate.field), predicate.prefix
        if kind is None or not prefix:
            return _TRUE
        name = predicate.field.column
        if kinds.is_string(kind):
            return self._bindable(compared(name, "starts with", prefix))
        first = prefix.encode()
        found = compared(name, ">=", first)
        behind = truncate_upper_bound_binary_string(first + b"\xff", len(first))  # the next of the same length
        return self._bindable(found if behind is None else iceberg.And(found, compared(name, "<", behind)))

    def _name(self, field: Field) -> str | None:
        return field.column if field.column in self._stored and not field.steps else None

    def _kind(self, field: Field) -> pa.DataType | None:
        """The stored type of a column that has bounds."""
        name = self._name(field)
        if name is None:
            return None
        kind = plain_type(self._stored[name].type)
        return None if kinds.is_nested(kind) else kind

    def _bindable(self, expression: BooleanExpression) -> BooleanExpression:
        """True if the table has no such column any more, or one of another type."""
        try:
            bind(self._table, expression, case_sensitive=True)
        except (ValueError, TypeError):
            return _TRUE
        return expression


def _literal(scalar: pa.Scalar) -> Any:
    """Times and dates as numbers: Python's own end at the year 9999."""
    kind = scalar.type
    if kinds.is_date32(kind):
        return scalar.cast(pa.int32()).as_py()
    return scalar.cast(pa.int64()).as_py() if kinds.is_timestamp(kind) else scalar.as_py()
