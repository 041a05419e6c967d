"""The text of a filter, a SQL condition, as predicates of `icestream.model.filters`.

sqlglot has SQL's grammar. This module lists what a filter may use of it, and refuses everything else with the text that
is wrong. No part of a filter is run as code or as SQL. Length, depth and the number of conditions are bounded.
"""

import re
from collections.abc import Iterator
from decimal import Decimal

import sqlglot
from sqlglot import exp
from sqlglot.dialects import Dialect
from sqlglot.errors import ParseError, SqlglotError
from sqlglot.tokens import Tokenizer as SqlTokenizer

from icestream.model.errors import InvalidRequestError, TooLargeError
from icestream.model.filters import (
    SWAPPED,
    And,
    Compare,
    Field,
    In,
    IsNull,
    IsTrue,
    Like,
    Lookup,
    Not,
    Operator,
    Or,
    Predicate,
    Value,
)

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


class _Predicates(Dialect):  # type: ignore[misc]  # the library has no types for its metaclass
    """Standard SQL, and bytes as `x'00ff'`."""

    class Tokenizer(SqlTokenizer):
        HEX_STRINGS = [("x'", "'"), ("X'", "'")]  # noqa: RUF012 - as the library wants it


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
    """Return a predicate without others in it."""
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
            raise _refused("an escape is one character after a like", node)
    found = Like(_field(like.this), _pattern(_text(like.expression), escape), isinstance(like, exp.ILike))
    return Not(found) if like.args.get("negate") else found


def _pattern(text: str, escape: str | None) -> str:
    """Return a pattern with a backslash as its escape. Without an escape, a backslash is an ordinary character."""
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
            raise _refused("nothing is equal to null", node, "use 'is null' or 'is not null'")
        case exp.Column() | exp.Dot() | exp.Bracket():
            raise _refused(
                "a column must be compared with a value, not with a column", node, "put text in single quotes"
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
        raise _refused("the bytes are not hexadecimal", node)
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
