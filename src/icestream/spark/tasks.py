"""One task: a range of offsets becomes Arrow batches of the DataFrame's columns. Runs in Spark's Python workers."""

import logging
import time
from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa

from icestream.client.connection import Backoff
from icestream.model.errors import DamagedError, IcestreamError, IncompatibleTableError
from icestream.spark.columns import FrameRows
from icestream.spark.options import OPERATION, SourceOptions
from icestream.spark.plan import OffsetRange
from icestream.table import Tables

PATIENCE_SECONDS = 60.0
"""How long a broker may be away before a task or a query fails."""

_LOG = logging.getLogger(__name__)


class RetryWindow:
    """Waits before another try, longer each time, until nothing has succeeded for `PATIENCE_SECONDS`."""

    def __init__(self) -> None:
        self._backoff = Backoff()
        self._failing_since: float | None = None

    def succeeded(self) -> None:
        self._backoff.reset()
        self._failing_since = None

    def wait(self, error: IcestreamError) -> None:
        """Raise the error instead where another try would not help, or not any more."""
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        if not error.retryable or now - self._failing_since > PATIENCE_SECONDS:
            raise error
        time.sleep(self._backoff.next())


def read_range(options: SourceOptions, part: OffsetRange, rows: FrameRows) -> Iterator[pa.RecordBatch]:
    """Every message of the range once and in order; it ends with an error unless all came, or are known to be lost."""
    count = 0
    for batch in _from_table(options, part, rows) if part.from_table else _from_broker(options, part):
        count += batch.num_rows
        yield rows.of(batch)
    if lost := part.end - part.start - count:
        _LOG.warning(
            "%s: %d messages from %d to %d are lost, given up by a repair", options.topic, lost, part.start, part.end
        )


def _from_broker(options: SourceOptions, part: OffsetRange) -> Iterator[pa.RecordBatch]:
    """A broken connection is taken up again behind the last batch that came."""
    patience = RetryWindow()
    start = part.start
    with options.connect() as client:
        while True:
            reader = client.read_range(options.topic, part.stream_id, start, part.end)
            try:
                for batch in reader.batches():
                    patience.succeeded()
                    yield batch
            except IcestreamError as error:
                patience.wait(error)
                start = reader.next_offset
            else:
                return


def _from_table(options: SourceOptions, part: OffsetRange, rows: FrameRows) -> Iterator[pa.RecordBatch]:

    return read_history(options, part, rows)


# --------------------
# History from the table's data files, past the broker. Needs the catalog, the store, and the Iceberg library.


def committed_offset(options: SourceOptions, stream_id: str) -> int:
    """How far the table goes; a table that an earlier topic of the name has left does not count."""
    assert options.settings is not None
    with closing(Tables(options.settings)) as tables:
        table = tables.find(options.topic)
    if table is None or table.ledger.stream_id != stream_id:
        return 0
    return table.ledger.committed_offset


def read_history(options: SourceOptions, part: OffsetRange, rows: FrameRows) -> Iterator[pa.RecordBatch]:
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
        if count < (held := sum(end - first for first, end in table.lost_ranges.gaps(part.start, part.end))):
            raise DamagedError(
                f"the table gave {count} messages from {part.start} to {part.end}, and should hold {held}",
                operation=OPERATION,
                place=str(options.topic),
            )
