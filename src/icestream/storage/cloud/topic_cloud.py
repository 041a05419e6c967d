"""One topic's part in the cloud, and what all topics share there."""

import contextlib
import threading
from collections.abc import Callable, Iterable
from typing import Self

from icestream.cloud import ObjectMap, ObjectStore, stream_prefix
from icestream.config import Settings, UploaderSettings
from icestream.metadata import MetadataStore
from icestream.model.errors import IcestreamError, InvalidRequestError
from icestream.model.names import TopicName
from icestream.storage.cloud.registry import MetadataRegistry
from icestream.storage.cloud.uploads import TopicUploads, Uploading, UploadStatus
from icestream.storage.record import TopicRecord
from icestream.wal import Log, ReadLeases


class TopicCloud:
    """The objects of one stream: where they lie, what is known of them, how far they are."""

    def __init__(
        self,
        topic: TopicName,
        stream_id: str,
        store: ObjectStore,
        registry: MetadataRegistry,
        *,
        uploading: Uploading | None = None,
        lease_timeout_seconds: float = 60.0,
    ) -> None:
        self.topic = topic
        self.stream_id = stream_id
        self.store = store
        self.registry = registry
        self.objects = ObjectMap(registry)
        self.leases = ReadLeases(lease_timeout_seconds)
        """Of those who read the objects; retention leaves what they read alone for a bounded time."""
        self._uploading = uploading
        self._uploaded_end: int | None = None
        self.changing = threading.Lock()
        """Held by who reads the head, changes it and writes it: the uploader and retention both do."""
        self.is_anew = False
        """Whether the metadata store had no head of the topic when its log was opened, and that was not its first."""
        self.confirmed_end = 0
        """Retention has looked at the objects that end here or before: they lie in the store, whole."""

    @property
    def uploads(self) -> bool:
        """Whether new messages are shipped there; otherwise what lies there is only read."""
        return self._uploading is not None

    @property
    def uploaded_end(self) -> int:
        """Everything below it is in the cloud, read back and described."""
        if (head := self.registry.owned) is not None:
            self._uploaded_end = head.uploaded_end
        return self._uploaded_end if self._uploaded_end is not None else self.objects.end_offset

    @property
    def status(self) -> UploadStatus | None:
        """Figures of the topic's uploads; None where nothing is uploaded, or the log was not opened yet."""
        uploads = self._uploading.find(self.stream_id) if self._uploading is not None else None
        return uploads.status if uploads is not None else None

    def opened(self, log: Log, record: TopicRecord) -> None:
        """The log was opened: own the topic's objects and reserve offsets, and follow the log from now on.

        Raises where the metadata store is away, or another broker owns the topic: nothing may be published then. The
        log is closed.
        """
        if self._uploading is None:
            return
        uploads = TopicUploads(self, log, record, self._uploading.settings, self._uploading.schedule)
        try:
            uploads.reservation.claim()
        except BaseException:
            with contextlib.suppress(IcestreamError):
                log.close()
            raise
        self._uploading.add(uploads)

    def changed(self, record: TopicRecord) -> None:
        """The topic's record is another one now."""
        if self._uploading is not None and (uploads := self._uploading.find(self.stream_id)) is not None:
            uploads.use(record)

    def flush(self, timeout: float | None = None) -> int:
        """Ship everything that is durable now; the offset below which all is in the cloud then.

        Raises what an upload fails with, and `DeadlineError` when the time is up: the upload goes on then.
        """
        uploads = self._uploading.find(self.stream_id) if self._uploading is not None else None
        if uploads is None:
            raise InvalidRequestError(
                "the topic is not uploaded",
                operation="flush topic",
                place=str(self.topic),
                remedy="set uploader.enabled",
            )
        return uploads.flush(timeout)

    def delete(self) -> None:
        """The topic is deleted: remove its objects, then what is known of them. May be called again."""
        if self._uploading is not None:
            self._uploading.remove(self.stream_id)
        for found in list(self.store.list(stream_prefix(self.topic, self.stream_id))):
            self.store.delete(found.key)
        self.registry.forget()
        self.objects.forget()


class Cloud:
    def __init__(
        self,
        store: ObjectStore,
        metadata: MetadataStore,
        *,
        uploader: UploaderSettings | None = None,
        lease_timeout_seconds: float = 60.0,
    ) -> None:
        self.store = store
        self.uploading = Uploading(uploader) if uploader is not None and uploader.enabled else None
        self._lease_timeout_seconds = lease_timeout_seconds
        self._metadata = metadata

    @classmethod
    def open(cls, settings: Settings, metadata: MetadataStore) -> Self | None:
        """None where the settings name no store."""
        if settings.cloud.backend is None:
            return None
        from icestream.cloud.opendal_store import open_object_store  # noqa: PLC0415 - only who uses it loads it

        store = open_object_store(settings.cloud, settings.uploader.root_prefix)
        timeout = settings.reader.lease_timeout_ms / 1000
        return cls(store, metadata, uploader=settings.uploader, lease_timeout_seconds=timeout)

    @property
    def uploads(self) -> bool:
        return self.uploading is not None

    def start(self, open_logs: Callable[[], Iterable[Callable[[], Log]]]) -> None:
        """Begin to upload; `open_logs` gives functions that open the topics' logs."""
        if self.uploading is not None:
            self.uploading.start(open_logs)

    def stop(self) -> None:
        """Upload what is left, for a bounded time. Logs are still open, and nothing is published any more."""
        if self.uploading is not None:
            self.uploading.stop()

    def of(self, topic: TopicName, stream_id: str) -> TopicCloud:
        registry = MetadataRegistry(self._metadata, topic, stream_id)
        timeout = self._lease_timeout_seconds
        return TopicCloud(
            topic, stream_id, self.store, registry, uploading=self.uploading, lease_timeout_seconds=timeout
        )

    def close(self) -> None:
        self.store.close()
