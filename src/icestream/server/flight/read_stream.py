"""DoGet: a range of a topic, or all that comes, as Arrow batches, with what a reader has to know besides.

A batch that comes after messages given up by a repair says how many these were (`lost`). In a filtered stream messages
are missing on purpose: there every batch says where to read on (`next_offset`), and one without rows says just that.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from icestream.model.callers import Caller
from icestream.model.errors import InvalidRequestError, OffsetOutOfRangeError
from icestream.model.offsets import StartPosition
from icestream.protocol.read import frame_batch, frame_schema
from icestream.query import QueryEngine
from icestream.reader import Selection, TableTier, TopicReader
from icestream.server.metrics import BrokerMetrics
from icestream.server.requests import parse_object, take
from icestream.storage import IcebergStorage, Topic
from icestream.wal import LogReader, check_offset

_OPERATION = "read"
_TICKET_FIELDS = frozenset({"topic", "start", "end", "follow", "max_messages", "columns", "filter", "committed"})


class ReadStream:
    """Checked when it is made; nothing is read before the first chunk is asked for."""

    def __init__(self, storage: IcebergStorage, ticket: bytes, caller: Caller, cancelled: Callable[[], bool]) -> None:
        fields = parse_object(ticket, operation=_OPERATION, allowed=_TICKET_FIELDS)
        name = take(fields, "topic", str, operation=_OPERATION, required=True)
        topic = storage.topic(caller.check_topic(name, operation=_OPERATION))
        columns = take(fields, "columns", list, operation=_OPERATION)
        if columns is not None and not all(isinstance(name, str) for name in columns):
            raise InvalidRequestError("columns must be a list of names", operation=_OPERATION)
        where = take(fields, "filter", str, operation=_OPERATION)
        start = StartPosition.from_json(fields.get("start"))
        committed = take(fields, "committed", bool, operation=_OPERATION, default=False)
        self._reader = (
            _table_reader(storage, topic, start, columns, where) if committed else topic.reader(start, columns, where)
        )
        follow = take(fields, "follow", bool, operation=_OPERATION, default=False)
        end = take(fields, "end", int, operation=_OPERATION)
        self._max_messages = take(fields, "max_messages", int, operation=_OPERATION)
        self._start = self._reader.offset
        self._end = topic.log.durable_end if end is None and not follow else end
        self._batches = topic.read(
            self._reader, end=self._end, follow=follow, max_messages=self._max_messages, cancelled=cancelled
        )
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
        """Where the range ends with lost messages, a batch without rows says so: it must not just end early."""
        expected, delivered = self._start, 0
        for batch in self._batches:
            lost = batch.column(0)[0].as_py() - expected
            yield batch, {"lost": lost} if lost else {}
            expected += lost + batch.num_rows
            delivered += batch.num_rows
        if self._end is None or delivered == self._max_messages or self.is_cancelled():
            return
        if (lost := min(self._end, self._reader.offset) - expected) > 0:
            yield self._nothing(), {"lost": lost}

    def _filtered(self) -> Iterator[tuple[pa.RecordBatch, dict[str, int]]]:
        reached, delivered = self._start, 0
        for batch in self._batches:
            delivered += batch.num_rows
            reached = batch.column(0)[-1].as_py() + 1 if batch.num_rows else self._reached()
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
    tier = TableTier(topic.find_table, storage.settings.reader)
    selection = Selection.of(topic.stream_schema, columns, where)
    return TopicReader((tier,), topic.start_offset_of(start), selection, place=str(topic.name))


# --------------------
# DoGet of a topic's frames as the log has them, undecoded: for who must handle a body that cannot be opened.
#
# Each batch has a row a frame. The first frame may begin before the offset that was asked for, the last one end behind
# the range's end. Without bodies it tells where frames begin and end.


_FRAMES_OPERATION = "read frames"
_FRAMES_TICKET_FIELDS = frozenset({"topic", "start", "end", "frames"})
_KINDS = ("headers", "whole")


def asks_for_frames(ticket: bytes) -> bool:
    """Whether a ticket is one of these; whatever is wrong with it otherwise is told later."""
    if b'"frames"' not in ticket:
        return False
    try:
        fields = json.loads(ticket)
    except (ValueError, RecursionError):
        return False
    return isinstance(fields, dict) and "frames" in fields


class FrameStream:
    """Checked when it is made; nothing is read before the first chunk is asked for."""

    def __init__(self, storage: IcebergStorage, ticket: bytes, caller: Caller, cancelled: Callable[[], bool]) -> None:
        fields = parse_object(ticket, operation=_FRAMES_OPERATION, allowed=_FRAMES_TICKET_FIELDS)
        name = take(fields, "topic", str, operation=_FRAMES_OPERATION, required=True)
        topic = storage.topic(caller.check_topic(name, operation=_FRAMES_OPERATION))
        kind = take(fields, "frames", str, operation=_FRAMES_OPERATION, required=True)
        if kind not in _KINDS:
            raise InvalidRequestError(f"frames is one of {', '.join(_KINDS)}", operation=_FRAMES_OPERATION)
        self._log = topic.log
        self._start = take(fields, "start", int, operation=_FRAMES_OPERATION, required=True)
        self._end = take(fields, "end", int, operation=_FRAMES_OPERATION, required=True)
        check_offset(self._log, self._start)
        if not self._start <= self._end <= self._log.durable_end:
            raise OffsetOutOfRangeError(
                f"the range ends at {self._end}, the topic at {self._log.durable_end}",
                operation=_FRAMES_OPERATION,
                place=str(topic.name),
            )
        self._bodies = kind == "whole"
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


# --------------------
# DoGet of a ticket with `sql`: a query's rows as Arrow batches, made while the client takes them.


_QUERY_OPERATION = "sql"
_QUERY_TICKET_FIELDS = frozenset({"sql", "fresh"})


def is_query(ticket: bytes) -> bool:
    """Whether a ticket asks for a query's result, and not for a topic's messages."""
    if b'"sql"' not in ticket:
        return False
    try:
        fields = json.loads(ticket)
    except (ValueError, RecursionError):
        return False
    return isinstance(fields, dict) and "sql" in fields


class QueryStream:
    """The query runs from the moment that this is made, until its last chunk, or until nobody has it any more."""

    def __init__(self, queries: QueryEngine, ticket: bytes, caller: Caller, cancelled: Callable[[], bool]) -> None:
        fields = parse_object(ticket, operation=_QUERY_OPERATION, allowed=_QUERY_TICKET_FIELDS)
        sql = take(fields, "sql", str, operation=_QUERY_OPERATION, required=True)
        fresh = take(fields, "fresh", bool, operation=_QUERY_OPERATION, default=True)
        self._query = queries.run(sql, fresh=fresh, caller=caller, cancelled=cancelled)
        self.schema: pa.Schema = self._query.schema

    def chunks(self) -> Iterator[pa.RecordBatch]:
        with self._query:
            yield from self._query.batches()
