"""One topic's uploads: when the next one is due, how the last ones went, how far the cloud is behind."""

import random
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from time import monotonic
from typing import TYPE_CHECKING

import structlog

from icestream.cloud import Head
from icestream.cloud.object_maker import ObjectMaker
from icestream.cloud.uploader import Uploader
from icestream.config import UploaderSettings
from icestream.model.clock import Clock, now_us
from icestream.model.errors import (
    ClosedError,
    DamagedError,
    DeadlineError,
    IcestreamError,
    StaleEpochError,
    UnavailableError,
)
from icestream.storage.cloud.log_source import LogNotes, LogSource
from icestream.storage.cloud.reservation import Reservation
from icestream.storage.record import TopicRecord
from icestream.wal import Log, LogState, time_at_offset

if TYPE_CHECKING:
    from icestream.storage.cloud.topic_cloud import TopicCloud

_MB = 1_000_000
_FIRST_PAUSE_SECONDS = 0.5
_MAX_PAUSE_SECONDS = 60.0
_NEVER = 1 << 62
_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class UploadStatus:
    """Figures of a topic's uploads."""

    state: str
    """`ok`; `failing`, and tried again; `stopped`, for good: another broker owns the topic, or its log is damaged."""
    uploaded_end: int
    objects: int
    object_bytes: int
    """Of the objects that are in the cloud now."""
    uploads: int
    uploaded_bytes: int
    """With `uploads`: since the broker started."""
    failures: int
    """Since the broker started."""
    last_upload_us: int | None
    last_error: str | None
    """None once an upload went well again."""
    lag_messages: int
    lag_bytes: int
    lag_seconds: float | None
    """Age of the oldest durable message that is not uploaded; None where the log cannot tell."""


class TopicUploads:
    """Cycles come one at a time, from the threads of `Uploading`; the rest may be called by anyone."""

    def __init__(
        self,
        cloud: "TopicCloud",
        log: Log,
        record: TopicRecord,
        settings: UploaderSettings,
        schedule: Callable[["TopicUploads", float], None],
        clock: Clock = now_us,
    ) -> None:
        self.cloud = cloud
        self.log = log
        self.reservation = Reservation(cloud, log, record, clock)
        self._schedule = schedule
        self._interval_seconds = settings.interval_seconds
        self._max_bytes = settings.max_object_mb * _MB if settings.max_object_mb is not None else None
        self._clock = clock
        self._cancelled = threading.Event()
        self._uploader = Uploader(
            ObjectMaker(
                cloud.topic,
                cloud.stream_id,
                LogSource(log),
                cloud.store,
                record=lambda: asdict(self.reservation.record),
                cancelled=self._cancelled.is_set,
                clock=clock,
            ),
            cloud.registry,
            LogNotes(log),
            cloud.objects,
            changing=cloud.changing,
            has_table=record.has_table,
            max_object_bytes=self._max_bytes,
            clock=clock,
        )
        self._done = threading.Condition()
        self._idle = True
        self._segment = log.visible.active.header.number
        self._full_position = _NEVER
        self._wanted_end = 0
        self._failures_in_a_row = 0
        self._uploads = self._uploaded_bytes = self._failures = 0
        self._last_upload_us: int | None = None
        self._error: IcestreamError | None = None
        self._stopped = False
        self._head: Head | None = None
        """The last one that was known; figures need not be newer."""
        self._reserving = threading.Lock()
        """Held by who moves the reservation and the log's limit with it."""
        self._ended = False

    # When

    def begin(self) -> None:
        """The topic was claimed: ship what an earlier run has left, and follow the log."""
        self._head = self.cloud.registry.owned
        self.log.listeners.add(self._committed)
        self._look_on(monotonic())
        if not self.reservation.is_written:
            self._schedule(self, monotonic())

    def end(self) -> None:
        self.log.listeners.discard(self._committed)

    @property
    def is_behind(self) -> bool:
        """Whether something durable is not uploaded."""
        return self.cloud.uploaded_end < self.log.durable_end

    def hurry(self) -> None:
        """Ship what is durable now."""
        with self._done:
            self._wanted_end = max(self._wanted_end, self.log.durable_end)
        self._schedule(self, monotonic())

    def cancel(self) -> None:
        """Break off the upload that is under way, if there is one."""
        self._cancelled.set()

    @property
    def is_over(self) -> bool:
        return self._cancelled.is_set() or self.log.state is LogState.CLOSED

    def _committed(self) -> None:
        """By the thread that commits, for every commit: it has to be quick."""
        visible = self.log.visible
        if visible.active.header.number != self._segment or visible.active_position >= self._full_position:
            self._segment, self._full_position = visible.active.header.number, _NEVER
            self._idle = False
            self._schedule(self, monotonic())
        elif self._idle:
            self._idle = False
            self._schedule(self, monotonic() + self._interval_seconds)

    def _look_on(self, now: float, *, found_nothing: bool = False) -> None:
        """After a cycle that went well: go on soon if there is a reason to, else when the interval is over.

        Soon is at once, unless there was nothing to ship: then the reason is new, or there is a fault, and no hurry.
        """
        head = self.cloud.registry.owned
        if head is None:
            self._schedule(self, now + _FIRST_PAUSE_SECONDS)
            return
        self._idle = True  # before looking: a commit that comes meanwhile is not missed
        visible = self.log.visible
        in_active = head.file_seq == visible.active.header.number
        begin = head.byte_pos if in_active else 0
        self._segment = visible.active.header.number
        self._full_position = begin + self._max_bytes if self._max_bytes is not None else _NEVER
        sealed = visible.sealed[-1].footer.end_offset if visible.sealed else 0
        is_full = visible.active_position >= self._full_position
        if head.uploaded_end >= visible.end_offset:
            return
        self._idle = False
        hurry = sealed > head.uploaded_end or is_full or self._wanted_end > head.uploaded_end
        soon = now + _FIRST_PAUSE_SECONDS if found_nothing else now
        self._schedule(self, soon if hurry else now + self._interval_seconds)

    # Doing it

    def run(self) -> None:
        """One cycle, and when the next one is due."""
        if self._stopped or self.is_over:
            return
        try:
            self.reservation.check_owner()
            if not self.reservation.is_written:
                self.reservation.write()
            descriptor = self._uploader.cycle()
        except Exception as error:  # noqa: BLE001 - whatever it is, the topic is tried again and others go on
            if not (isinstance(error, ClosedError) and self.is_over):
                self._failed(error if isinstance(error, IcestreamError) else self._unexpected(error))
            return
        with self._done:
            self._error, self._failures_in_a_row = None, 0
            if descriptor is not None:
                self._uploads += 1
                self._uploaded_bytes += descriptor.size
                self._last_upload_us = self._clock()
            self._done.notify_all()
        self._head = self.cloud.registry.owned or self._head
        self._look_on(monotonic(), found_nothing=descriptor is None)

    def _failed(self, error: IcestreamError) -> None:
        stale = isinstance(error, StaleEpochError)
        stopped = stale or (isinstance(error, DamagedError) and not error.retryable)
        with self._done:
            self._failures += 1
            self._failures_in_a_row += 1
            self._error, self._stopped = error, stopped
            self._done.notify_all()
        topic = str(self.cloud.topic)
        if stale:
            self.log.leave_to_others(error.message)
        if stopped:
            _log.error("nothing of the topic is uploaded any more", topic=topic, error=str(error))
            return
        pause = min(_MAX_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2 ** min(self._failures_in_a_row, 10))
        pause *= random.uniform(0.5, 1.0)  # noqa: S311 - so that topics do not all come back at once
        _log.warning("an upload failed", topic=topic, error=str(error), again_in_seconds=round(pause, 1))
        self._schedule(self, monotonic() + pause)

    def renew_reservation(self) -> None:
        """Move it ahead if half of it is used. Raises nothing: it is tried again in a second."""
        with self._reserving:
            if self._ended or self._is_stale or not self.reservation.is_used:
                return
            try:
                self.reservation.renew()
            except StaleEpochError as error:
                self._failed(error)
            except Exception as error:  # noqa: BLE001 - without offsets nothing can be published, so it is tried again
                _log.warning("offsets could not be reserved", topic=str(self.cloud.topic), error=str(error))
            else:
                if self.log.taken_over is not None:  # found out meanwhile
                    self.log.close_offsets()
                self._schedule(self, monotonic())

    @property
    def _is_stale(self) -> bool:
        return isinstance(self._error, StaleEpochError)

    def use(self, record: TopicRecord) -> None:
        """The topic's record has changed; the object store is told soon."""
        self.reservation.use(record)
        self._schedule(self, monotonic())

    def flush(self, timeout: float | None) -> int:
        """Ship all that is durable now; the offset below which all is uploaded then.

        Raises what an upload fails with, or `DeadlineError` when the time is up; uploads go on nevertheless.
        """
        self.log.sync()
        target = self.log.durable_end
        failures = self._failures
        if self._stopped and self._error is not None:
            raise self._error
        if self.cloud.uploaded_end < target:
            self.hurry()
            with self._done:
                self._done.wait_for(lambda: self.cloud.uploaded_end >= target or self._failures > failures, timeout)
                if self.cloud.uploaded_end < target:
                    raise self._late(target) if self._failures == failures or self._error is None else self._error
        return self.cloud.uploaded_end

    def _late(self, target: int) -> DeadlineError:
        return DeadlineError(
            f"the topic was not uploaded up to offset {target} in time",
            operation="flush topic",
            place=str(self.cloud.topic),
            remedy="wait for it with a longer timeout, or look at the broker's log",
        )

    def give_back(self) -> bool:
        """At the end, with no offset given out any more; False where the metadata store is away.

        Raises nothing: what stays reserved does no harm. So it does where the last change of the head may still come
        through, and where the reservation is being moved right now by somebody who waits for the metadata store.
        """
        if self._is_stale or self.log.state is not LogState.OPEN or self.cloud.registry.owned is None:
            return True
        if not self._reserving.acquire(blocking=False):
            return True
        try:
            self._ended = True
            end = self.log.close_offsets()
            self.log.sync()
            self.reservation.give_back(end)
        except Exception as error:  # noqa: BLE001 - a topic that fails keeps no other from it
            _log.warning("offsets stay reserved", topic=str(self.cloud.topic), error=str(error))
            return not isinstance(error, UnavailableError)
        finally:
            self._reserving.release()
        return True

    @property
    def status(self) -> UploadStatus:
        head = self._head = self.cloud.registry.owned or self._head
        uploaded_end = head.uploaded_end if head is not None else 0
        visible = self.log.visible
        waiting = max(0, visible.end_offset - uploaded_end)
        nbytes = 0
        if waiting and head is not None:
            ends = [(one.header.number, one.footer.position) for one in visible.sealed]
            ends.append((visible.active.header.number, visible.active_position))
            nbytes = sum(
                end - (head.byte_pos if number == head.file_seq else 0)
                for number, end in ends
                if number >= head.file_seq
            )
        return UploadStatus(
            state="stopped" if self._stopped else "failing" if self._error is not None else "ok",
            uploaded_end=uploaded_end,
            objects=head.object_count if head is not None else 0,
            object_bytes=head.object_bytes if head is not None else 0,
            uploads=self._uploads,
            uploaded_bytes=self._uploaded_bytes,
            failures=self._failures,
            last_upload_us=self._last_upload_us,
            last_error=str(self._error) if self._error is not None else None,
            lag_messages=waiting,
            lag_bytes=nbytes,
            lag_seconds=self._age_seconds(uploaded_end) if waiting else 0.0,
        )

    def _age_seconds(self, offset: int) -> float | None:
        try:
            return max(0.0, (self._clock() - time_at_offset(self.log, offset)) / 1e6)
        except IcestreamError:  # not in the log any more, or not readable: other figures say so
            return None

    def _unexpected(self, error: Exception) -> IcestreamError:
        return UnavailableError(f"the upload failed: {error!r}", operation="upload", place=str(self.cloud.topic))
