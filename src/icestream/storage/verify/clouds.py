"""The cloud parts of topics as the settings name them: for looking only, beside a broker or without one."""

import contextlib
from types import TracebackType
from typing import Self

from icestream.config import Settings
from icestream.metadata import keys
from icestream.model.names import TopicName
from icestream.storage.cloud import Cloud, TopicCloud
from icestream.storage.facade import open_store
from icestream.storage.record import TopicRecord


class Clouds:
    """Opens the metadata store and the object store; nothing where the settings name no object store to share."""

    def __init__(self, settings: Settings) -> None:
        self._resources = contextlib.ExitStack()
        self._cloud: Cloud | None = None
        if settings.cloud.backend in (None, "memory"):  # the memory is that of the broker's process
            return
        with contextlib.ExitStack() as opened:
            self._metadata = opened.enter_context(open_store(settings))
            self._cloud = Cloud.open(settings, self._metadata)
            if self._cloud is not None:
                opened.callback(self._cloud.close)
            self._resources = opened.pop_all()

    @property
    def configured(self) -> bool:
        return self._cloud is not None

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

    def close(self) -> None:
        self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
