"""DoGet: a range of a topic, or all that comes, as Arrow batches, with what a reader has to know besides.

A batch that comes after messages given up by a repair says how many these were (`lost`). In a filtered stream messages
are missing on purpose: there every batch says where to read on (`next_offset`), and one without rows says just that.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from icestream.model.callers import Caller
from icestream.model.errors import InvalidRequestError
from icestream.model.offsets import StartPosition
from icestream.reader import Selection, TableTier, TopicReader
from icestream.server.metrics import BrokerMetrics
from icestream.server.requests import parse_object, take
from icestream.storage import IcebergStorage, Topic

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
