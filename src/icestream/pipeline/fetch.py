"""How a task reads its messages: from the broker, or from cloud objects.

The driver makes these objects and tasks use them, so they can be pickled. They may hold a token or the object store's
credentials, and are never shown. Each worker keeps its clients and stores from task to task.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Generic, Protocol, TypeVar

import pyarrow as pa

from icestream.client import BrokerEndpoint, Client, FrameReader
from icestream.cloud import CloudReader, ObjectDescriptor, ObjectMap, ObjectStore, ReadPool, StaticDescriptions
from icestream.config import CloudSettings, ReaderSettings
from icestream.model.errors import DamagedError
from icestream.model.frames import MESSAGES_SCHEMA_ID, Frame
from icestream.model.messages import (
    MESSAGE_SCHEMA,
    conform,
    decode_schema,
    first_offset,
    slice_from,
    stream_batches,
    stream_schema,
)
from icestream.model.names import TopicName
from icestream.model.offsets import NO_OFFSETS, OffsetRanges


class FrameRange:
    """Decodes the messages `start` to before `end` from frames, each once and in order. For one reading.

    Frames after the range are not decoded: damage there does not fail the range.
    """

    def __init__(self, start: int, end: int) -> None:
        self._end = end
        self.next_offset = start
        self.lost = 0
        """Messages of the range that are lost for good. They are in no batch."""
        self.lost_ranges = NO_OFFSETS

    def use_schemas(self, schemas: Mapping[int, str]) -> None:
        """Set the topic's own schemas by id. All batches get the newest."""
        own = {number: decode_schema(text) for number, text in schemas.items()}
        self._schemas = {MESSAGES_SCHEMA_ID: MESSAGE_SCHEMA, **own}
        self._stream_schema = stream_schema(self._schemas[max(self._schemas)])

    def take(self, frames: Iterable[Frame]) -> Iterator[pa.RecordBatch]:
        wanted = [frame for frame in frames if frame.base_offset < self._end]
        for batch in stream_batches(wanted, self._schemas):
            rows = slice_from(batch, self.next_offset, self._end)
            if rows.num_rows:
                self._pass_over(first_offset(rows))
                self.next_offset += rows.num_rows
                yield conform(rows, self._stream_schema)
        if wanted:
            self._pass_over(min(self._end, wanted[-1].end_offset))

    def _pass_over(self, offset: int) -> None:
        """Count messages before an offset that did not come as lost: their frames are there without messages."""
        if offset > self.next_offset:
            self.lost += offset - self.next_offset
            self.lost_ranges |= OffsetRanges.of([(self.next_offset, offset)])
            self.next_offset = offset


class BrokerFrames(FrameRange):
    """A range in the broker's frames. Iterate over `batches` once, to its end."""

    def __init__(self, reader: FrameReader, start: int, end: int, *, place: str) -> None:
        super().__init__(start, end)
        self._reader = reader
        self._place = place

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the range as batches. Raise unless every offset came or is known to be lost."""
        for frames in self.frames():
            self.use_schemas(self._reader.schemas)
            yield from self.take(frames)
        if self.next_offset != self._end:
            raise DamagedError(
                f"the broker ended the range at {self.next_offset}, before {self._end}",
                operation="read frames",
                place=self._place,
                retryable=True,
            )

    def frames(self) -> Iterator[list[Frame]]:
        """Yield the undecoded frames that hold the range."""
        yield from self._reader


class CloudRange(FrameRange):
    """A range in cloud objects. Iterate over `batches` once, to its end."""

    def __init__(
        self,
        store: ObjectStore,
        objects: Iterable[ObjectDescriptor],
        schemas: Mapping[int, str],
        start: int,
        end: int,
        *,
        pool: ReadPool,
        place: str,
    ) -> None:
        super().__init__(start, end)
        self.use_schemas(schemas)
        self._reader = CloudReader(ObjectMap(StaticDescriptions(objects)), store, start, end=end, pool=pool)
        self._place = place

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the range as batches. Raise unless every offset came or is known to be lost."""
        for frames in self.frames():
            yield from self.take(frames)

    def frames(self) -> Iterator[list[Frame]]:
        """Yield the undecoded frames that hold the range. The last ones may lie after it."""
        offset = self.next_offset
        try:
            while offset < self._end:
                frames = self._reader.read()
                if not frames:
                    raise DamagedError(
                        f"no object has offset {offset}",
                        operation="read cloud objects",
                        place=self._place,
                        retryable=True,
                    )
                offset = frames[-1].end_offset
                yield frames
        finally:
            self._reader.close()


Range = tuple[int, int]
_MAX_KEPT = 4


class Reading(Protocol):
    """A range of a topic, which is read once from its first message to its last."""

    next_offset: int
    lost: int
    """Messages of the range that are lost for good. They are in no batch."""
    lost_ranges: OffsetRanges

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the messages. Raise unless every offset came or is known to be lost."""


class Fetch(Protocol):
    def within(self, ranges: Iterable[Range]) -> "Fetch":
        """Return the part that these ranges need."""

    def read(self, topic: TopicName, stream_id: str, start: int, end: int) -> Reading: ...


@dataclass(frozen=True)
class FromBroker:
    endpoint: BrokerEndpoint
    by_frame: bool = False
    """Whether the task decodes the frames of the range, and no other, in place of the broker."""

    def within(self, ranges: Iterable[Range]) -> "FromBroker":
        del ranges
        return self

    def read(self, topic: TopicName, stream_id: str, start: int, end: int) -> Reading:
        client = _clients.get(self.endpoint, lambda: Client(self.endpoint))
        if self.by_frame:
            return BrokerFrames(client.read_frames(topic, stream_id, start, end), start, end, place=str(topic))
        return client.read_range(topic, stream_id, start, end)


@dataclass(frozen=True, repr=False)
class FromCloud:
    """The objects of one stream, in offset order, and what is needed to read them."""

    cloud: CloudSettings
    root_prefix: str
    reader: ReaderSettings
    objects: tuple[ObjectDescriptor, ...]
    schemas: dict[int, str]
    """The topic's own schemas by id; none if its messages have the plain one."""

    def within(self, ranges: Iterable[Range]) -> "FromCloud":
        wanted = list(ranges)
        kept = (
            one
            for one in self.objects
            if any(one.first_offset < end and start < one.end_offset for start, end in wanted)
        )
        return replace(self, objects=tuple(kept))

    def read(self, topic: TopicName, stream_id: str, start: int, end: int) -> CloudRange:
        store = _stores.get((self.cloud, self.root_prefix), self._open)
        objects = [one for one in self.objects if one.stream_id == stream_id]
        return CloudRange(store, objects, self.schemas, start, end, pool=_pool(self.reader), place=str(topic))

    def _open(self) -> ObjectStore:
        from icestream.cloud.opendal_store import open_object_store  # noqa: PLC0415 - a slow import, for users of the cloud only

        return open_object_store(self.cloud, self.root_prefix)


class _Closable(Protocol):
    def close(self) -> None: ...


Key = TypeVar("Key")
Kept = TypeVar("Kept", bound=_Closable)


class _Keeper(Generic[Key, Kept]):
    """Keeps a few connections from task to task. They reconnect to a restarted server by themselves."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[Key, Kept] = {}

    def get(self, key: Key, make: Callable[[], Kept]) -> Kept:
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                if len(self._kept) >= _MAX_KEPT:
                    self._kept.pop(next(iter(self._kept))).close()
                found = self._kept[key] = make()
            return found


_clients: _Keeper[BrokerEndpoint, Client] = _Keeper()
_stores: _Keeper[tuple[CloudSettings, str], ObjectStore] = _Keeper()


@lru_cache(maxsize=1)
def _pool(settings: ReaderSettings) -> ReadPool:
    return ReadPool(settings)
