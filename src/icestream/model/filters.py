"""Filters: a SQL condition on a message's columns, applied to batches.

Example: `key = 'a' and attributes['source'] = 'web' and price > 10`. A filter may compare a column, a struct's field
(`a.b`) or a map's value (`a['k']`) with a value, and may use `in`, `between`, `like`, `ilike`, `is null`, `is true`,
boolean columns, `and`, `or`, `not`.

A filter has SQL's logic: a comparison with null is neither true nor false, and a message matches if the whole filter is
true. A key that a map does not have is null. Text compared with a binary column is its UTF-8. Times are ISO 8601, in
UTC if no zone is given. Filters work on whole columns, never on single messages.
"""

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction
from functools import cached_property, partial, reduce
from math import ceil, floor
from typing import Literal, NamedTuple, Self, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from icestream.model.errors import InvalidRequestError

# The parts of a filter, as plain data: the parser makes them; masks and pruning read them


@dataclass(frozen=True)
class Instant:
    """A time, for callers that do not have it as text."""

    time_us: int


Value = str | Decimal | bool | bytes | Instant
"""A number is a `Decimal`, exactly as written. Times and dates are text until their column is known."""
Operator = Literal["=", "!=", "<", "<=", ">", ">="]

NEGATED: dict[Operator, Operator] = {"=": "!=", "!=": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
SWAPPED: dict[Operator, Operator] = {"=": "=", "!=": "!=", "<": ">", ">": "<", "<=": ">=", ">=": "<="}


@dataclass(frozen=True)
class Lookup:
    """The value of a key of a map."""

    key: Value


@dataclass(frozen=True)
class Field:
    """A column or a part of it: `a`, `a.b`, `a['k']`."""

    column: str
    steps: tuple[str | Lookup, ...] = ()

    def __str__(self) -> str:
        inside = (f".{step}" if isinstance(step, str) else f"['{step.key!s}']" for step in self.steps)
        return self.column + "".join(inside)


@dataclass(frozen=True)
class Compare:
    field: Field
    operator: Operator
    value: Value


@dataclass(frozen=True)
class In:
    field: Field
    values: tuple[Value, ...]


@dataclass(frozen=True)
class Like:
    field: Field
    pattern: str
    """`%` matches any text, `_` one character; a backslash before either makes it an ordinary character."""
    ignore_case: bool = False

    @property
    def prefix(self) -> str:
        """The text that every match begins with, if case counts."""
        found, characters = "", iter(self.pattern)
        for character in characters:
            if character in "%_":
                break
            found += next(characters, "") if character == "\\" else character
        return found


@dataclass(frozen=True)
class IsNull:
    field: Field


@dataclass(frozen=True)
class IsTrue:
    """A boolean column without a comparison."""

    field: Field


@dataclass(frozen=True)
class And:
    parts: tuple["Predicate", ...]


@dataclass(frozen=True)
class Or:
    parts: tuple["Predicate", ...]


@dataclass(frozen=True)
class Not:
    part: "Predicate"


Predicate = Compare | In | Like | IsNull | IsTrue | And | Or | Not


def fields_of(predicate: Predicate) -> Iterator[Field]:
    match predicate:
        case And(parts) | Or(parts):
            for part in parts:
                yield from fields_of(part)
        case Not(part):
            yield from fields_of(part)
        case _:
            yield predicate.field


# Values in the type of the column that they are compared with. A value that the type cannot hold exactly is not
# rounded: for integers, `n < 10.5` means `n <= 10`, `n = 10.5` is never true, and `n > 9999999999` of 32 bits is
# never true either. Only a value for a floating-point column becomes the nearest one.

_UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LARGEST = {pa.float32(): (2 - 2**-23) * 2.0**127, pa.float64(): sys.float_info.max}
_DAY_MS = 86_400_000
_TIME = re.compile(
    r"(?P<date>\d{4}-\d\d-\d\d)"
    r"(?:[T ](?P<time>\d\d:\d\d(?::\d\d)?)(?:\.(?P<fraction>\d{1,9}))?\s*(?P<zone>Z|[+-]\d\d(?::?\d\d)?)?)?"
)
_TIME_FORM = "write a time as '2026-01-31T12:00:00Z'"


class Comparison(NamedTuple):
    """A comparison with a value of the column's type."""

    operator: Operator
    scalar: pa.Scalar


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type in which values of `kind` are compared: without dictionaries, views and extension types."""
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if kinds.is_dictionary(kind):
        return plain_type(kind.value_type)
    if kinds.is_string_view(kind) or kinds.is_large_string(kind):
        return pa.large_string()
    if kinds.is_binary_view(kind) or kinds.is_large_binary(kind) or kinds.is_fixed_size_binary(kind):
        return pa.large_binary()
    return pa.float32() if kinds.is_float16(kind) else kind


def comparison_with(operator: Operator, value: Value, kind: pa.DataType, where: str) -> Comparison | bool:
    """Return the comparison in a plain type, or a bool if the outcome is the same for all values except null."""
    if kinds.is_string(kind) or kinds.is_large_string(kind):
        return Comparison(operator, pa.scalar(_expect(value, str, kind, where), kind))
    if kinds.is_binary(kind) or kinds.is_large_binary(kind):
        return Comparison(operator, pa.scalar(_bytes(value, kind, where), kind))
    if kinds.is_boolean(kind):
        return Comparison(operator, pa.scalar(_expect(value, bool, kind, where), kind))
    if kinds.is_floating(kind):
        return _nearest(operator, _expect(value, Decimal, kind, where), kind)
    return _exact(operator, _counted(value, kind, where), kind)


def _nearest(operator: Operator, number: Decimal, kind: pa.DataType) -> Comparison | bool:
    """Compare in floating point. A number beyond the type's range is less than infinity, and not equal to it."""
    largest = _LARGEST[kind]
    if abs(number) <= largest:
        return Comparison(operator, pa.scalar(float(number), pa.float64()).cast(kind))
    if operator in ("=", "!="):
        return operator == "!="
    is_less = operator in ("<", "<=")
    end = pa.scalar(largest if number > 0 else -largest, kind)
    if number > 0:
        return Comparison("<=" if is_less else ">", end)
    return Comparison("<" if is_less else ">=", end)


def _exact(operator: Operator, number: Fraction, kind: pa.DataType) -> Comparison | bool:
    """Compare exactly. `number` counts in the type's smallest steps."""
    lowest, highest = _range(kind)
    if number.denominator == 1 and lowest <= number <= highest:
        return Comparison(operator, _scalar(int(number), kind))
    match operator:
        case "=" | "!=":
            return operator == "!="
        case "<" | "<=":
            below = floor(number)
            return below >= highest or (below >= lowest and Comparison("<=", _scalar(below, kind)))
    above = ceil(number)
    return above <= lowest or (above <= highest and Comparison(">=", _scalar(above, kind)))


def _counted(value: Value, kind: pa.DataType, where: str) -> Fraction:
    if kinds.is_integer(kind):
        return Fraction(_expect(value, Decimal, kind, where))
    if kinds.is_decimal(kind):
        scale: int = kind.scale
        return Fraction(_expect(value, Decimal, kind, where)) * Fraction(10) ** scale
    if kinds.is_timestamp(kind) and isinstance(value, Instant):
        return Fraction(value.time_us * _UNITS[kind.unit], _UNITS["us"])
    if kinds.is_timestamp(kind):
        return _seconds(_expect(value, str, kind, where), kind, where) * _UNITS[kind.unit]
    if kinds.is_date(kind):
        days = _days(_expect(value, str, kind, where), kind, where)
        return Fraction(days if kinds.is_date32(kind) else days * _DAY_MS)
    raise InvalidRequestError(
        f"{where} has the type {kind}, which a filter cannot compare",
        operation="filter",
        remedy="ask whether it is null, or of what is inside it",
    )


def _range(kind: pa.DataType) -> tuple[int, int]:
    if kinds.is_decimal(kind):
        highest = 10**kind.precision - 1
        return -highest, highest
    if kinds.is_unsigned_integer(kind):
        return 0, (1 << kind.bit_width) - 1
    half = 1 << (kind.bit_width - 1)
    return -half, half - 1


def _scalar(number: int, kind: pa.DataType) -> pa.Scalar:
    if kinds.is_decimal(kind):
        digits = tuple(int(digit) for digit in str(abs(number)))
        return pa.scalar(Decimal((int(number < 0), digits, -kind.scale)), kind)
    if kinds.is_integer(kind):
        return pa.scalar(number, kind)
    return pa.scalar(number, pa.int32() if kinds.is_date32(kind) else pa.int64()).cast(kind)


def _bytes(value: Value, kind: pa.DataType, where: str) -> bytes:
    """Return the bytes of a value; text becomes UTF-8."""
    if isinstance(value, bytes):
        return value
    return str(_expect(value, str, kind, where)).encode()


def _seconds(text: str, kind: pa.DataType, where: str) -> Fraction:
    """Return the seconds since 1970. A time without a zone is in UTC."""
    found = _TIME.fullmatch(text.strip())
    if found is None:
        raise _wrong(text, kind, where, _TIME_FORM)
    try:
        at = datetime.fromisoformat(f"{found['date']}T{found['time'] or '00:00'}{found['zone'] or '+00:00'}")
    except ValueError:
        raise _wrong(text, kind, where, _TIME_FORM) from None
    since = at - _EPOCH
    whole = since.days * 86_400 + since.seconds
    fraction = found["fraction"] or "0"
    return whole + Fraction(int(fraction), 10 ** len(fraction))


def _days(text: str, kind: pa.DataType, where: str) -> int:
    try:
        return (date.fromisoformat(text.strip()) - _EPOCH.date()).days
    except ValueError:
        raise _wrong(text, kind, where, "write a date as '2026-01-31'") from None


V = TypeVar("V", str, Decimal, bool)
_NAMES = {str: "a text in single quotes", Decimal: "a number", bool: "true or false"}


def _expect(value: Value, wanted: type[V], kind: pa.DataType, where: str) -> V:
    if isinstance(value, wanted):
        return value
    raise _wrong(value, kind, where, f"compare it with {_NAMES[wanted]}")


def _wrong(value: Value, kind: pa.DataType, where: str, remedy: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"{where} has the type {kind}, which cannot be compared with {str(value)[:60]!r}",
        operation="filter",
        remedy=remedy,
    )


Values = Callable[[pa.RecordBatch], pa.Array]

_FUNCTIONS: dict[Operator, Callable[[pa.Array, pa.Scalar], pa.Array]] = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


@dataclass(frozen=True)
class Filter:
    text: str
    predicate: Predicate

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a filter. Raise `InvalidRequestError` with the wrong part if the text is not a filter."""
        # Imported here for start-up: sqlglot takes long to load, and only callers with a filter need it.
        from icestream.model.filter_parser import parse  # noqa: PLC0415

        return cls(text, parse(text))

    @cached_property
    def columns(self) -> frozenset[str]:
        """The columns that the filter uses."""
        return frozenset(field.column for field in fields_of(self.predicate))

    def check(self, schema: pa.Schema) -> None:
        """Raise `InvalidRequestError` unless batches of `schema` can be filtered."""
        self._bound_to(schema)

    def mask(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Return true or false for each row: whether it matches."""
        return self._bound_to(batch.schema)(batch).fill_null(False)

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that match; the batch itself if all do."""
        mask = self.mask(batch)
        return batch if mask.true_count == batch.num_rows else _selected(batch, mask)

    def __reduce__(self) -> tuple[type["Filter"], tuple[str, Predicate]]:
        return Filter, (self.text, self.predicate)

    def _bound_to(self, schema: pa.Schema) -> Values:
        """Return the filter compiled for a schema. The last one is kept: the batches of a stream share their schema."""
        kept: tuple[pa.Schema, Values] | None = vars(self).get("_kept")
        if kept is None or not (kept[0] is schema or kept[0].equals(schema)):
            kept = (schema, _bind(self.predicate, schema))
            vars(self)["_kept"] = kept
        return kept[1]


def _selected(batch: pa.RecordBatch, mask: pa.BooleanArray) -> pa.RecordBatch:
    try:
        return batch.filter(mask)
    except pa.ArrowNotImplementedError:  # Arrow cannot filter columns of views
        rows = pc.indices_nonzero(mask).to_pylist()
        return pa.concat_batches([batch.slice(0, 0), *(batch.slice(row, 1) for row in rows)])


def field_type(field: Field, schema: pa.Schema) -> pa.DataType:
    """Return the type of a field. Raise `InvalidRequestError` if the schema does not have it."""
    if field.column not in schema.names:
        raise InvalidRequestError(
            f"there is no column {field.column!r}",
            operation="filter",
            remedy=f"the columns are {', '.join(schema.names[:50])}",
        )
    kind: pa.DataType = schema.field(field.column).type
    for step in field.steps:
        if isinstance(step, str) and kinds.is_struct(kind) and kind.get_field_index(step) >= 0:
            kind = kind.field(step).type
        elif isinstance(step, Lookup) and kinds.is_map(kind):
            kind = kind.item_type
        else:
            raise InvalidRequestError(
                f"{field} does not exist: {field.column!r} has the type {schema.field(field.column).type}",
                operation="filter",
                remedy="a.b is a struct's field, a['k'] a map's value",
            )
    return kind


def _bind(predicate: Predicate, schema: pa.Schema) -> Values:
    match predicate:
        case And(parts):
            return _joined(pc.and_kleene, [_bind(part, schema) for part in parts])
        case Or(parts):
            return _joined(pc.or_kleene, [_bind(part, schema) for part in parts])
        case Not(part):
            inner = _bind(part, schema)
            return lambda batch: pc.invert(inner(batch))
        case IsNull(field):
            values = _values(field, schema)
            return lambda batch: pc.is_null(values(batch))
        case IsTrue(field):
            return _bind(Compare(field, "=", value=True), schema)
        case Compare():
            return _compared(predicate, schema)
        case In():
            return _any_of(predicate, schema)
        case Like():
            return _like(predicate, schema)


def _joined(join: Callable[[pa.Array, pa.Array], pa.Array], parts: list[Values]) -> Values:
    return lambda batch: reduce(join, (part(batch) for part in parts))


def _compared(predicate: Compare, schema: pa.Schema) -> Values:
    values, kind = _plain_values(predicate.field, schema)
    if kinds.is_null(kind):
        return _never(values)
    test = comparison_with(predicate.operator, predicate.value, kind, str(predicate.field))
    if isinstance(test, bool):
        return lambda batch: _unless_null(values(batch), test)
    function, scalar = _FUNCTIONS[test.operator], test.scalar
    return lambda batch: function(values(batch), scalar)


def _any_of(predicate: In, schema: pa.Schema) -> Values:
    values, kind = _plain_values(predicate.field, schema)
    if kinds.is_null(kind):
        return _never(values)
    tests = [comparison_with("=", value, kind, str(predicate.field)) for value in predicate.values]
    wanted = pa.array([test.scalar for test in tests if isinstance(test, Comparison)], kind)

    def matches(batch: pa.RecordBatch) -> pa.Array:
        found = values(batch)
        return pc.if_else(found.is_valid(), pc.is_in(found, value_set=wanted), pa.scalar(None, pa.bool_()))

    return matches


def _like(predicate: Like, schema: pa.Schema) -> Values:
    values, kind = _plain_values(predicate.field, schema)
    if kinds.is_null(kind):
        return _never(values)
    if not any(
        is_kind(kind) for is_kind in (kinds.is_string, kinds.is_large_string, kinds.is_binary, kinds.is_large_binary)
    ):
        raise InvalidRequestError(
            f"{predicate.field} has the type {kind}: only texts and bytes are like something", operation="filter"
        )
    pattern, ignore_case = predicate.pattern, predicate.ignore_case
    return lambda batch: pc.match_like(values(batch), pattern, ignore_case=ignore_case)


def _never(values: Values) -> Values:
    """Return a result that is null for every row."""
    return lambda batch: pa.nulls(len(values(batch)), pa.bool_())


def _unless_null(values: pa.Array, outcome: bool) -> pa.Array:
    return pc.if_else(values.is_valid(), pa.scalar(outcome), pa.scalar(None, pa.bool_()))


def _plain_values(field: Field, schema: pa.Schema) -> tuple[Values, pa.DataType]:
    """Return the values in a type that Arrow compares."""
    values, kind = _values(field, schema), field_type(field, schema)
    plain = plain_type(kind)
    if plain.equals(kind):
        return values, kind
    return (lambda batch: _unwrapped(values(batch)).cast(plain)), plain


def _unwrapped(values: pa.Array) -> pa.Array:
    while isinstance(values, pa.ExtensionArray):
        values = values.storage
    return values


def _values(field: Field, schema: pa.Schema) -> Values:
    field_type(field, schema)
    number = schema.get_field_index(field.column)
    kind: pa.DataType = schema.field(number).type
    steps: list[Callable[[pa.Array], pa.Array]] = []
    for step in field.steps:
        if isinstance(step, Lookup):
            steps.append(_looked_up(step.key, kind, str(field)))
            kind = kind.item_type
        else:
            steps.append(partial(_inside, place=kind.get_field_index(step)))
            kind = kind.field(step).type
    return lambda batch: reduce(lambda values, step: step(values), steps, batch.column(number))


def _inside(values: pa.Array, place: int) -> pa.Array:
    return pc.struct_field(values, place)


def _looked_up(key: Value, kind: pa.MapType, where: str) -> Callable[[pa.Array], pa.Array]:
    if not plain_type(kind.key_type).equals(kind.key_type):
        raise InvalidRequestError(f"{where}: keys of the type {kind.key_type} cannot be looked up", operation="filter")
    test = comparison_with("=", key, kind.key_type, where)
    if isinstance(test, bool):
        return lambda values: pa.nulls(len(values), kind.item_type)
    return lambda values: pc.map_lookup(values, test.scalar, "first")
