"""Data files and their row groups, as sources of rows in offset order.

All of this runs on the threads of a read. A row group's rows come in the order of their offsets: whether they stand so
in the file is looked at before the first is handed out, in the offset column alone where the group is larger than a
batch, and rows that do not are sorted. They come with the table's columns, which Arrow can sort and select all of;
`Request.given` makes the stream's of them.

A row group whose bloom filters exclude a match is not read; one that can have some is first looked through in the
filter's columns alone, and the others are read when a row matches.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from icestream.model.errors import CatalogUnavailableError, DamagedError, IcestreamError, IncompatibleTableError
from icestream.table.bloom_lookup import FileFilters
from icestream.table.catalogs import reason
from icestream.table.expired import expired_or_damaged
from icestream.table.labels import Labels
from icestream.table.manifest_index import PlannedFile
from icestream.table.request import Request
from icestream.table.statistics import column_numbers

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
            return expired_or_damaged(self._request.table, error, "read table", self.planned)
        if isinstance(error, pa.ArrowInvalid) or _UNDECODABLE.match(text):
            return DamagedError(f"a data file cannot be read: {text}", operation="read table", place=place)
        return CatalogUnavailableError(reason(error), operation="read table", place=place)


def _is_ordered(offsets: Any) -> bool:
    """Whether each is larger than the one before."""
    count = len(offsets)
    return count <= 1 or bool(pc.all(pc.less(offsets.slice(0, count - 1), offsets.slice(1))).as_py())
