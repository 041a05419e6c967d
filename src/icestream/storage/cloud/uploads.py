"""Uploads: when each topic is due, how its uploads went, and the threads that do them.

A few threads take the topics that are due, the one that is due for longest first. A cycle makes one object. A topic
with more to upload is due again at once, after the others that are due. A topic whose upload fails is tried again with
growing pauses, and does not delay the others. One more thread keeps offsets reserved, whatever the object store does.
"""

import contextlib
import heapq
import random
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count
from time import monotonic
from typing import TYPE_CHECKING

import msgspec
import structlog

from icestream.cloud import ObjectBuilder, Uploader, UploadHead
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
from icestream.model.units import MIB
from icestream.storage.cloud.log_source import LogNotes, LogSource
from icestream.storage.cloud.reservation import Reservation
from icestream.storage.record import TopicRecord
from icestream.wal import Log, LogState, time_at_offset

if TYPE_CHECKING:
    from icestream.storage.cloud.topic_cloud import TopicCloud

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
    """Of the last upload; None if it succeeded."""
    lag_messages: int
    lag_bytes: int
    lag_seconds: float | None
    """Age of the oldest durable message that is not uploaded; None if the log does not tell."""


class TopicUploads:
    """Cycles come one at a time, from the threads of `UploadScheduler`; the rest may be called by anyone."""

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
        self._max_bytes = settings.max_object_mb * MIB if settings.max_object_mb is not None else None
        self._clock = clock
        self._cancelled = threading.Event()
        self._uploader = Uploader(
            ObjectBuilder(
                cloud.topic,
                cloud.stream_id,
                LogSource(log),
                cloud.store,
                record=lambda: msgspec.to_builtins(self.reservation.record),
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
        self._segment = log.snapshot.active.header.number
        self._full_position = _NEVER
        self._wanted_end = 0
        self._failures_in_a_row = 0
        self._uploads = self._uploaded_bytes = self._failures = 0
        self._last_upload_us: int | None = None
        self._error: IcestreamError | None = None
        self._stopped = False
        self._head: UploadHead | None = None
        """The last one that was known; figures need not be newer."""
        self._reserving = threading.Lock()
        """Held while the reservation, and the log's limit with it, is moved."""
        self._ended = False

    # When

    def begin(self) -> None:
        """Upload what an earlier run has left, and follow the log. The topic was claimed."""
        self._head = self.cloud.registry.owned
        self.log.listeners.add(self._committed)
        self._look_on(monotonic())
        if not self.reservation.is_written:
            self._schedule(self, monotonic())

    def end(self) -> None:
        self.log.listeners.discard(self._committed)

    @property
    def is_behind(self) -> bool:
        """Whether something durable is not uploaded yet."""
        return self.cloud.uploaded_end < self.log.durable_end

    def hurry(self) -> None:
        """Make the topic due now."""
        with self._done:
            self._wanted_end = max(self._wanted_end, self.log.durable_end)
        self._schedule(self, monotonic())

    def cancel(self) -> None:
        """Cancel the running upload, if there is one."""
        self._cancelled.set()

    @property
    def is_over(self) -> bool:
        return self._cancelled.is_set() or self.log.state is LogState.CLOSED

    def _committed(self) -> None:
        """Note a commit. The committing thread calls it for every commit, so it is quick."""
        snapshot = self.log.snapshot
        if snapshot.active.header.number != self._segment or snapshot.active_position >= self._full_position:
            self._segment, self._full_position = snapshot.active.header.number, _NEVER
            self._idle = False
            self._schedule(self, monotonic())
        elif self._idle:
            self._idle = False
            self._schedule(self, monotonic() + self._interval_seconds)

    def _look_on(self, now: float, *, found_nothing: bool = False) -> None:
        """Schedule the next cycle after a successful one: soon if there is a reason, else after the interval.

        Soon means at once, unless the cycle had nothing to upload.
        """
        head = self.cloud.registry.owned
        if head is None:
            self._schedule(self, now + _FIRST_PAUSE_SECONDS)
            return
        self._idle = True  # set before the snapshot is read, so that a commit in between schedules a cycle
        snapshot = self.log.snapshot
        in_active = head.file_seq == snapshot.active.header.number
        begin = head.byte_pos if in_active else 0
        self._segment = snapshot.active.header.number
        self._full_position = begin + self._max_bytes if self._max_bytes is not None else _NEVER
        sealed = snapshot.sealed[-1].footer.end_offset if snapshot.sealed else 0
        is_full = snapshot.active_position >= self._full_position
        if head.uploaded_end >= snapshot.end_offset:
            return
        self._idle = False
        hurry = sealed > head.uploaded_end or is_full or self._wanted_end > head.uploaded_end
        soon = now + _FIRST_PAUSE_SECONDS if found_nothing else now
        self._schedule(self, soon if hurry else now + self._interval_seconds)

    # Doing it

    def run(self) -> None:
        """Run one cycle, and schedule the next one."""
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
            _log.error("topic_upload_stopped", topic=topic, error=str(error))
            return
        pause = min(_MAX_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2 ** min(self._failures_in_a_row, 10))
        pause *= random.uniform(0.5, 1.0)  # noqa: S311 - so that topics do not all come back at once
        _log.warning("topic_upload_failed", topic=topic, error=str(error), again_in_seconds=round(pause, 1))
        self._schedule(self, monotonic() + pause)

    def renew_reservation(self) -> None:
        """Renew the reservation if half of it is used. Raises nothing: it is tried again in a second."""
        with self._reserving:
            if self._ended or self._is_stale or not self.reservation.is_used:
                return
            try:
                self.reservation.renew()
            except StaleEpochError as error:
                self._failed(error)
            except Exception as error:  # noqa: BLE001 - without offsets nothing can be published, so it is tried again
                _log.warning("offset_reservation_failed", topic=str(self.cloud.topic), error=str(error))
            else:
                if self.log.taken_over is not None:  # found out meanwhile
                    self.log.close_offsets()
                self._schedule(self, monotonic())

    @property
    def _is_stale(self) -> bool:
        return isinstance(self._error, StaleEpochError)

    def use(self, record: TopicRecord) -> None:
        """Use the topic's changed record, and write `topic.json` soon."""
        self.reservation.use(record)
        self._schedule(self, monotonic())

    def flush(self, timeout: float | None) -> int:
        """Upload all that is durable now; return the offset below which all is uploaded.

        Raise what an upload fails with, or `DeadlineError` at the time-out; uploads continue nevertheless.
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
        """Return the unused offsets, when the log gives out no more; return False if the metadata store is away.

        Raises nothing, because offsets that stay reserved do no harm. They stay reserved if the outcome of the last
        change is unknown, and if another thread is moving the reservation right now.
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
            _log.warning("offset_reservation_not_returned", topic=str(self.cloud.topic), error=str(error))
            return not isinstance(error, UnavailableError)
        finally:
            self._reserving.release()
        return True

    @property
    def status(self) -> UploadStatus:
        head = self._head = self.cloud.registry.owned or self._head
        uploaded_end = head.uploaded_end if head is not None else 0
        snapshot = self.log.snapshot
        waiting = max(0, snapshot.end_offset - uploaded_end)
        nbytes = 0
        if waiting and head is not None:
            ends = [(one.header.number, one.footer.position) for one in snapshot.sealed]
            ends.append((snapshot.active.header.number, snapshot.active_position))
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
            lag_seconds=age_seconds(self.log, uploaded_end, self._clock()) if waiting else 0.0,
        )

    def _unexpected(self, error: Exception) -> IcestreamError:
        return UnavailableError(f"the upload failed: {error!r}", operation="upload", place=str(self.cloud.topic))


def age_seconds(log: Log, offset: int, now_us: int) -> float | None:
    """Return the age of the message at an offset of the log; None if the log does not tell."""
    try:
        return max(0.0, (now_us - time_at_offset(log, offset)) / 1e6)
    except IcestreamError:  # not in the log any more, or not readable: other figures say so
        return None


# Uploads of all topics


_RESERVATION_SECONDS = 1.0
_MAX_OPENING_PAUSE_SECONDS = 60.0
_GIVING_BACK_SHARE = 0.2
"""The share of the stopping time that is kept for returning reservations."""
_GIVING_BACK_THREADS = 8


class UploadScheduler:
    def __init__(self, settings: UploaderSettings) -> None:
        self.settings = settings
        self._changed = threading.Condition()
        """Guards all below; notified when something is due earlier, or done."""
        self._topics: dict[str, TopicUploads] = {}
        self._due: dict[str, float] = {}
        self._queue: list[tuple[float, int, str]] = []
        """A heap; entries that differ from `_due` are out of date."""
        self._order = count()
        self._busy: set[str] = set()
        self._closing = threading.Event()
        self._stopping = threading.Event()
        self._workers: list[threading.Thread] = []
        self._keepers: list[threading.Thread] = []

    def start(self, open_logs: Callable[[], Iterable[Callable[[], Log]]] = lambda: ()) -> None:
        """Start the threads. `open_logs` returns functions that open the topics' logs, to upload what is left there."""
        self._workers = [
            threading.Thread(target=self._upload, name=f"upload-{number}", daemon=True)
            for number in range(self.settings.threads)
        ]
        self._keepers = [
            threading.Thread(target=self._reserve, name="upload-reservations", daemon=True),
            threading.Thread(target=self._open, args=(open_logs,), name="upload-opener", daemon=True),
        ]
        for thread in (*self._workers, *self._keepers):
            thread.start()

    def add(self, uploads: TopicUploads) -> None:
        """Add a topic that was claimed."""
        with self._changed:
            self._topics[uploads.cloud.stream_id] = uploads
        uploads.begin()

    def find(self, stream_id: str) -> TopicUploads | None:
        return self._topics.get(stream_id)

    def remove(self, stream_id: str) -> None:
        """Cancel the upload of a deleted topic, and return when nothing of it runs any more."""
        with self._changed:
            uploads = self._topics.pop(stream_id, None)
            self._due.pop(stream_id, None)
        if uploads is not None:
            uploads.cancel()
            uploads.end()
            with self._changed:
                self._changed.wait_for(lambda: stream_id not in self._busy)

    def schedule(self, uploads: TopicUploads, at: float) -> None:
        """Make a topic due at a time, unless it is due earlier."""
        stream_id = uploads.cloud.stream_id
        with self._changed:
            if stream_id not in self._topics or at >= self._due.get(stream_id, at + 1.0):
                return
            self._due[stream_id] = at
            heapq.heappush(self._queue, (at, next(self._order), stream_id))
            self._changed.notify_all()

    def stop(self) -> None:
        """Upload the rest, and return the offsets that no message has, both for a bounded time.

        Nothing may be published afterwards: a message could get an offset that is not reserved. Threads that wait for
        an unreachable store are abandoned; their work may be interrupted anywhere.
        """
        self._closing.set()
        seconds = self.settings.shutdown_timeout_seconds
        deadline = monotonic() + seconds
        upload_deadline = deadline - seconds * _GIVING_BACK_SHARE
        _join(self._keepers, upload_deadline)
        topics = list(self._topics.values())
        for uploads in topics:
            uploads.log.close_offsets()
            if uploads.is_behind:
                uploads.hurry()
        for uploads in topics:
            with contextlib.suppress(IcestreamError):  # it was logged when it happened
                uploads.flush(max(0.0, upload_deadline - monotonic()))
        self._stopping.set()
        for uploads in topics:
            uploads.cancel()
            uploads.end()
        with self._changed:
            self._changed.notify_all()
        self._give_back(topics, deadline)
        _join(self._workers, deadline)

    def _give_back(self, topics: list[TopicUploads], deadline: float) -> None:
        """Return reservations in parallel; stop once the metadata store fails."""
        left = deque(topics)

        def give_back() -> None:
            with contextlib.suppress(IndexError):
                while monotonic() < deadline:
                    if not left.popleft().give_back():
                        left.clear()

        threads = [
            threading.Thread(target=give_back, name=f"upload-end-{number}", daemon=True)
            for number in range(min(_GIVING_BACK_THREADS, len(topics)))
        ]
        for thread in threads:
            thread.start()
        _join(threads, deadline)
        if left:
            _log.warning("offset_reservations_kept_at_shutdown", topics=len(left))

    def _upload(self) -> None:
        while (uploads := self._take()) is not None:
            stream_id = uploads.cloud.stream_id
            try:
                uploads.run()
            finally:
                self._let_go(stream_id)

    def _take(self) -> TopicUploads | None:
        """Wait for a due topic that no other thread works on; return None at the end."""
        with self._changed:
            while not self._stopping.is_set():
                now = monotonic()
                while self._queue and self._queue[0][0] <= now:
                    at, _, stream_id = heapq.heappop(self._queue)
                    if self._due.get(stream_id) == at and stream_id not in self._busy:
                        del self._due[stream_id]
                        self._busy.add(stream_id)
                        return self._topics[stream_id]
                self._changed.wait(self._queue[0][0] - now if self._queue else None)
        return None

    def _let_go(self, stream_id: str) -> None:
        """Release a topic; wake a thread, because it may be due again and was skipped while it was busy."""
        with self._changed:
            self._busy.discard(stream_id)
            if (at := self._due.get(stream_id)) is not None:
                heapq.heappush(self._queue, (at, next(self._order), stream_id))
            self._changed.notify_all()

    def _reserve(self) -> None:
        while not self._closing.wait(_RESERVATION_SECONDS):
            for uploads in list(self._topics.values()):
                if self._closing.is_set():
                    return
                try:
                    uploads.renew_reservation()
                except Exception:  # noqa: BLE001 - the thread serves all topics: one of them must not end it
                    _log.exception("offset_reservation_failed", topic=str(uploads.cloud.topic))

    def _open(self, open_logs: Callable[[], Iterable[Callable[[], Log]]]) -> None:
        """Open every topic's log; retry those that cannot be opened."""
        pause, left = 1.0, list(open_logs())
        while left:
            again = []
            for open_log in left:
                if self._closing.is_set():
                    return
                try:
                    open_log()
                except Exception as error:  # noqa: BLE001 - as above
                    if isinstance(error, IcestreamError) and error.retryable:
                        again.append(open_log)
                    else:
                        _log.warning("log_open_failed_for_upload", error=str(error))
            left = again
            if left and self._closing.wait(pause):
                return
            pause = min(_MAX_OPENING_PAUSE_SECONDS, 2 * pause)


def _join(threads: Iterable[threading.Thread], deadline: float) -> None:
    for thread in threads:
        if thread.is_alive():
            thread.join(max(0.0, deadline - monotonic()))
