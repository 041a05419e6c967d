"""Uploads of all topics: a few threads take the topics that are due, the one that is due for longest first.

A cycle makes one object; a topic with more to ship is due again at once, behind the others that are. A topic whose
upload fails is tried again later, and later, and holds nobody up. One more thread keeps offsets reserved, whatever
the object store is doing.
"""

import contextlib
import heapq
import threading
from collections import deque
from collections.abc import Callable, Iterable
from itertools import count
from time import monotonic

import structlog

from icestream.config import UploaderSettings
from icestream.model.errors import IcestreamError
from icestream.storage.cloud.topic_uploads import TopicUploads
from icestream.wal import Log

_RESERVATION_SECONDS = 1.0
_MAX_OPENING_PAUSE_SECONDS = 60.0
_GIVING_BACK_SHARE = 0.2
"""Of the time for stopping: uploads do not take it."""
_GIVING_BACK_THREADS = 8
_log = structlog.get_logger(__name__)


class Uploading:
    def __init__(self, settings: UploaderSettings) -> None:
        self.settings = settings
        self._changed = threading.Condition()
        """Guards all below; told when something is due earlier, or done."""
        self._topics: dict[str, TopicUploads] = {}
        self._due: dict[str, float] = {}
        self._queue: list[tuple[float, int, str]] = []
        """A heap; what does not agree with `_due` is out of date."""
        self._order = count()
        self._busy: set[str] = set()
        self._closing = threading.Event()
        self._stopping = threading.Event()
        self._workers: list[threading.Thread] = []
        self._keepers: list[threading.Thread] = []

    def start(self, open_logs: Callable[[], Iterable[Callable[[], Log]]] = lambda: ()) -> None:
        """`open_logs` gives functions that open the topics' logs: what an earlier run has left there is shipped too."""
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
        """A topic was claimed."""
        with self._changed:
            self._topics[uploads.cloud.stream_id] = uploads
        uploads.begin()

    def find(self, stream_id: str) -> TopicUploads | None:
        return self._topics.get(stream_id)

    def remove(self, stream_id: str) -> None:
        """A topic is deleted: break its upload off, and return when nothing of it is under way any more."""
        with self._changed:
            uploads = self._topics.pop(stream_id, None)
            self._due.pop(stream_id, None)
        if uploads is not None:
            uploads.cancel()
            uploads.end()
            with self._changed:
                self._changed.wait_for(lambda: stream_id not in self._busy)

    def schedule(self, uploads: TopicUploads, at: float) -> None:
        """Let a topic be due at a time, unless it is earlier."""
        stream_id = uploads.cloud.stream_id
        with self._changed:
            if stream_id not in self._topics or at >= self._due.get(stream_id, at + 1.0):
                return
            self._due[stream_id] = at
            heapq.heappush(self._queue, (at, next(self._order), stream_id))
            self._changed.notify_all()

    def stop(self) -> None:
        """Ship what is left, and give back the offsets that no message has got, both for a bounded time.

        Nothing is published any more when it returns: a message could get an offset that is not reserved. Threads that
        wait for a store that is away are left behind; what they do can be cut short anywhere.
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
            with contextlib.suppress(IcestreamError):  # it was told when it happened
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
        """Several at a time, and none any more once the metadata store turns out to be away."""
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
            _log.warning("the time was up: offsets stay reserved", topics=len(left))

    def _upload(self) -> None:
        while (uploads := self._take()) is not None:
            stream_id = uploads.cloud.stream_id
            try:
                uploads.run()
            finally:
                self._let_go(stream_id)

    def _take(self) -> TopicUploads | None:
        """Wait for a topic that is due and that nobody is busy with; None at the end."""
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
        """It may be due again by now, and whoever came for it while it was busy has passed it over."""
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
                    _log.exception("offsets could not be reserved", topic=str(uploads.cloud.topic))

    def _open(self, open_logs: Callable[[], Iterable[Callable[[], Log]]]) -> None:
        """Open every topic's log; those that cannot be opened right now are tried again."""
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
                        _log.warning("a log cannot be opened, so nothing of it is uploaded", error=str(error))
            left = again
            if left and self._closing.wait(pause):
                return
            pause = min(_MAX_OPENING_PAUSE_SECONDS, 2 * pause)


def _join(threads: Iterable[threading.Thread], deadline: float) -> None:
    for thread in threads:
        if thread.is_alive():
            thread.join(max(0.0, deadline - monotonic()))
