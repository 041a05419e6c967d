"""One topic: its record, its log, and reading over all tiers."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icestream.cloud import ReadPool
from icestream.config import ReaderSettings
from icestream.model.enums import AckLevel, StorageFormat
from icestream.model.errors import (
    ClosedError,
    IcestreamError,
    InvalidMessageError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    TableLostError,
    TooLargeError,
    TopicNotFoundError,
    UnavailableError,
)
from icestream.model.messages import (
    MAX_BATCH_MESSAGES,
    MESSAGE_SCHEMA,
    MESSAGES_SCHEMA_ID,
    PUBLISH_TIME,
    Frame,
    LoneMessage,
    check_and_encode,
    check_message_sizes,
    slice_from,
    stream_batches,
    stream_schema,
)
from icestream.model.names import TopicName, check_producer
from icestream.model.offsets import StartPosition
from icestream.protocol.admin import TopicAttributes, TopicDescription, TopicSummary
from icestream.reader import CloudTier, LogTier, Selection, TableTier, Tail, Tails, Tier, TopicReader, resolve
from icestream.storage.cloud.topic_cloud import TopicCloud
from icestream.storage.record import TopicRecord, topic_schema
from icestream.wal import Log, LogState, Payload, prepare

if TYPE_CHECKING:
    from icestream.model.filters import Filter
    from icestream.table import TopicTable

_MAX_SEQUENCE = 1 << 62
_CANCEL_CHECK_SECONDS = 1.0
_FIRST_EPOCH = 1


@dataclass(frozen=True)
class ReadContext:
    """What the readers of all topics share: settings, the decoded tails, the threads that read objects."""

    settings: ReaderSettings = field(default_factory=ReaderSettings)
    find_table: "Callable[[TopicName], TopicTable | None]" = lambda _: None
    """Returns the table of that name as the catalog has it now; raises if the catalog cannot be reached."""
    format: StorageFormat = StorageFormat.ICEBERG
    """Which tables topics have, and which of them is read first."""
    tails: Tails = field(default_factory=lambda: Tails(ReaderSettings().tail_max_bytes))

    @cached_property
    def cloud_reads(self) -> ReadPool:
        """The threads that read cloud objects; started at first use."""
        return ReadPool(self.settings)

    def close(self) -> None:
        if "cloud_reads" in self.__dict__:
            self.cloud_reads.close()


@dataclass(frozen=True)
class TableProgress:
    """How far a topic's messages have reached a table, as last read from the catalog."""

    offset: int | None = None
    """The table has all messages below it. None until the catalog was read for the first time."""
    snapshot_id: int | None = None
    read_us: int | None = None
    """When the catalog was read."""
    quarantined: int = 0
    """Frames below it that are in quarantine instead of the table."""

    def covers(self, end: int) -> bool:
        """Return whether the table has all messages below `end`."""
        return self.offset is not None and self.offset >= end


class Topic:
    def __init__(
        self,
        record: TopicRecord,
        open_log: Callable[[TopicRecord], Log],
        reading: ReadContext | None = None,
        cloud: TopicCloud | None = None,
        note_in_table: "Callable[[Topic, int], None]" = lambda _topic, _below: None,
    ) -> None:
        self.use(record)
        self.name: TopicName = record.name
        self.committed = TableProgress()
        """Of the first table that the storage format feeds."""
        self.second_table_progress: TableProgress | None = None
        """Of the second table, if the format feeds two."""
        self.table_error: str | None = None
        """Why the table cannot be relied on, as last read from the catalog."""
        self.cloud = cloud
        """The topic's cloud objects, if the settings name an object store."""
        self._reading = reading or ReadContext()
        self._open_log = open_log
        self._note_in_table = note_in_table
        self._opening = threading.Lock()
        self._log: Log | None = None
        self._cloud_tier: CloudTier | None = None
        self._deleted = False

    def use(self, record: TopicRecord) -> None:
        """Use a record, at the beginning or when it has changed."""
        versions = {number: topic_schema(text) for number, text in record.schemas().items()}
        self._schemas = {MESSAGES_SCHEMA_ID: MESSAGE_SCHEMA, **versions}
        self.schema_id = record.schema_id
        self.body_schema = self._schemas[self.schema_id]
        self.stream_schema = stream_schema(self.body_schema)
        self.record = record

    @property
    def log(self) -> Log:
        """The log, opened (and recovered) at first use."""
        log = self._log
        if log is None:
            with self._opening:
                if self._deleted:
                    raise self.gone_error()
                log = self._log
                if log is None:
                    log = self._open_log(self.record)
                    if self.cloud is not None:
                        self.cloud.opened(log, self.record)
                    tail = self._reading.tails.tail(log.cache, self.batches)
                    self._tiers = self._make_tiers(log, tail)
                    self._log = log
        return log

    def _make_tiers(self, log: Log, tail: Tail) -> tuple[Tier, ...]:
        """Return the tiers, the nearest first."""
        tiers: list[Tier] = [LogTier(log, self.batches, tail)]
        cloud = self.cloud
        if cloud is not None:
            pool = self._reading.cloud_reads
            self._cloud_tier = CloudTier(
                cloud.objects, cloud.store, cloud.leases, self.batches, pool, place=str(self.name)
            )
            tiers.append(self._cloud_tier)
        if self.record.has_table:
            tiers.append(TableTier(self.find_table, self._reading.settings))
            tiers.append(TableTier(self.find_other_table, self._reading.settings))
        return tuple(tiers)

    @property
    def opened_log(self) -> Log | None:
        """The log if it is open; None otherwise."""
        return self._log

    def gone_error(self) -> IcestreamError:
        """Return why a call on a closed log failed: the topic was deleted, or the broker is stopping."""
        if self._deleted:
            return TopicNotFoundError("the topic was deleted", place=str(self.name))
        return UnavailableError("the broker is stopping", place=str(self.name), remedy="connect again")

    @property
    def default_ack(self) -> AckLevel:
        return self.record.ack

    def payload(
        self,
        batch: pa.RecordBatch | LoneMessage,
        producer: str,
        sequence: int,
        *,
        max_message_bytes: int,
        max_batch_bytes: int,
    ) -> Payload:
        """Check a published batch and encode it for the log."""
        if not batch.num_rows:
            raise InvalidMessageError("the batch is empty", operation="publish", place=str(self.name))
        if batch.num_rows > MAX_BATCH_MESSAGES:
            raise TooLargeError(
                f"the batch has {batch.num_rows} messages, the limit is {MAX_BATCH_MESSAGES}",
                operation="publish",
                place=str(self.name),
                remedy="send smaller batches",
            )
        schema_id = self.schema_id
        if not isinstance(batch, LoneMessage) and not batch.schema.equals(self.body_schema):
            schema_id = self._version_of(batch.schema)
        encoding, body = check_and_encode(batch, self._schemas[schema_id])
        size = memoryview(body).nbytes
        if size > max_batch_bytes:
            raise TooLargeError(
                f"the batch has {size} bytes, the limit is {max_batch_bytes}",
                operation="publish",
                place=str(self.name),
                remedy="send smaller batches or raise server.max_batch_bytes",
            )
        if size > max_message_bytes:
            check_message_sizes(batch, max_message_bytes)
        if producer:
            check_producer(producer)
        if not 0 <= sequence < _MAX_SEQUENCE:
            raise InvalidRequestError(f"{sequence} is not a sequence number", operation="publish")
        return prepare(
            body,
            message_count=batch.num_rows,
            encoding=encoding,
            schema_id=schema_id,
            producer=producer,
            sequence=sequence,
        )

    def _version_of(self, schema: pa.Schema) -> int:
        """Return the id of the schema version that a producer uses; the newest if it is none of them."""
        if self.record.encoded_schema is not None:
            for number, version in self._schemas.items():
                if number != MESSAGES_SCHEMA_ID and version.equals(schema):
                    return number
        return self.schema_id

    # Reading

    @property
    def earliest_offset(self) -> int:
        """The lowest offset that any tier has. The catalog is read only if log and cloud have been pruned."""
        return self.start_offset_of(StartPosition.earliest())

    def start_offset_of(self, start: StartPosition) -> int:
        """Return the offset that a start position means now; raise if it means none, or a needed catalog fails."""
        log = self.log
        by_snapshot = start.kind in ("snapshot", "tag")
        find = self.find_checked_table if by_snapshot else self.find_fullest_table
        return resolve(start, log, find, str(self.name), self._cloud_tier)

    def reader(
        self, start: StartPosition, columns: Sequence[str] | None = None, where: "Filter | str | None" = None
    ) -> TopicReader:
        """Return a reader with its own position, over all tiers; see `icestream.reader`."""
        selection = Selection.of(self.stream_schema, columns, where)
        offset = self.start_offset_of(start)
        return TopicReader(self._tiers, offset, selection, place=str(self.name), explain=self._why_in_no_tier)

    def find_table(self) -> "TopicTable | None":
        """Return the topic's table as the catalog has it now; None if there is none, or one of an earlier topic."""
        return self._find(self._reading.format.all_tables(self.name)[0])

    def find_other_table(self) -> "TopicTable | None":
        """Return the second table of a topic that moves between formats, or once did."""
        return self._find(self._reading.format.all_tables(self.name)[1])

    def find_fed_tables(self) -> "list[TopicTable | None]":
        """Return the tables that messages are written to, as the catalog has them now."""
        return [self._find(name) for name in self.fed_tables]

    @property
    def fed_tables(self) -> tuple[TopicName, ...]:
        """The names of the tables that messages are written to."""
        return self._reading.format.fed(self.name)

    def find_fullest_table(self) -> "TopicTable | None":
        """Return the table that reaches farther; the second is not read if the first has all that the log lacks.

        Raise `TableLostError` if neither reaches as far as the topic's table once did.
        """
        table = self.find_table()
        committed = table.ledger.committed_offset if table is not None else 0
        if committed >= max(self.log.start_offset, self.in_table_below):
            return table
        other = self.find_other_table()
        if other is not None and other.ledger.committed_offset > committed:
            table, committed = other, other.ledger.committed_offset
        if committed < self.in_table_below:
            raise TableLostError.of(str(self.name), committed, self.in_table_below)
        return table

    def find_checked_table(self) -> "TopicTable | None":
        """Return the topic's table as `find_table` does; raise `TableLostError` if it is lost."""
        table = self.find_table()
        if (table.ledger.committed_offset if table is not None else 0) < self.in_table_below:
            self.find_fullest_table()
        return table

    def count_removed(self, first: int, end: int) -> int:
        """Return how many rows of a range another engine deleted from the table; 0 while the catalog is away."""
        with contextlib.suppress(IcestreamError):
            table = self.find_table()
            return table.removed_ranges.count_in(first, end) if table is not None else 0
        return 0

    @property
    def in_table_below(self) -> int:
        """The offset below which all messages have been in the table; 0 if nothing proves that any were.

        A log gives up only what the table has, so its start proves it. The log of a recovered topic begins where the
        lost one ended instead; the record notes what was known then, and what its log has given up since.
        """
        if not self.record.has_table:
            return 0
        return max(self.record.in_table_below, self.log.start_offset if self.record.epoch == _FIRST_EPOCH else 0)

    def prune_log(self, below: int) -> int:
        """Remove segments below an offset, which the table has; return how many. First note what the log cannot tell.

        After a crash between the two the record claims what is true, and the log is longer than needed.
        """
        if self.record.has_table and self.record.epoch != _FIRST_EPOCH and below > self.record.in_table_below:
            self._note_in_table(self, below)
        return self.log.prune(below)

    def _why_in_no_tier(self, offset: int) -> IcestreamError | None:
        """Return why no tier holds an offset, if the reason is a lost table."""
        try:
            if offset < self.in_table_below:
                self.find_fullest_table()
        except IcestreamError as error:
            return error
        return None

    def _find(self, name: TopicName) -> "TopicTable | None":
        if not self.record.has_table:
            return None
        found = self._reading.find_table(name)
        return found if found is not None and found.ledger.stream_id == self.record.stream_id else None

    @property
    def committed_in_all_tables(self) -> int:
        """Every table that the topic feeds has all messages below it, as last read from the catalog."""
        all_committed = [self.committed, *([] if self.second_table_progress is None else [self.second_table_progress])]
        if len(all_committed) < len(self.fed_tables):
            return 0  # the catalog was not read yet
        return min(one.offset or 0 for one in all_committed)

    @property
    def format(self) -> StorageFormat | None:
        """Which tables messages are written to; None for a topic without any."""
        return self._reading.format if self.record.has_table else None

    @property
    def parquet_offset(self) -> int | None:
        """Plain Parquet files have all messages below it; None if none are written, or the catalog was not read yet."""
        match self.format:
            case StorageFormat.PARQUET:
                return self.committed.offset
            case StorageFormat.BOTH:
                return None if self.second_table_progress is None else self.second_table_progress.offset
        return None

    def batches(self, frames: list[Frame]) -> Iterator[pa.RecordBatch]:
        return stream_batches(frames, self._schemas)

    def read(
        self,
        reader: TopicReader,
        *,
        end: int | None = None,
        follow: bool = False,
        max_messages: int | None = None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the messages from a reader's offset on. The range is checked at the call, not at the first batch.

        With a filter some batches have no rows: nothing matched up to the reader's offset.
        """
        end = self.checked_end(end, follow=follow)
        return self._read(reader, end, follow=follow, max_messages=max_messages, cancelled=cancelled)

    def checked_end(self, end: int | None, *, follow: bool) -> int | None:
        """Return where a read ends; None if it follows for ever. Raise if the topic ends before, and it does not."""
        durable_end = self.log.durable_end
        if follow:
            return end
        if end is None:
            return durable_end
        if not 0 <= end <= durable_end:
            raise OffsetOutOfRangeError(
                f"the range ends at {end}, the topic at {durable_end}",
                operation="read",
                place=str(self.name),
                remedy="leave the end out, or follow",
                details={"start_offset": self.log.start_offset, "durable_end": durable_end},
            )
        return end

    def _read(
        self,
        reader: TopicReader,
        end: int | None,
        *,
        follow: bool,
        max_messages: int | None,
        cancelled: Callable[[], bool],
    ) -> Iterator[pa.RecordBatch]:
        left = max_messages
        try:
            while (end is None or reader.offset < end) and left != 0 and not cancelled():
                batches = reader.read()
                if not batches:
                    if not follow:
                        return
                    reader.wait(_CANCEL_CHECK_SECONDS)
                for number, batch in enumerate(batches, 1):
                    part = batch if end is None else slice_from(batch, 0, end)
                    if left is not None:
                        part = part.slice(0, left)
                        left -= part.num_rows
                    if part.num_rows or (reader.is_filtered and number == len(batches)):
                        yield part
                    if left == 0:  # the rest of this read was not delivered
                        return
        except IcestreamError as error:
            if isinstance(error, ClosedError) or self._deleted:
                raise self.gone_error() from error
            raise
        finally:
            reader.close()

    def describe(self) -> TopicDescription:
        """Return the record and what log and cloud hold. Open the log if it is not open."""
        log = self.log
        return TopicDescription(
            **self._described(self.cloud), start_offset=log.start_offset, durable_end=log.durable_end
        )

    def summarize(self) -> TopicSummary:
        """Return what is known without opening the log; its offsets are None if it is not open."""
        log = self._log
        cloud = self.cloud if self.cloud is not None and self.cloud.objects.is_known else None
        return TopicSummary(
            **self._described(cloud),
            start_offset=log.start_offset if log is not None else None,
            durable_end=log.durable_end if log is not None else None,
        )

    def _described(self, cloud: TopicCloud | None) -> dict[str, Any]:
        record = self.record
        return {
            **{name: getattr(record, name) for name in TopicAttributes.__struct_fields__},
            "topic": record.topic,
            "stream_id": record.stream_id,
            "epoch": record.epoch,
            "created_us": record.created_us,
            "committed_offset": self.committed.offset,
            "format": self.format,
            "parquet_offset": self.parquet_offset,
            "quarantined": self.committed.quarantined,
            "uploaded_offset": cloud.uploaded_end if cloud is not None else None,
            "cloud_start_offset": cloud.objects.first_offset if cloud is not None else None,
        }

    def close(self, *, deleted: bool = False) -> None:
        """Close the log. The log of a deleted topic is not opened again."""
        with self._opening:
            self._deleted |= deleted
            if self._log is not None:
                for tier in self._tiers:
                    tier.close()
                self._log.close()


class TopicSource:
    """A topic as `icestream.subscription.SubscriptionSource`. Its log is opened when a consumer comes."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._known_time: tuple[int, int | None] = (-1, None)

    @property
    def name(self) -> TopicName:
        return self._topic.name

    @property
    def stream_id(self) -> str:
        return self._topic.record.stream_id

    @property
    def stream_schema(self) -> pa.Schema:
        return self._topic.stream_schema

    @property
    def durable_end(self) -> int:
        return self._topic.log.durable_end

    @property
    def listeners(self) -> set[Callable[[], None]]:
        return self._topic.log.listeners

    @property
    def mean_message_bytes(self) -> float:
        log = self._topic.log
        return log.nbytes / max(1, log.durable_end - log.start_offset)

    def start_offset_of(self, position: StartPosition, /) -> int:
        return self._topic.start_offset_of(position)

    def time_at(self, offset: int, /) -> int | None:
        if self._known_time[0] != offset:
            reader = self.reader(offset)
            with contextlib.closing(reader):
                batches = [batch for batch in reader.read(1) if batch.num_rows]
            self._known_time = offset, batches[0].column(PUBLISH_TIME)[0].value if batches else None
        return self._known_time[1]

    def in_memory(self, offset: int, /) -> bool:
        return self._topic.log.cache.holds(offset)

    def reader(self, offset: int, /, *, where: "Filter | None" = None) -> TopicReader:
        return self._topic.reader(StartPosition.offset(offset), where=where)

    def gone_error(self) -> IcestreamError | None:
        try:
            return self._topic.gone_error() if self._topic.log.state is LogState.CLOSED else None
        except IcestreamError as error:
            return error
