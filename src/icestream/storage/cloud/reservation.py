"""Offsets are reserved in the metadata store before any message gets them.

If a broker's disk is lost with messages that were not uploaded, the reservation tells which offsets may have been used.
None of them is ever used for another message.
"""

import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from icestream.cloud import UploadHead, stream_prefix
from icestream.model.clock import Clock
from icestream.model.errors import ConflictError, IcestreamError, LogLostError, ObjectNotFoundError, StaleEpochError
from icestream.storage.cloud.discovery import TopicFile, describe_all, find_streams, in_order
from icestream.storage.cloud.log_source import LogNotes
from icestream.storage.cloud.registry import MetadataRegistry
from icestream.storage.record import TopicRecord
from icestream.wal import Log, LogState

if TYPE_CHECKING:
    from icestream.storage.cloud.topic_cloud import TopicCloud

STEP = 16_777_216
"""How many offsets are reserved ahead; renewed when half of them are used."""
_MAX_CLAIMS = 5
_PAUSE_SECONDS = 1.0
_log = structlog.get_logger(__name__)


class Reservation:
    """One topic's reservation: claimed when the log is opened, moved ahead while messages come, returned at the end."""

    def __init__(self, cloud: "TopicCloud", log: Log, record: TopicRecord, clock: Clock) -> None:
        self._cloud = cloud
        self._log = log
        self._clock = clock
        self._record = record
        self._written: tuple[TopicRecord, int] | None = None
        self._given_back = False

    @property
    def record(self) -> TopicRecord:
        return self._record

    def use(self, record: TopicRecord) -> None:
        self._record = record

    def claim(self) -> None:
        """Become the owner, and reserve the first offsets. Before that nothing may be published."""
        registry, log = self._cloud.registry, self._log
        for _ in range(_MAX_CLAIMS):
            with contextlib.suppress(ConflictError):  # a change from before a crash came through late
                head = registry.head() or self._first_head()
                log.offset_limit = _claim(registry, head, log, self._clock()).reserved_end
                return
        raise _keeps_changing(log)

    def _first_head(self) -> UploadHead:
        """Return the head for a topic that has none: it is new, or the metadata store was lost and the log was not.

        In the second case the existing objects are described again, so that uploads and retention count them.
        """
        cloud, log = self._cloud, self._log
        head = UploadHead(cloud.stream_id, log.stream.epoch)
        notes = LogNotes(log).load()
        if not log.start_offset and log.stream.epoch == 1 and notes is None:
            return head  # nothing of it was ever uploaded
        cloud.has_rebuilt_records = True
        streams = find_streams(cloud.store, stream_prefix(cloud.topic, cloud.stream_id))
        found = in_order(one for stream in streams for one in stream.objects)
        if any(one.name.epoch > head.epoch for one in found):
            raise self._taken_over(max(one.name.epoch for one in found))
        if notes is not None and notes.stream_id == cloud.stream_id and notes.uploaded_end and not found:
            raise self._other_store(notes.uploaded_end)
        descriptors = [descriptor for descriptor, _ in describe_all(cloud.store, found)]
        if not descriptors:
            return head
        last = descriptors[-1]
        if last.end_offset > log.durable_end:
            raise _lost(last.end_offset, log)
        cloud.registry.describe(descriptors)
        cloud.objects.forget()
        _log.warning(
            "cloud_object_records_rebuilt",
            topic=str(cloud.topic),
            objects=len(descriptors),
            first_offset=found[0].name.first_offset,
            end_offset=last.end_offset,
        )
        return replace(
            head,
            first_offset=found[0].name.first_offset,
            uploaded_end=last.end_offset,
            file_seq=last.file_seq,
            byte_pos=last.byte_pos,
            object_count=len(descriptors),
            object_bytes=sum(descriptor.size for descriptor in descriptors),
        )

    @property
    def is_used(self) -> bool:
        """Whether half of the reservation is used."""
        return self._log.durable_end + STEP // 2 > self._log.offset_limit

    def renew(self) -> None:
        self._log.offset_limit = self._move(lambda: self._log.durable_end + STEP)

    def give_back(self, end: int) -> None:
        """Return the offsets from `end` on, which no message has. Only at a clean end, when the log gives out no more.

        Only the metadata store is updated. The next owner reserves there first, and writes `topic.json` later, or not
        at all while the object store is away: `topic.json` must never name less than is reserved.
        """
        self._given_back = True
        self._move(lambda: end)

    def _move(self, end: Callable[[], int]) -> int:
        cloud = self._cloud
        with cloud.changing:
            head = cloud.registry.owned or cloud.registry.refresh()
            head = replace(head, reserved_end=end(), updated_us=self._clock())
            cloud.registry.update(head)
        return head.reserved_end

    @property
    def is_written(self) -> bool:
        """Whether `topic.json` has the record and the reservation."""
        head = self._cloud.registry.owned
        return head is None or self._given_back or self._written == (self._record, head.reserved_end)

    def write(self) -> None:
        """Write `topic.json`: with it the topic can be recovered even if the metadata store is lost with the disk."""
        cloud, record = self._cloud, self._record
        head = cloud.registry.owned
        if head is None or self._given_back:
            return
        TopicFile(record, head).write(cloud.store)
        self._written = (record, head.reserved_end)

    def check_owner(self) -> None:
        """Raise `StaleEpochError` if `topic.json` names a later owner.

        A broker with its own metadata store, such as the embedded one, learns of it only here.
        """
        noted = TopicFile.read(self._cloud.store, self._cloud.topic, self._cloud.stream_id)
        if noted is not None and noted.head.epoch > self._log.stream.epoch:
            raise self._taken_over(noted.head.epoch)

    def _other_store(self, uploaded_end: int) -> IcestreamError:
        return ObjectNotFoundError(
            f"{LogNotes(self._log).name} says that everything below offset {uploaded_end} is uploaded, and "
            f"{self._cloud.store.name} has nothing of the topic: is this the right store?",
            operation="open log",
            place=str(self._cloud.topic),
            remedy="check cloud.backend, cloud.root and uploader.root_prefix; where the objects are really gone, "
            "remove that file",
        )

    def _taken_over(self, epoch: int) -> IcestreamError:
        return StaleEpochError(
            f"the log here is that of epoch {self._log.stream.epoch}, and the cloud knows an owner of epoch {epoch}: "
            "the topic has gone on elsewhere",
            operation="upload",
            place=str(self._log.directory),
            remedy="move the directory away; `icestream topic recover` recovers the topic here",
        )


class ReservationWithoutUploads:
    """The reservation of a topic that was uploaded once, on a broker that does not upload.

    Recovery relies on the reservation in the metadata store, so it is kept up also without uploads. Nothing is returned
    at the end; a broker that uploads again does that.
    """

    def __init__(self, registry: MetadataRegistry, log: Log, clock: Clock) -> None:
        self._registry = registry
        self._log = log
        self._clock = clock
        self._renewing = threading.Lock()
        self._closed = threading.Event()

    def claim(self) -> None:
        """Reserve the first offsets, before anything is published. A topic that was never uploaded needs none."""
        log = self._log
        for _ in range(_MAX_CLAIMS):
            head = self._registry.head()
            if head is None:
                return
            with contextlib.suppress(ConflictError):
                log.offset_limit = _claim(self._registry, head, log, self._clock()).reserved_end
                log.listeners.add(self._committed)
                return
        raise _keeps_changing(log)

    def _committed(self) -> None:
        """Start a renewal if it is time. The committing thread calls it, so it is quick."""
        log = self._log
        if log.state is LogState.CLOSED:
            self._closed.set()
        elif log.durable_end + STEP // 2 > log.offset_limit and self._renewing.acquire(blocking=False):
            try:
                threading.Thread(target=self._renew, name="reservation", daemon=True).start()
            except RuntimeError as error:  # no thread can be started now; an error here would poison the log
                self._renewing.release()
                _log.warning("offset_reservation_failed", topic=log.stream.topic, error=str(error))

    def _renew(self) -> None:
        """Move the reservation ahead; retry until the metadata store responds. At the limit publishing stops."""
        registry, log = self._registry, self._log
        try:
            while not self._closed.is_set():
                try:
                    head = registry.owned or registry.refresh()
                    head = replace(head, reserved_end=log.durable_end + STEP, updated_us=self._clock())
                    registry.update(head)
                except IcestreamError as error:
                    _log.warning("offset_reservation_failed", topic=log.stream.topic, error=str(error))
                    if isinstance(error, StaleEpochError):
                        log.leave_to_others(error.message)
                    if not error.retryable:
                        return
                    self._closed.wait(_PAUSE_SECONDS)
                else:
                    log.offset_limit = head.reserved_end
                    return
        finally:
            self._renewing.release()


def _claim(registry: MetadataRegistry, head: UploadHead, log: Log, now_us: int) -> UploadHead:
    if head.uploaded_end > log.durable_end:
        raise _lost(head.uploaded_end, log)
    reserved_end = max(head.reserved_end, log.durable_end + STEP)
    return registry.claim(replace(head, epoch=log.stream.epoch, reserved_end=reserved_end, updated_us=now_us))


def _keeps_changing(log: Log) -> ConflictError:
    return ConflictError(
        "the topic's record in the metadata store keeps changing",
        operation="open log",
        place=log.stream.topic,
        remedy="look whether another broker has the topic too",
    )


def _lost(uploaded_end: int, log: Log) -> IcestreamError:
    return LogLostError(
        f"the cloud has messages up to offset {uploaded_end - 1}, the log only up to {log.durable_end - 1}: it is not "
        "the log that was uploaded",
        operation="open log",
        place=str(log.directory),
        remedy="put the log's directory back in its place, or move this one away and recover the topic with "
        "`icestream topic recover`",
    )
