"""One topic's cloud objects, and what all topics share."""

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
from icestream.storage.cloud.uploads import TopicUploads, UploadScheduler, UploadStatus
from icestream.storage.record import TopicRecord
from icestream.wal import Log, ReadLeases


class TopicCloud:
    """The objects of one stream, their records, and the uploads."""

    def __init__(
        self,
        topic: TopicName,
        stream_id: str,
        store: ObjectStore,
        registry: MetadataRegistry,
        *,
        uploading: UploadScheduler | None = None,
        lease_timeout_seconds: float = 60.0,
    ) -> None:
        self.topic = topic
        self.stream_id = stream_id
        self.store = store
        self.registry = registry
        self.objects = ObjectMap(registry)
        self.leases = ReadLeases(lease_timeout_seconds)
        """The leases of readers; retention keeps what they read for a bounded time."""
        self._uploading = uploading
        self._uploaded_end: int | None = None
        self.changing = threading.Lock()
        """Held while the head is read, changed and written: uploader and retention both do that."""
        self.has_rebuilt_records = False
        """Whether the head was missing in the metadata store though the topic is not new."""
        self.confirmed_end = 0
        """Retention has read back the objects up to this offset: they are complete."""

    @property
    def uploads(self) -> bool:
        """Whether this broker uploads; otherwise it only reads objects."""
        return self._uploading is not None

    @property
    def uploaded_end(self) -> int:
        """Everything below it is in the cloud, read back and described."""
        if (head := self.registry.owned) is not None:
            self._uploaded_end = head.uploaded_end
        return self._uploaded_end if self._uploaded_end is not None else self.objects.end_offset

    @property
    def status(self) -> UploadStatus | None:
        """Figures of the topic's uploads; None if this broker does not upload, or the log is not open."""
        uploads = self._uploading.find(self.stream_id) if self._uploading is not None else None
        return uploads.status if uploads is not None else None

    def opened(self, log: Log, record: TopicRecord) -> None:
        """Claim the topic's objects, reserve offsets, and follow the log, which was just opened.

        Raise, and close the log, if the metadata store fails or another broker owns the topic: nothing may be
        published then.
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
        """Use the topic's changed record."""
        if self._uploading is not None and (uploads := self._uploading.find(self.stream_id)) is not None:
            uploads.use(record)

    def flush(self, timeout: float | None = None) -> int:
        """Upload everything that is durable now; return the offset below which the cloud has all.

        Raise what an upload fails with, and `DeadlineError` at the time-out; the upload continues then.
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
        """Remove the objects of a deleted topic, then their records. May be called again."""
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
        self.uploading = UploadScheduler(uploader) if uploader is not None and uploader.enabled else None
        self._lease_timeout_seconds = lease_timeout_seconds
        self._metadata = metadata

    @classmethod
    def open(cls, settings: Settings, metadata: MetadataStore) -> Self | None:
        """Open the object store; return None if the settings name none."""
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
        """Start the uploads; `open_logs` returns functions that open the topics' logs."""
        if self.uploading is not None:
            self.uploading.start(open_logs)

    def stop(self) -> None:
        """Upload the rest, for a bounded time. Logs are still open, and nothing is published any more."""
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
