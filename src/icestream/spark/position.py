"""Where a streaming query stands: what Spark writes into the checkpoint, and what a start position means.

Spark logs the end of a batch before it runs it, but not the beginning of the first one: it asks for that anew when the
first batch has to be repeated, and `latest` or a time would mean something else by then. So every position carries the
offset at which the query has begun, and the first batch takes it from its end.
"""

from dataclasses import dataclass
from typing import Any, Self

from icestream.client import Client, TopicDescription
from icestream.model.errors import InvalidRequestError, OffsetOutOfRangeError, TopicNotFoundError
from icestream.model.offsets import StartPosition
from icestream.spark.options import OPERATION

_NEW_CHECKPOINT = "start the query with a new checkpoint"


@dataclass(frozen=True)
class Position:
    stream_id: str
    offset: int
    """All before it are in earlier batches."""
    begun_at: int
    is_initial: bool = False

    @classmethod
    def initial(cls, stream_id: str, offset: int) -> Self:
        return cls(stream_id, offset, offset, is_initial=True)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Self:
        match fields:
            case {"stream": str(stream_id), "initial_offset": int(offset)}:
                return cls.initial(stream_id, offset)
            case {"stream": str(stream_id), "begun_at": int(begun_at), "offset": int(offset)}:
                return cls(stream_id, offset, begun_at)
        raise InvalidRequestError(
            f"{fields!r:.200} is not a position of this source", operation=OPERATION, remedy=_NEW_CHECKPOINT
        )

    def to_json(self) -> dict[str, Any]:
        """Spark compares positions as text, so equal ones have equal text, and an initial one equals no other."""
        if self.is_initial:
            return {"stream": self.stream_id, "initial_offset": self.offset}
        return {"stream": self.stream_id, "begun_at": self.begun_at, "offset": self.offset}

    def at(self, offset: int) -> "Position":
        return Position(self.stream_id, offset, self.begun_at)

    def begin_of_batch_to(self, end: "Position") -> int:
        """The first offset of the batch from here to `end`."""
        return end.begun_at if self.is_initial else self.offset

    def check(self, topic: TopicDescription) -> None:
        """Raise unless the topic still is the stream that this is a position of."""
        if topic.stream_id != self.stream_id:
            raise TopicNotFoundError(
                f"the topic was deleted and made again: its stream is {topic.stream_id}, not {self.stream_id}",
                operation=OPERATION,
                place=topic.topic,
                remedy=_NEW_CHECKPOINT,
            )
        if topic.durable_end < self.offset:
            raise OffsetOutOfRangeError(
                f"the topic ends at {topic.durable_end}, before the position {self.offset}",
                operation=OPERATION,
                place=topic.topic,
                remedy=_NEW_CHECKPOINT,
            )


def offset_of(start: StartPosition, client: Client, topic: TopicDescription) -> int:
    """The offset that a start position means; behind all messages, the end that `topic` was described with."""
    match start.kind:
        case "offset":
            if start.value > topic.durable_end:
                raise OffsetOutOfRangeError(
                    f"the offset {start.value} is beyond the end, {topic.durable_end}",
                    operation=OPERATION,
                    place=topic.topic,
                )
            return int(start.value)
        case "latest":
            return topic.durable_end
    with client.consume(topic.topic, start) as consumer:
        for batch in consumer.batches():
            if batch.num_rows:
                return int(batch.column(0)[0].as_py())
    return topic.durable_end
