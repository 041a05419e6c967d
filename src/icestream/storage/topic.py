"""A topic that is open: its record, its log, and what can be done with the two."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from icestream.model.errors import (
    ClosedError,
    DamagedError,
    IcestreamError,
    InvalidMessageError,
    InvalidRequestError,
    TooLargeError,
    TopicNotFoundError,
    UnavailableError,
)
from icestream.model.frames import MESSAGES_SCHEMA_ID, Frame
from icestream.model.messages import (
    MAX_BATCH_MESSAGES,
    MESSAGE_SCHEMA,
    check_and_encode,
    check_message_sizes,
    conform,
    slice_from,
    stream_batches,
    stream_schema,
)
from icestream.model.names import TopicName, check_producer
from icestream.model.offsets import StartPosition
from icestream.storage.committed import Committed
from icestream.storage.record import AckLevel, TopicRecord, topic_schema
from icestream.wal import Log, LogReader, Payload, check_offset, offset_at_time, prepare

_MAX_SEQUENCE = 1 << 62
_CANCEL_CHECK_SECONDS = 1.0


class Topic:
    def __init__(self, record: TopicRecord, open_log: Callable[[TopicRecord], Log]) -> None:
        self.use(record)
        self.name: TopicName = record.name
        self.committed = Committed()
        self._open_log = open_log
        self._opening = threading.Lock()
        self._log: Log | None = None
        self._deleted = False

    def use(self, record: TopicRecord) -> None:
        """Take a record over, at the beginning or when it has changed."""
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
                    raise self.gone()
                log = self._log
                if log is None:
                    log = self._log = self._open_log(self.record)
        return log

    @property
    def opened_log(self) -> Log | None:
        """The log if it was used already."""
        return self._log

    def gone(self) -> IcestreamError:
        """Why a call on a closed log failed: the topic was deleted, or the broker is stopping."""
        if self._deleted:
            return TopicNotFoundError("the topic was deleted", place=str(self.name))
        return UnavailableError("the broker is stopping", place=str(self.name), remedy="connect again")

    @property
    def default_ack(self) -> AckLevel:
        return AckLevel(self.record.ack)

    def payload(
        self, batch: pa.RecordBatch, producer: str, sequence: int, *, max_message_bytes: int, max_batch_bytes: int
    ) -> Payload:
        """Check a published batch and make it ready for the log."""
        if not batch.num_rows:
            raise InvalidMessageError("the batch is empty", operation="publish", place=str(self.name))
        if batch.num_rows > MAX_BATCH_MESSAGES:
            raise TooLargeError(
                f"the batch has {batch.num_rows} messages, the limit is {MAX_BATCH_MESSAGES}",
                operation="publish",
                place=str(self.name),
                remedy="send smaller batches",
            )
        schema_id = self.schema_id if batch.schema.equals(self.body_schema) else self._version_of(batch.schema)
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
        """The version of the topic's own schema that a producer still uses; the newest where it is none."""
        if self.record.schema is not None:
            for number, version in self._schemas.items():
                if number != MESSAGES_SCHEMA_ID and version.equals(schema):
                    return number
        return self.schema_id

    def start_offset_of(self, start: StartPosition) -> int:
        """The offset that a start position means now."""
        match start.kind:
            case "earliest":
                return self.log.start_offset
            case "latest":
                return self.log.durable_end
            case "timestamp":
                return offset_at_time(self.log, start.value)
        check_offset(self.log, start.value)
        return start.value

    def reader(self, start: StartPosition) -> "TopicReader":
        return TopicReader(self, self.start_offset_of(start))

    def batches(self, frames: list[Frame]) -> Iterator[pa.RecordBatch]:
        return stream_batches(frames, self._schemas)

    def read(
        self,
        reader: "TopicReader",
        *,
        end: int | None = None,
        follow: bool = False,
        max_messages: int | None = None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Iterator[pa.RecordBatch]:
        """The topic's messages from a reader's place on. The range is checked at the call, not at the first batch."""
        if end is None and not follow:
            end = self.log.durable_end
        elif end is not None and not follow:
            check_offset(self.log, end)
        if max_messages is not None:
            end = min(reader.offset + max_messages, end) if end is not None else reader.offset + max_messages
        return self._read(reader, end, follow=follow, cancelled=cancelled)

    def _read(
        self, reader: "TopicReader", end: int | None, *, follow: bool, cancelled: Callable[[], bool]
    ) -> Iterator[pa.RecordBatch]:
        try:
            while (end is None or reader.offset < end) and not cancelled():
                batches = reader.read()
                if not batches:
                    if not follow:
                        return
                    reader.wait(_CANCEL_CHECK_SECONDS)
                    continue
                for batch in batches:
                    part = batch if end is None else slice_from(batch, 0, end)
                    if part.num_rows:
                        yield part
        except (ClosedError, DamagedError) as error:
            if isinstance(error, ClosedError) or self._deleted:
                raise self.gone() from error
            raise
        finally:
            reader.close()

    def describe(self, *, open_log: bool = True) -> dict[str, Any]:
        """The record and the offsets that the log holds, which are None if it is not open and need not be."""
        record, log = self.record, self.log if open_log else self._log
        return {
            "topic": record.topic,
            "stream_id": record.stream_id,
            "epoch": record.epoch,
            "ack": record.ack,
            "created_us": record.created_us,
            "retention_minutes": record.retention_minutes,
            "retention_mb": record.retention_mb,
            "schema": record.schema,
            "partition_by": list(record.partition_by),
            "sort_by": list(record.sort_by),
            "start_offset": log.start_offset if log is not None else None,
            "durable_end": log.durable_end if log is not None else None,
            "committed_offset": self.committed.offset,
        }

    def close(self, *, deleted: bool = False) -> None:
        """Close the log; that of a deleted topic is not opened again."""
        with self._opening:
            self._deleted |= deleted
            if self._log is not None:
                self._log.close()


class TopicReader:
    """A place in a topic, read as Arrow."""

    def __init__(self, topic: Topic, offset: int) -> None:
        self._topic = topic
        self._start = offset
        self._reader = LogReader(topic.log, offset)
        self.schema = topic.stream_schema
        """Of all its batches, whatever columns the topic gains meanwhile."""

    @property
    def offset(self) -> int:
        """The next message's offset."""
        return self._reader.offset

    def read(self) -> list[pa.RecordBatch]:
        """What follows, a bounded piece of it; nothing at the durable end."""
        while frames := self._reader.read():
            batches = [conform(batch, self.schema) for batch in self._topic.batches(frames)]
            if batches:  # none where everything in these frames was given up by a repair
                batches[0] = slice_from(batches[0], self._start)
                return batches
        return []

    def wait(self, timeout: float | None = None) -> bool:
        return self._reader.wait(timeout)

    def close(self) -> None:
        self._reader.close()
