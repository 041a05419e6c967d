"""The table as a tier: everything below its committed offset, read in offset order.

A read is one scan of one snapshot of the table. It ends where a nearer tier begins, or at the committed offset of that
snapshot. If the snapshot's files are removed while they are read, the current snapshot is planned from the offset that
was reached.
"""

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from itertools import pairwise
from time import monotonic
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from icestream.config import ReaderSettings
from icestream.model.errors import DamagedError, SnapshotExpiredError
from icestream.model.messages import OFFSET, conform
from icestream.reader.tiers import MovedError, Selection

if TYPE_CHECKING:
    from icestream.table import TopicTable

_FILTERED_MESSAGES = 1_000_000
"""The limit of one filtered read: it cannot be interrupted, and is repeated if the table changes."""
FindTable = Callable[[], "TopicTable | None"]


class TableTier:
    """`find` returns the table as the catalog has it now; None if there is none, or one of another stream.

    With `follow` it is called at most once in `reader.poll_interval_ms`, for readers that wait for new snapshots; else
    at the beginning of every read.
    """

    def __init__(self, find: FindTable, settings: ReaderSettings, *, follow: bool = False) -> None:
        self._find = find
        self._settings = settings
        self._interval_seconds = settings.poll_interval_ms / 1000 if follow else 0.0
        self._closed = threading.Event()
        self._known: TopicTable | None = None
        self._look_at = 0.0

    def next_start(self, offset: int) -> None:
        """Return None: the only farther tier is another table, which begins at 0 too."""

    def begin(self, offset: int, nearer: int | None, selection: Selection) -> "TableTierRead | None":
        table = self.look(offset)
        if table is None:
            return None
        end = table.ledger.committed_offset
        if nearer is not None:
            end = min(end, nearer)
        if end <= offset:
            return None
        if selection.where is not None:
            end = min(end, offset + _FILTERED_MESSAGES)
        return TableTierRead(self, table, offset, end, selection)

    def wait(self, offset: int, timeout: float | None) -> bool:
        """Poll the table; raise as `find` does. Return False at the time-out, and when the tier is closed."""
        deadline = None if timeout is None else monotonic() + timeout
        while not self._closed.is_set():
            table = self.look(offset)
            if table is not None and table.ledger.committed_offset > offset:
                return True
            now = monotonic()
            if deadline is not None and now >= deadline:
                return False
            pause = max(self._look_at - now, 0.0)
            self._closed.wait(pause if deadline is None else min(pause, deadline - now))
        return False

    def close(self) -> None:
        self._closed.set()
        self._known = None

    def scan(
        self, table: "TopicTable", start: int, end: int, selection: Selection
    ) -> Generator[pa.RecordBatch, None, None]:
        """Scan the selected rows. The table selects columns and rows itself, as far as its schema has the columns."""
        from icestream.table import ReadLimits  # noqa: PLC0415 - only readers of tables load the Iceberg library

        limits = ReadLimits.of(self._settings)
        names, where = set(table.stream_schema.names), selection.where
        columns: list[str] | None = [name for name in selection.schema.names if name in names]
        if where is not None and not where.columns <= names:
            columns = where = None  # the table does not have that column yet: filter here
        with closing(table.scan(start, end, columns, where=where, limits=limits)) as batches:
            for batch in batches:
                found = selection.apply(batch) if columns is None else conform(batch, selection.schema)
                if found.num_rows:
                    yield found

    def forget(self) -> None:
        """Read the catalog again before the next read: the known snapshot was removed."""
        self._known, self._look_at = None, 0.0

    def look(self, offset: int = -1) -> "TopicTable | None":
        """Return the table, read from the catalog unless that was just done or the known snapshot holds the offset."""
        known = self._known
        if known is not None and known.ledger.committed_offset > offset:
            return known
        if monotonic() >= self._look_at:
            known = self._find()
            self._known = known if self._interval_seconds else None
            self._look_at = monotonic() + self._interval_seconds
        return known


class TableTierRead:
    """One scan. A missing row is an error, unless the table says why it is absent or a filter leaves it out."""

    def __init__(self, tier: TableTier, table: "TopicTable", start: int, end: int, selection: Selection) -> None:
        self._tier = tier
        self._table = table
        self._end = end
        self._is_filtered = selection.where is not None
        self._batches = tier.scan(table, start, end, selection)
        self._pending: deque[pa.RecordBatch] = deque()
        self._expected = start
        self.offset = start

    def read(self, max_bytes: int) -> list[pa.RecordBatch] | None:
        if not self._pending:
            try:
                batch = next(self._batches, None)
            except SnapshotExpiredError as error:
                self._tier.forget()
                raise MovedError from error
            if batch is None:
                self._account_for(self._end)
                self.offset = self._end
                return None
            self._take(batch)
        part = _first_part(self._pending[0], max_bytes)
        rest = self._pending.popleft().slice(part.num_rows)
        if rest.num_rows:
            self._pending.appendleft(rest)
        self.offset = part.column(OFFSET)[-1].as_py() + 1
        return [part]

    def close(self) -> None:
        self._pending.clear()
        self._batches.close()

    def _take(self, batch: pa.RecordBatch) -> None:
        for part in [batch] if self._is_filtered else _without_gaps(batch):
            self._account_for(part.column(OFFSET)[0].as_py())
            self._expected = part.column(OFFSET)[-1].as_py() + 1
            self._pending.append(part)

    def _account_for(self, offset: int) -> None:
        """Raise unless this may be the next offset."""
        if offset < self._expected:
            raise self._damaged(f"the table has offset {offset} after {self._expected - 1}")
        if offset > self._expected and not self._is_filtered:
            for first, end in self._table.absent_ranges.gaps(self._expected, offset):
                what = f"the table has no offset {first}" + (f" to {end - 1}" if end - first > 1 else "")
                raise self._table.missing_rows_error(what)

    def _damaged(self, what: str) -> DamagedError:
        return DamagedError(
            what, operation="read table", place=str(self._table.name), remedy="run `icestream verify` on the topic"
        )


def _first_part(batch: pa.RecordBatch, max_bytes: int) -> pa.RecordBatch:
    """Return the first rows, about `max_bytes`, at least one row."""
    nbytes = batch.nbytes
    if nbytes <= max_bytes:
        return batch
    return batch.slice(0, max(1, batch.num_rows * max_bytes // nbytes))


def _without_gaps(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split a batch where offsets are missing; more than one part only where a repair gave messages up."""
    offsets, count = batch.column(OFFSET), batch.num_rows
    if offsets[-1].as_py() - offsets[0].as_py() == count - 1:
        yield batch
        return
    steps = pc.not_equal(pc.subtract(offsets.slice(1), offsets.slice(0, count - 1)), 1)
    bounds = [0, *(index + 1 for index in pc.indices_nonzero(steps).to_pylist()), count]
    for start, end in pairwise(bounds):
        yield batch.slice(start, end - start)
