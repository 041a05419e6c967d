"""A file's rows on their way into the topic, each once.

1. The file is read through and converted once, and nothing is sent: damage, or a value that does not fit, is found here
   and leaves no half of a file behind. Its checksum is taken meanwhile.
2. The rows that the topic has not are sent, numbered by their place in the file, from the first that is missing.

A crash after any batch leaves the beginning of the file in the topic, and the next run goes on behind it. A batch that
was stored though nobody heard of it is sent again under the same number, and the broker knows it. Two runs at the same
time send the same numbers: the broker takes each once, and who comes too late goes on where the other is.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from icestream.client import BatchReceipt, Client, Producer
from icestream.migration import retries
from icestream.migration.fingerprint import Fingerprint
from icestream.migration.journal import Journal
from icestream.migration.mapping import ColumnMap
from icestream.migration.parquet_files import ParquetSource, RowSlice
from icestream.migration.retries import with_retries
from icestream.migration.target import MigrationTarget
from icestream.model.enums import AckLevel
from icestream.model.errors import DamagedError, IcestreamError, InvalidRequestError, SequenceError

_ACK = AckLevel.DISK
_MAX_STUCK = 10
_OPERATION = "migrate"

Advance = Callable[[int], None]


@dataclass
class CheckedFile:
    """What step 1 found out about a file."""

    fingerprint: Fingerprint
    marks: dict[int, str] = field(default_factory=dict)
    """By a number of rows, the checksum of so many rows from the first: tells where a difference lies."""


@dataclass(frozen=True)
class OpenedFile:
    """A file that is open, and how its columns become the topic's."""

    path: str
    file: ParquetSource
    columns: ColumnMap

    @property
    def producer(self) -> str:
        return self.file.identity.producer


class FilePublisher:
    def __init__(self, client: Client, target: MigrationTarget, journal: Journal, batch_rows: int) -> None:
        self._client = client
        self._target = target
        self._journal = journal
        self._batch_rows = batch_rows

    def check(self, job: OpenedFile, advance: Advance) -> CheckedFile:
        """Step 1. Of a file that is in the topic already only the checksum is taken."""
        if self._journal.of(job.producer).end_sequence >= job.file.rows:
            return self._read_through(job, None, advance)
        with self._producer(job) as producer:
            return self._read_through(job, producer, advance)

    def _read_through(self, job: OpenedFile, producer: Producer | None, advance: Advance) -> CheckedFile:
        found = CheckedFile(Fingerprint(self._target.schema))
        for piece in job.file.pieces(job.columns.sources, self._batch_rows):
            rows = _converted(job, piece)
            if producer is not None:
                _prepared(producer, job, piece, rows)
            found.fingerprint.update(rows.columns)
            found.marks[found.fingerprint.rows] = found.fingerprint.digest()
            advance(rows.num_rows)
        if found.fingerprint.rows != job.file.rows:
            raise DamagedError(
                f"it has {found.fingerprint.rows} rows, and says it has {job.file.rows}",
                operation=_OPERATION,
                place=job.path,
            )
        return found

    def publish(self, job: OpenedFile, advance: Advance) -> int:
        """Step 2; how many rows this run has sent."""
        sent = stuck = 0
        reached = -1
        while self._journal.of(job.producer).end_sequence < job.file.rows:
            with self._producer(job) as producer:
                stuck = 0 if producer.next_sequence > reached else stuck + 1
                reached = producer.next_sequence
                sending = _Sending(producer, self._journal, advance)
                try:
                    for piece in job.file.pieces(job.columns.sources, self._batch_rows, reached):
                        sending.send(_prepared(producer, job, piece, _converted(job, piece)))
                    sending.finish()
                except SequenceError:  # another run is ahead with this file
                    if stuck >= _MAX_STUCK:
                        raise
                else:
                    return sent + sending.confirmed
                sent += sending.confirmed
        return sent

    @contextlib.contextmanager
    def _producer(self, job: OpenedFile) -> Iterator[Producer]:
        producer = with_retries(
            lambda: self._client.producer(
                self._target.topic,
                name=job.producer,
                ack=_ACK,
                retry_timeout=retries.RETRY_SECONDS,
                block_timeout=None,
                next_sequence=self._journal.of(job.producer).end_sequence,
                exclusive=False,
            )
        )
        try:
            yield producer
        finally:
            # What is on its way and not confirmed may be stored or not: the next run looks.
            with contextlib.suppress(IcestreamError):
                producer.close(timeout=0)


class _Sending:
    def __init__(self, producer: Producer, journal: Journal, advance: Advance) -> None:
        self.confirmed = 0
        self._producer = producer
        self._journal = journal
        self._advance = advance
        self._next = producer.next_sequence
        self._receipts: deque[BatchReceipt] = deque()

    def send(self, batches: list[pa.RecordBatch]) -> None:
        receipt = self._producer.offer_batch(batches, blocking=True)
        assert receipt is not None
        self._receipts.append(receipt)
        while self._receipts and self._receipts[0].done():
            self._settle()

    def finish(self) -> None:
        while self._receipts:
            self._settle()

    def _settle(self) -> None:
        for offset, count in self._receipts[0].ranges:
            self._journal.note(self._producer.name, self._next, offset, count)
            self._next += count
            self.confirmed += count
            self._advance(count)
        self._receipts.popleft()


def _converted(job: OpenedFile, piece: RowSlice) -> pa.RecordBatch:
    with _placed(job, piece):
        return job.columns.apply(piece.batch)


def _prepared(producer: Producer, job: OpenedFile, piece: RowSlice, rows: pa.RecordBatch) -> list[pa.RecordBatch]:
    with _placed(job, piece):
        return producer.prepare(rows)


@contextlib.contextmanager
def _placed(job: OpenedFile, piece: RowSlice) -> Iterator[None]:
    """Say of which rows of which file something is wrong."""
    try:
        yield
    except InvalidRequestError as error:
        rows = f"rows {piece.row} to {piece.row + piece.batch.num_rows - 1}"
        error.place = f"{job.path}, row group {piece.row_group}, {rows}"
        raise
