"""Reading rows of a table back as rows of the stream, a batch at a time.

Files are read through Arrow alone and not through the library's reader, which turns a list of structs that is null into
an empty one and holds whole files. Only files, and row groups, whose offsets can be in the range are opened.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table

from icestream.model.errors import DamagedError, IncompatibleTableError, InvalidRequestError
from icestream.table.schema import Columns

BATCH_MESSAGES = 16_384
_FIELD_ID = b"PARQUET:field_id"


@dataclass(frozen=True)
class Scan:
    """Rows with `start <= offset < end`; see `TopicTable.scan`."""

    table: Table
    columns: Columns
    start: int
    end: int
    names: tuple[str, ...]
    sorted_inside: bool

    def batches(self) -> Iterator[pa.RecordBatch]:
        for task in self._files():
            if task.delete_files:
                raise IncompatibleTableError(
                    "rows of the table were deleted with delete files, which icestream does not read",
                    operation="read table",
                    place=task.file.file_path,
                    remedy="rewrite the data files with the engine that deleted them",
                )
            try:
                yield from self._file_batches(task.file.file_path)
            except (pa.ArrowInvalid, FileNotFoundError) as error:
                raise DamagedError(
                    f"a data file cannot be read: {error}", operation="read table", place=task.file.file_path
                ) from error

    def _files(self) -> list[FileScanTask]:
        """The files that may hold such rows, in the order of their first offsets."""
        offset = self.columns.offset
        chosen = f"{offset} >= {self.start} and {offset} < {self.end}"
        number = self.table.schema().find_field(offset).field_id
        plan = self.table.scan(row_filter=chosen).plan_files()
        return sorted(plan, key=lambda task: _long(task.file.lower_bounds, number))

    def _file_batches(self, path: str) -> Iterator[pa.RecordBatch]:
        with _opened(self.table.io, path) as file:
            names = _names(file.schema_arrow, self.table.schema())
            wanted = {field.name for field in self._stored()}
            read = [old for old, new in names.items() if new in wanted]
            for group in range(file.num_row_groups):
                if not self._may_hold(file.metadata.row_group(group), names):
                    continue
                # A sorted row group is put back into the order of offsets, so it is read whole.
                rows = file.metadata.row_group(group).num_rows if self.sorted_inside else BATCH_MESSAGES
                for batch in file.iter_batches(max(rows, 1), row_groups=[group], columns=read):
                    table = pa.Table.from_batches([batch])
                    yield from self._stream_batches(table.rename_columns([names[old] for old in table.column_names]))

    def _stream_batches(self, rows: pa.Table) -> Iterator[pa.RecordBatch]:
        offset = self.columns.offset
        inside = pc.and_(pc.greater_equal(rows[offset], self.start), pc.less(rows[offset], self.end))
        rows = rows.filter(inside)
        if self.sorted_inside:
            rows = rows.sort_by(offset)
        if rows.num_rows:
            yield from self.columns.from_table(rows, self.names).combine_chunks().to_batches()

    def _stored(self) -> Iterator[pa.Field]:
        for field, stored in zip(self.columns.stream, self.columns.stored, strict=True):
            if field.name in self.names or field.name == self.columns.offset:
                yield from stored

    def _may_hold(self, group: pq.RowGroupMetaData, names: dict[str, str]) -> bool:
        for chunk in (group.column(number) for number in range(group.num_columns)):
            if names.get(chunk.path_in_schema) == self.columns.offset and chunk.is_stats_set:
                noted = chunk.statistics
                return not noted.has_min_max or (noted.max >= self.start and noted.min < self.end)
        return True


def scan(
    table: Table, stream: pa.Schema, start: int, end: int, names: Sequence[str] | None, *, sorted_inside: bool
) -> Iterator[pa.RecordBatch]:
    columns = Columns.of(stream)
    chosen = tuple(stream.names if names is None else names)
    if unknown := sorted(set(chosen) - set(stream.names)):
        raise InvalidRequestError(f"the topic has no columns {', '.join(unknown)}", operation="read table")
    return Scan(table, columns, start, end, chosen, sorted_inside).batches()


def _opened(io: FileIO, path: str) -> pq.ParquetFile:
    return pq.ParquetFile(io.new_input(path).open(), pre_buffer=False)


def _names(file: pa.Schema, table: Schema) -> dict[str, str]:
    """What the file's columns are called in the table now: they are the same if their ids are."""
    by_id = {field.field_id: field.name for field in table.fields}
    found = {}
    for field in file:
        number = (field.metadata or {}).get(_FIELD_ID)
        name = by_id.get(int(number)) if number is not None else field.name
        if name is not None:
            found[field.name] = name
    return found


def _long(bounds: dict[int, bytes] | None, number: int) -> int:
    return int.from_bytes((bounds or {}).get(number, b""), "little", signed=True)
