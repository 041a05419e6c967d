"""A subscription engine whose time stands still, on a topic that is a list of batches."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from icestream.config import SubscriptionSettings
from icestream.metadata import MemoryMetadataStore, MetadataStore
from icestream.model.enums import SubscriptionType
from icestream.model.errors import IcestreamError, TopicNotFoundError
from icestream.model.filters import Filter
from icestream.model.messages import (
    MESSAGE_SCHEMA,
    OFFSET,
    PUBLISH_TIME,
    conform,
    message_batch,
    slice_from,
    stream_schema,
)
from icestream.model.names import TopicName
from icestream.model.offsets import StartPosition
from icestream.subscription import BrokerSubscription, ConsumerSession, SubscriptionOptions, Subscriptions
from icestream.subscription.cursor import Cursor

TOPIC = TopicName("default", "events")
START_US = 1_700_000_000_000_000


class ListReader:
    def __init__(self, topic: "ListTopic", offset: int, where: Filter | None) -> None:
        self._topic = topic
        self._where = where
        self.offset = offset
        self.schema = topic.stream_schema

    def read(self, max_bytes: int, /) -> list[pa.RecordBatch]:
        if self._topic.fault is not None:
            raise self._topic.fault
        found: list[pa.RecordBatch] = []
        for batch in self._topic.batches:
            last = batch.column(OFFSET)[-1].as_py()
            if last >= self.offset:
                part = conform(batch, self.schema)
                part = part.filter(pa.array(part.column(OFFSET).to_numpy() >= self.offset))
                found.append(part if self._where is None else self._where.apply(part))
                self.offset = last + 1
                self._topic.bytes_read += part.nbytes
                if sum(one.nbytes for one in found) >= max_bytes:
                    break
        else:
            self.offset = max(self.offset, self._topic.durable_end)
        return found

    def close(self) -> None:
        self._topic.closed_readers += 1


class ListTopic:
    def __init__(self, body_schema: pa.Schema = MESSAGE_SCHEMA, *, stream_id: str = "first") -> None:
        self.name = TOPIC
        self.stream_id = stream_id
        self.stream_schema = stream_schema(body_schema)
        self.batches: list[pa.RecordBatch] = []
        self.durable_end = 0
        self.listeners: set[Callable[[], None]] = set()
        self.mean_message_bytes = 10.0
        self.fault: IcestreamError | None = None
        self.readers = self.closed_readers = self.bytes_read = 0
        self.deleted = False

    def publish(self, payloads: Sequence[bytes], keys: Sequence[bytes | None] | None = None, *, at_us: int = 0) -> None:
        self.publish_batch(message_batch(payloads, keys), at_us=at_us)

    def publish_batch(self, body: pa.RecordBatch, *, at_us: int = 0) -> None:
        count, first = body.num_rows, self.durable_end
        envelope = [
            pa.array(np.arange(first, first + count)),
            pa.array([START_US + at_us] * count, pa.timestamp("us", tz="UTC")),
            pa.array([""] * count),
            pa.array(np.arange(first, first + count)),
        ]
        schema = stream_schema(body.schema)
        self.batches.append(pa.RecordBatch.from_arrays([*envelope, *body.columns], schema=schema))
        self.durable_end += count
        for listener in tuple(self.listeners):
            listener()

    def lose(self, first: int, end: int) -> None:
        """As if a repair had given these messages up."""
        self.batches = [
            part
            for batch in self.batches
            for part in (slice_from(batch, 0, first), slice_from(batch, end))
            if part.num_rows
        ]

    def start_offset_of(self, position: StartPosition, /) -> int:
        offset: int = {"earliest": 0, "latest": self.durable_end, "offset": position.value}[position.kind]
        return offset

    def time_at(self, offset: int, /) -> int | None:
        for batch in self.batches:
            if batch.column(OFFSET)[-1].as_py() >= offset:
                return int(batch.column(PUBLISH_TIME)[0].value)
        return None

    def in_memory(self, _offset: int, /) -> bool:
        return True

    def reader(self, offset: int, /, *, where: Filter | None = None) -> ListReader:
        self.readers += 1
        return ListReader(self, offset, where)

    def gone_error(self) -> IcestreamError | None:
        return TopicNotFoundError("the topic was deleted") if self.deleted else None


class Clock:
    def __init__(self) -> None:
        self.now_us = START_US

    def __call__(self) -> int:
        return self.now_us

    def advance(self, ms: float) -> None:
        self.now_us += int(ms * 1000)


class Site:
    """An engine that can be stopped, killed and started again."""

    def __init__(self, topic: ListTopic | None = None, metadata: MetadataStore | None = None, **settings: Any) -> None:
        self.topic = topic or ListTopic()
        self.metadata = metadata or MemoryMetadataStore()
        self.settings = SubscriptionSettings(**settings)
        self.clock = Clock()
        self.dead: list[tuple[TopicName, pa.RecordBatch]] = []
        self.dead_letter_fault: IcestreamError | None = None
        self.subscriptions = self._start()

    def _start(self) -> Subscriptions:
        return Subscriptions(self.metadata, self._find, self._bury, self.settings, clock=self.clock, background=False)

    def _find(self, name: TopicName) -> ListTopic:
        if self.topic.deleted or name != TOPIC:
            raise TopicNotFoundError("there is no such topic", place=str(name))
        return self.topic

    def _bury(self, name: TopicName, _origin: TopicName, batch: pa.RecordBatch) -> None:
        if self.dead_letter_fault is not None:
            raise self.dead_letter_fault
        self.dead.append((name, batch))

    def restart(self, *, clean: bool = True) -> None:
        if clean:
            self.subscriptions.close()
        self.subscriptions = self._start()

    def open(self, kind: str = "exclusive", name: str = "sub", **options: Any) -> BrokerSubscription:
        return self.subscriptions.open(TOPIC, name, SubscriptionOptions(type=SubscriptionType(kind), **options))

    def pass_time(self, ms: float) -> None:
        self.clock.advance(ms)
        self.subscriptions.tick()


def receive(session: ConsumerSession, most: int | None = None) -> pa.RecordBatch:
    """One delivery, which has to be there."""
    batch = session.receive(max_messages=most, timeout_seconds=0)
    assert batch is not None
    return batch


def cursor_of(subscription: BrokerSubscription) -> Cursor:
    return subscription._state.cursor


def take(session: ConsumerSession, most: int | None = None) -> list[int]:
    """Offsets of one delivery."""
    batch = session.receive(max_messages=most, timeout_seconds=0)
    return [] if batch is None else batch.column(OFFSET).to_pylist()


def drain(session: ConsumerSession) -> list[int]:
    """Offsets of all that comes now."""
    found: list[int] = []
    while offsets := take(session):
        found += offsets
    return found


def ack(session: ConsumerSession, offsets: Sequence[int]) -> None:
    session.ack([(offset, offset + 1) for offset in offsets])
