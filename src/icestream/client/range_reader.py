"""Reading a range of a topic's offsets, each once and in order, with what is missing for good accounted for.

Unlike a consumer it has no thread and reads nothing ahead, so it holds one batch; and it ends well only if the whole
range was accounted for, by one and the same stream.
"""

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl

from icestream.client.connection import Connection
from icestream.model.errors import DamagedError, TopicNotFoundError
from icestream.model.frames import Frame
from icestream.model.messages import slice_from
from icestream.model.names import TopicName
from icestream.model.offsets import NO_OFFSETS, OffsetRanges
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
        """The range as batches. Raises unless every offset came, or was announced as lost."""
        yield from self._read()
        if self.next_offset != self._end:
            raise DamagedError(
                f"the broker ended the range at {self.next_offset}, before {self._end}",
                operation="read",
                place=self._topic,
                retryable=True,
            )
        self._check_stream()

    def _read(self) -> Iterator[pa.RecordBatch]:
        reader = self._connection.get({"topic": self._topic, "start": self.next_offset, "end": self._end})
        try:
            while True:
                try:
                    chunk = reader.read_chunk()
                except StopIteration:
                    reader = None
                    return
                batch = self._following(chunk.data, _announced(chunk.app_metadata))
                if batch.num_rows:
                    yield batch
        except (fl.FlightError, pa.ArrowException) as error:
            raise self._connection.typed(error, "read") from error
        finally:
            if reader is not None:
                reader.cancel()

    def _following(self, batch: pa.RecordBatch, lost: int) -> pa.RecordBatch:
        if batch.num_rows == 0:
            self._pass_over(lost)
            return batch
        first = batch.column(0)[0].as_py()
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
        if count and (batch.column(0)[-1].as_py() != first + count - 1 or first + count > self._end):
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

    def _check_stream(self) -> None:
        """A topic that was deleted and made again has the same offsets and other messages; its stream id tells.

        Ids do not come back: if it is the right one after the last batch, it was right before each of them.
        """
        found = self._connection.action("describe_topic", {"topic": self._topic})["stream_id"]
        if found != self._stream_id:
            raise TopicNotFoundError(
                f"the topic was deleted and made again: its stream is {found}, not {self._stream_id}",
                operation="read",
                place=self._topic,
            )


def _announced(metadata: Any) -> int:
    return int(json.loads(metadata.to_pybytes()).get("lost", 0)) if metadata is not None else 0


# --------------------
# Reading a topic's frames undecoded, as the broker's log has them.


class FrameReader:
    """The frames with offsets of `start` to before `end`, of one stream. Iterate over it once, to its end."""

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
        """About a megabyte of frames at a time."""
        reader = self._connection.get(self._ticket)
        try:
            self.schemas = schemas_of(reader.schema)
            while True:
                try:
                    chunk = reader.read_chunk()
                except StopIteration:
                    reader = None
                    break
                yield list(frames_in(chunk.data))
        except (fl.FlightError, pa.ArrowException) as error:
            raise self._connection.typed(error, "read frames") from error
        finally:
            if reader is not None:
                reader.cancel()
        self._check_stream()

    def _check_stream(self) -> None:
        found = self._connection.action("describe_topic", {"topic": self._topic})["stream_id"]
        if found != self._stream_id:
            raise TopicNotFoundError(
                f"the topic was deleted and made again: its stream is {found}, not {self._stream_id}",
                operation="read frames",
                place=self._topic,
            )


class FrameCalls:
    """What `Client` offers as its own."""

    _connection: Connection

    def read_frames(
        self, topic: TopicName | str, stream_id: str, start: int, end: int, *, bodies: bool = True
    ) -> FrameReader:
        """The frames of a range, undecoded; without bodies, where they begin and end."""
        return FrameReader(self._connection, str(topic), stream_id, start, end, bodies=bodies)
