"""One task: reads a range of offsets as Arrow batches of the DataFrame's columns. Runs in Spark's Python workers."""

import logging
import time
from collections.abc import Iterator

import pyarrow as pa

from icestream.client import Backoff
from icestream.model.errors import IcestreamError
from icestream.spark.columns import FrameRows
from icestream.spark.options import SourceOptions
from icestream.spark.plan import OffsetRange

RETRY_SECONDS = 60.0
"""How long a broker may be unreachable before a task or a query fails."""

_LOG = logging.getLogger(__name__)


class RetryWindow:
    """Waits before another try, longer each time, until nothing has succeeded for `RETRY_SECONDS`."""

    def __init__(self) -> None:
        self._backoff = Backoff()
        self._failing_since: float | None = None

    def succeeded(self) -> None:
        self._backoff.reset()
        self._failing_since = None

    def wait(self, error: IcestreamError) -> None:
        """Raise the error if another try cannot help, or if tries have failed for too long."""
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        if not error.retryable or now - self._failing_since > RETRY_SECONDS:
            raise error
        time.sleep(self._backoff.next())


def read_range(options: SourceOptions, part: OffsetRange, rows: FrameRows) -> Iterator[pa.RecordBatch]:
    """Yield every message of the range once, in order. Raise at the end unless all came or are known to be lost."""
    count = 0
    for batch in _from_table(options, part, rows) if part.from_table else _from_broker(options, part):
        count += batch.num_rows
        yield rows.of(batch)
    if lost := part.end - part.start - count:
        _LOG.warning(
            "messages_lost_by_repair topic=%s count=%d start=%d end=%d", options.topic, lost, part.start, part.end
        )


def _from_broker(options: SourceOptions, part: OffsetRange) -> Iterator[pa.RecordBatch]:
    """Read from the broker. After a broken connection, continue after the last batch that came."""
    retrying = RetryWindow()
    start = part.start
    with options.connect() as client:
        while True:
            reader = client.read_range(options.topic, part.stream_id, start, part.end)
            try:
                for batch in reader.batches():
                    retrying.succeeded()
                    yield batch
            except IcestreamError as error:
                retrying.wait(error)
                start = reader.next_offset
            else:
                return


def _from_table(options: SourceOptions, part: OffsetRange, rows: FrameRows) -> Iterator[pa.RecordBatch]:
    from icestream.spark.history import read_history  # noqa: PLC0415 - loads the Iceberg library, a second

    return read_history(options, part, rows)
