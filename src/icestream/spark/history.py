"""Reads history from the table's data files, without the broker. Needs the catalog, the store, the Iceberg library."""

from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa

from icestream.model.errors import IncompatibleTableError
from icestream.spark.columns import FrameRows
from icestream.spark.options import OPERATION, SourceOptions
from icestream.spark.plan import OffsetRange
from icestream.table import Tables


def committed_offset(options: SourceOptions, stream_id: str) -> int:
    """Return the table's committed offset; 0 if the table belongs to an earlier topic of that name."""
    assert options.settings is not None
    with closing(Tables(options.settings)) as tables:
        table = tables.find(options.topic)
    if table is None or table.ledger.stream_id != stream_id:
        return 0
    return table.ledger.committed_offset


def read_history(options: SourceOptions, part: OffsetRange, rows: FrameRows) -> Iterator[pa.RecordBatch]:
    """Yield the range with the columns that are needed. Raise at the end if messages are missing that are not lost."""
    assert options.settings is not None
    with closing(Tables(options.settings)) as tables:
        table = tables.find(options.topic)
        if table is None or table.ledger.stream_id != part.stream_id or table.ledger.committed_offset < part.end:
            raise IncompatibleTableError(
                f"the table no longer holds the offsets up to {part.end} of the stream {part.stream_id}",
                operation=OPERATION,
                place=str(options.topic),
                remedy="run the query again",
            )
        count = 0
        for batch in table.scan(part.start, part.end, rows.stream_columns(table.stream_schema)):
            count += batch.num_rows
            yield batch
        if count < (held := sum(end - first for first, end in table.absent_ranges.gaps(part.start, part.end))):
            raise table.missing_rows_error(
                f"the table has {count} messages from {part.start} to {part.end}, not {held}"
            )
