"""Filters: a SQL condition on a message's columns, as text, and applied to batches.

`key = 'a' and attributes['source'] = 'web' and price > 10`. Allowed are comparisons of a column, a struct's field
(`a.b`) or a map's value (`a['k']`) with a value, `in`, `between`, `like`, `ilike`, `is null`, `is true`, boolean
columns by themselves, `and`, `or`, `not`.

What it means: SQL's logic, in which a comparison with null is neither true nor false; a message matches when the whole
is true. A key that a map does not have is null. Texts compared with binary columns are their UTF-8; times are ISO 8601,
UTC when no zone is given. All is done on whole columns, none of it per message.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from icestream.model.errors import InvalidRequestError
from icestream.model.filter_values import Comparison, comparison_with, plain_type
from icestream.model.predicates import (
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
    fields_of,
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
        from icestream.model.filter_parser import parse  # noqa: PLC0415

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
