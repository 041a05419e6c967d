"""Publishes a file's rows to the topic, each once.

1. The file is read and converted once, and nothing is sent. Damage, or a value that does not fit, is found here, so no
   half of a file is published. The checksum is taken meanwhile.
2. The rows that the topic lacks are sent, numbered by their position in the file, from the first that is missing.

A crash after any batch leaves the beginning of the file in the topic; the next run continues after it. A batch that was
stored but not acknowledged is sent again under the same numbers, and the broker recognises it. Two concurrent runs send
the same numbers: the broker takes each once, and the later run continues where the other is.
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
    """The result of step 1."""

    fingerprint: Fingerprint
    marks: dict[int, str] = field(default_factory=dict)
    """Checksums of the first rows, by their number: they tell where a difference lies."""


@dataclass(frozen=True)
class OpenedFile:
    """An open file, and how its columns become the topic's."""

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

    def check(self, opened: OpenedFile, advance: Advance) -> CheckedFile:
        """Do step 1. For a file that is in the topic already, only take the checksum."""
        if self._journal.of(opened.producer).end_sequence >= opened.file.rows:
            return self._read_through(opened, None, advance)
        with self._producer(opened) as producer:
            return self._read_through(opened, producer, advance)

    def _read_through(self, opened: OpenedFile, producer: Producer | None, advance: Advance) -> CheckedFile:
        found = CheckedFile(Fingerprint(self._target.schema))
        for part in opened.file.slices(opened.columns.sources, self._batch_rows):
            rows = _converted(opened, part)
            if producer is not None:
                _prepared(producer, opened, part, rows)
            found.fingerprint.update(rows.columns)
            found.marks[found.fingerprint.rows] = found.fingerprint.digest()
            advance(rows.num_rows)
        if found.fingerprint.rows != opened.file.rows:
            raise DamagedError(
                f"it has {found.fingerprint.rows} rows, and says it has {opened.file.rows}",
                operation=_OPERATION,
                place=opened.path,
            )
        return found

    def publish(self, opened: OpenedFile, advance: Advance) -> int:
        """Do step 2. Return how many rows this run sent."""
        sent = stuck = 0
        reached = -1
        while self._journal.of(opened.producer).end_sequence < opened.file.rows:
            with self._producer(opened) as producer:
                stuck = 0 if producer.next_sequence > reached else stuck + 1
                reached = producer.next_sequence
                sending = _Sending(producer, self._journal, advance)
                try:
                    for part in opened.file.slices(opened.columns.sources, self._batch_rows, reached):
                        sending.send(_prepared(producer, opened, part, _converted(opened, part)))
                    sending.finish()
                except SequenceError:  # another run is ahead with this file
                    if stuck >= _MAX_STUCK:
                        raise
                else:
                    return sent + sending.confirmed
                sent += sending.confirmed
        return sent

    @contextlib.contextmanager
    def _producer(self, opened: OpenedFile) -> Iterator[Producer]:
        producer = with_retries(
            lambda: self._client.producer(
                self._target.topic,
                name=opened.producer,
                ack=_ACK,
                retry_timeout=retries.RETRY_SECONDS,
                block_timeout=None,
                next_sequence=self._journal.of(opened.producer).end_sequence,
                exclusive=False,
            )
        )
        try:
            yield producer
        finally:
            # Unacknowledged batches may be stored or not: the next run asks the topic.
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


def _converted(opened: OpenedFile, part: RowSlice) -> pa.RecordBatch:
    with _placed(opened, part):
        return opened.columns.apply(part.batch)


def _prepared(producer: Producer, opened: OpenedFile, part: RowSlice, rows: pa.RecordBatch) -> list[pa.RecordBatch]:
    with _placed(opened, part):
        return producer.prepare(rows)


@contextlib.contextmanager
def _placed(opened: OpenedFile, part: RowSlice) -> Iterator[None]:
    """Add the file and the rows to an error."""
    try:
        yield
    except InvalidRequestError as error:
        rows = f"rows {part.row} to {part.row + part.batch.num_rows - 1}"
        error.place = f"{opened.path}, row group {part.row_group}, {rows}"
        raise
