"""How subscriptions see a topic, and where their dead letters go."""

import contextlib
from collections.abc import Callable

import pyarrow as pa

from icestream.config.fields import GIB
from icestream.model.errors import IcestreamError, InvalidMessageError
from icestream.model.filters import Filter
from icestream.model.messages import MESSAGE_SCHEMA, conform
from icestream.model.names import TopicName
from icestream.model.offsets import StartPosition
from icestream.reader import TopicReader
from icestream.storage.topic import Topic
from icestream.storage.topics import Topics
from icestream.wal import LogState

_TIME_COLUMN = 1


class TopicSource:
    """A topic, as `icestream.subscription.Source`. Its log is opened when somebody consumes."""

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
            self._known_time = offset, batches[0].column(_TIME_COLUMN)[0].value if batches else None
        return self._known_time[1]

    def in_memory(self, offset: int, /) -> bool:
        return self._topic.log.cache.holds(offset)

    def reader(self, offset: int, /, *, where: Filter | None = None) -> TopicReader:
        return self._topic.reader(StartPosition.offset(offset), where=where)

    def gone(self) -> IcestreamError | None:
        try:
            return self._topic.gone() if self._topic.log.state is LogState.CLOSED else None
        except IcestreamError as error:
            return error


def store_dead_letters(topics: Topics, name: TopicName, origin: TopicName, batch: pa.RecordBatch) -> None:
    """Append messages to a topic, which is made with the columns that they have; returns when they are durable.

    No limit of size applies: they were within it as they came, and it is their origin that was added.
    """
    plain = batch.schema.equals(MESSAGE_SCHEMA)
    topic = topics.create(name, schema=None if plain else batch.schema, if_not_exists=True)
    try:
        letters = conform(batch, topic.body_schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise InvalidMessageError(
            f"messages of {origin} do not fit into this topic: {error}",
            operation="dead letters",
            place=str(name),
            remedy="give the subscription another dead_letter_topic",
        ) from error
    topic.log.append(topic.payload(letters, "", 0, max_message_bytes=GIB, max_batch_bytes=GIB))
