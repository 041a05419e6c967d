"""Filters: a SQL condition on a message's columns, as text, and applied to batches.

`key = 'a' and attributes['source'] = 'web' and price > 10`. Allowed are comparisons of a column, a struct's field
(`a.b`) or a map's value (`a['k']`) with a value, `in`, `between`, `like`, `ilike`, `is null`, `is true`, boolean
columns by themselves, `and`, `or`, `not`.

What it means: SQL's logic, in which a comparison with null is neither true nor false; a message matches when the whole
is true. A key that a map does not have is null. Texts compared with binary columns are their UTF-8; times are ISO 8601,
UTC when no zone is given. All is done on whole columns, none of it per message.
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
import sqlglot
from sqlglot import exp
from sqlglot.dialects import Dialect
from sqlglot.errors import ParseError, SqlglotError
from sqlglot.tokens import Tokenizer as SqlTokenizer

from icestream.model.errors import InvalidRequestError, TooLargeError

# --------------------
# The parts of a filter: what is asked of which column. Plain data, made by the parser, read by mask and pruning.


@dataclass(frozen=True)
class Instant:
    """A moment, of callers that have none in text."""

    time_us: int


Value = str | Decimal | bool | bytes | Instant
"""A number is a `Decimal`, exactly as it was written; times and dates are text until their column is known."""
Operator = Literal["=", "!=", "<", "<=", ">", ">="]

NEGATED: dict[Operator, Operator] = {"=": "!=", "!=": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
SWAPPED: dict[Operator, Operator] = {"=": "=", "!=": "!=", "<": ">", ">": "<", "<=": ">=", ">=": "<="}


@dataclass(frozen=True)
class Lookup:
    """The value of a key of a map."""

    key: Value


@dataclass(frozen=True)
class Field:
    """A column, or what is inside it: `a`, `a.b`, `a['k']`."""

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
    """`%` stands for any text, `_` for one character; a backslash takes that from the next."""
    ignore_case: bool = False

    @property
    def prefix(self) -> str:
        """What every match begins with, if case counts."""
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
    """A boolean column by itself."""

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


# --------------------
# What a filter's values are in the type of the column that they are compared with.
#
# A value that the column's type cannot hold exactly is not rounded: `n < 10.5` of whole numbers is `n <= 10`, `n =
# 10.5`
# is never true, and `n > 9999999999` of 32 bits neither. Only values for floating-point columns become the nearest one.


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
    """The type in which values of `kind` are compared: without dictionaries, views and other wrappings."""
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
    """The comparison with a plain type; a truth value if it has the same outcome for all values but null."""
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
    """A finite number beyond the finite ones of the type is less than infinity, and not equal to it."""
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
    """`number` counts in the type's smallest steps."""
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
    """Text stands for its UTF-8."""
    if isinstance(value, bytes):
        return value
    return str(_expect(value, str, kind, where)).encode()


def _seconds(text: str, kind: pa.DataType, where: str) -> Fraction:
    """Since 1970. A time without a zone is one of UTC."""
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
        """Raises `InvalidRequestError`, which says where, unless the text is a filter."""
        # Not at the top: the SQL grammar takes long to load, and only those who filter need it.

        return cls(text, parse(text))

    @cached_property
    def columns(self) -> frozenset[str]:
        """The columns it looks at."""
        return frozenset(field.column for field in fields_of(self.predicate))

    def check(self, schema: pa.Schema) -> None:
        """Raise `InvalidRequestError` unless batches of `schema` can be filtered."""
        self._bound_to(schema)

    def mask(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Which rows match: true or false for each."""
        return self._bound_to(batch.schema)(batch).fill_null(False)

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that match; the batch itself when all do."""
        mask = self.mask(batch)
        return batch if mask.true_count == batch.num_rows else _selected(batch, mask)

    def __reduce__(self) -> tuple[type["Filter"], tuple[str, Predicate]]:
        return Filter, (self.text, self.predicate)

    def _bound_to(self, schema: pa.Schema) -> Values:
        """The filter made for a schema. The last one is kept: a stream's batches have the same."""
        kept: tuple[pa.Schema, Values] | None = vars(self).get("_kept")
        if kept is None or not (kept[0] is schema or kept[0].equals(schema)):
            kept = (schema, _bind(self.predicate, schema))
            vars(self)["_kept"] = kept
        return kept[1]


def _selected(batch: pa.RecordBatch, mask: pa.BooleanArray) -> pa.RecordBatch:
    try:
        return batch.filter(mask)
    except pa.ArrowNotImplementedError:  # for columns of views Arrow can only join pieces
        rows = pc.indices_nonzero(mask).to_pylist()
        return pa.concat_batches([batch.slice(0, 0), *(batch.slice(row, 1) for row in rows)])


def field_type(field: Field, schema: pa.Schema) -> pa.DataType:
    """The type of what a filter looks at; raises `InvalidRequestError` if the schema has no such thing."""
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
    """Of a column that holds nothing but null."""
    return lambda batch: pa.nulls(len(values(batch)), pa.bool_())


def _unless_null(values: pa.Array, outcome: bool) -> pa.Array:
    return pc.if_else(values.is_valid(), pa.scalar(outcome), pa.scalar(None, pa.bool_()))


def _plain_values(field: Field, schema: pa.Schema) -> tuple[Values, pa.DataType]:
    """The values in a type that Arrow compares."""
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


# --------------------
# The text of a filter, a SQL predicate, as predicates of icestream's own.
#
# SQL's grammar is sqlglot's; what is allowed of it is listed here, and everything else is refused with the text it
# stands
# in. Nothing of a filter is ever run as code or as SQL. Length, depth and the number of conditions are bounded.


MAX_TEXT = 8_192
MAX_DEPTH = 32
MAX_CONDITIONS = 1_000
_MAX_DIGITS = 400
_SHOWN = 60
_TOO_DEEP = f"a filter is nested at most {MAX_DEPTH} deep"

_OPERATORS: dict[type[exp.Expr], Operator] = {
    exp.EQ: "=",
    exp.NEQ: "!=",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
_TIMES = {exp.DType.DATE, exp.DType.TIMESTAMP, exp.DType.TIMESTAMPTZ}


class _Predicates(Dialect):  # type: ignore[misc]  # the library makes its classes in ways that types do not follow
    """Standard SQL, and bytes as `x'00ff'`."""

    class Tokenizer(SqlTokenizer):
        HEX_STRINGS = [("x'", "'"), ("X'", "'")]  # noqa: RUF012 - how the library is told


def parse(text: str) -> Predicate:
    if len(text) > MAX_TEXT:
        raise TooLargeError(f"a filter has at most {MAX_TEXT} characters, not {len(text)}", operation="filter")
    try:
        found = sqlglot.parse(text, dialect=_Predicates)
        if len(found) != 1 or found[0] is None:
            raise _refused("a filter is one condition", text)
        predicate = _predicate(found[0], 0)
        conditions = sum(1 for _ in _conditions(predicate))
    except ParseError as error:
        raise _syntax(error, text) from error
    except RecursionError:
        raise TooLargeError(_TOO_DEEP, operation="filter") from None
    except SqlglotError as error:
        raise _refused("this cannot be read", text) from error
    if conditions > MAX_CONDITIONS:
        raise TooLargeError(f"a filter has at most {MAX_CONDITIONS} conditions, not {conditions}", operation="filter")
    return predicate


def _predicate(node: exp.Expr, depth: int) -> Predicate:
    if depth > MAX_DEPTH:
        raise TooLargeError(_TOO_DEEP, operation="filter")
    match node:
        case exp.Paren():
            return _predicate(node.this, depth + 1)
        case exp.And():
            return And(tuple(_predicate(part, depth + 1) for part in node.flatten()))
        case exp.Or():
            return Or(tuple(_predicate(part, depth + 1) for part in node.flatten()))
        case exp.Not():
            return Not(_predicate(node.this, depth + 1))
    return _condition(node)


def _condition(node: exp.Expr) -> Predicate:
    """One that has no others inside."""
    if (operator := _OPERATORS.get(type(node))) is not None:
        return _comparison(node, operator)
    match node:
        case exp.In() if node.expressions and not node.args.get("unnest"):
            return In(_field(node.this), tuple(_value(value) for value in node.expressions))
        case exp.Between() if not node.args.get("symmetric"):
            field = _field(node.this)
            low, high = _value(node.args["low"]), _value(node.args["high"])
            return And((Compare(field, ">=", low), Compare(field, "<=", high)))
        case exp.Like() | exp.ILike() | exp.Escape():
            return _parse_like(node)
        case exp.Is():
            return _is(node)
        case exp.Column() | exp.Dot() | exp.Bracket():
            return IsTrue(_field(node))
    raise _refused("this is not a condition on a column", node)


def _comparison(node: exp.Expr, operator: Operator) -> Predicate:
    left, right = node.this, node.expression
    if _is_field(right) and not _is_field(left):
        return Compare(_field(right), SWAPPED[operator], _value(left))
    return Compare(_field(left), operator, _value(right))


def _parse_like(node: exp.Expr) -> Predicate:
    escape = None
    like = node
    if isinstance(node, exp.Escape):
        like, escape = node.this, _text(node.expression)
        if not isinstance(like, exp.Like | exp.ILike) or len(escape) != 1:
            raise _refused("an escape is one character behind a like", node)
    found = Like(_field(like.this), _pattern(_text(like.expression), escape), isinstance(like, exp.ILike))
    return Not(found) if like.args.get("negate") else found


def _pattern(text: str, escape: str | None) -> str:
    """With a backslash as escape, whatever it was; without one a backslash stands for itself."""
    if escape is None:
        return text.replace("\\", "\\\\")
    made, characters = "", iter(text)
    for character in characters:
        if character == escape:
            made += "\\" + next(characters, escape)
        else:
            made += "\\\\" if character == "\\" else character
    return made


def _is(node: exp.Expr) -> Predicate:
    match node.expression:
        case exp.Null():
            return IsNull(_field(node.this))
        case exp.Boolean(this=bool(wanted)):
            field = _field(node.this)
            return And((Not(IsNull(field)), Compare(field, "=", wanted)))
    raise _refused("'is' goes with null, true and false", node)


def _is_field(node: exp.Expr) -> bool:
    return isinstance(node, exp.Column | exp.Dot | exp.Bracket)


def _field(node: exp.Expr) -> Field:
    match node:
        case exp.Column():
            names = [part.name for part in node.parts]
            if all(isinstance(part, exp.Identifier) for part in node.parts):
                return Field(names[0], tuple(names[1:]))
        case exp.Dot(this=inner, expression=exp.Identifier() as name):
            outer = _field(inner)
            return Field(outer.column, (*outer.steps, name.name))
        case exp.Bracket(this=inner, expressions=[key]):
            outer = _field(inner)
            return Field(outer.column, (*outer.steps, Lookup(_value(key))))
        case exp.Paren():
            return _field(node.this)
        case exp.Func():
            raise _refused("a filter has no functions", node)
    raise _refused("this is not a column", node)


def _value(node: exp.Expr) -> Value:
    match node:
        case exp.Literal(is_string=True):
            return node.name
        case exp.Literal():
            return _number(node)
        case exp.Neg(this=exp.Literal() as inner) if not inner.is_string:
            return -_number(inner)
        case exp.Boolean():
            return bool(node.this)
        case exp.HexString():
            return _bytes_literal(node)
        case exp.Paren():
            return _value(node.this)
        case exp.Cast(this=exp.Literal(is_string=True) as inner) if node.to.this in _TIMES:
            return inner.name
        case exp.Null():
            raise _refused("nothing is equal to null", node, "ask with 'is null' or 'is not null'")
        case exp.Column() | exp.Dot() | exp.Bracket():
            raise _refused(
                "a column is compared with a value, and this is a column", node, "put texts between single quotes"
            )
    raise _refused("this is not a value", node)


def _number(node: exp.Literal) -> Decimal:
    try:
        number = Decimal(node.name)
    except ArithmeticError:
        raise _refused("this is not a number", node) from None
    if not number.is_finite() or abs(number.adjusted()) > _MAX_DIGITS or len(number.as_tuple().digits) > _MAX_DIGITS:
        raise _refused("the number is too long", node)
    return number


def _bytes_literal(node: exp.HexString) -> bytes:
    if not re.fullmatch(r"([0-9a-fA-F]{2})*", node.name):
        raise _refused("these are no bytes in hexadecimal", node)
    return bytes.fromhex(node.name)


def _text(node: exp.Expr) -> str:
    found = _value(node)
    if not isinstance(found, str):
        raise _refused("this is not a text", node)
    return found


def _conditions(predicate: Predicate) -> Iterator[object]:
    match predicate:
        case And(parts) | Or(parts):
            for part in parts:
                yield from _conditions(part)
        case Not(part):
            yield from _conditions(part)
        case In():
            yield from predicate.values
        case _:
            yield predicate


def _syntax(error: ParseError, text: str) -> InvalidRequestError:
    for found in error.errors:
        if (column := found.get("col")) is not None:
            near = str(found.get("highlight") or "")[:_SHOWN]
            return _refused(f"wrong at character {column}, near {near!r}", text)
    return _refused("this cannot be read", text)


def _refused(problem: str, where: exp.Expr | str, remedy: str = "") -> InvalidRequestError:
    text = where if isinstance(where, str) else where.sql()
    shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
    return InvalidRequestError(
        f"{problem}: {shown}",
        operation="filter",
        remedy=remedy or "a filter is a SQL condition such as key = 'a' and attributes['source'] = 'web'",
    )
