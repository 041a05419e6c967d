"""Writing a range of messages as data files.

What it guarantees: the rows of each file are in offset order, or, in a topic with `sort_by`, in row groups that follow
each other in offset order and are sorted inside; a returned file is complete and durable; after an error none of the
files is left; the memory held is a row group and what Parquet makes of it, whatever the length of the range.

Rows are gathered to row groups without a copy and encoded column by column straight into the file.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io import FileIO
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.locations import load_location_provider
from pyiceberg.typedef import Record

from icestream.model.errors import CatalogUnavailableError, DamagedError
from icestream.table.catalogs import reason
from icestream.table.data_file import DataFileWriter, Layout
from icestream.table.hive import HIVE, LAYOUT, hive_folder, new_file_name
from icestream.table.schema import Columns, file_schema
from icestream.table.split import Split
from icestream.table.written import WrittenFile

OPEN_FILE_BYTES = 16 * 1024 * 1024
"""What an open file may hold in memory: an object store's client gathers parts of about this size."""
MAX_OPEN_FILES = 64
ICEBERG_FILE_BYTES = 512 * 1024 * 1024
"""Iceberg's own size of files, for a table whose property somebody has removed."""
_ROW_GROUPS_IN_MEMORY = 4


@dataclass(frozen=True)
class TableWriter:
    """Writes files for one state of a table. Picklable, and needs no catalog."""

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
    def writing(self, *, max_memory_bytes: int) -> "Iterator[Writing]":
        """The same for who has batches to add one by one; after an error inside none of the files is left."""
        run = _Run(self, max(1, min(MAX_OPEN_FILES, max_memory_bytes // OPEN_FILE_BYTES)))
        group_bytes = max(1, min(self.row_group_bytes, max_memory_bytes // _ROW_GROUPS_IN_MEMORY))
        try:
            yield Writing(run, group_bytes)
        except OSError as error:
            run.abandon()
            raise CatalogUnavailableError(
                f"the table's store failed: {reason(error)}", operation="write table", place=self.location
            ) from error
        except BaseException:
            run.abandon()
            raise

    @cached_property
    def layout(self) -> Layout:
        return Layout(self.schema, file_schema(self.columns, self.schema), self.properties)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "layout"}


@dataclass
class _Run:
    """One call of `write`: the open files, and what is finished."""

    writer: TableWriter
    max_open: int
    open: dict[Record, DataFileWriter] = field(default_factory=dict)
    done: list[WrittenFile] = field(default_factory=list)
    made: list[DataFileWriter] = field(default_factory=list)
    last_offset: int = -1

    def add(self, rows: pa.Table) -> None:
        self._check_order(rows.column(0))
        for partition, part in self._parts(rows):
            file = self._file(partition)
            file.write(part)
            if file.size >= self.target_bytes:
                self._close(partition)

    def finish(self) -> list[WrittenFile]:
        for partition in list(self.open):
            self._close(partition)
        return sorted(self.done, key=lambda file: file.first_offset)

    def abandon(self) -> None:
        """Take back everything: nobody else knows of these files."""
        for file in self.made:
            file.discard()

    @cached_property
    def target_bytes(self) -> int:
        return int(self.writer.properties.get("write.target-file-size-bytes", ICEBERG_FILE_BYTES))

    @cached_property
    def split(self) -> Split | None:
        spec = self.writer.spec
        return None if spec.is_unpartitioned() else Split(spec, self.writer.schema)

    def _parts(self, rows: pa.Table) -> Iterator[tuple[Record, pa.Table]]:
        parts = [(Record(), rows)] if self.split is None else self.split.parts(rows)
        for partition, part in parts:
            if not self.writer.sort_by:
                yield partition, part
            else:
                order = [*self.writer.sort_by, self.writer.columns.offset]
                yield partition, part.sort_by([(column, "ascending") for column in dict.fromkeys(order)])

    def _file(self, partition: Record) -> DataFileWriter:
        """The partition's open file, which becomes the youngest; the oldest is closed when there are too many."""
        file = self.open.pop(partition, None)
        if file is None:
            if len(self.open) >= self.max_open:
                self._close(next(iter(self.open)))
            file = DataFileWriter(self.writer.layout, self.writer.io, self._location(partition))
            self.made.append(file)
        self.open[partition] = file
        return file

    def _location(self, partition: Record) -> str:
        provider = load_location_provider(self.writer.location, self.writer.properties)
        if self.writer.properties.get(LAYOUT) == HIVE:
            return provider.new_data_location(f"{hive_folder(partition[0])}/{new_file_name(self.writer.table_uuid)}")
        name = f"{uuid4()}.parquet"
        if self.split is not None and (folder := self.split.folder(partition)):
            name = f"{folder}/{name}"
        return provider.new_data_location(name)

    def _close(self, partition: Record) -> None:
        file = self.open.pop(partition)
        writer = self.writer
        sort_order_id = None if writer.sort_by else writer.sort_order_id
        data_file = file.close(partition, sort_order_id)
        self.done.append(
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
        ordered = first > self.last_offset and last - first >= len(offsets) - 1
        if ordered and last - first != len(offsets) - 1:
            ordered = bool(pc.all(pc.greater(offsets.slice(1), offsets.slice(0, len(offsets) - 1))).as_py())
        if not ordered:
            raise DamagedError(
                f"offsets {first} to {last} after {self.last_offset} are not in order", operation="write table"
            )
        self.last_offset = last


class Writing:
    """A range on its way into files, a row group at a time."""

    def __init__(self, run: _Run, group_bytes: int) -> None:
        self._run = run
        self._groups = RowGroups(group_bytes)

    def add(self, batch: pa.RecordBatch) -> None:
        for group in self._groups.add(batch):
            self._write(group)

    def finish(self) -> list[WrittenFile]:
        """The files, complete, in the order of their offsets."""
        if rest := self._groups.rest():
            self._write(rest)
        return self._run.finish()

    def _write(self, group: list[pa.RecordBatch]) -> None:
        writer = self._run.writer
        self._run.add(writer.columns.to_table(group, writer.layout.schema))


class RowGroups:
    """Batches gathered, and cut where they are too long, to lists of about `group_bytes`."""

    def __init__(self, group_bytes: int) -> None:
        self._group_bytes = group_bytes
        self._gathered: list[pa.RecordBatch] = []
        self._size = 0

    def add(self, batch: pa.RecordBatch) -> Iterator[list[pa.RecordBatch]]:
        """The lists that are full with it."""
        for piece in _pieces(batch, self._group_bytes):
            if self._gathered and self._size + piece.nbytes > self._group_bytes:
                yield self.rest()
            self._gathered.append(piece)
            self._size += piece.nbytes

    def rest(self) -> list[pa.RecordBatch]:
        """What was gathered since the last one."""
        gathered, self._gathered, self._size = self._gathered, [], 0
        return gathered


def _pieces(batch: pa.RecordBatch, most_bytes: int) -> Iterator[pa.RecordBatch]:
    rows = batch.num_rows
    if rows == 0:
        return
    count = min(rows, -(-batch.nbytes // most_bytes))
    step = -(-rows // count)
    for start in range(0, rows, step):
        yield batch.slice(start, step)
