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

from bisect import insort
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from icestream.model.errors import InvalidRequestError
from icestream.model.filters import Filter
from icestream.table.limits import ReadLimits
from icestream.table.manifest_index import NO_END, PlannedFile
from icestream.table.planning import FilePlan
from icestream.table.request import Request
from icestream.table.sources import OpenFile, RowGroup

if TYPE_CHECKING:
    from icestream.table.topic_table import TopicTable

__all__ = ["NO_END", "OnRowGroup", "RowGroup", "ordered_scan"]

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
    request = Request(table, names, start, end, where, is_inspection=on_row_group is not None)
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
    def __init__(self, request: Request, limits: ReadLimits, on_row_group: OnRowGroup | None) -> None:
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
