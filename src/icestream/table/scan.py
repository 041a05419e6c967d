"""Reads a table in offset order, whatever the order of its files and of the rows inside them.

What it guarantees: rows come as batches of the stream's columns, with offsets that never go back, across partitions,
compacted files and files sorted by other columns. A row that stands in the table twice comes twice. Only files and row
groups whose offsets can be in the range, and whose rows can match the filter, are opened. All rows are of one snapshot.
Memory is bounded by `ReadLimits`, whatever the table's size. Overlapping row groups share that memory; a row group
whose rows are not in offset order is held as a whole.

How it works: row groups are the inputs of a merge. A file is opened when the merge reaches its first offset, or ahead
of that. Rows are returned up to the smallest offset to which the open row groups have been read; no row group that
comes later begins before it. The caller's thread makes all decisions. Other threads open files and decode; each row
group is decoded by one thread at a time.

Inside a row group rows come in offset order. If the group is larger than a batch, its offset column is checked first,
and rows that are not in order are sorted. A row group whose bloom filters exclude a match is not read. One that may
have a match is first searched in the filter's columns alone; the other columns are read if a row matches.
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
    InvalidRequestError,
)
from icestream.model.filters import Filter
from icestream.model.units import MIB
from icestream.table.bloom import FileFilters
from icestream.table.catalogs import short_reason
from icestream.table.deleting_snapshots import missing_rows_error
from icestream.table.planning import NO_END, FilePlan, PlannedFile, missing_file_error
from icestream.table.pruning import FileColumnNames, Pruning
from icestream.table.schema import Columns
from icestream.table.statistics import column_numbers

if TYPE_CHECKING:
    from icestream.table.tables import TopicTable

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
    """What a read returns: columns, range of offsets, filter."""

    table: "TopicTable"
    names: tuple[str, ...]
    start: int
    end: int
    where: Filter | None = None
    is_inspection: bool = False
    """Whether the offsets of each row group are read first, instead of trusting Parquet's statistics."""
    with_deleted: bool = False
    """Whether rows are read that delete files name."""

    @cached_property
    def columns(self) -> Columns:
        return Columns.of(self.table.stream_schema)

    @cached_property
    def pruning(self) -> Pruning | None:
        return None if self.where is None else Pruning.of(self.where, self.columns, self.table.iceberg.metadata)

    @cached_property
    def read(self) -> tuple[str, ...]:
        """The stream's columns to read: the offset, the filter's columns, those asked for."""
        wanted = {self.columns.offset, *self.names, *(self.where.columns if self.where else ())}
        return tuple(name for name in self.columns.stream.names if name in wanted)

    @cached_property
    def stored(self) -> tuple[str, ...]:
        """The table's columns for `read`."""
        return self._stored(self.read)

    @cached_property
    def judged(self) -> tuple[str, ...]:
        """The table's columns that decide whether a row matches."""
        return self._stored({self.columns.offset, *(self.where.columns if self.where else ())})

    def _stored(self, names: Collection[str]) -> tuple[str, ...]:
        return tuple(
            part.name
            for column, parts in zip(self.columns.stream, self.columns.stored, strict=True)
            if column.name in names
            for part in parts
        )

    def chosen(self, rows: pa.Table, *, is_inside: bool) -> pa.Table:
        """Return the stored rows of the range that match. `is_inside` says that all are in the range."""
        if not is_inside:
            offset = pc.field(self.columns.offset)
            rows = rows.filter((offset >= self.start) & (offset < self.end))
        if self.where is None or rows.num_rows == 0:
            return rows
        looked_at = [name for name in self.columns.stream.names if name in self.where.columns]
        mask = self.where.mask(one_batch(self.columns.from_table(rows, looked_at)))
        return rows if mask.true_count == len(mask) else rows.filter(mask)

    def given(self, rows: pa.Table) -> pa.RecordBatch:
        """Convert stored rows to the stream's columns that were asked for."""
        return one_batch(self.columns.from_table(rows, self.names))


def one_batch(rows: pa.Table) -> pa.RecordBatch:
    if rows.num_rows == 0:
        return pa.RecordBatch.from_pylist([], rows.schema)
    (batch,) = rows.combine_chunks().to_batches()
    return batch


_BUFFER_BYTES = 1024 * 1024
"""Bytes of a column that are read at once, so that a large row group is not in memory as a whole."""

_MISSING = re.compile("NO_SUCH_KEY|RESOURCE_NOT_FOUND|Path does not exist")
_UNDECODABLE = re.compile(
    "Corrupt|could not verify page integrity|Invalid page header|Unknown encoding type|Number of decoded|"
    "Dictionary page|Column cannot have more than one dictionary|Not yet implemented: only plain dictionary|"
    "Unexpected end of stream|Couldn't deserialize|Deserializing|\\w+Codec failed|ZSTD|Lz4"
)


@dataclass(frozen=True)
class RowGroup:
    """What is known of a row group before its rows are read."""

    path: str
    number: int
    rows: int
    first_offset: int
    last_offset: int
    """The smallest and the largest offset."""
    is_ordered: bool
    """Whether offsets increase from row to row."""
    rows_in_file: int
    is_last: bool


class OpenFile:
    """A data file whose row groups are read. It closes itself when all its row groups are released."""

    def __init__(self, request: ScanRequest, planned: PlannedFile) -> None:
        self.planned = planned
        self._request = request
        if planned.has_deletes:
            raise missing_rows_error(request.table, f"delete files name rows of {planned.path}", by_delete_files=True)
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
        self._names = FileColumnNames(parquet.schema_arrow, self._request.table.iceberg.schema())
        offset = self._names.in_file(self._request.columns.offset)
        if offset is None:
            raise DamagedError(
                f"the file has no column {self._request.columns.offset!r}",
                operation="read table",
                place=self.planned.path,
            )
        self._offset = offset
        self.inspected: list[RowGroup] = []
        self._columns = [old for name in self._request.stored if (old := self._names.in_file(name)) is not None]
        found = (self._row_group(number) for number in self._probed(range(self._metadata.num_row_groups)))
        self.row_groups = [group for group in found if group is not None]
        self._unreleased = len(self.row_groups)

    def close(self) -> None:
        self._input.close()

    def release(self) -> None:
        """Report that a row group is read to its end."""
        self._unreleased -= 1
        if self._unreleased <= 0:
            self.close()

    def nbytes(self, group: RowGroup) -> int:
        """Return about the bytes in memory of the columns that are read."""
        metadata = self._metadata.row_group(group.number)
        chunks = (metadata.column(number) for number in range(metadata.num_columns))
        wanted = set(self._columns)
        return sum(chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema.split(".")[0] in wanted)

    def rows(self, group: RowGroup, batch_bytes: int) -> Iterator[pa.Table]:
        """Yield the matching rows of a row group in offset order, about `batch_bytes` at a time."""
        with self._reading():
            rows = max(1, min(group.rows, group.rows * batch_bytes // max(self.nbytes(group), 1)))
            if self._searches_first and not any(part.num_rows for part in self._chosen(group, rows, self._judged)):
                return
            is_ordered = group.is_ordered or (rows < group.rows and _is_ordered(self._offsets(group.number)))
            is_whole = not is_ordered and self._request.where is None
            chosen = self._chosen(group, group.rows if is_whole else rows, self._columns)
            for table in chosen if is_ordered else self._sorted(chosen):
                yield from (table.slice(start, rows) for start in range(0, table.num_rows, rows))

    def _chosen(self, group: RowGroup, rows: int, columns: list[str]) -> Iterator[pa.Table]:
        """Yield the matching ones of each `rows` rows of a row group, in the file's order."""
        is_inside = self._is_inside(group)
        count = 0
        for part in self._parquet().iter_batches(rows, [group.number], columns, use_threads=False):
            count += part.num_rows
            yield self._request.chosen(pa.Table.from_batches([self._names.renamed(part)]), is_inside=is_inside)
        self._check_complete(group.number, count)

    def _check_complete(self, number: int, count: int) -> None:
        """Raise unless a row group gave all its rows: Arrow skips a page whose damaged header names another type."""
        expected = self._metadata.row_group(number).num_rows
        if count != expected:
            raise DamagedError(
                f"a data file is damaged: row group {number} gives {count} of its {expected} rows",
                operation="read table",
                place=self.planned.path,
            )

    def _sorted(self, parts: Iterator[pa.Table]) -> Iterator[pa.Table]:
        offset = self._request.columns.offset
        rows = pa.concat_tables(list(parts))
        yield rows if _is_ordered(rows[offset]) else rows.sort_by(offset)

    @cached_property
    def _judged(self) -> list[str]:
        """The file's columns that decide whether a row matches."""
        return [old for name in self._request.judged if (old := self._names.in_file(name)) is not None]

    @property
    def _searches_first(self) -> bool:
        """Whether to look for a match before all columns are read: fewer columns suffice to find none."""
        return self._request.where is not None and len(self._judged) < len(self._columns)

    def _probed(self, groups: Sequence[int]) -> Sequence[int]:
        """Return the row groups that bloom filters do not exclude. They come first: bounds take longer to judge."""
        pruning = self._request.pruning
        if pruning is None or self._request.is_inspection:
            return groups
        filters = FileFilters(self._metadata, self._numbers, groups, self._read_at)

        def may_match(group: int) -> bool:
            def may_hold(name: str, value: object) -> bool:
                column = self._names.in_file(name)
                return column is None or filters.may_hold(group, column, value)

            return pruning.values_may_match(may_hold)

        return [group for group in groups if may_match(group)]

    def _read_at(self, position: int, nbytes: int) -> bytes:
        return bytes(self._input.read_at(nbytes, position))

    def _is_inside(self, group: RowGroup) -> bool:
        return group.first_offset >= self._request.start and group.last_offset < self._request.end

    def _row_group(self, number: int) -> RowGroup | None:
        """Return a row group; None if it cannot hold rows that match."""
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
            metadata, self._names, self._numbers
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
        offsets = self._parquet().read_row_group(number, columns=[self._offset], use_threads=False).column(0)
        self._check_complete(number, len(offsets))
        return offsets

    def _parquet(self) -> pq.ParquetFile:
        """Return a reader for one row group. A reader is for one thread; threads share the file below it."""
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
        """Return our error: the file is missing, damaged or unreachable. Mostly only Arrow's text tells which."""
        text, place = str(error), self.planned.path
        if isinstance(error, FileNotFoundError) or _MISSING.search(text):
            return missing_file_error(self._request.table, error, "read table", self.planned)
        if isinstance(error, pa.ArrowInvalid) or _UNDECODABLE.match(text):
            return DamagedError(f"a data file is damaged: {text}", operation="read table", place=place)
        return CatalogUnavailableError(short_reason(error), operation="read table", place=place)


def _is_ordered(offsets: Any) -> bool:
    """Return whether each offset is larger than the one before."""
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
    with_deleted: bool = False,
) -> Generator[pa.RecordBatch, None, None]:
    """Yield the rows with `start <= offset < end` that match `where`, with all or some of the stream's columns.

    `on_row_group` is called for each row group that is opened; those of a file follow each other. Rows that delete
    files name are an error, unless they are asked for.
    """
    stream = table.stream_schema
    names = tuple(stream.names if columns is None else columns)
    if unknown := sorted(set(names) - set(stream.names)):
        raise InvalidRequestError(f"the topic has no columns {', '.join(unknown)}", operation="read table")
    if where is not None:
        where.check(stream)
    inspects = on_row_group is not None
    request = ScanRequest(table, names, start, end, where, is_inspection=inspects, with_deleted=with_deleted)
    return _Scan(request, limits, on_row_group).batches()


@dataclass(order=True)
class _MergeInput:
    """A row group as an input of the merge: rows in `buffer` are decoded, the next ones may be in progress."""

    first: int
    path: str
    number: int
    file: OpenFile = field(compare=False)
    decoded: Iterator[pa.Table] = field(compare=False)
    cost_bytes: int = field(compare=False)
    """About the bytes in memory of its next batch."""
    column: str = field(compare=False)
    buffer: pa.Table | None = field(default=None, compare=False)
    coming: "Future[pa.Table | None] | None" = field(default=None, compare=False)
    is_read: bool = field(default=False, compare=False)

    def ask(self, pool: ThreadPoolExecutor) -> None:
        if self.coming is None and not self.is_read:
            self.coming = pool.submit(next, self.decoded, None)

    def fill(self, pool: ThreadPoolExecutor) -> bool:
        """Fill the buffer if it is empty; return False at the end of the row group."""
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
        """Take the buffered rows up to an offset."""
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
        plan = FilePlan(request.table, request.start, request.end, request.pruning, with_deleted=request.with_deleted)
        self._plan = _FileQueue(plan)
        self._opening: deque[tuple[PlannedFile, int, Future[OpenFile]]] = deque()
        self._waiting: list[_MergeInput] = []
        self._active: list[_MergeInput] = []

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
        """Return the earliest offset at which the next input can begin."""
        ahead = self._opening[0][0] if self._opening else self._plan.next
        starts = [ahead.first_offset] if ahead is not None else []
        return min([*starts, *(source.first for source in self._waiting[:1])], default=None)

    def _admit(self, begins: int) -> None:
        """Open the next file, or let the next waiting row group into the merge."""
        if not self._opening and self._plan.next is not None and self._plan.next.first_offset <= begins:
            self._open_next()
        if self._opening and self._opening[0][0].first_offset <= begins:
            _, share, opening = self._opening.popleft()
            file = opening.result()
            if self._on_row_group is not None:
                for group in file.inspected:
                    self._on_row_group(group)
            for source in self._inputs(file, share):
                insort(self._waiting, source)
            return
        source = self._waiting.pop(0)
        if source.fill(self._pool):
            self._active.append(source)

    def _inputs(self, file: OpenFile, share: int) -> Iterator[_MergeInput]:
        request = self._request
        batch_bytes = min(self._limits.batch_bytes, share)
        for group in file.row_groups:
            # Rows in another order must be sorted as a whole.
            cost = file.nbytes(group) if request.table.sort_by else min(batch_bytes, file.nbytes(group))
            first, decoded = max(group.first_offset, request.start), file.rows(group, batch_bytes)
            yield _MergeInput(first, group.path, group.number, file, decoded, cost, request.columns.offset)
        if not file.row_groups:
            file.close()

    def _read_ahead(self) -> None:
        """Start to decode the next batches and to open the next files, in the order of need, within the limits."""
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
        others = sum(source.path != file.path for source in self._active)
        share = max(_MIN_SHARE_BYTES, self._limits.max_bytes // (1 + overlapping + others))
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
    """Return one thread for each batch that is decoded ahead, and one that opens the next file."""
    return min(limits.max_concurrent_reads, limits.prefetch_batches + 1)


class _FileQueue:
    """The files that are not opened yet, in order."""

    def __init__(self, plan: FilePlan) -> None:
        self._windows = plan.windows()
        self._window: list[PlannedFile] = []
        self._index = 0

    @property
    def next(self) -> PlannedFile | None:
        if self._index >= len(self._window):
            self._window, self._index = next(self._windows, []), 0
        return self._window[self._index] if self._window else None

    def pop(self) -> tuple[PlannedFile, int]:
        """Take the next file, and count the following files that overlap with it."""
        file = self.next
        assert file is not None
        self._index += 1
        overlapping = 0
        for other in self._window[self._index : self._index + _MAX_COUNTED]:
            if other.first_offset > file.last_offset:
                break
            overlapping += 1
        return file, overlapping
