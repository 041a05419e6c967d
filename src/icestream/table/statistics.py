"""Statistics of a data file's columns, from its Parquet metadata.

The library's own function goes through Python's dates, which end at the year 9999: a message with a later date could
never be written. Here a bound is made from the raw value in Parquet's statistics.
"""

import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyarrow.parquet import ColumnChunkMetaData, FileMetaData, ParquetWriter, RowGroupMetaData
from pyiceberg.io.pyarrow import MetricModeTypes, StatisticsCollector
from pyiceberg.manifest import DataFile
from pyiceberg.types import BinaryType, DecimalType, PrimitiveType, StringType
from pyiceberg.utils.truncate import truncate_upper_bound_binary_string, truncate_upper_bound_text_string

_FORMATS = {"BOOLEAN": "<?", "INT32": "<i", "INT64": "<q", "FLOAT": "<f", "DOUBLE": "<d"}
_WIDER = {"long": "<q", "double": "<d"}


@dataclass
class Statistics:
    """Collects the statistics of columns, by field id."""

    column_sizes: Counter[int] = field(default_factory=Counter)
    value_counts: Counter[int] = field(default_factory=Counter)
    null_value_counts: Counter[int] = field(default_factory=Counter)
    lowest: dict[int, Any] = field(default_factory=dict)
    highest: dict[int, Any] = field(default_factory=dict)
    unknown: set[int] = field(default_factory=set)
    """Columns with a row group that has values but no bounds in Parquet's statistics."""
    uncounted: set[int] = field(default_factory=set)
    """Columns with a row group that has no null count in Parquet's statistics."""

    def add(self, chunk: ColumnChunkMetaData, plan: StatisticsCollector) -> None:
        number = plan.field_id
        self.column_sizes[number] += chunk.total_compressed_size
        if plan.mode.type is MetricModeTypes.NONE:
            return
        self.value_counts[number] += chunk.num_values
        noted = chunk.statistics
        nulls = noted.null_count if noted is not None and noted.has_null_count else 0
        self.null_value_counts[number] += nulls
        if noted is None or not noted.has_null_count:
            self.uncounted.add(number)
        if plan.mode.type is MetricModeTypes.COUNTS:
            return
        if noted is None or not noted.has_min_max:
            if nulls < chunk.num_values:
                self.unknown.add(number)
            return
        low, high = (_comparable(raw, plan.iceberg_type) for raw in (noted.min_raw, noted.max_raw))
        self.lowest[number] = min(low, self.lowest.get(number, low))
        self.highest[number] = max(high, self.highest.get(number, high))


def data_file_statistics(
    metadata: FileMetaData, plan: Mapping[int, StatisticsCollector], ids: Mapping[str, int]
) -> dict[str, Any]:
    """Return the fields of a data file's description that describe its content."""
    found = Statistics()
    kinds: dict[int, str] = {}
    split_offsets = []
    for group in (metadata.row_group(number) for number in range(metadata.num_row_groups)):
        split_offsets.append(_start(group.column(0)))
        for chunk in (group.column(number) for number in range(metadata.num_columns)):
            collector = plan[ids[chunk.path_in_schema]]
            kinds[collector.field_id] = chunk.physical_type
            found.add(chunk, collector)
    bounded = [number for number in found.lowest if number not in found.unknown]
    upper = {number: _upper(found.highest[number], plan[number], kinds[number]) for number in bounded}
    return {
        "record_count": metadata.num_rows,
        "column_sizes": dict(found.column_sizes),
        "value_counts": dict(found.value_counts),
        "null_value_counts": dict(found.null_value_counts),
        "nan_value_counts": {},
        "lower_bounds": {number: _lower(found.lowest[number], plan[number], kinds[number]) for number in bounded},
        "upper_bounds": {number: bound for number, bound in upper.items() if bound is not None},
        "split_offsets": split_offsets,
    }


def written_metadata(writer: ParquetWriter) -> FileMetaData:
    """Return the metadata of a closed writer's file. pyarrow keeps it on an inner, undocumented object."""
    return writer.writer.metadata


def column_numbers(metadata: FileMetaData) -> dict[str, int]:
    """Return the indexes of a file's columns, by path. Searching them in each row group takes long."""
    schema = metadata.schema
    return {schema.column(number).path: number for number in range(metadata.num_columns)}


def row_group_description(
    group: RowGroupMetaData, plan: Mapping[str, StatisticsCollector], numbers: Mapping[str, int]
) -> DataFile:
    """Describe a row group as if it were a file, with Parquet's statistics of the columns in the plan."""
    found = Statistics()
    kinds: dict[int, str] = {}
    for path, collector in plan.items():
        if (number := numbers.get(path)) is not None:
            chunk = group.column(number)
            kinds[collector.field_id] = chunk.physical_type
            found.add(chunk, collector)
    bounded = [number for number in found.lowest if number not in found.unknown]
    counted = {number: nulls for number, nulls in found.null_value_counts.items() if number not in found.uncounted}
    by_id = {collector.field_id: collector for collector in plan.values()}
    return DataFile.from_args(
        record_count=group.num_rows,
        value_counts=dict(found.value_counts),
        null_value_counts=counted,
        lower_bounds={number: _lower(found.lowest[number], by_id[number], kinds[number]) for number in bounded},
        upper_bounds={number: _upper(found.highest[number], by_id[number], kinds[number]) for number in bounded},
    )


def _start(chunk: ColumnChunkMetaData) -> int:
    pages: int = chunk.data_page_offset
    return min(pages, chunk.dictionary_page_offset) if chunk.has_dictionary_page else pages


def _comparable(raw: Any, kind: PrimitiveType) -> Any:
    """Return a raw value that compares in the order of its type: bytes of decimals become numbers."""
    if isinstance(kind, DecimalType) and isinstance(raw, bytes):
        return int.from_bytes(raw, "big", signed=True)
    return raw


def _lower(value: Any, plan: StatisticsCollector, physical: str) -> bytes:
    length = plan.mode.length
    if isinstance(plan.iceberg_type, StringType):
        return str(value, "utf-8")[:length].encode()
    if isinstance(plan.iceberg_type, BinaryType):
        return bytes(value[:length])
    return _serialized(value, plan.iceberg_type, physical)


def _upper(value: Any, plan: StatisticsCollector, physical: str) -> bytes | None:
    """Return the upper bound; None if no value that is short enough lies above it."""
    if isinstance(plan.iceberg_type, StringType):
        text = truncate_upper_bound_text_string(str(value, "utf-8"), plan.mode.length)
        return None if text is None else text.encode()
    if isinstance(plan.iceberg_type, BinaryType):
        return truncate_upper_bound_binary_string(value, plan.mode.length)
    return _serialized(value, plan.iceberg_type, physical)


def _serialized(value: Any, kind: PrimitiveType, physical: str) -> bytes:
    """Serialize a value in Iceberg's single-value form."""
    if isinstance(kind, DecimalType):
        return int(value).to_bytes((int(value) + (value < 0)).bit_length() // 8 + 1, "big", signed=True)
    if isinstance(value, bytes):
        return value
    return struct.pack(_WIDER.get(str(kind), _FORMATS[physical]), value)
