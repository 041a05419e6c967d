"""Reading a table in the order of offsets, whatever the order of its files and of the rows inside them.

What it guarantees: rows come out as batches of the stream's columns with offsets that never go back, across partitions,
compacted files and files that are sorted by other columns. A row that stands in the table twice comes out twice. Only
files and row groups whose offsets can be in the range, and whose rows can match the filter, are opened. Everything is
of the one snapshot that the state has. The memory held is that of `ReadLimits`, whatever the table's size; row groups
that overlap share it, and one whose rows are not in offset order is held as a whole.

How: row groups are the sources of a merge. A file is opened when the merge comes to its first offset, or ahead of that.
Rows go out up to the smallest of the offsets that the open sources have read to; no source that is still to come begins
before it. The thread that asks for batches decides everything; other threads open files and decode, each source on one
at a time.
"""

import re
from bisect import insort
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from icestream.config import ReaderSettings
from icestream.model.errors import (
    CatalogUnavailableError,
    DamagedError,
    IcestreamError,
    IncompatibleTableError,
    InvalidRequestError,
)
from icestream.model.filters import Filter
from icestream.model.units import MIB
from icestream.table.bloom import FileFilters
from icestream.table.catalogs import reason
from icestream.table.planning import NO_END, FilePlan, PlannedFile, missing_file_error
from icestream.table.pruning import FileColumnNames, Pruning
from icestream.table.schema import Columns
from icestream.table.statistics import column_numbers

if TYPE_CHECKING:
    from icestream.table.topic_table import TopicTable

__all__ = ["NO_END", "OnRowGroup", "ReadLimits", "RowGroup", "ordered_scan"]


@dataclass(frozen=True)
class ReadLimits:
    """What one read of a table may use."""

    max_concurrent_reads: int = 10
    """Data files that are read at once. More are open only where files hold the same offsets and must be merged."""
    prefetch_batches: int = 5
    """Decoded batches that are ready, or being decoded, before the caller asks for them."""
    max_bytes: int = 8 * MIB
    """Bytes of these batches. The next batch in order is read whatever its size."""
    batch_bytes: int = 1 * MIB
    """About the largest batch."""

    @classmethod
    def of(cls, settings: ReaderSettings) -> Self:
        return cls(settings.max_concurrent_reads, settings.prefetch_size)


@dataclass(frozen=True)
class ScanRequest:
    """What a read is to give."""

    table: "TopicTable"
    names: tuple[str, ...]
    start: int
    end: int
    where: Filter | None = None
    is_inspection: bool = False
    """Whether each row group is looked into before its rows are read, instead of trusting what Parquet notes of it."""

    @cached_property
    def columns(self) -> Columns:
        return Columns.of(self.table.stream_schema)

    @cached_property
    def pruning(self) -> Pruning | None:
        return None if self.where is None else Pruning.of(self.where, self.columns, self.table.iceberg.metadata)

    @cached_property
    def read(self) -> tuple[str, ...]:
        """The stream's columns that have to be read: the offset, the filter's, those asked for."""
        wanted = {self.columns.offset, *self.names, *(self.where.columns if self.where else ())}
        return tuple(name for name in self.columns.stream.names if name in wanted)

    @cached_property
    def stored(self) -> tuple[str, ...]:
        """These, as the table has them."""
        return self._stored(self.read)

    @cached_property
    def judged(self) -> tuple[str, ...]:
        """Of these, the ones that say whether a row is wanted."""
        return self._stored({self.columns.offset, *(self.where.columns if self.where else ())})

    def _stored(self, names: Collection[str]) -> tuple[str, ...]:
        return tuple(
            part.name
            for column, parts in zip(self.columns.stream, self.columns.stored, strict=True)
            if column.name in names
            for part in parts
        )

    def chosen(self, rows: pa.Table, *, is_inside: bool) -> pa.Table:
        """Of stored rows, those of the range that match; `is_inside` says that all are of the range."""
        if not is_inside:
            offset = pc.field(self.columns.offset)
            rows = rows.filter((offset >= self.start) & (offset < self.end))
        if self.where is None or rows.num_rows == 0:
            return rows
        looked_at = [name for name in self.columns.stream.names if name in self.where.columns]
        mask = self.where.mask(one_batch(self.columns.from_table(rows, looked_at)))
        return rows if mask.true_count == len(mask) else rows.filter(mask)

    def given(self, rows: pa.Table) -> pa.RecordBatch:
        """Stored rows as what was asked for."""
        return one_batch(self.columns.from_table(rows, self.names))


def one_batch(rows: pa.Table) -> pa.RecordBatch:
    if rows.num_rows == 0:
        return pa.RecordBatch.from_pylist([], rows.schema)
    (batch,) = rows.combine_chunks().to_batches()
    return batch


# --------------------
# Data files and their row groups, as sources of rows in offset order.
#
# All of this runs on the threads of a read. A row group's rows come in the order of their offsets: whether they
# stand so
# in the file is looked at before the first is handed out, in the offset column alone where the group is larger than a
# batch, and rows that do not are sorted. They come with the table's columns, which Arrow can sort and select all of;
# `ScanRequest.given` makes the stream's of them.
#
# A row group whose bloom filters exclude a match is not read; one that can have some is first looked through in the
# filter's columns alone, and the others are read when a row matches.


_BUFFER_BYTES = 1024 * 1024
"""What is read of a column at once, so that a large row group does not lie in memory as a whole."""

_MISSING = re.compile("NO_SUCH_KEY|RESOURCE_NOT_FOUND|Path does not exist")
_UNDECODABLE = re.compile(
    "Corrupt|could not verify page integrity|"
    "Unexpected end of stream|Couldn't deserialize|Deserializing|\\w+Codec failed|ZSTD|Lz4"
)


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


class OpenFile:
    """A data file of which row groups are being read. It is closed when the last source was released."""

    def __init__(self, request: ScanRequest, planned: PlannedFile) -> None:
        self.planned = planned
        self._request = request
        if planned.has_deletes:
            raise IncompatibleTableError(
                "rows of the table were deleted with delete files, which icestream does not read",
                operation="read table",
                place=planned.path,
                remedy="rewrite the data files with the engine that deleted them",
            )
        with self._reading():
            self._input: pa.NativeFile = request.table.iceberg.io.new_input(planned.path).open()
            try:
                self._open()
            except BaseException:
                self.close()
                raise

    def _open(self) -> None:
        parquet = pq.ParquetFile(self._input, pre_buffer=False, page_checksum_verification=True)
        self._metadata = parquet.metadata
        self._numbers = column_numbers(self._metadata)
        self._labels = FileColumnNames(parquet.schema_arrow, self._request.table.iceberg.schema())
        offset = self._labels.in_file(self._request.columns.offset)
        if offset is None:
            raise DamagedError(
                f"the file has no column {self._request.columns.offset!r}",
                operation="read table",
                place=self.planned.path,
            )
        self._offset = offset
        self.inspected: list[RowGroup] = []
        self._columns = [old for name in self._request.stored if (old := self._labels.in_file(name)) is not None]
        found = (self._row_group(number) for number in self._probed(range(self._metadata.num_row_groups)))
        self.row_groups = [group for group in found if group is not None]
        self._unreleased = len(self.row_groups)

    def close(self) -> None:
        self._input.close()

    def release(self) -> None:
        """One of the row groups is read to its end."""
        self._unreleased -= 1
        if self._unreleased <= 0:
            self.close()

    def nbytes(self, group: RowGroup) -> int:
        """What the columns that are read take in memory, about."""
        metadata = self._metadata.row_group(group.number)
        chunks = (metadata.column(number) for number in range(metadata.num_columns))
        wanted = set(self._columns)
        return sum(chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema.split(".")[0] in wanted)

    def rows(self, group: RowGroup, batch_bytes: int) -> Iterator[pa.Table]:
        """The chosen rows of a row group in offset order, about so many bytes at a time and never none."""
        with self._reading():
            rows = max(1, min(group.rows, group.rows * batch_bytes // max(self.nbytes(group), 1)))
            if self._is_worth_a_look and not any(part.num_rows for part in self._chosen(group, rows, self._looked_at)):
                return
            is_ordered = group.is_ordered or (rows < group.rows and _is_ordered(self._offsets(group.number)))
            is_whole = not is_ordered and self._request.where is None
            chosen = self._chosen(group, group.rows if is_whole else rows, self._columns)
            for table in chosen if is_ordered else self._sorted(chosen):
                yield from (table.slice(start, rows) for start in range(0, table.num_rows, rows))

    def _chosen(self, group: RowGroup, rows: int, columns: list[str]) -> Iterator[pa.Table]:
        """Of each so many rows of a row group, in the order of the file, those that match."""
        is_inside = self._is_inside(group)
        for part in self._parquet().iter_batches(rows, [group.number], columns, use_threads=False):
            yield self._request.chosen(pa.Table.from_batches([self._labels.apply(part)]), is_inside=is_inside)

    def _sorted(self, parts: Iterator[pa.Table]) -> Iterator[pa.Table]:
        offset = self._request.columns.offset
        rows = pa.concat_tables(list(parts))
        yield rows if _is_ordered(rows[offset]) else rows.sort_by(offset)

    @cached_property
    def _looked_at(self) -> list[str]:
        """The columns that say whether a row matches."""
        return [old for name in self._request.judged if (old := self._labels.in_file(name)) is not None]

    @property
    def _is_worth_a_look(self) -> bool:
        """Whether to look for a match before all is read: most columns are not needed to find that there is none."""
        return self._request.where is not None and len(self._looked_at) < len(self._columns)

    def _probed(self, groups: Sequence[int]) -> Sequence[int]:
        """Those that can hold what the filter asks for, by their bloom filters: bounds take longer to judge."""
        pruning = self._request.pruning
        if pruning is None or self._request.is_inspection:
            return groups
        filters = FileFilters(self._metadata, self._numbers, groups, self._read_at)

        def may_match(group: int) -> bool:
            def may_hold(name: str, value: object) -> bool:
                column = self._labels.in_file(name)
                return column is None or filters.may_hold(group, column, value)

            return pruning.values_may_match(may_hold)

        return [group for group in groups if may_match(group)]

    def _read_at(self, position: int, nbytes: int) -> bytes:
        return bytes(self._input.read_at(nbytes, position))

    def _is_inside(self, group: RowGroup) -> bool:
        return group.first_offset >= self._request.start and group.last_offset < self._request.end

    def _row_group(self, number: int) -> RowGroup | None:
        """A row group that may hold rows of the range."""
        metadata, request = self._metadata.row_group(number), self._request
        bounds = self._noted_bounds(metadata)
        if bounds is not None and not self._meets(*bounds):
            return None
        is_ordered = False
        if bounds is None or request.is_inspection:
            offsets = self._offsets(number)
            if len(offsets) == 0:
                return None
            found = pc.min_max(offsets).as_py()
            bounds, is_ordered = (found["min"], found["max"]), _is_ordered(offsets)
        group = RowGroup(
            self.planned.path,
            number,
            metadata.num_rows,
            *bounds,
            is_ordered,
            rows_in_file=self._metadata.num_rows,
            is_last=number == self._metadata.num_row_groups - 1,
        )
        if request.is_inspection:
            self.inspected.append(group)
        if request.pruning is not None and not request.pruning.row_group_may_match(
            metadata, self._labels, self._numbers
        ):
            return None
        return group if self._meets(*bounds) else None

    def _meets(self, first: int, last: int) -> bool:
        return last >= self._request.start and first < self._request.end

    def _noted_bounds(self, group: pq.RowGroupMetaData) -> tuple[int, int] | None:
        chunk = group.column(self._numbers[self._offset])
        if chunk.is_stats_set and chunk.statistics.has_min_max:
            return chunk.statistics.min, chunk.statistics.max
        return None

    def _offsets(self, number: int) -> pa.ChunkedArray:
        return self._parquet().read_row_group(number, columns=[self._offset], use_threads=False).column(0)

    def _parquet(self) -> pq.ParquetFile:
        """A reader for one row group: readers are for one thread, the file below them for all."""
        return pq.ParquetFile(
            self._input,
            metadata=self._metadata,
            pre_buffer=False,
            buffer_size=_BUFFER_BYTES,
            page_checksum_verification=True,
        )

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowInvalid) as error:
            raise self._explained(error) from error

    def _explained(self, error: OSError | pa.ArrowInvalid) -> IcestreamError:
        """Whether the file is gone, is damaged, or cannot be reached: Arrow tells most of it by the text alone."""
        text, place = str(error), self.planned.path
        if isinstance(error, FileNotFoundError) or _MISSING.search(text):
            return missing_file_error(self._request.table, error, "read table", self.planned)
        if isinstance(error, pa.ArrowInvalid) or _UNDECODABLE.match(text):
            return DamagedError(f"a data file cannot be read: {text}", operation="read table", place=place)
        return CatalogUnavailableError(reason(error), operation="read table", place=place)


def _is_ordered(offsets: Any) -> bool:
    """Whether each is larger than the one before."""
    count = len(offsets)
    return count <= 1 or bool(pc.all(pc.less(offsets.slice(0, count - 1), offsets.slice(1))).as_py())


OnRowGroup = Callable[[RowGroup], None]

_MIN_SHARE_BYTES = 64 * 1024
_MAX_COUNTED = 512


def ordered_scan(
    table: "TopicTable",
    start: int = 0,
    end: int = NO_END,
    columns: Sequence[str] | None = None,
    *,
    where: Filter | None = None,
    limits: ReadLimits = ReadLimits(),  # noqa: B008 - it cannot be changed
    on_row_group: OnRowGroup | None = None,
) -> Generator[pa.RecordBatch, None, None]:
    """The rows with `start <= offset < end` that match `where`, with all or some of the stream's columns.

    `on_row_group` is told of each row group that is opened; those of a file come one after the other.
    """
    stream = table.stream_schema
    names = tuple(stream.names if columns is None else columns)
    if unknown := sorted(set(names) - set(stream.names)):
        raise InvalidRequestError(f"the topic has no columns {', '.join(unknown)}", operation="read table")
    if where is not None:
        where.check(stream)
    request = ScanRequest(table, names, start, end, where, is_inspection=on_row_group is not None)
    return _Scan(request, limits, on_row_group).batches()


@dataclass(order=True)
class _Source:
    """A row group in offset order, of which the part `buffer` is read, and the next may be on its way."""

    first: int
    path: str
    number: int
    file: OpenFile = field(compare=False)
    decoded: Iterator[pa.Table] = field(compare=False)
    cost_bytes: int = field(compare=False)
    """What its next batch takes in memory, about."""
    column: str = field(compare=False)
    buffer: pa.Table | None = field(default=None, compare=False)
    coming: "Future[pa.Table | None] | None" = field(default=None, compare=False)
    is_read: bool = field(default=False, compare=False)

    def ask(self, pool: ThreadPoolExecutor) -> None:
        if self.coming is None and not self.is_read:
            self.coming = pool.submit(next, self.decoded, None)

    def fill(self, pool: ThreadPoolExecutor) -> bool:
        """Have rows in the buffer; false at the end."""
        if self.buffer is None or self.buffer.num_rows == 0:
            self.ask(pool)
            if self.coming is not None:
                self.buffer, self.coming = self.coming.result(), None
            if self.buffer is None:
                self.is_read = True
                self.file.release()
                return False
        return True

    @property
    def last(self) -> int:
        assert self.buffer is not None
        return int(self.buffer.column(self.column)[-1].as_py())

    def take(self, through: int) -> pa.Table:
        """The buffered rows up to an offset."""
        rows = self.buffer
        assert rows is not None
        if self.last <= through:
            self.buffer = None
            return rows
        count = pc.sum(pc.less_equal(rows.column(self.column), through)).as_py() or 0
        self.buffer = rows.slice(count)
        return rows.slice(0, count)


class _Scan:
    def __init__(self, request: ScanRequest, limits: ReadLimits, on_row_group: OnRowGroup | None) -> None:
        self._request = request
        self._on_row_group = on_row_group
        self._limits = limits
        self._pool = ThreadPoolExecutor(_threads(limits), thread_name_prefix="table-read")
        self._plan = _Plan(FilePlan(request.table, request.start, request.end, request.pruning))
        self._opening: deque[tuple[PlannedFile, int, Future[OpenFile]]] = deque()
        self._waiting: list[_Source] = []
        self._active: list[_Source] = []

    def batches(self) -> Generator[pa.RecordBatch, None, None]:
        try:
            while True:
                self._read_ahead()
                limit = min((source.last for source in self._active), default=None)
                begins = self._next_start()
                if begins is not None and (limit is None or begins <= limit):
                    self._admit(begins)
                elif limit is None:
                    return
                else:
                    yield from self._merged([source.take(limit) for source in self._active])
                    self._active = [source for source in self._active if source.fill(self._pool)]
        finally:
            self._close()

    def _next_start(self) -> int | None:
        """Where the next source begins, at the earliest."""
        ahead = self._opening[0][0] if self._opening else self._plan.next
        starts = [ahead.first_offset] if ahead is not None else []
        return min([*starts, *(source.first for source in self._waiting[:1])], default=None)

    def _admit(self, begins: int) -> None:
        """The next file's row groups wait for the merge, or, if it is a row group's turn, it takes part in it."""
        if not self._opening and self._plan.next is not None and self._plan.next.first_offset <= begins:
            self._open_next()
        if self._opening and self._opening[0][0].first_offset <= begins:
            _, share, opening = self._opening.popleft()
            file = opening.result()
            if self._on_row_group is not None:
                for group in file.inspected:
                    self._on_row_group(group)
            for source in self._sources(file, share):
                insort(self._waiting, source)
            return
        source = self._waiting.pop(0)
        if source.fill(self._pool):
            self._active.append(source)

    def _sources(self, file: OpenFile, share: int) -> Iterator[_Source]:
        request = self._request
        batch_bytes = min(self._limits.batch_bytes, share)
        for group in file.row_groups:
            # Rows that are sorted otherwise have to be sorted again, as a whole.
            cost = file.nbytes(group) if request.table.sort_by else min(batch_bytes, file.nbytes(group))
            first, decoded = max(group.first_offset, request.start), file.rows(group, batch_bytes)
            yield _Source(first, group.path, group.number, file, decoded, cost, request.columns.offset)
        if not file.row_groups:
            file.close()

    def _read_ahead(self) -> None:
        """Have the next batches made ready, in the order in which they will be needed, as far as the limits go."""
        sources = [*self._active, *self._waiting[: self._limits.prefetch_batches]]
        coming = sum(source.coming is not None for source in sources)
        nbytes = sum(source.cost_bytes for source in sources if source.coming is not None or source.buffer is not None)
        for source in sources:
            if source.coming is not None or source.is_read:
                continue
            coming += 1
            nbytes += source.cost_bytes
            if coming > self._limits.prefetch_batches or nbytes > self._limits.max_bytes:
                return
            source.ask(self._pool)
        open_files = len({source.path for source in (*self._active, *self._waiting)})
        while (
            self._plan.next is not None
            and len(self._opening) + len(self._waiting) < self._limits.prefetch_batches
            and len(self._opening) + open_files < self._limits.max_concurrent_reads
        ):
            self._open_next()

    def _open_next(self) -> None:
        file, overlapping = self._plan.pop()
        beside = sum(source.path != file.path for source in self._active)
        share = max(_MIN_SHARE_BYTES, self._limits.max_bytes // (1 + overlapping + beside))
        self._opening.append((file, share, self._pool.submit(OpenFile, self._request, file)))

    def _merged(self, parts: list[pa.Table]) -> Iterator[pa.RecordBatch]:
        filled = [part for part in parts if part.num_rows]
        if len(filled) == 1:
            yield self._request.given(filled[0])
            return
        rows = pa.concat_tables(filled, promote_options="permissive").sort_by(self._request.columns.offset)
        count = max(1, rows.num_rows * self._limits.batch_bytes // max(rows.nbytes, 1))
        yield from (self._request.given(rows.slice(start, count)) for start in range(0, rows.num_rows, count))

    def _close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        for source in (*self._active, *self._waiting):
            source.file.close()
        for _, _, opening in self._opening:
            if not opening.cancelled() and opening.exception() is None:
                opening.result().close()


def _threads(limits: ReadLimits) -> int:
    """One for each batch that is made ready, and one to open the next file meanwhile; more would find no work."""
    return min(limits.max_concurrent_reads, limits.prefetch_batches + 1)


class _Plan:
    """The files that are still to be opened, in order."""

    def __init__(self, plan: FilePlan) -> None:
        self._windows = plan.windows()
        self._window: list[PlannedFile] = []
        self._place = 0

    @property
    def next(self) -> PlannedFile | None:
        if self._place >= len(self._window):
            self._window, self._place = next(self._windows, []), 0
        return self._window[self._place] if self._window else None

    def pop(self) -> tuple[PlannedFile, int]:
        """The next file, and how many of those behind it hold offsets between its own."""
        file = self.next
        assert file is not None
        self._place += 1
        overlapping = 0
        for other in self._window[self._place : self._place + _MAX_COUNTED]:
            if other.first_offset > file.last_offset:
                break
            overlapping += 1
        return file, overlapping
