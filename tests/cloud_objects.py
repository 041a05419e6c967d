"""Cloud objects made of a real log's segments, in a store that can lose and change what it was given."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import xxhash
from msgspec.structs import replace
from tests.reading import TOPIC, Stage

from icestream.cloud import (
    ObjectDescriptor,
    ObjectInfo,
    ObjectMap,
    ObjectStore,
    ObjectWriter,
    Registry,
    SegmentPart,
    Trailer,
    UploadHead,
    inline_index,
)
from icestream.cloud.object import ObjectName, object_key
from icestream.metadata import open_metadata_store
from icestream.model import frames
from icestream.model.enums import StorageKind
from icestream.model.errors import DamagedError, ObjectExistsError, ObjectNotFoundError, UnavailableError
from icestream.model.frames import Bytes, Scan, SparseIndex
from icestream.model.messages import Frame
from icestream.model.names import TopicName
from icestream.storage.cloud import MetadataRegistry, TopicCloud
from icestream.wal import Log
from icestream.wal.segment import SEGMENT_HEADER_BYTES, ActiveSegment, SealedSegment


class FragileStore:
    """Objects in memory, to be lost and changed; `ObjectStore`."""

    name = "memory://fragile"

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.is_away = False
        self.reads: list[tuple[str, int, int]] = []
        self.reading: Any = lambda _key, _start: None
        """Called before every read."""
        self._lock = threading.Lock()

    def flip(self, key: str, position: int, bit: int = 0) -> None:
        changed = bytearray(self.objects[key])
        changed[position] ^= 1 << bit
        self.objects[key] = bytes(changed)

    def writer(self, key: str) -> "FragileWriter":
        return FragileWriter(self, key)

    def put(self, key: str, data: bytes) -> None:
        self.objects[key] = data

    def read(self, key: str, start: int, length: int) -> bytes:
        self.reading(key, start)
        with self._lock:
            self.reads.append((key, start, length))
        if self.is_away:
            raise UnavailableError("the store is away", place=self.name)
        if key not in self.objects:
            raise ObjectNotFoundError("there is no such object", place=key)
        found = self.objects[key][start : start + length]
        if len(found) < length:
            raise DamagedError("the object is shorter than it was", place=key)
        return found

    def stat(self, key: str) -> ObjectInfo | None:
        return ObjectInfo(key, len(self.objects[key]), None) if key in self.objects else None

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return (ObjectInfo(key, len(self.objects[key]), None) for key in sorted(self.objects) if key.startswith(prefix))

    def delete(self, key: str) -> None:
        self.objects.pop(key, None)

    def close(self) -> None: ...


class FragileWriter:
    def __init__(self, store: FragileStore, key: str) -> None:
        self._store = store
        self._key = key
        self._data = bytearray()

    def write(self, data: Bytes, /) -> None:
        self._data += data

    def finish(self) -> None:
        if self._key in self._store.objects:
            raise ObjectExistsError("there is one", place=self._key)
        self._store.objects[self._key] = bytes(self._data)

    def abort(self) -> None: ...


def upload(
    log: Log,
    store: ObjectStore,
    registry: Registry,
    objects: ObjectMap,
    end: int | None = None,
    *,
    index_interval: int = 4096,
    inline: bool = True,
) -> ObjectDescriptor | None:
    """Ship the frames that follow, up to an offset, as one object."""
    head = registry.head()
    if head is None:
        head = UploadHead(str(log.stream.stream_id), log.stream.epoch, log.start_offset, log.start_offset)
    registry.claim(head)
    stop = log.durable_end if end is None else end
    maker = _Maker(index_interval)
    for segment, position, frame, data in _frames(log, head.uploaded_end, stop):
        maker.add(segment, position, frame, data)
    if not maker.frames:
        return None
    descriptor = maker.publish(log, store, inline=inline)
    head = UploadHead(
        head.stream_id,
        head.epoch,
        head.first_offset,
        descriptor.end_offset,
        object_count=head.object_count + 1,
        object_bytes=head.object_bytes + descriptor.size,
    )
    registry.publish(descriptor, head)
    objects.add(descriptor)
    return descriptor


def _frames(log: Log, start: int, end: int) -> Iterator[tuple[Any, int, Frame, bytes]]:
    """The durable frames between two offsets, with their segments, positions and bytes."""
    snapshot = log.snapshot
    segments: list[SealedSegment | ActiveSegment] = [*snapshot.sealed, snapshot.active]
    for segment in segments:
        limit = segment.footer.position if isinstance(segment, SealedSegment) else snapshot.active_position
        file = log.context.files.open(segment.path)
        try:
            for position, complete in Scan(file, SEGMENT_HEADER_BYTES, limit, seed=segment.header.seed):
                if start <= complete.frame.base_offset and complete.frame.end_offset <= end:
                    length = _length(complete.frame)
                    yield segment, position, complete.frame, bytes(file.read(length, position))
        finally:
            file.close()


def _length(frame: Frame) -> int:
    return frames.HEADER_BYTES + frames.padded(len(frame.producer.encode())) + frames.padded(len(frame.body))


class _Maker:
    def __init__(self, index_interval: int) -> None:
        self.frames: list[Frame] = []
        self._data = bytearray()
        self._parts: list[SegmentPart] = []
        self._index = SparseIndex(index_interval)
        self._segment: Any = None

    def add(self, segment: Any, position: int, frame: Frame, data: bytes) -> None:
        if segment is not self._segment:
            self._segment = segment
            self._parts.append(SegmentPart.of(len(self._data), segment.header.seed, position))
        self._index.add(frame.base_offset, len(self._data), frame.publish_time_us)
        self.frames.append(frame)
        self._data += data

    def publish(self, log: Log, store: ObjectStore, *, inline: bool) -> ObjectDescriptor:
        first, last = self.frames[0], self.frames[-1]
        topic, stream_id = TopicName.parse(log.stream.topic), str(log.stream.stream_id)
        fields: dict[str, Any] = {
            "key": object_key(topic, stream_id, ObjectName(first.base_offset, last.end_offset, log.stream.epoch)),
            "topic": str(topic),
            "stream_id": stream_id,
            "epoch": log.stream.epoch,
            "first_offset": first.base_offset,
            "end_offset": last.end_offset,
            "first_time_us": first.publish_time_us,
            "last_time_us": last.publish_time_us,
            "frame_count": len(self.frames),
            "data_bytes": len(self._data),
            "checksum": xxhash.xxh3_64_intdigest(self._data),
            "parts": tuple(self._parts),
            "file_seq": self._segment.header.number,
            "byte_pos": 0,
            "created_us": last.publish_time_us,
        }
        trailer = Trailer(self._index, ObjectDescriptor(**fields, size=0)).to_bytes()
        writer: ObjectWriter = store.writer(fields["key"])
        writer.write(self._data)
        writer.write(trailer)
        writer.finish()
        index = inline_index(self._index) if inline else None
        return ObjectDescriptor(**fields, size=len(self._data) + len(trailer), index=index)


class CloudStage(Stage):
    """A topic in all its tiers, the cloud among them; objects are made, and taken off, by hand."""

    def __init__(self, path: Path, *, log_topic: bool = False, **sections: Any) -> None:
        self.store = FragileStore()
        self.metadata = open_metadata_store(in_memory=True)
        super().__init__(path, **sections)
        self._attach()
        if log_topic:
            self.topic.use(replace(self.topic.record, storage=StorageKind.LOG))

    def _attach(self) -> None:
        """Before the log is opened, with which the tiers are made."""
        topic = self.topic
        assert topic.opened_log is None
        stream_id = topic.record.stream_id
        registry = MetadataRegistry(self.metadata, TopicName.parse(TOPIC), stream_id)
        timeout = self.settings.reader.lease_timeout_ms / 1000
        topic.cloud = TopicCloud(topic.name, stream_id, self.store, registry, lease_timeout_seconds=timeout)

    @property
    def cloud(self) -> TopicCloud:
        assert self.topic.cloud is not None
        return self.topic.cloud

    def restart(self) -> None:
        super().restart()
        self._attach()

    def upload(self, end: int | None = None, **options: Any) -> ObjectDescriptor | None:
        cloud = self.cloud
        return upload(self.topic.log, self.store, cloud.registry, cloud.objects, end, **options)

    def drop_objects(self, below: int) -> int:
        """Retention of objects, which does not look at what the table has; the first offset that is left."""
        cloud = self.cloud
        with cloud.leases.lock:
            floor = cloud.leases.floor(below)
            going = [one for one in cloud.registry.objects() if one.end_offset <= floor]
            head = cloud.registry.head()
            if going and head is not None:
                first = going[-1].end_offset
                left = UploadHead(head.stream_id, head.epoch, first, head.uploaded_end)
                cloud.registry.claim(head)
                cloud.registry.remove(going, left)
                cloud.objects.remove_before(first)
        for one in going:
            self.store.delete(one.key)
        return cloud.objects.first_offset or 0

    def prune_to(self, below: int) -> int:
        """Give up segments below an offset, whatever other tiers have; the first offset that the log still has."""
        self.topic.log.cache.clear()
        self.topic.log.prune(below)
        return self.topic.log.start_offset
