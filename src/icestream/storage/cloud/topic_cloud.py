"""One topic's part in the cloud, and what all topics share there."""

from typing import Self

from icestream.cloud import ObjectMap, ObjectStore
from icestream.config import Settings
from icestream.metadata import MetadataStore
from icestream.model.names import TopicName
from icestream.storage.cloud.registry import MetadataRegistry


class TopicCloud:
    """The objects of one stream: where they lie, what is known of them, how far they are."""

    def __init__(self, topic: TopicName, stream_id: str, store: ObjectStore, registry: MetadataRegistry) -> None:
        self.topic = topic
        self.stream_id = stream_id
        self.store = store
        self.registry = registry
        self.objects = ObjectMap(registry)

    @property
    def uploaded_end(self) -> int:
        """Everything below it is in the cloud, read back and described."""
        return self.objects.end_offset


class Cloud:
    def __init__(self, store: ObjectStore, metadata: MetadataStore) -> None:
        self.store = store
        self._metadata = metadata

    @classmethod
    def open(cls, settings: Settings, metadata: MetadataStore) -> Self | None:
        """None where the settings name no store."""
        if settings.cloud.backend is None:
            return None
        from icestream.cloud.opendal_store import open_object_store  # noqa: PLC0415 - only who uses it loads it

        return cls(open_object_store(settings.cloud, settings.uploader.root_prefix), metadata)

    def of(self, topic: TopicName, stream_id: str) -> TopicCloud:
        return TopicCloud(topic, stream_id, self.store, MetadataRegistry(self._metadata, topic, stream_id))

    def close(self) -> None:
        self.store.close()
