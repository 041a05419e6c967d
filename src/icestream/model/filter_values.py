"""What a filter's values are in the type of the column that they are compared with.

A value that the column's type cannot hold exactly is not rounded: `n < 10.5` of whole numbers is `n <= 10`, `n = 10.5`
is never true, and `n > 9999999999` of 32 bits neither. Only values for floating-point columns become the nearest one.
"""

import re
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction
from math import ceil, floor
from typing import NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.types as kinds

from icestream.model.errors import InvalidRequestError
from icestream.model.predicates import Instant, Operator, Value

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
