"""Objects of a topic as retention sees them, in a store that can refuse: no uploader, no log."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from icestream.cloud import ObjectDescriptor, ObjectInfo, ObjectWriter, Trailer, UploadHead
from icestream.cloud.object import ObjectName, object_key
from icestream.config import UploaderSettings
from icestream.metadata import open_metadata_store
from icestream.model.errors import UnavailableError
from icestream.model.frames import SparseIndex
from icestream.model.names import TopicName
from icestream.storage.cloud import MetadataRegistry, TopicCloud
from icestream.storage.cloud.uploads import UploadScheduler

MINUTE_US = 60_000_000
TOPIC = TopicName("default", "events")
STREAM_ID = "7a4c3a52-6f0f-4c59-9f1c-0d8f0f3f8e01"


@dataclass
class StoredObjects:
    """`icestream.cloud.ObjectStore` in a dictionary, which notes what it was asked."""

    contents: dict[str, bytes] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)
    refuses: set[str] = field(default_factory=set)
    """Names of methods that fail as long as they stand here."""
    name: str = "dictionary"

    def writer(self, key: str) -> ObjectWriter:
        raise NotImplementedError(key)

    def put(self, key: str, data: bytes) -> None:
        self._ask("put", key)
        self.contents[key] = data

    def read(self, key: str, start: int, length: int) -> bytes:
        self._ask("read", key)
        return self.contents[key][start : start + length]

    def stat(self, key: str) -> ObjectInfo | None:
        self._ask("stat", key)
        found = self.contents.get(key)
        return ObjectInfo(key, len(found), None) if found is not None else None

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        self._ask("list", prefix)
        for key in sorted(self.contents):
            if key.startswith(prefix):
                yield ObjectInfo(key, len(self.contents[key]), None)

    def delete(self, key: str) -> None:
        self._ask("delete", key)
        self.contents.pop(key, None)

    def close(self) -> None:
        """Nothing is held."""

    def _ask(self, what: str, key: str) -> None:
        self.asked.append((what, key))
        if what in self.refuses:
            raise UnavailableError("the store is away", operation=what, place=key)


class Shelf:
    """One topic's objects: published as an uploader does it, one after the other."""

    def __init__(self, topic: TopicName = TOPIC, stream_id: str = STREAM_ID, *, uploads: bool = True) -> None:
        self.store = StoredObjects()
        self.metadata = open_metadata_store(in_memory=True)
        self.registry = MetadataRegistry(self.metadata, topic, stream_id)
        self.registry.claim(UploadHead(stream_id, epoch=1))
        uploading = UploadScheduler(UploaderSettings(enabled=True)) if uploads else None  # it is not started
        self.cloud = TopicCloud(topic, stream_id, self.store, self.registry, uploading=uploading)

    def add(self, end: int, *, time_us: int = 0, data_bytes: int = 1000) -> ObjectDescriptor:
        """The next object, up to an offset."""
        cloud, head = self.cloud, self.head
        key = object_key(cloud.topic, cloud.stream_id, ObjectName(head.uploaded_end, end, head.epoch))
        descriptor = ObjectDescriptor(
            key=key,
            topic=str(cloud.topic),
            stream_id=cloud.stream_id,
            epoch=head.epoch,
            first_offset=head.uploaded_end,
            end_offset=end,
            first_time_us=time_us,
            last_time_us=time_us,
            frame_count=1,
            data_bytes=data_bytes,
            size=0,
            checksum=0,
            parts=(),
            file_seq=0,
            byte_pos=0,
            created_us=0,
        )
        content = bytes(data_bytes) + Trailer(SparseIndex(65536), descriptor).to_bytes()
        self.store.put(key, content)
        described = ObjectDescriptor(**(vars(descriptor) | {"size": len(content)}))
        moved = UploadHead(
            **(
                vars(head)
                | {
                    "uploaded_end": end,
                    "object_count": head.object_count + 1,
                    "object_bytes": head.object_bytes + len(content),
                }
            )
        )
        self.registry.publish(described, moved)
        cloud.objects.add(described)
        return described

    @property
    def head(self) -> UploadHead:
        found = self.registry.head()
        assert found is not None
        return found

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """Of the objects that lie in the store."""
        names = [ObjectName.parse(key) for key in sorted(self.store.contents)]
        return [(name.first_offset, name.end_offset) for name in names if name is not None]
