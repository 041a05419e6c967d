"""What metadata store and object store know of topics, as the settings name them: for looking only."""

import contextlib
from functools import cached_property
from types import TracebackType
from typing import Self

from icestream.config import Settings
from icestream.metadata import MetadataStore, keys, open_metadata_store, scan
from icestream.model.names import TopicName
from icestream.storage.cloud import Cloud, TopicCloud
from icestream.storage.cloud.discovery import find_streams
from icestream.storage.facade import open_store
from icestream.storage.record import TopicRecord

_LOST = "its log is lost: bring it back with `icestream topic recover`, or delete the topic"
_UNKNOWN = "only the object store knows of it: bring it back with `icestream topic recover`"


class Clouds:
    """Opens the stores when it is asked for what they have; no object store where the settings name none to share."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._resources = contextlib.ExitStack()

    @cached_property
    def _metadata(self) -> MetadataStore:
        """A file that is missing would be made: an empty store in memory says as much."""
        path = self._settings.metadata.sqlite_path
        is_missing = not self._settings.metadata.etcd_endpoint and path is not None and not path.exists()
        store = open_metadata_store(in_memory=True) if is_missing else open_store(self._settings)
        return self._resources.enter_context(store)

    @cached_property
    def _cloud(self) -> Cloud | None:
        if not self.configured:
            return None
        cloud = Cloud.open(self._settings, self._metadata)
        if cloud is not None:
            self._resources.callback(cloud.close)
        return cloud

    @property
    def configured(self) -> bool:
        return self._settings.cloud.backend not in (None, "memory")  # the memory is that of the broker's process

    def find(self, topic: TopicName, stream_id: str | None = None) -> TopicCloud | None:
        """A topic's part in the cloud; its stream is that of its record unless it is given."""
        if self._cloud is None:
            return None
        if stream_id is None:
            entry = self._metadata.get(keys.topic(topic))
            if entry is None:
                return None
            stream_id = TopicRecord.from_bytes(entry.value).stream_id
        return self._cloud.of(topic, stream_id)

    def missing(self, logs: set[TopicName]) -> dict[TopicName, str]:
        """The topics that ought to have a log and have none among these, and why that is said of each."""
        records = [TopicRecord.from_bytes(entry.value) for entry in scan(self._metadata, keys.topics())]
        known = {record.name for record in records} | logs
        missing = {
            record.name: _LOST
            for record in records
            if record.name not in logs and not record.deleting and (record.has_log or self._is_uploaded(record))
        }
        if self._cloud is not None:
            streams = find_streams(self._cloud.store)
            missing |= {stream.topic: _UNKNOWN for stream in streams if stream.topic not in known}
        return missing

    def _is_uploaded(self, record: TopicRecord) -> bool:
        cloud = self.find(record.name, record.stream_id)
        head = cloud.registry.head() if cloud is not None else None
        return head is not None and head.uploaded_end > 0

    def close(self) -> None:
        self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
