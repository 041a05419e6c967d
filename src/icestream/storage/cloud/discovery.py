"""Finding topics in the object store without any other record: by object names and trailers."""

import json
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

import msgspec
import structlog

from icestream.cloud import (
    FOOTER_BYTES,
    TOPIC_FILE,
    CloudReader,
    ObjectDescriptor,
    ObjectMap,
    ObjectName,
    ObjectStore,
    ReadPool,
    StaticDescriptions,
    Trailer,
    UploadHead,
    decode_trailer,
    footer_data_bytes,
    inline_index,
    topic_key,
)
from icestream.model.errors import DamagedError, ObjectNotFoundError
from icestream.model.names import TopicName
from icestream.storage.record import TopicRecord

READERS = 8
"""How many objects are read in parallel."""
_KEY_PARTS = 4
_FIRST_READ_BYTES = 64 * 1024
"""Most trailers are shorter, and read with their footer."""
_log = structlog.get_logger(__name__)


class FoundObject(NamedTuple):
    key: str
    name: ObjectName
    size: int


@dataclass
class FoundStream:
    """One stream of a topic: its objects by their names, and whether it has a `topic.json`."""

    topic: TopicName
    stream_id: str
    objects: list[FoundObject] = field(default_factory=list)
    has_file: bool = False

    @property
    def end_offset(self) -> int:
        return max((found.name.end_offset for found in self.objects), default=0)

    @property
    def epoch(self) -> int:
        return max((found.name.epoch for found in self.objects), default=0)


class TopicFile(NamedTuple):
    """The content of `topic.json`."""

    record: TopicRecord
    head: UploadHead

    @classmethod
    def read(cls, store: ObjectStore, topic: TopicName, stream_id: str) -> "TopicFile | None":
        """Read the file; return None if it is missing or cannot be used."""
        key = topic_key(topic, stream_id)
        info = store.stat(key)
        if info is None:
            return None
        try:
            fields: dict[str, Any] = json.loads(store.read(key, 0, info.size))
            return cls(record_of(fields["record"]), UploadHead.from_fields(fields["head"]))
        except (ObjectNotFoundError, DamagedError, ValueError, KeyError, TypeError):
            return None

    def write(self, store: ObjectStore) -> None:
        fields = {"record": msgspec.to_builtins(self.record), "head": asdict(self.head)}
        data = json.dumps(fields, separators=(",", ":")).encode()
        store.put(topic_key(self.record.name, self.head.stream_id), data)


def record_of(fields: dict[str, Any]) -> TopicRecord:
    return msgspec.convert(fields, TopicRecord)


def find_streams(store: ObjectStore, prefix: str = "") -> list[FoundStream]:
    """Return all streams below a prefix, by topic. Files with other names are ignored."""
    streams: dict[tuple[TopicName, str], FoundStream] = {}
    for info in store.list(prefix):
        parts = info.key.split("/")
        name = ObjectName.parse(info.key)
        if len(parts) != _KEY_PARTS or (name is None and parts[3] != TOPIC_FILE):
            continue
        topic = TopicName(parts[0], parts[1])
        stream = streams.setdefault((topic, parts[2]), FoundStream(topic, parts[2]))
        if name is None:
            stream.has_file = True
        else:
            stream.objects.append(FoundObject(info.key, name, info.size))
    return [streams[key] for key in sorted(streams)]


def in_order(objects: Iterable[FoundObject], *, after: int = 0) -> list[FoundObject]:
    """Choose one object for each offset from `after` on; a missing object leaves a gap.

    An owner's objects end where its successor's begin: nobody has read what an earlier owner made beyond. Of several
    objects of one owner with the same first offset, left by failed tries, the chain that reaches farthest is chosen.
    """
    listed = list(objects)
    begins: dict[int, int] = {}
    for _, name, _ in listed:
        begins[name.epoch] = min(name.first_offset, begins.get(name.epoch, name.first_offset))
    ways: dict[int, list[FoundObject]] = {}
    for found in listed:
        first, end, epoch = found.name
        if first >= after and all(end <= begin for other, begin in begins.items() if other > epoch):
            ways.setdefault(first, []).append(found)
    best: dict[int, tuple[int, FoundObject]] = {}
    for first in sorted(ways, reverse=True):
        reaches = [(best[end][0] if (end := one.name.end_offset) in best else end, one) for one in ways[first]]
        best[first] = max(reaches, key=lambda reach: (reach[0], reach[1].name.epoch))
    chosen: list[FoundObject] = []
    for first in sorted(best):
        if not chosen or first >= chosen[-1].name.end_offset:
            chosen.append(best[first][1])
    return chosen


def find_trailer(store: ObjectStore, key: str, size: int) -> Trailer:
    """Read the trailer of an object of which only name and size are known."""
    length = min(size, _FIRST_READ_BYTES)
    data = store.read(key, size - length, length)
    begin = footer_data_bytes(data[-FOOTER_BYTES:])
    if begin is None or not 0 <= begin <= size - FOOTER_BYTES:
        raise DamagedError("the object has no sound footer", operation="read cloud object", place=key)
    if size - begin > length:
        data = store.read(key, begin, size - begin)
    return decode_trailer(data[begin - size :], key)


def describe(found: FoundObject, trailer: Trailer) -> ObjectDescriptor:
    """Return the descriptor of an object, from the object alone; raise if its name does not match its trailer."""
    descriptor = trailer.descriptor
    said = ObjectName(descriptor.first_offset, descriptor.end_offset, descriptor.epoch)
    if said != found.name:
        raise DamagedError("the object has another name than it should", operation="read cloud object", place=found.key)
    return replace(descriptor, key=found.key, size=found.size, index=inline_index(trailer.index))


def describe_all(store: ObjectStore, objects: Iterable[FoundObject]) -> Iterator[tuple[ObjectDescriptor, Trailer]]:
    """Return the descriptors of objects in order, reading in parallel; damaged ones are logged and left out."""

    def read(found: FoundObject) -> tuple[ObjectDescriptor, Trailer] | None:
        try:
            trailer = find_trailer(store, found.key, found.size)
            return describe(found, trailer), trailer
        except (DamagedError, ObjectNotFoundError) as error:
            _log.error("cloud_object_unusable", key=found.key, error=str(error))
            return None

    with ThreadPoolExecutor(READERS) as pool:
        yield from (described for described in pool.map(read, objects) if described is not None)


def check_frames(store: ObjectStore, descriptor: ObjectDescriptor) -> None:
    """Read all frames of an object; raise `DamagedError` if one is damaged."""
    pool = ReadPool()
    reader = CloudReader(ObjectMap(StaticDescriptions([descriptor])), store, descriptor.first_offset, pool=pool)
    try:
        while reader.read():
            pass
    finally:
        reader.close()
        pool.close()
