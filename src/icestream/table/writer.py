"""Writes a range of messages as data files.

What it guarantees:

- The rows of a file are in offset order. With `sort_by`, its row groups are in offset order and sorted inside.
- A returned file is complete and durable.
- After an error no file is left.
- Memory holds one row group and its encoded form, whatever the length of the range.

Batches are collected into row groups without a copy, and encoded column by column straight into the file.
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import (
    MetricModeTypes,
    StatisticsCollector,
    compute_statistics_plan,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec, partition_record_value
from pyiceberg.schema import Schema
from pyiceberg.table.locations import load_location_provider
from pyiceberg.typedef import Record

from icestream.model.errors import CatalogUnavailableError, DamagedError
from icestream.model.messages import slice_from
from icestream.table.bloom import OwnFilters, own_options, parquet_options
from icestream.table.catalogs import short_reason
from icestream.table.files import SyncedFile
from icestream.table.parquet_copy.layout import is_copy_layout, new_file_path
from icestream.table.schema import Columns, file_schema
from icestream.table.statistics import data_file_statistics, written_metadata

_CODECS = {"uncompressed": "none"}
_LEVELLED = ("zstd", "gzip")


@dataclass(frozen=True)
class ParquetLayout:
    """The Parquet options and columns of all files of a writer."""

    table: Schema
    columns: Columns
    properties: dict[str, str]

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of the files, with the table's field ids."""
        return file_schema(self.columns, self.table)

    @cached_property
    def plan(self) -> dict[int, StatisticsCollector]:
        return compute_statistics_plan(self.table, self.properties)

    @cached_property
    def ids(self) -> dict[str, int]:
        return parquet_path_to_id_mapping(self.table)

    @cached_property
    def options(self) -> dict[str, Any]:
        """Options of the Parquet writer. Counters have no dictionary, because their values do not repeat."""
        codec = self.properties.get("write.parquet.compression-codec", "zstd")
        level = self.properties.get("write.parquet.compression-level")
        plain = [path for path, id_ in self.ids.items() if self.plan[id_].mode.type is MetricModeTypes.NONE]
        counters = [self.columns.envelope.offset, self.columns.envelope.sequence]
        rest = [path for path in self.ids if path not in {*plain, *counters}]
        return {
            "compression": _CODECS.get(codec, codec),
            "compression_level": int(level) if level and codec in _LEVELLED else None,
            "use_dictionary": rest,
            "write_statistics": [*counters, *rest],
            "store_schema": False,
            "store_decimal_as_integer": True,
            "bloom_filter_options": parquet_options(self.table, self.properties),
            "write_page_checksum": True,  # without checksums a flipped bit may decode to another value
        }


class DataFileWriter:
    """Writes one Parquet file, one row group at a time, and describes it."""

    def __init__(self, layout: ParquetLayout, io: FileIO, location: str) -> None:
        self._layout = layout
        self._io = io
        self._location = location
        self._stream = io.new_output(location).create(
            overwrite=True
        )  # the name is unique: skip the check for an existing file
        self._parquet = pq.ParquetWriter(self._stream, layout.schema, **layout.options)
        self._filters = OwnFilters(own_options(layout.table, layout.properties))
        self.message_count = 0
        self.first_offset = -1
        self.last_offset = -1

    @property
    def size(self) -> int:
        return int(self._stream.tell())

    def write(self, rows: pa.Table) -> None:
        self._parquet.write_table(rows, row_group_size=rows.num_rows)
        self._filters.add(rows, self._stream)
        bounds = pc.min_max(rows.column(self._layout.columns.envelope.offset)).as_py()
        if self.message_count == 0:
            self.first_offset = bounds["min"]
        self.last_offset = bounds["max"]
        self.message_count += rows.num_rows

    def close(self, partition: Record, sort_order_id: int | None) -> DataFile:
        self._parquet.add_key_value_metadata(self._filters.finish(self._stream))
        self._parquet.close()
        size = self.size
        self._stream.close()
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=self._location,
            file_format=FileFormat.PARQUET,
            partition=partition,
            file_size_in_bytes=size,
            sort_order_id=sort_order_id,
            equality_ids=None,
            key_metadata=None,
            **data_file_statistics(written_metadata(self._parquet), self._layout.plan, self._layout.ids),
        )

    def discard(self) -> None:
        """Close the file as it is, and remove it. A hidden file stays hidden."""
        end = self._stream.discard if isinstance(self._stream, SyncedFile) else self._stream.close
        for step in (self._parquet.close, end):
            with contextlib.suppress(Exception):  # the cause of the failed write may make this fail too
                step()
        self._parquet.is_open = False  # otherwise it closes the file again when it is garbage-collected
        with contextlib.suppress(Exception):  # then orphan clean-up removes it
            self._io.delete(self._location)


MAX_FOLDER_LENGTH = 200
_NUMBERS = {pa.date32().id: pa.int32(), pa.timestamp("us").id: pa.int64()}
"""Dates and times as numbers: Python's own end at the year 9999."""


class PartitionSplitter:
    """Splits rows by partition."""

    def __init__(self, spec: PartitionSpec, schema: Schema) -> None:
        self._spec = spec
        self._schema = schema

    def parts(self, rows: pa.Table) -> Iterator[tuple[Record, pa.Table]]:
        """Yield the rows of each partition, in their order. Rows of a single partition are not copied."""
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
        """Return Iceberg's folder of a partition; empty if its value has no name, or too long a name."""
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
    """Return the distinct combinations of values, and for each row the index of its combination."""
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


@dataclass(frozen=True)
class WrittenFile:
    """Describes one complete, durable data file, for the commit."""

    table_uuid: UUID
    spec_id: int
    """The partition spec of the file, which the library's description lacks."""
    data_file: DataFile
    message_count: int
    first_offset: int
    last_offset: int

    @property
    def path(self) -> str:
        return self.data_file.file_path

    @property
    def bytes(self) -> int:
        return self.data_file.file_size_in_bytes


OPEN_FILE_BYTES = 16 * 1024 * 1024
"""Memory of an open file: the client of an object store collects parts of about this size."""
MAX_OPEN_FILES = 64
ICEBERG_FILE_BYTES = 512 * 1024 * 1024
"""Iceberg's default file size, for a table without the property."""
_ROW_GROUPS_IN_MEMORY = 4


@dataclass(frozen=True)
class TableWriter:
    """Writes files for one state of a table. It is picklable and needs no catalog."""

    table_uuid: UUID
    location: str
    properties: dict[str, str]
    io: FileIO
    schema: Schema
    spec: PartitionSpec
    sort_order_id: int
    columns: Columns
    sort_by: tuple[str, ...]
    row_group_bytes: int

    def write(self, batches: Iterable[pa.RecordBatch], *, max_memory_bytes: int) -> list[WrittenFile]:
        """Write batches of the stream's schema, in offset order, and return the files in the order of their offsets."""
        with self.writing(max_memory_bytes=max_memory_bytes) as writing:
            for batch in batches:
                writing.add(batch)
            return writing.finish()

    @contextmanager
    def writing(self, *, max_memory_bytes: int) -> "Iterator[WriteSession]":
        """Open a session for a caller that adds batches one by one. After an error inside none of its files is left."""
        session = WriteSession(self, max_memory_bytes)
        try:
            yield session
        except OSError as error:
            session.abandon()
            raise CatalogUnavailableError(
                f"the table's store failed: {short_reason(error)}", operation="write table", place=self.location
            ) from error
        except BaseException:
            session.abandon()
            raise

    @cached_property
    def layout(self) -> ParquetLayout:
        return ParquetLayout(self.schema, self.columns, self.properties)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "layout"}


class WriteSession:
    """Writes one range of messages for a `TableWriter`, a row group at a time."""

    def __init__(self, writer: TableWriter, max_memory_bytes: int) -> None:
        self._writer = writer
        self._max_open = max(1, min(MAX_OPEN_FILES, max_memory_bytes // OPEN_FILE_BYTES))
        self._groups = RowGroups(max(1, min(writer.row_group_bytes, max_memory_bytes // _ROW_GROUPS_IN_MEMORY)))
        self._open: dict[Record, DataFileWriter] = {}
        self._done: list[WrittenFile] = []
        self._made: list[DataFileWriter] = []
        self._last_offset = -1

    def add(self, batch: pa.RecordBatch) -> None:
        for group in self._groups.add(batch):
            self._write(group)

    def finish(self) -> list[WrittenFile]:
        """Complete the files, and return them in the order of their offsets."""
        if rest := self._groups.rest():
            self._write(rest)
        for partition in list(self._open):
            self._close(partition)
        return sorted(self._done, key=lambda file: file.first_offset)

    def abandon(self) -> None:
        """Remove every file: nothing else knows of them."""
        for file in self._made:
            file.discard()

    def _write(self, group: list[pa.RecordBatch]) -> None:
        rows = self._writer.columns.to_table(group, self._writer.layout.schema)
        self._check_order(rows.column(self._writer.columns.envelope.offset))
        for partition, part in self._parts(rows):
            file = self._file(partition)
            file.write(part)
            if file.size >= self._target_bytes:
                self._close(partition)

    @cached_property
    def _target_bytes(self) -> int:
        return int(self._writer.properties.get("write.target-file-size-bytes", ICEBERG_FILE_BYTES))

    @cached_property
    def _splitter(self) -> PartitionSplitter | None:
        spec = self._writer.spec
        return None if spec.is_unpartitioned() else PartitionSplitter(spec, self._writer.schema)

    def _parts(self, rows: pa.Table) -> Iterator[tuple[Record, pa.Table]]:
        parts = [(Record(), rows)] if self._splitter is None else self._splitter.parts(rows)
        for partition, part in parts:
            if not self._writer.sort_by:
                yield partition, part
            else:
                order = [*self._writer.sort_by, self._writer.columns.envelope.offset]
                yield partition, part.sort_by([(column, "ascending") for column in dict.fromkeys(order)])

    def _file(self, partition: Record) -> DataFileWriter:
        """Return the partition's open file. If too many are open, close the one used longest ago."""
        file = self._open.pop(partition, None)
        if file is None:
            if len(self._open) >= self._max_open:
                self._close(next(iter(self._open)))
            file = DataFileWriter(self._writer.layout, self._writer.io, self._location(partition))
            self._made.append(file)
        self._open[partition] = file
        return file

    def _location(self, partition: Record) -> str:
        provider = load_location_provider(self._writer.location, self._writer.properties)
        if is_copy_layout(self._writer.properties):
            return provider.new_data_location(new_file_path(partition[0], self._writer.table_uuid))
        name = f"{uuid4()}.parquet"
        if self._splitter is not None and (folder := self._splitter.folder(partition)):
            name = f"{folder}/{name}"
        return provider.new_data_location(name)

    def _close(self, partition: Record) -> None:
        file = self._open.pop(partition)
        writer = self._writer
        sort_order_id = None if writer.sort_by else writer.sort_order_id
        data_file = file.close(partition, sort_order_id)
        self._done.append(
            WrittenFile(
                writer.table_uuid,
                writer.spec.spec_id,
                data_file,
                file.message_count,
                file.first_offset,
                file.last_offset,
            )
        )

    def _check_order(self, offsets: pa.ChunkedArray) -> None:
        first, last = offsets[0].as_py(), offsets[-1].as_py()
        ordered = first > self._last_offset and last - first >= len(offsets) - 1
        if ordered and last - first != len(offsets) - 1:
            ordered = bool(pc.all(pc.greater(offsets.slice(1), offsets.slice(0, len(offsets) - 1))).as_py())
        if not ordered:
            raise DamagedError(
                f"offsets {first} to {last} after {self._last_offset} are not in order", operation="write table"
            )
        self._last_offset = last


class RowGroups:
    """Collects batches into lists of about `group_bytes`, and slices batches that are too long."""

    def __init__(self, group_bytes: int) -> None:
        self._group_bytes = group_bytes
        self._collected: list[pa.RecordBatch] = []
        self._size = 0

    def add(self, batch: pa.RecordBatch) -> Iterator[list[pa.RecordBatch]]:
        """Add a batch, and yield the lists that are full."""
        for part in _slices(batch, self._group_bytes):
            if self._collected and self._size + part.nbytes > self._group_bytes:
                yield self.rest()
            self._collected.append(part)
            self._size += part.nbytes

    def rest(self) -> list[pa.RecordBatch]:
        """Return the batches collected since the last full list."""
        collected, self._collected, self._size = self._collected, [], 0
        return collected


def _slices(batch: pa.RecordBatch, max_bytes: int) -> Iterator[pa.RecordBatch]:
    rows = batch.num_rows
    if rows == 0:
        return
    count = min(rows, -(-batch.nbytes // max_bytes))
    step = -(-rows // count)
    for start in range(0, rows, step):
        yield batch.slice(start, step)


def write_to_tables(
    targets: Sequence[tuple[TableWriter, int]], batches: Iterable[pa.RecordBatch], *, max_memory_bytes: int
) -> list[list[WrittenFile]]:
    """Write one stream of batches to several tables, and return the files of each.

    A table takes the messages from its own first offset on. The writers share the memory. After an error no file of any
    table is left.
    """
    with ExitStack() as ending:
        share = max_memory_bytes // len(targets)
        writings = [
            (ending.enter_context(writer.writing(max_memory_bytes=share)), first_offset)
            for writer, first_offset in targets
        ]
        for batch in batches:
            for writing, first_offset in writings:
                writing.add(slice_from(batch, first_offset))
        return [writing.finish() for writing, _ in writings]
