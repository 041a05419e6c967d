"""Reading a table in the order of offsets, whatever the order of its files and of the rows inside them.

What it guarantees: rows come out as batches of the stream's columns with offsets that never go back, across partitions,
compacted files and files that are sorted by other columns. A row that stands in the table twice comes out twice. Only
files and row groups whose offsets can be in the range are opened. The memory held is about `batch_bytes` for each row
group that overlaps the place of reading, or the whole of it if its rows are not in offset order.

How: row groups are the sources of a merge. A file is opened when the merge comes to its first offset. Rows go out up to
the smallest of the offsets that the open sources have read to; no source that is still to come begins before it.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.table import FileScanTask

from icestream.model.errors import CatalogUnavailableError, DamagedError, IncompatibleTableError, InvalidRequestError
from icestream.table.catalogs import reason, reporting
from icestream.table.labels import Labels
from icestream.table.schema import Columns
from icestream.table.topic_table import TopicTable

BATCH_BYTES = 8 * 1024 * 1024
NO_END = (1 << 63) - 1


@dataclass(frozen=True)
class RowGroup:
    """What was found in a row group before its rows are read."""

    path: str
    number: int
    rows: int
    first_offset: int
    last_offset: int
    """The smallest and the largest."""
    is_ordered: bool
    """Whether each row has a larger offset than the one before."""
    rows_in_file: int
    is_last: bool


OnRowGroup = Callable[[RowGroup], None]


def ordered_scan(
    table: TopicTable,
    start: int = 0,
    end: int = NO_END,
    columns: Sequence[str] | None = None,
    *,
    batch_bytes: int = BATCH_BYTES,
    on_row_group: OnRowGroup = lambda _group: None,
) -> Iterator[pa.RecordBatch]:
    """The rows with `start <= offset < end`, with all or some of the stream's columns.

    `on_row_group` is told of each row group that is opened; those of a file come one after the other.
    """
    stream = table.stream_schema
    names = tuple(stream.names if columns is None else columns)
    if unknown := sorted(set(names) - set(stream.names)):
        raise InvalidRequestError(f"the topic has no columns {', '.join(unknown)}", operation="read table")
    scan = _Scan(table, Columns.of(stream), names, start, end, batch_bytes, on_row_group)
    return scan.batches()


@dataclass(order=True)
class _Source:
    """Rows in offset order, of which the part `buffer` is read."""

    first: int
    path: str
    batches: Iterator[pa.Table] = field(compare=False)
    column: str = field(compare=False)
    buffer: pa.Table | None = field(default=None, compare=False)

    def fill(self) -> bool:
        """Have rows in the buffer; false at the end."""
        while self.buffer is None or self.buffer.num_rows == 0:
            found = next(self.batches, None)
            if found is None:
                return False
            self.buffer = found
        return True

    @property
    def last(self) -> int:
        assert self.buffer is not None
        return int(self.buffer[self.column][-1].as_py())

    def take(self, through: int) -> pa.Table:
        """The buffered rows up to an offset."""
        rows = self.buffer
        assert rows is not None
        count = rows.num_rows
        if self.last > through:
            count = pc.sum(pc.less_equal(rows[self.column], through)).as_py()
        self.buffer = rows.slice(count)
        return rows.slice(0, count)


@dataclass
class _Scan:
    table: TopicTable
    columns: Columns
    names: tuple[str, ...]
    start: int
    end: int
    batch_bytes: int
    on_row_group: OnRowGroup

    def batches(self) -> Iterator[pa.RecordBatch]:
        files = self._files()
        waiting: list[_Source] = []
        active: list[_Source] = []
        while files or waiting or active:
            limit = min((source.last for source in active), default=None)
            while (begins := self._next_start(files, waiting)) is not None and (limit is None or begins <= limit):
                if files and files[0][0] == begins:
                    for source in self._sources(files.pop(0)[1]):
                        heapq.heappush(waiting, source)
                    continue
                source = heapq.heappop(waiting)
                if source.fill():
                    active.append(source)
                    limit = source.last if limit is None else min(limit, source.last)
            if limit is None:
                return
            yield from self._merged([source.take(limit) for source in active])
            active = [source for source in active if source.fill()]

    def _next_start(self, files: list[tuple[int, FileScanTask]], waiting: list[_Source]) -> int | None:
        return min((*(first for first, _ in files[:1]), *(source.first for source in waiting[:1])), default=None)

    def _merged(self, parts: list[pa.Table]) -> Iterator[pa.RecordBatch]:
        filled = [part for part in parts if part.num_rows]
        rows = filled[0] if len(filled) == 1 else pa.concat_tables(filled).sort_by(self.columns.offset)
        yield from self.columns.from_table(rows, self.names).combine_chunks().to_batches()

    def _files(self) -> list[tuple[int, FileScanTask]]:
        """The files that may hold rows of the range, by their first offsets."""
        table, offset = self.table.iceberg, self.columns.offset
        with reporting("plan read", str(self.table.name)):
            tasks = table.scan(row_filter=f"{offset} >= {self.start} and {offset} < {self.end}").plan_files()
            number = table.schema().find_field(offset).field_id
            return sorted(
                ((_first(task, number), task) for task in tasks), key=lambda pair: (pair[0], pair[1].file.file_path)
            )

    def _sources(self, task: FileScanTask) -> Iterator[_Source]:
        path = task.file.file_path
        if task.delete_files:
            raise IncompatibleTableError(
                "rows of the table were deleted with delete files, which icestream does not read",
                operation="read table",
                place=path,
                remedy="rewrite the data files with the engine that deleted them",
            )
        try:
            # Closed with the last of its sources, which alone hold it.
            file = pq.ParquetFile(self.table.iceberg.io.new_input(path).open(), pre_buffer=False)
            yield from self._row_groups(file, Labels(file.schema_arrow, self.table.iceberg.schema()), path)
        except (pa.ArrowInvalid, FileNotFoundError) as error:
            raise _damaged(path, error) from error
        except OSError as error:
            raise CatalogUnavailableError(reason(error), operation="read table", place=path) from error

    def _row_groups(self, file: pq.ParquetFile, labels: Labels, path: str) -> Iterator[_Source]:
        offset = self.columns.offset
        stored = labels.in_file(offset)
        if stored is None:
            raise DamagedError(f"the file has no column {offset!r}", operation="read table", place=path)
        for number in range(file.num_row_groups):
            if not self._may_hold(file.metadata.row_group(number), stored):
                continue
            offsets = file.read_row_group(number, columns=[stored]).column(0)
            if len(offsets) == 0:
                continue
            ordered = bool(pc.all(pc.less(offsets.slice(0, len(offsets) - 1), offsets.slice(1))).as_py())
            bounds = pc.min_max(offsets).as_py()
            group = RowGroup(
                path,
                number,
                len(offsets),
                bounds["min"],
                bounds["max"],
                is_ordered=ordered or len(offsets) == 1,
                rows_in_file=file.metadata.num_rows,
                is_last=number == file.num_row_groups - 1,
            )
            self.on_row_group(group)
            if group.last_offset >= self.start and group.first_offset < self.end:
                yield _Source(max(group.first_offset, self.start), path, self._rows(file, labels, group), offset)

    def _rows(self, file: pq.ParquetFile, labels: Labels, group: RowGroup) -> Iterator[pa.Table]:
        offset = self.columns.offset
        read = [old for part in self._stored() if (old := labels.in_file(part.name)) is not None]
        size = group.rows if not group.is_ordered else self._batch_rows(file.metadata.row_group(group.number), read)
        try:
            for batch in file.iter_batches(size, row_groups=[group.number], columns=read):
                rows = pa.Table.from_batches([labels.apply(batch)])
                if group.first_offset < self.start or group.last_offset >= self.end:
                    rows = rows.filter((pc.field(offset) >= self.start) & (pc.field(offset) < self.end))
                yield rows if group.is_ordered else rows.sort_by(offset)
        except (pa.ArrowInvalid, FileNotFoundError) as error:
            raise _damaged(group.path, error) from error
        except OSError as error:
            raise CatalogUnavailableError(reason(error), operation="read table", place=group.path) from error

    def _may_hold(self, group: pq.RowGroupMetaData, stored: str) -> bool:
        for chunk in (group.column(number) for number in range(group.num_columns)):
            if chunk.path_in_schema == stored and chunk.is_stats_set and chunk.statistics.has_min_max:
                return bool(chunk.statistics.max >= self.start and chunk.statistics.min < self.end)
        return True

    def _batch_rows(self, group: pq.RowGroupMetaData, read: list[str]) -> int:
        chunks = (group.column(number) for number in range(group.num_columns))
        nbytes = sum(chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema.split(".")[0] in read)
        rows = int(group.num_rows)
        return max(1, min(rows, rows * self.batch_bytes // max(int(nbytes), 1)))

    def _stored(self) -> Iterator[pa.Field]:
        for column, stored in zip(self.columns.stream, self.columns.stored, strict=True):
            if column.name in self.names or column.name == self.columns.offset:
                yield from stored


def _first(task: FileScanTask, number: int) -> int:
    """Where a file begins; one that does not say is looked into at once."""
    found = (task.file.lower_bounds or {}).get(number)
    return -1 if found is None else int.from_bytes(found, "little", signed=True)


def _damaged(path: str, error: Exception) -> DamagedError:
    return DamagedError(f"a data file cannot be read: {error}", operation="read table", place=path)
