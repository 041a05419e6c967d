"""Log and table side by side, offset by offset.

Both come in offset order, in batches of their own lengths. The range that both have read is compared at once. Where the
log does not reach (it is pruned, or there is none) the table is checked alone.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from icestream.model.messages import OFFSET, conform
from icestream.model.offsets import NO_OFFSETS, OffsetRanges
from icestream.storage.verify.findings import Finding, Kind, Verification
from icestream.storage.verify.logs import LogView

# Differences between rows of the same offsets. Whole columns are compared at once.

_LEAF_ROWS = 16
MAX_DIFFERENCES = 10
"""Shown of one batch."""


def differences(found: pa.RecordBatch, expected: pa.RecordBatch) -> Iterator[tuple[int, str]]:
    """Return row number and column of the first few values that differ in two batches of the same schema."""
    left = MAX_DIFFERENCES
    for name in expected.schema.names:
        for row in _unequal(_exact(found.column(name)), _exact(expected.column(name)), 0):
            yield row, name
            left -= 1
            if not left:
                return


def _exact(column: pa.Array) -> pa.Array:
    """Return floats as their bits, so that NaN equals itself."""
    bits = {pa.float16(): pa.int16(), pa.float32(): pa.int32(), pa.float64(): pa.int64()}
    return column.view(bits[column.type]) if kinds.is_floating(column.type) else column


def _unequal(found: pa.Array, expected: pa.Array, base: int) -> Iterator[int]:
    if found.equals(expected):
        return
    count = len(expected)
    if count > _LEAF_ROWS:
        half = count // 2
        yield from _unequal(found.slice(0, half), expected.slice(0, half), base)
        yield from _unequal(found.slice(half), expected.slice(half), base + half)
        return
    for row in range(count):
        if not _same(found[row], expected[row]):
            yield base + row


def _same(one: pa.Scalar, other: pa.Scalar) -> bool:
    """Whether two values of a type are equal, also where they hold floats that are not numbers."""
    if one.equals(other):
        return True
    if not one.is_valid or not other.is_valid:
        return False
    kind = one.type
    if kinds.is_floating(kind):
        return math.isnan(one.as_py()) and math.isnan(other.as_py())
    if kinds.is_struct(kind):
        return all(_same(one[place], other[place]) for place in range(kind.num_fields))
    if kinds.is_nested(kind):  # lists and maps
        return len(one.values) == len(other.values) and all(
            _same(*pair) for pair in zip(one.values, other.values, strict=True)
        )
    return False


class Side:
    """One of several streams that are read in parallel: in offset order, with its current batch."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self.batch: pa.RecordBatch | None = None
        self.advance()

    def advance(self) -> None:
        self.batch = next((batch for batch in self._batches if batch.num_rows), None)

    @property
    def first(self) -> int:
        assert self.batch is not None
        return int(self.batch.column(OFFSET)[0].as_py())

    @property
    def last(self) -> int:
        assert self.batch is not None
        return int(self.batch.column(OFFSET)[-1].as_py())

    def take(self, through: int) -> pa.RecordBatch:
        """Return and remove the rows of the batch up to an offset."""
        batch = self.batch
        assert batch is not None
        count = batch.num_rows
        if self.last > through:
            count = pc.sum(pc.less_equal(batch.column(OFFSET), through)).as_py()
        if count == batch.num_rows:
            self.advance()
        else:
            self.batch = batch.slice(count)
        return batch.slice(0, count)


_MISSING = "messages that the log holds are not in the table"
_MISSING_ALONE = "offsets are not in the table, and the log no longer reaches there"
_TWICE = "the table has messages more than once"
_BEYOND = "the table holds messages that its ledger does not count"
_BACK = "rows come behind rows with larger offsets: a file's offsets are not as they are described"
_MAX_RUNS = 50

Advance = Callable[[int], None]
"""Called with the offset that was reached."""


@dataclass
class Reconciliation:
    log: LogView | None
    committed: int
    schema: pa.Schema
    report: Verification
    advance: Advance
    lost: OffsetRanges = NO_OFFSETS
    """What the table says that it lacks because a repair of the log has given it up, or because it is in quarantine."""
    aside: OffsetRanges = NO_OFFSETS
    """What of it is in quarantine: the log's frames of these are not looked into."""
    removed: OffsetRanges = NO_OFFSETS
    """What the table says that it lacks because another engine deleted it, and that was accepted."""
    next_offset: int = 0
    """All below it are accounted for."""
    log_offset: int = 0
    """How far the log was read."""

    def run(self, rows: Iterator[pa.RecordBatch]) -> None:
        """Go through the table's rows, and the log to its end."""
        table = Side(rows)
        log = Side(iter(()) if self.log is None else self.log.batches(self.aside))
        while table.batch is not None or log.batch is not None:
            if log.batch is None:
                through = table.last
            elif table.batch is None:
                through = log.last
            else:
                through = min(table.last, log.last)
            found = table.take(through) if table.batch is not None else _none(self.schema)
            expected = log.take(through) if log.batch is not None else None
            self._stretch(found, expected, through)
            self.advance(min(through + 1, self.committed))
        self._end()

    def _stretch(self, found: pa.RecordBatch, expected: pa.RecordBatch | None, through: int) -> None:
        found = self._below_ledger(found)
        begins = self.committed if self.log is None else self.log.start_offset
        alone = _count(found, begins)
        if alone:
            self._alone(found.column(OFFSET).slice(0, alone))
            found = found.slice(alone)
        if expected is None:
            if found.num_rows:  # the log has ended before the table: what it lacks there is lost
                self._alone(found.column(OFFSET))
            return
        self._note_lost(begins, expected)
        waiting = expected.num_rows - _count(expected, self.committed)
        self.report.waiting += waiting
        expected = expected.slice(0, expected.num_rows - waiting)
        if through >= begins:  # all that the table has below the log has gone by
            pruned_end = min(begins, self.committed)
            self._missing_alone(self.next_offset, pruned_end)
            self.next_offset = max(self.next_offset, pruned_end)
        if found.num_rows or expected.num_rows:
            self._compare(found, expected)
        self.next_offset = max(self.next_offset, min(through + 1, self.committed))

    def _below_ledger(self, found: pa.RecordBatch) -> pa.RecordBatch:
        self.report.rows += found.num_rows
        if found.num_rows and found.column(OFFSET)[0].as_py() < self.next_offset - 1:
            self._note("order", _BACK, found.column(OFFSET).slice(0, 1))
        below = _count(found, self.committed)
        if below < found.num_rows:
            self._note("ledger", _BEYOND, found.column(OFFSET).slice(below))
        return found.slice(0, below)

    def _alone(self, offsets: pa.Array) -> None:
        """Offsets that only the table has must count up from the last one."""
        self._duplicates(offsets)
        before = pa.concat_arrays([pa.array([self.next_offset - 1], pa.int64()), offsets.slice(0, len(offsets) - 1)])
        jumps = pc.greater(pc.subtract(offsets, before), 1)
        firsts, ends = pc.add(before.filter(jumps), 1), offsets.filter(jumps)
        for first, end in zip(firsts.to_pylist(), ends.to_pylist(), strict=True):
            self._missing_alone(first, end)
        self.next_offset = max(self.next_offset, offsets[-1].as_py() + 1)

    def _compare(self, found: pa.RecordBatch, expected: pa.RecordBatch) -> None:
        offsets, wanted = found.column(OFFSET), expected.column(OFFSET)
        if not offsets.equals(wanted):
            self._duplicates(offsets)
            self._missing(wanted.filter(pc.invert(pc.is_in(wanted, offsets))))
            places = pc.index_in(offsets, wanted)
            # A row that the log lacks is lost there: the table has it still.
            found = found.filter(places.is_valid())
            expected = expected.take(places.drop_null())
        self._columns(expected)
        for row, column in differences(found, conform(expected, self.schema)):
            offset = found.column(OFFSET)[row].as_py()
            self.report.add(Finding("content", f"column {column!r} is not what was published", offset, offset))
        self.report.compared += found.num_rows

    def _columns(self, expected: pa.RecordBatch) -> None:
        for name in set(expected.schema.names) - set(self.schema.names):
            if expected.column(name).null_count < expected.num_rows:
                self._note("content", f"the table has no column {name!r}", expected.column(OFFSET))

    def _duplicates(self, offsets: pa.Array) -> None:
        if len(offsets) == 0:
            return
        same = pc.equal(offsets.slice(1), offsets.slice(0, len(offsets) - 1))
        repeated = offsets.slice(1).filter(same)
        self._note("duplicate", _TWICE, repeated)
        if self.next_offset and offsets[0].as_py() == self.next_offset - 1:
            self._note("duplicate", _TWICE, offsets.slice(0, 1))

    def _missing_alone(self, first: int, end: int) -> None:
        """Offsets that the table lacks and the log does not reach: what the table itself calls lost is no gap."""
        missing = 0
        for gap_first, gap_end in (self.lost | self.removed).gaps(first, end):
            missing += gap_end - gap_first
            self.report.add(Finding("gap", _MISSING_ALONE, gap_first, gap_end - 1))
        absent = max(0, end - first) - missing
        lost = self.lost.count_in(first, end)
        self.report.lost += lost
        self.report.removed += absent - lost

    def _missing(self, offsets: pa.Array) -> None:
        """Offsets that the log has and the table lacks: what another engine deleted, and was accepted, is no gap."""
        if self.removed:
            gone = [offset for offset in offsets.to_pylist() if self.removed.count_in(offset, offset + 1)]
            self.report.removed += len(gone)
            offsets = offsets.filter(pc.invert(pc.is_in(offsets, pa.array(gone, offsets.type))))
        self._note("gap", _MISSING, offsets)

    def _note(self, kind: Kind, text: str, offsets: pa.Array) -> None:
        """Add a finding for each run of consecutive offsets."""
        if len(offsets) == 0:
            return
        breaks = pc.greater(pc.subtract(offsets.slice(1), offsets.slice(0, len(offsets) - 1)), 1)
        firsts = [offsets[0].as_py(), *offsets.slice(1).filter(breaks).to_pylist()]
        lasts = [*offsets.slice(0, len(offsets) - 1).filter(breaks).to_pylist(), offsets[-1].as_py()]
        for first, last in list(zip(firsts, lasts, strict=True))[:_MAX_RUNS]:
            self.report.add(Finding(kind, text, first, last))

    def _end(self) -> None:
        """What is left up to the ledger is missing, or is lost where the log still reaches."""
        log_end = 0 if self.log is None else min(self.committed, self.log.durable_end)
        begins = self.committed if self.log is None else self.log.start_offset
        if self.next_offset < min(begins, self.committed):
            self._missing_alone(self.next_offset, min(begins, self.committed))
        elif self.next_offset < self.committed and log_end < self.committed:
            self._missing_alone(max(self.next_offset, log_end), self.committed)
        if self.log is not None:
            self.report.lost += max(0, self.log.durable_end - max(self.log_offset, self.log.start_offset))
        self.report.lost = max(0, self.report.lost - self.aside.count)  # the log's side has left them out too

    def _note_lost(self, begins: int, expected: pa.RecordBatch) -> None:
        """The log leaves out lost messages, and nothing else."""
        if expected.num_rows == 0:
            return
        self.report.lost += max(0, expected.column(OFFSET)[0].as_py() - max(self.log_offset, begins))
        self.log_offset = expected.column(OFFSET)[-1].as_py() + 1


def _count(batch: pa.RecordBatch, below: int) -> int:
    """Return how many rows of a batch are below an offset."""
    if batch.num_rows == 0 or batch.column(OFFSET)[0].as_py() >= below:
        return 0
    if batch.column(OFFSET)[-1].as_py() < below:
        return int(batch.num_rows)
    return int(pc.sum(pc.less(batch.column(OFFSET), below)).as_py())


def _none(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
