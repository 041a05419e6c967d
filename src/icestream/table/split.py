"""Rows of a partitioned table, sorted apart."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.partitioning import PartitionField, PartitionSpec, partition_record_value
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record

MAX_FOLDER_LENGTH = 200
_NUMBERS = {pa.date32().id: pa.int32(), pa.timestamp("us").id: pa.int64()}
"""Python's dates end at the year 9999; as numbers they do not."""


class Split:
    def __init__(self, spec: PartitionSpec, schema: Schema) -> None:
        self._spec = spec
        self._schema = schema

    def parts(self, rows: pa.Table) -> Iterator[tuple[Record, pa.Table]]:
        """The rows of each partition, in their order. Rows of one partition alone are not copied."""
        values = [self._transformed(rows, field) for field in self._spec.fields]
        groups, codes = _distinct(values)
        if len(groups) == 1:
            yield self._record(groups[0]), rows
            return
        order = pc.sort_indices(codes)  # stable: offsets stay in order inside each partition
        sorted_rows = rows.take(order)
        start = 0
        for count in pc.value_counts(codes.take(order)).field("counts").to_pylist():
            code = codes[order[start].as_py()].as_py()
            yield self._record(groups[code]), sorted_rows.slice(start, count)
            start += count

    def folder(self, partition: Record) -> str:
        """The usual folder of a partition, or none if its value has no name, or one too long for a file system."""
        try:
            folder = self._spec.partition_to_path(partition, self._schema)
        except (OverflowError, ValueError):
            return ""
        return folder if len(folder.encode()) <= MAX_FOLDER_LENGTH else ""

    def _transformed(self, rows: pa.Table, field: PartitionField) -> pa.Array:
        source = self._schema.find_field(field.source_id)
        name = self._schema.find_column_name(field.source_id)
        assert name is not None
        if name in rows.column_names:
            column = rows.column(name)
        else:
            first, *path = name.split(".")
            column = pc.struct_field(rows.column(first), path)
        values = field.transform.pyarrow_transform(source.field_type)(column.combine_chunks())
        if isinstance(values, pa.ChunkedArray):
            values = values.combine_chunks()
        return values.cast(_NUMBERS[values.type.id]) if values.type.id in _NUMBERS else values

    def _record(self, values: tuple[object, ...]) -> Record:
        return Record(
            *(
                partition_record_value(field, value, self._schema)
                for field, value in zip(self._spec.fields, values, strict=True)
            )
        )


def _distinct(columns: list[pa.Array]) -> tuple[list[tuple[object, ...]], pa.Array]:
    """The distinct combinations of values, and for each row the number of its own."""
    names = [str(number) for number in range(len(columns))]
    encoded = [column.dictionary_encode(null_encoding="encode") for column in columns]
    codes = encoded[0].indices.cast(pa.int64())
    for column in encoded[1:]:
        codes = pc.add(pc.multiply(codes, len(column.dictionary)), column.indices.cast(pa.int64()))
    compact = codes.dictionary_encode()
    first_rows = (
        pa.table({"code": compact.indices, "row": pa.arange(0, len(codes))})
        .group_by("code", use_threads=False)
        .aggregate([("row", "min")])
        .sort_by("code")
        .column("row_min")
    )
    values = pa.Table.from_arrays(columns, names).take(first_rows).to_pylist()
    return [tuple(row[name] for name in names) for row in values], compact.indices
