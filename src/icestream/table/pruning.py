"""A filter as what Iceberg knows: which manifests, files and row groups need not be opened.

Conservative: what is left out has no row that matches; what cannot be judged is read. `translated` says it in terms of
the table's columns; a part of the filter that their bounds cannot answer, such as a map's value, is always true there.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from pyarrow.parquet import RowGroupMetaData
from pyiceberg.expressions import AlwaysFalse, AlwaysTrue, And, BooleanExpression, EqualTo, Or, Reference
from pyiceberg.expressions.visitors import (
    _InclusiveMetricsEvaluator,
    expression_evaluator,
    inclusive_projection,
    manifest_evaluator,
)
from pyiceberg.io.pyarrow import MetricModeTypes, MetricsMode, StatisticsCollector
from pyiceberg.manifest import DataFile, ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import PrimitiveType

from icestream.model.filters import Filter
from icestream.table.labels import Labels
from icestream.table.row_filter import translated
from icestream.table.schema import Columns
from icestream.table.statistics import row_group_description

MayHold = Callable[[str, object], bool]
"""Whether a column of the table can have a value."""

_FULL = MetricsMode(MetricModeTypes.FULL)


@dataclass(frozen=True)
class Pruning:
    metadata: TableMetadata
    expression: BooleanExpression
    names: frozenset[str]
    """The columns that the filter looks at."""

    @classmethod
    def of(cls, where: Filter, columns: Columns, metadata: TableMetadata) -> "Pruning | None":
        """None if bounds say nothing about the filter."""
        expression = translated(where.predicate, columns, metadata.schema())
        if isinstance(expression, AlwaysTrue):
            return None
        return cls(metadata, expression, where.columns)

    def manifest_may_match(self, manifest: ManifestFile) -> bool:
        return self._partitions(manifest.partition_spec_id).manifest(manifest)

    def file_may_match(self, file: DataFile) -> bool:
        """By its partition and its columns' bounds."""
        return self._partitions(file.spec_id).file(file) and _unless_unclear(lambda: self._evaluator.eval(file))

    def row_group_may_match(self, group: RowGroupMetaData, labels: Labels, numbers: Mapping[str, int]) -> bool:
        plan = {
            stored: StatisticsCollector(field.field_id, field.field_type, _FULL, field.name)
            for field in self._schema.fields
            if field.name in self.names and isinstance(field.field_type, PrimitiveType)
            if (stored := labels.in_file(field.name)) is not None
        }
        return _unless_unclear(lambda: self._evaluator.eval(row_group_description(group, plan, numbers)))

    def values_may_match(self, may_hold: MayHold) -> bool:
        """By what is known of single values, such as a row group's bloom filters say."""
        return _unless_unclear(lambda: _holds(self.expression, may_hold))

    @cached_property
    def _schema(self) -> Schema:
        return self.metadata.schema()

    @cached_property
    def _evaluator(self) -> _InclusiveMetricsEvaluator:
        return _InclusiveMetricsEvaluator(self._schema, self.expression)

    def _partitions(self, spec_id: int) -> "_Partitions":
        made: dict[int, _Partitions] = vars(self).setdefault("_specs", {})
        if spec_id not in made:
            made[spec_id] = _Partitions.of(self.metadata, spec_id, self.expression)
        return made[spec_id]


@dataclass(frozen=True)
class _Partitions:
    """What the values of partitions say, of one spec."""

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


def _holds(expression: BooleanExpression, may_hold: MayHold) -> bool:
    match expression:
        case And(left=left, right=right):
            return _holds(left, may_hold) and _holds(right, may_hold)
        case Or(left=left, right=right):
            return _holds(left, may_hold) or _holds(right, may_hold)
        case EqualTo(term=Reference(name=name), literal=literal):
            return may_hold(name, literal.value)
    return not isinstance(expression, AlwaysFalse)


def _unless_unclear(judge: Callable[[], bool]) -> bool:
    """Bounds that other engines wrote may have forms that cannot be read, for one after a change of type."""
    try:
        return bool(judge())
    except Exception:  # noqa: BLE001 - a bound that cannot be read says nothing, and reading the rows tells
        return True
