"""What a read of a table is to give: which columns, offsets and rows, and what has to be read for that."""

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from icestream.model.filters import Filter
from icestream.table.pruning import Pruning
from icestream.table.schema import Columns

if TYPE_CHECKING:
    from icestream.table.topic_table import TopicTable


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
