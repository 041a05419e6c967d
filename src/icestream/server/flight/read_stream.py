"""DoGet: messages of a topic, its frames, or the rows of a query, as Arrow batches.

Metadata of a batch of messages: after messages that are missing for good, their number (`lost`), and how many of these
another engine deleted from the table (`removed`); in a filtered stream, the offset where to read on (`next_offset`). A
batch without rows carries only such metadata.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from icestream.model.callers import Caller
from icestream.model.errors import OffsetOutOfRangeError
from icestream.model.messages import end_offset, first_offset
from icestream.model.offsets import StartPosition
from icestream.protocol.read import FramesTicket, QueryTicket, ReadTicket, frame_batch, frame_schema
from icestream.query import QueryEngine
from icestream.reader import Selection, TableTier, TopicReader
from icestream.server.calls import missing_messages
from icestream.server.metrics import BrokerMetrics
from icestream.storage import IcebergStorage, Topic
from icestream.wal import LogReader, check_offset


class ReadStream:
    """Checks the ticket when it is made; reads nothing before the first batch is asked for."""

    def __init__(
        self, storage: IcebergStorage, ticket: ReadTicket, caller: Caller, cancelled: Callable[[], bool]
    ) -> None:
        topic = storage.topic(caller.check_topic(ticket.topic, operation="read"))
        columns, where = ticket.columns, ticket.filter
        start = StartPosition.from_json(ticket.start)
        self._reader = (
            _table_reader(storage, topic, start, columns, where)
            if ticket.committed
            else topic.reader(start, columns, where)
        )
        follow, end = ticket.follow, ticket.end
        self._max_messages = ticket.max_messages
        self._start = self._reader.offset
        self._end = topic.log.durable_end if end is None and not follow else end
        self._batches = topic.read(
            self._reader, end=self._end, follow=follow, max_messages=self._max_messages, cancelled=cancelled
        )
        self._topic = topic
        self._columns = columns
        self.schema = self._selected(self._reader.schema.empty_table()).schema
        self.is_cancelled = cancelled

    def chunks(self, metrics: BrokerMetrics) -> Iterator[Any]:
        """Batches, or batches with metadata."""
        for batch, metadata in self._filtered() if self._reader.is_filtered else self._complete():
            chunk = self._selected(batch)
            yield (chunk, pa.py_buffer(json.dumps(metadata).encode())) if metadata else chunk
            if batch.num_rows:
                metrics.delivered(batch.num_rows, batch.get_total_buffer_size())

    def _complete(self) -> Iterator[tuple[pa.RecordBatch, dict[str, int]]]:
        """Yield batches. If the range ends with lost messages, a last batch without rows counts them."""
        expected, delivered = self._start, 0
        for batch in self._batches:
            lost = first_offset(batch) - expected
            yield batch, self._missing(expected, lost)
            expected += lost + batch.num_rows
            delivered += batch.num_rows
        if self._end is None or delivered == self._max_messages or self.is_cancelled():
            return
        if (lost := min(self._end, self._reader.offset) - expected) > 0:
            yield self._nothing(), self._missing(expected, lost)

    def _missing(self, first: int, count: int) -> dict[str, int]:
        return missing_messages(self._topic, first, first + count) if count > 0 else {}

    def _filtered(self) -> Iterator[tuple[pa.RecordBatch, dict[str, int]]]:
        reached, delivered = self._start, 0
        for batch in self._batches:
            delivered += batch.num_rows
            reached = end_offset(batch) if batch.num_rows else self._reached()
            yield batch, {"next_offset": reached}
        if delivered != self._max_messages and not self.is_cancelled() and reached < self._reached():
            yield self._nothing(), {"next_offset": self._reached()}

    def _reached(self) -> int:
        return self._reader.offset if self._end is None else min(self._end, self._reader.offset)

    def _nothing(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([], self._reader.schema)

    def _selected(self, rows: Any) -> Any:
        return rows if self._columns is None else rows.select(self._columns)


def _table_reader(
    storage: IcebergStorage, topic: Topic, start: StartPosition, columns: list[str] | None, where: str | None
) -> TopicReader:
    """Of what is committed, from the table's own files, though log and memory may have it still."""
    tier = TableTier(topic.find_checked_table, storage.settings.reader)
    selection = Selection.of(topic.stream_schema, columns, where)
    return TopicReader((tier,), topic.start_offset_of(start), selection, place=str(topic.name))


class FrameStream:
    """A topic's frames as the log has them, undecoded: for programs that handle a body that cannot be opened.

    A batch has a row for each frame. The first frame may begin before the range, the last one may end after it. Without
    bodies the rows tell where frames begin and end.
    """

    def __init__(
        self, storage: IcebergStorage, ticket: FramesTicket, caller: Caller, cancelled: Callable[[], bool]
    ) -> None:
        operation = "read frames"
        topic = storage.topic(caller.check_topic(ticket.topic, operation=operation))
        self._log = topic.log
        self._start, self._end = ticket.start, ticket.end
        check_offset(self._log, self._start)
        if not self._start <= self._end <= self._log.durable_end:
            raise OffsetOutOfRangeError(
                f"the range ends at {self._end}, the topic at {self._log.durable_end}",
                operation=operation,
                place=str(topic.name),
            )
        self._bodies = ticket.frames == "whole"
        self._cancelled = cancelled
        self.schema = frame_schema(topic.record.schemas())

    def chunks(self) -> Iterator[pa.RecordBatch]:
        reader = LogReader(self._log, self._start)
        try:
            while reader.offset < self._end and not self._cancelled():
                frames = [frame for frame in reader.read() if frame.base_offset < self._end]
                if not frames:
                    return
                yield frame_batch(frames, self.schema, bodies=self._bodies)
        finally:
            reader.close()


class QueryStream:
    """The rows of a query, made while the client takes them. The query runs from the moment that this is made."""

    def __init__(
        self, queries: QueryEngine, ticket: QueryTicket, caller: Caller, cancelled: Callable[[], bool]
    ) -> None:
        self._query = queries.run(ticket.sql, fresh=ticket.fresh, caller=caller, cancelled=cancelled)
        self.schema: pa.Schema = self._query.schema

    def chunks(self) -> Iterator[pa.RecordBatch]:
        with self._query:
            yield from self._query.batches()
