"""Where a task gets its messages from: the broker, or cloud objects.

What is here is made by the driver and used by tasks, so it can be pickled; it may hold a token, or the object store's
credentials, and is never shown. Stores and clients are kept by each worker from task to task.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Generic, Protocol, TypeVar

import pyarrow as pa

from icestream.client import Client
from icestream.cloud import ObjectDescriptor, ObjectStore
from icestream.cloud.read_pool import ReadPool
from icestream.config import CloudSettings, ReaderSettings
from icestream.model.lost_ranges import LostRanges
from icestream.model.names import TopicName
from icestream.pipeline.cloud_range import CloudRange
from icestream.pipeline.frame_range import BrokerFrames

Range = tuple[int, int]
_MAX_KEPT = 4


class Reading(Protocol):
    """A range of a topic, read once, from its first message to its last."""

    next_offset: int
    lost: int
    """Messages of the range that are lost for good; they are in no batch."""
    lost_ranges: LostRanges

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Raises unless every offset came, or is known to be lost."""


class Fetch(Protocol):
    def within(self, ranges: Iterable[Range]) -> "Fetch":
        """No more than what these ranges need."""

    def read(self, topic: TopicName, stream_id: str, start: int, end: int) -> Reading: ...


@dataclass(frozen=True)
class FromBroker:
    url: str
    by_frame: bool = False
    """Whether frames are decoded here and not by the broker, and none but those of the range."""
    token: str | None = field(default=None, repr=False)

    def within(self, ranges: Iterable[Range]) -> "FromBroker":
        del ranges
        return self

    def read(self, topic: TopicName, stream_id: str, start: int, end: int) -> Reading:
        client = _clients.get((self.url, self.token), lambda: Client(self.url, token=self.token))
        if self.by_frame:
            return BrokerFrames(client.read_frames(topic, stream_id, start, end), start, end, place=str(topic))
        return client.read_range(topic, stream_id, start, end)


@dataclass(frozen=True, repr=False)
class FromCloud:
    """The objects of one stream, by offset, and what is needed to read them."""

    cloud: CloudSettings
    root_prefix: str
    reader: ReaderSettings
    objects: tuple[ObjectDescriptor, ...]
    schemas: dict[int, str]
    """The topic's own schemas by id; none where its messages have the plain one."""

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
        from icestream.cloud.opendal_store import open_object_store  # noqa: PLC0415 - only who uses it loads it

        return open_object_store(self.cloud, self.root_prefix)


class _Closable(Protocol):
    def close(self) -> None: ...


Key = TypeVar("Key")
Kept = TypeVar("Kept", bound=_Closable)


class _Keeper(Generic[Key, Kept]):
    """A few connections, kept from task to task; they find a server that was restarted by themselves."""

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


_clients: _Keeper[tuple[str, str | None], Client] = _Keeper()
_stores: _Keeper[tuple[CloudSettings, str], ObjectStore] = _Keeper()


@lru_cache(maxsize=1)
def _pool(settings: ReaderSettings) -> ReadPool:
    return ReadPool(settings)
