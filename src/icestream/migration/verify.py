"""Reads a file's rows back from the topic, and compares their number, order and values."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from icestream.client import Client
from icestream.migration.fingerprint import Fingerprint
from icestream.migration.journal import PublishedRows
from icestream.migration.parquet_files import PRODUCER_PREFIX
from icestream.migration.publish import CheckedFile
from icestream.migration.target import MigrationTarget
from icestream.model.messages import ENVELOPE_COLUMNS, PRODUCER, SEQUENCE

_FAR = 100_000
"""With more offsets of other producers in a row than this, reading starts again after them."""


@dataclass
class FileToVerify:
    """A file whose rows are in the topic. `problem` says what differs there, if anything."""

    producer: str
    rows: int
    present: PublishedRows
    checked: CheckedFile
    problem: str | None = None


def verify(
    client: Client,
    target: MigrationTarget,
    files: list[FileToVerify],
    *,
    committed: bool,
    advance: Callable[[int], None],
) -> None:
    """Read back all files' rows, from the table if they are committed, and note differences."""
    comparisons = {file.producer: _Comparison(file, target.schema) for file in files}
    prefix = "" if target.is_plain else "_"
    for start, end in _ranges(files):
        with client.consume(
            target.topic,
            start,
            end=end,
            follow=True,  # goes on after a restart of the broker
            where=f"{prefix}producer like '{PRODUCER_PREFIX}%'",
            committed=committed,
        ) as consumer:
            for batch in consumer.batches():
                for producer, rows in _by_producer(batch):
                    if (comparison := comparisons.get(producer)) is not None:
                        comparison.take(rows)
                        advance(rows.num_rows)
    for comparison in comparisons.values():
        comparison.finish()


def _ranges(files: list[FileToVerify]) -> Iterator[tuple[int, int]]:
    """Yield the ranges of offsets to read: those of the files, joined if little lies between them."""
    spans = sorted((file.present.first_offset, file.present.end_offset) for file in files if file.present.rows)
    if not spans:
        return
    start, end = spans[0]
    for first, last in spans[1:]:
        if first > end + _FAR:
            yield start, end
            start = first
        end = max(end, last)
    yield start, end


def _by_producer(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield runs of rows of one producer."""
    runs = pc.run_end_encode(batch.column(PRODUCER))
    bounds = [0, *runs.run_ends.to_pylist()]
    for (first, end), name in zip(pairwise(bounds), runs.values.to_pylist(), strict=True):
        yield name, batch.slice(first, end - first)


class _Comparison:
    def __init__(self, file: FileToVerify, schema: pa.Schema) -> None:
        self._file = file
        self._names = schema.names
        self._found = Fingerprint(schema)
        self._boundaries = iter([*file.checked.marks, None])
        self._next: int | None = next(self._boundaries)

    def take(self, rows: pa.RecordBatch) -> None:
        while rows.num_rows and self._file.problem is None:
            if self._next is None:
                self._file.problem = f"the topic has more than its {self._file.rows} rows"
                return
            part = rows.slice(0, self._next - self._found.rows)
            self._compare(part, self._next)
            rows = rows.slice(part.num_rows)

    def _compare(self, part: pa.RecordBatch, boundary: int) -> None:
        first = self._found.rows
        sequences = part.column(SEQUENCE)
        if not sequences.equals(pa.arange(first, first + part.num_rows)):
            self._file.problem = f"row {first} and those after it are not in order, or not there once"
            return
        self._found.update(part.columns[ENVELOPE_COLUMNS:])
        if self._found.rows == boundary:
            marks = self._file.checked.marks
            if self._found.digest() != marks[boundary]:
                before = max((mark for mark in marks if mark < boundary), default=0)
                self._file.problem = f"rows {before} to {boundary - 1} have other values in the topic"
            self._next = next(self._boundaries)

    def finish(self) -> None:
        file = self._file
        if file.problem is None and self._found.rows != file.rows:
            file.problem = f"the topic has {self._found.rows} of its {file.rows} rows"
        if file.problem is None and self._found.digest() != file.checked.fingerprint.digest():
            file.problem = "the rows have other values in the topic"
