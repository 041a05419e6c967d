"""The calls of a pipeline: what is to be written, the messages themselves, and reports.

Its readers read a range of offsets completely: every message of one stream once and in order, or an error. Unlike a
consumer, they have no thread and read nothing ahead: they hold one batch. `RangeReader` gives Arrow batches;
`FrameReader` gives the frames of the broker's log, undecoded.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.flight as fl

from icestream.client.transport import Connection
from icestream.model.errors import DamagedError, TopicNotFoundError
from icestream.model.messages import Frame, end_offset, first_offset, slice_from
from icestream.model.names import TopicName
from icestream.model.offsets import NO_OFFSETS, OffsetRanges
from icestream.protocol.pipeline import PipelineBacklog
from icestream.protocol.read import frames_in, schemas_of


class RangeReader:
    """Reads `start` to before `end` of the stream `stream_id`. Iterate over `batches` once, to its end."""

    def __init__(self, connection: Connection, topic: str, stream_id: str, start: int, end: int) -> None:
        self._connection = connection
        self._topic = topic
        self._stream_id = stream_id
        self._end = end
        self.next_offset = start
        self.lost = 0
        """Messages of the range that a repair of the log gave up; they are in no batch."""
        self.lost_ranges = NO_OFFSETS

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the range as batches. Raises unless every offset came, or was announced as lost."""
        yield from self._read()
        if self.next_offset != self._end:
            raise DamagedError(
                f"the broker ended the range at {self.next_offset}, before {self._end}",
                operation="read",
                place=self._topic,
                retryable=True,
            )
        _check_stream(self._connection, self._topic, self._stream_id, "read")

    def _read(self) -> Iterator[pa.RecordBatch]:
        ticket = {"topic": self._topic, "start": self.next_offset, "end": self._end}
        for chunk in _chunks(self._connection, ticket, "read"):
            batch = self._following(chunk.data, _announced(chunk.app_metadata))
            if batch.num_rows:
                yield batch

    def _following(self, batch: pa.RecordBatch, lost: int) -> pa.RecordBatch:
        if batch.num_rows == 0:
            self._pass_over(lost)
            return batch
        first = first_offset(batch)
        if first < self.next_offset:
            batch = slice_from(batch, self.next_offset)
            first = self.next_offset
        if first != self.next_offset + lost:
            raise DamagedError(
                f"the broker sent offset {first} where {self.next_offset} was to come, and announced {lost} as lost",
                operation="read",
                place=self._topic,
            )
        count = batch.num_rows
        if count and (end_offset(batch) != first + count or first + count > self._end):
            raise DamagedError(
                f"the batch at offset {first} is not {count} messages of the range that was asked for",
                operation="read",
                place=self._topic,
            )
        self._pass_over(lost)
        self.next_offset = first + count
        return batch

    def _pass_over(self, lost: int) -> None:
        if lost:
            self.lost += lost
            self.lost_ranges |= OffsetRanges.of([(self.next_offset, self.next_offset + lost)])
            self.next_offset += lost


def _announced(metadata: Any) -> int:
    """Return how many messages before the batch the broker announces as lost."""
    return int(json.loads(metadata.to_pybytes()).get("lost", 0)) if metadata is not None else 0


def _chunks(
    connection: Connection,
    ticket: dict[str, Any],
    operation: str,
    on_schema: Callable[[pa.Schema], None] = lambda _schema: None,
) -> Iterator[Any]:
    """Yield what the broker sends, behind the schema for `on_schema`. A caller that stops early ends the call."""
    reader = connection.get(ticket, operation)
    is_complete = False
    try:
        on_schema(reader.schema)
        while True:
            try:
                chunk = reader.read_chunk()
            except StopIteration:
                is_complete = True
                return
            yield chunk
    except (fl.FlightError, pa.ArrowException) as error:
        raise connection.typed(error, operation) from error
    finally:
        if not is_complete:
            reader.cancel()


def _check_stream(connection: Connection, topic: str, stream_id: str, operation: str) -> None:
    """Raise if the topic was deleted and created again: it has the same offsets then, and other messages.

    Stream ids are never reused. So if the id is right after the last batch, it was right before each of them.
    """
    found = connection.action("describe_topic", {"topic": topic})["stream_id"]
    if found != stream_id:
        raise TopicNotFoundError(
            f"the topic was deleted and made again: its stream is {found}, not {stream_id}",
            operation=operation,
            place=topic,
        )


class FrameReader:
    """Reads the frames with offsets from `start` to before `end` of one stream. Iterate over it once, to its end."""

    def __init__(
        self, connection: Connection, topic: str, stream_id: str, start: int, end: int, *, bodies: bool
    ) -> None:
        self._connection = connection
        self._topic = topic
        self._stream_id = stream_id
        self._ticket = {"topic": topic, "start": start, "end": end, "frames": "whole" if bodies else "headers"}
        self.schemas: dict[int, str] = {}
        """The bodies' own schemas by id, serialized; known once the first frames came."""

    def __iter__(self) -> Iterator[list[Frame]]:
        """Yield about a megabyte of frames at a time."""
        for chunk in _chunks(self._connection, self._ticket, "read frames", self._take_schemas):
            yield list(frames_in(chunk.data))
        _check_stream(self._connection, self._topic, self._stream_id, "read frames")

    def _take_schemas(self, schema: pa.Schema) -> None:
        self.schemas = schemas_of(schema)


MAX_REPORTED_TOPICS = 500
"""In one call; a request is at most 1 MiB."""


class PipelineCalls:
    """The pipeline's calls, which `Client` offers as its own."""

    _connection: Connection

    def backlog(
        self, topics: str = "*", *, mark: str | None = None, wait_ms: int = 0, timeout: float | None = None
    ) -> PipelineBacklog:
        """Return what the matching topics hold; with a mark, those that changed since, after `wait_ms` at most."""
        fields = {"topics": topics, "mark": mark, "wait_ms": wait_ms or None}
        hold_s = wait_ms / 1000 if timeout is None else 0.0
        response = self._connection.action("backlog", fields, timeout_s=timeout, hold_s=hold_s)
        return msgspec.convert(response, PipelineBacklog)

    def cut_range(self, topic: TopicName, start: int, end: int, *, range_bytes: int, max_ranges: int) -> list[int]:
        """Return where ranges of about `range_bytes` of log end, from `start` on: at most so many, none past `end`."""
        fields = {
            "topic": str(topic),
            "start": start,
            "end": end,
            "range_bytes": range_bytes,
            "max_ranges": max_ranges,
        }
        return list(self._connection.action("cut_range", fields)["ends"])

    def read_range(self, topic: TopicName | str, stream_id: str, start: int, end: int) -> RangeReader:
        """Read every message of a range exactly once, or raise."""
        return RangeReader(self._connection, str(topic), stream_id, start, end)

    def read_frames(
        self, topic: TopicName | str, stream_id: str, start: int, end: int, *, bodies: bool = True
    ) -> FrameReader:
        """Read the frames of a range, undecoded; without bodies, only where they begin and end."""
        return FrameReader(self._connection, str(topic), stream_id, start, end, bodies=bodies)

    def tell_committed(self, topic: TopicName, stream_id: str) -> None:
        """Tell the broker that the topic's table has a new snapshot. It is a hint: the broker looks for itself."""
        self._connection.action("committed", {"topic": str(topic), "stream_id": stream_id})

    def report_pass(self, passed: dict[str, Any], topics: list[dict[str, Any]]) -> None:
        """Report what a pass has done; see `pipeline_report` in the protocol."""
        self._connection.action("pipeline_report", {"pass": passed, "topics": topics[:MAX_REPORTED_TOPICS]})
        for start in range(MAX_REPORTED_TOPICS, len(topics), MAX_REPORTED_TOPICS):
            self._connection.action("pipeline_report", {"topics": topics[start : start + MAX_REPORTED_TOPICS]})
