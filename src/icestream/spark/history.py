"""History from the table's data files, past the broker. Needs the catalog, the store, and the Iceberg library."""

from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa

from icestream.model.errors import DamagedError, IncompatibleTableError
from icestream.spark.columns import FrameRows
from icestream.spark.options import OPERATION, Options
from icestream.spark.plan import OffsetRange
from icestream.table import Tables


def committed_offset(options: Options, stream_id: str) -> int:
    """How far the table goes; a table that an earlier topic of the name has left does not count."""
    assert options.settings is not None
    with closing(Tables(options.settings)) as tables:
        table = tables.find(options.topic)
    if table is None or table.ledger.stream_id != stream_id:
        return 0
    return table.ledger.committed_offset


def read_history(options: Options, part: OffsetRange, rows: FrameRows) -> Iterator[pa.RecordBatch]:
    """The range, without columns that are not needed. Raises at the end if messages are missing that are not lost."""
    assert options.settings is not None
    with closing(Tables(options.settings)) as tables:
        table = tables.find(options.topic)
        if table is None or table.ledger.stream_id != part.stream_id or table.ledger.committed_offset < part.end:
            raise IncompatibleTableError(
                f"the table does not hold the offsets to {part.end} of the stream {part.stream_id} any more",
                operation=OPERATION,
                place=str(options.topic),
                remedy="run the query again",
            )
        count = 0
        for batch in table.scan(part.start, part.end, rows.stream_columns(table.stream_schema)):
            count += batch.num_rows
            yield batch
        if count < (held := sum(end - first for first, end in table.lost_ranges.others(part.start, part.end))):
            raise DamagedError(
                f"the table gave {count} messages from {part.start} to {part.end}, and should hold {held}",
                operation=OPERATION,
                place=str(options.topic),
            )
