"""Data files and their row groups, as sources of rows in offset order.

All of this runs on the threads of a read. A row group's rows come in the order of their offsets: whether they stand so
in the file is looked at before the first is handed out, in the offset column alone where the group is larger than a
batch, and rows that do not are sorted. They come with the table's columns, which Arrow can sort and select all of;
`given` makes the stream's of them.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from icestream.model.errors import CatalogUnavailableError, DamagedError, IcestreamError, IncompatibleTableError
from icestream.model.filters import Filter
from icestream.table.catalogs import reason
from icestream.table.expired import expired_or_damaged
from icestream.table.labels import Labels
from icestream.table.manifest_index import PlannedFile
from icestream.table.pruning import Pruning
from icestream.table.schema import Columns

if TYPE_CHECKING:
    from icestream.table.topic_table import TopicTable

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


@dataclass(frozen=True)
class Request:
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
        return tuple(
            part.name
            for column, parts in zip(self.columns.stream, self.columns.stored, strict=True)
            if column.name in self.read
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


class OpenFile:
    """A data file of which row groups are being read. It is closed when the last source was released."""

    def __init__(self, request: Request, planned: PlannedFile) -> None:
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
            self._input = request.table.iceberg.io.new_input(planned.path).open()
            try:
                self._open()
            except BaseException:
                self.close()
                raise

    def _open(self) -> None:
        parquet = pq.ParquetFile(self._input, pre_buffer=False, page_checksum_verification=True)
        self._metadata = parquet.metadata
        self._labels = Labels(parquet.schema_arrow, self._request.table.iceberg.schema())
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
        self.row_groups = [
            found for number in range(self._metadata.num_row_groups) if (found := self._row_group(number)) is not None
        ]
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
            is_ordered = group.is_ordered or (rows < group.rows and _is_ordered(self._offsets(group.number)))
            parts = self._parquet().iter_batches(
                rows if is_ordered else group.rows, [group.number], self._columns, use_threads=False
            )
            stored = (pa.Table.from_batches([self._labels.apply(part)]) for part in parts)
            for table in stored if is_ordered else self._sorted(stored):
                chosen = self._request.chosen(table, is_inside=self._is_inside(group))
                yield from (chosen.slice(start, rows) for start in range(0, chosen.num_rows, rows))

    def _sorted(self, parts: Iterator[pa.Table]) -> Iterator[pa.Table]:
        offset = self._request.columns.offset
        rows = pa.concat_tables(list(parts))
        yield rows if _is_ordered(rows[offset]) else rows.sort_by(offset)

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
        if request.pruning is not None and not request.pruning.row_group_may_match(metadata, self._labels):
            return None
        return group if self._meets(*bounds) else None

    def _meets(self, first: int, last: int) -> bool:
        return last >= self._request.start and first < self._request.end

    def _noted_bounds(self, group: pq.RowGroupMetaData) -> tuple[int, int] | None:
        for chunk in (group.column(number) for number in range(group.num_columns)):
            if chunk.path_in_schema == self._offset and chunk.is_stats_set and chunk.statistics.has_min_max:
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
            return expired_or_damaged(self._request.table, error, "read table", self.planned)
        if isinstance(error, pa.ArrowInvalid) or _UNDECODABLE.match(text):
            return DamagedError(f"a data file cannot be read: {text}", operation="read table", place=place)
        return CatalogUnavailableError(reason(error), operation="read table", place=place)


def _is_ordered(offsets: Any) -> bool:
    """Whether each is larger than the one before."""
    count = len(offsets)
    return count <= 1 or bool(pc.all(pc.less(offsets.slice(0, count - 1), offsets.slice(1))).as_py())


def one_batch(rows: pa.Table) -> pa.RecordBatch:
    if rows.num_rows == 0:
        return pa.RecordBatch.from_pylist([], rows.schema)
    (batch,) = rows.combine_chunks().to_batches()
    return batch
