"""The parts of a filter: what is asked of which column. Plain data, made by the parser, read by mask and pruning."""

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal


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
