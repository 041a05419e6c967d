"""Reading a topic's frames undecoded, as the broker's log has them."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.flight as fl

from icestream.client.connection import Connection
from icestream.model.errors import TopicNotFoundError
from icestream.model.frame_batches import frames_in, schemas_of
from icestream.model.frames import Frame
from icestream.model.names import TopicName


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
