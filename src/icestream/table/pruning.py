"""Decides by a filter which manifests, files and row groups a read need not open.

It is conservative: what is left out has no matching row, and what cannot be judged is read. `translated` turns the
filter into an Iceberg expression over the table's columns. A part that bounds cannot decide, such as a map's value,
becomes true.

Values in the expression have the stored types (`schema`). Not-a-number lies outside all bounds, and `not (x < 1)`
matches it. So a negated order of floating-point values becomes true as well.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from math import isfinite
from typing import Any, Literal

import pyarrow as pa
import pyarrow.types as kinds
from pyarrow.parquet import RowGroupMetaData
from pyiceberg import expressions as iceberg
from pyiceberg.expressions import AlwaysFalse, AlwaysTrue, BooleanExpression, EqualTo, Reference
from pyiceberg.expressions.visitors import (
    _InclusiveMetricsEvaluator,
    bind,
    expression_evaluator,
    inclusive_projection,
    manifest_evaluator,
)
from pyiceberg.io.pyarrow import MetricModeTypes, MetricsMode, StatisticsCollector
from pyiceberg.manifest import DataFile, ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, PrimitiveType, StructType
from pyiceberg.utils.truncate import truncate_upper_bound_binary_string

from icestream.model.filters import (
    NEGATED,
    And,
    Compare,
    Field,
    Filter,
    In,
    IsNull,
    IsTrue,
    Like,
    Not,
    Operator,
    Or,
    Predicate,
    Value,
    comparison_with,
    plain_type,
)
from icestream.table.schema import FIELD_ID, Columns
from icestream.table.statistics import row_group_description

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
    """Return an expression that is true for every row that matches, and perhaps for others."""
    return _Translation(columns, table).of(predicate, negated=False)


def compared(column: str, operator: Operator | Literal["starts with"], value: Any) -> BooleanExpression:
    made: BooleanExpression = _OPERATORS[operator](column, value)
    return made


def without_bytes(expression: BooleanExpression) -> BooleanExpression:
    """Replace comparisons with bytes and infinity by true: JSON cannot carry them to a server."""
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
        behind = truncate_upper_bound_binary_string(first + b"\xff", len(first))  # the next value of that length
        return self._bindable(found if behind is None else iceberg.And(found, compared(name, "<", behind)))

    def _name(self, field: Field) -> str | None:
        return field.column if field.column in self._stored and not field.steps else None

    def _kind(self, field: Field) -> pa.DataType | None:
        """Return the stored type of a column with bounds; None for other columns."""
        name = self._name(field)
        if name is None:
            return None
        kind = plain_type(self._stored[name].type)
        return None if kinds.is_nested(kind) else kind

    def _bindable(self, expression: BooleanExpression) -> BooleanExpression:
        """Return the expression; true if the table no longer has the column, or has another type for it."""
        try:
            bind(self._table, expression, case_sensitive=True)
        except (ValueError, TypeError):
            return _TRUE
        return expression


def _literal(scalar: pa.Scalar) -> Any:
    """Return the value. Times and dates become numbers: Python's own end at the year 9999."""
    kind = scalar.type
    if kinds.is_date32(kind):
        return scalar.cast(pa.int32()).as_py()
    return scalar.cast(pa.int64()).as_py() if kinds.is_timestamp(kind) else scalar.as_py()


@dataclass(frozen=True)
class FileColumnNames:
    """Maps the column names of a data file to those of the table.

    Engines may write a column under another name, at any depth: an older one, or one with replaced characters. The
    field id identifies it. Renaming copies no data.
    """

    file: pa.Schema
    table: Schema

    @cached_property
    def _fields(self) -> dict[str, pa.Field]:
        """For each column of the file that the table still has: its field in the table."""
        by_id = {field.field_id: field for field in self.table.fields}
        by_name = {field.name: field for field in self.table.fields}
        found = {}
        for field in self.file:
            number = _id(field)
            column = by_id.get(number) if number is not None else by_name.get(field.name)
            if column is not None:
                found[field.name] = _renamed_field(field, column)
        return found

    @cached_property
    def _in_file(self) -> dict[str, str]:
        return {field.name: name for name, field in self._fields.items()}

    def in_file(self, name: str) -> str | None:
        """Return the file's name of a column of the table; None if the file lacks it."""
        return self._in_file.get(name)

    def renamed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch of the file under the table's names."""
        schema = pa.schema([self._fields[name] for name in batch.schema.names])
        return pa.record_batch(_Renamed(batch, schema))


@dataclass(frozen=True)
class _Renamed:
    """The same memory under another schema, through Arrow's C data protocol."""

    batch: pa.RecordBatch
    schema: pa.Schema

    def __arrow_c_array__(self, _requested_schema: Any = None) -> tuple[Any, Any]:
        return self.schema.__arrow_c_schema__(), self.batch.__arrow_c_array__()[1]


def _renamed_field(field: pa.Field, column: NestedField) -> pa.Field:
    return pa.field(column.name, _renamed_type(field.type, column.field_type), field.nullable)


def _renamed_type(kind: pa.DataType, target: IcebergType) -> pa.DataType:
    if kinds.is_struct(kind) and isinstance(target, StructType):
        by_id = {column.field_id: column for column in target.fields}
        return pa.struct(
            [_renamed_field(field, by_id[number]) if (number := _id(field)) in by_id else field for field in kind]
        )
    if kinds.is_list(kind) and isinstance(target, ListType):
        return pa.list_(kind.value_field.with_type(_renamed_type(kind.value_type, target.element_type)))
    if kinds.is_map(kind) and isinstance(target, MapType):
        return pa.map_(
            kind.key_field.with_type(_renamed_type(kind.key_type, target.key_type)),
            kind.item_field.with_type(_renamed_type(kind.item_type, target.value_type)),
        )
    return kind


def _id(field: pa.Field) -> int | None:
    found = (field.metadata or {}).get(FIELD_ID)
    return None if found is None else int(found)


ValueTest = Callable[[str, object], bool]
"""Returns whether a column of the table can hold a value."""

_FULL = MetricsMode(MetricModeTypes.FULL)


@dataclass(frozen=True)
class Pruning:
    metadata: TableMetadata
    expression: BooleanExpression
    names: frozenset[str]
    """The columns in the filter."""

    @classmethod
    def of(cls, where: Filter, columns: Columns, metadata: TableMetadata) -> "Pruning | None":
        """Return the pruning for a filter; None if bounds cannot decide anything."""
        expression = translated(where.predicate, columns, metadata.schema())
        if isinstance(expression, AlwaysTrue):
            return None
        return cls(metadata, expression, where.columns)

    def manifest_may_match(self, manifest: ManifestFile) -> bool:
        return self._partitions(manifest.partition_spec_id).manifest(manifest)

    def file_may_match(self, file: DataFile) -> bool:
        """Judge a file by its partition and the bounds of its columns."""
        return self._partitions(file.spec_id).file(file) and _unless_unclear(lambda: self._evaluator.eval(file))

    def row_group_may_match(self, group: RowGroupMetaData, names: FileColumnNames, numbers: Mapping[str, int]) -> bool:
        plan = {
            stored: StatisticsCollector(field.field_id, field.field_type, _FULL, field.name)
            for field in self._schema.fields
            if field.name in self.names and isinstance(field.field_type, PrimitiveType)
            if (stored := names.in_file(field.name)) is not None
        }
        return _unless_unclear(lambda: self._evaluator.eval(row_group_description(group, plan, numbers)))

    def values_may_match(self, may_hold: ValueTest) -> bool:
        """Judge by single values, which bloom filters can exclude."""
        return _unless_unclear(lambda: _holds(self.expression, may_hold))

    @cached_property
    def _schema(self) -> Schema:
        return self.metadata.schema()

    @cached_property
    def _evaluator(self) -> _InclusiveMetricsEvaluator:
        """The library's evaluator of bounds, which has no public name. It is used here alone."""
        return _InclusiveMetricsEvaluator(self._schema, self.expression)

    def _partitions(self, spec_id: int) -> "_Partitions":
        made: dict[int, _Partitions] = vars(self).setdefault("_specs", {})
        if spec_id not in made:
            made[spec_id] = _Partitions.of(self.metadata, spec_id, self.expression)
        return made[spec_id]


@dataclass(frozen=True)
class _Partitions:
    """Judges by partition values, for one partition spec."""

    manifest: Callable[[ManifestFile], bool]
    file: Callable[[DataFile], bool]

    @classmethod
    def of(cls, metadata: TableMetadata, spec_id: int, expression: BooleanExpression) -> "_Partitions":
        schema, spec = metadata.schema(), metadata.specs()[spec_id]
        projected = inclusive_projection(schema, spec)(expression)
        of_manifest = manifest_evaluator(spec, schema, projected)
        of_record = expression_evaluator(Schema(*spec.partition_type(schema).fields), projected, case_sensitive=True)
        return cls(
            lambda manifest: _unless_unclear(lambda: of_manifest(manifest)),
            lambda file: _unless_unclear(lambda: of_record(file.partition)),
        )


def _holds(expression: BooleanExpression, may_hold: ValueTest) -> bool:
    match expression:
        case iceberg.And(left=left, right=right):
            return _holds(left, may_hold) and _holds(right, may_hold)
        case iceberg.Or(left=left, right=right):
            return _holds(left, may_hold) or _holds(right, may_hold)
        case EqualTo(term=Reference(name=name), literal=literal):
            return may_hold(name, literal.value)
    return not isinstance(expression, AlwaysFalse)


def _unless_unclear(judge: Callable[[], bool]) -> bool:
    """Return the judgement; true if it fails. Bounds of other engines may be unreadable, as after a change of type."""
    try:
        return bool(judge())
    except Exception:  # noqa: BLE001 - an unreadable bound excludes nothing
        return True
