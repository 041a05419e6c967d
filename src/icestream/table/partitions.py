"""Partition specs as text: `column`, `year(column)`, `month(…)`, `day(…)`, `hour(…)`, `bucket(n, column)`,
`truncate(n, column)`.

A spec is also checked against the table's columns, so that a topic with a wrong spec is refused when it is created and
not when its first messages are written.
"""  # noqa: D205 - the list of forms is the summary

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.types import NestedField, PrimitiveType, StructType

from icestream.model.errors import InvalidRequestError

FORMS = "column, year(column), month(column), day(column), hour(column), bucket(n, column) or truncate(n, column)"
MAX_PARTITION_FIELDS = 16

_TIMES: dict[str, Callable[[], Transform[Any, Any]]] = {
    "year": YearTransform,
    "month": MonthTransform,
    "day": DayTransform,
    "hour": HourTransform,
}
_COUNTED: dict[str, Callable[[int], Transform[Any, Any]]] = {"bucket": BucketTransform, "truncate": TruncateTransform}
_SUFFIXES = {"bucket": "bucket", "truncate": "trunc"}
_MAX_COUNT = 1_000_000
_CALL = re.compile(r"\s*(?P<function>[A-Za-z_]+)\s*\(\s*(?:(?P<count>[^,()]*?)\s*,)?\s*(?P<column>[^()]*?)\s*\)\s*")


@dataclass(frozen=True)
class PartitionBy:
    """One parsed field of a partition spec."""

    column: str
    transform: Transform[Any, Any]
    name: str
    text: str


def parse_partition(text: str) -> PartitionBy:
    call = _CALL.fullmatch(text)
    if call is None:
        column = text.strip()
        if not column or any(sign in column for sign in "(),"):
            raise _refused(text, "is not a partition field", remedy=f"use {FORMS}")
        return PartitionBy(column, IdentityTransform(), column, text)
    function, count, column = call["function"].lower(), call["count"], call["column"]
    if not column:
        raise _refused(text, "names no column", remedy=f"use {FORMS}")
    if function in _TIMES and count is None:
        return PartitionBy(column, _TIMES[function](), f"{column}_{function}", text)
    if function == "identity" and count is None:
        return PartitionBy(column, IdentityTransform(), column, text)
    if function in _COUNTED and count is not None:
        number = int(count) if count.isascii() and count.isdigit() else 0
        if not 1 <= number <= _MAX_COUNT:
            raise _refused(text, f"needs a number from 1 to {_MAX_COUNT}, not {count!r}")
        return PartitionBy(column, _COUNTED[function](number), f"{column}_{_SUFFIXES[function]}", text)
    raise _refused(text, "is not a partition field", remedy=f"use {FORMS}")


def partition_spec(fields: Iterable[str], schema: Schema) -> PartitionSpec:
    """Return the partition spec of a new table with `schema`."""
    parsed = [parse_partition(text) for text in fields]
    if len(parsed) > MAX_PARTITION_FIELDS:
        raise InvalidRequestError(
            f"{len(parsed)} partition fields are too many, the limit is {MAX_PARTITION_FIELDS}",
            operation="partition by",
        )
    made: list[PartitionField] = []
    taken = {field.name for field in schema.fields}
    for number, field in enumerate(parsed):
        source_id = _source(field, schema)
        if any(source_id == other.source_id and field.transform == other.transform for other in made):
            raise _refused(field.text, "is given twice")
        name = _free_name(field, taken)
        made.append(PartitionField(source_id, PARTITION_FIELD_ID_START + number, field.transform, name))
    return PartitionSpec(*made)


def sort_order(sort_by: Sequence[str], offset_column: str, schema: Schema) -> SortOrder:
    """Return the sort order: `sort_by`, then the offset."""
    order = [*sort_by, *(() if offset_column in sort_by else (offset_column,))]
    if len(set(order)) != len(order):
        raise InvalidRequestError("a column is given twice", operation="sort by")
    return SortOrder(*(SortField(_sort_source(column, schema), IdentityTransform()) for column in order))


def _source(field: PartitionBy, schema: Schema) -> int:
    try:
        source = schema.find_field(field.column)
    except ValueError:
        raise _refused(
            field.text, f"names a column {field.column!r} that the topic does not have", remedy=_columns(schema)
        ) from None
    if not isinstance(source.field_type, PrimitiveType) or not field.transform.can_transform(source.field_type):
        raise _refused(field.text, f"cannot be computed from the type {source.field_type}")
    if _inside_a_collection(schema, source.field_id):
        raise _refused(field.text, "is inside a list or map, where one message has many values")
    return source.field_id


def _sort_source(column: str, schema: Schema) -> int:
    try:
        source = schema.find_field(column)
    except ValueError:
        raise InvalidRequestError(
            f"the topic has no column {column!r}", operation="sort by", remedy=_columns(schema)
        ) from None
    if not any(field.field_id == source.field_id for field in schema.fields):
        raise InvalidRequestError(
            f"column {column!r} is nested; only top-level columns can be sorted by",
            operation="sort by",
            remedy="publish its value in a top-level column too",
        )
    if "." in column:
        raise InvalidRequestError(
            f"column {column!r} has a dot in its name and cannot be sorted by", operation="sort by", remedy="rename it"
        )
    if not isinstance(source.field_type, PrimitiveType):
        raise InvalidRequestError(f"column {column!r} of type {source.field_type} has no order", operation="sort by")
    return source.field_id


def _inside_a_collection(schema: Schema, field_id: int) -> bool:
    """Return whether a field is inside a list or map."""

    def reachable(fields: Sequence[NestedField]) -> bool:
        return any(
            field.field_id == field_id
            or (isinstance(field.field_type, StructType) and reachable(field.field_type.fields))
            for field in fields
        )

    return not reachable(schema.fields)


def _free_name(field: PartitionBy, taken: set[str]) -> str:
    """Return the field's usual name, or a longer one if it is taken. An identity has its column's name."""
    name = field.name
    while name in taken and not (isinstance(field.transform, IdentityTransform) and name == field.column):
        name += "_part"
    taken.add(name)
    return name


def _columns(schema: Schema) -> str:
    return f"its columns are {', '.join(field.name for field in schema.fields)}"


def _refused(text: str, problem: str, *, remedy: str = "") -> InvalidRequestError:
    return InvalidRequestError(f"{text!r} {problem}", operation="partition by", remedy=remedy)
