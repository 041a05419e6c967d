"""The topics with messages for the pipeline, listed at the cost of what has changed.

Every response carries a mark. A request with that mark gets the topics that have moved since; with a time to wait it
gets them when the first one moves. A mark of another broker process gets all topics, so a caller need not notice that
the broker was restarted. A listener on each open log notes that it moved: a poll of a thousand idle topics looks at
none of their logs. A caller that waits for a topic's table counts as a move too. Topics without a table are left out.

Logs that were not used since the start are opened here, a few at a time: their messages may not be in a table yet.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from time import monotonic
from uuid import uuid4

from icestream.model.enums import StorageFormat
from icestream.model.errors import IcestreamError
from icestream.model.names import TopicName
from icestream.protocol.pipeline import PipelineBacklog, TopicBacklog
from icestream.storage.record import TopicRecord
from icestream.storage.table_watch import TableWatch
from icestream.storage.topic import Topic
from icestream.storage.topics import Topics
from icestream.wal import Log, LogState

MAX_WAIT_SECONDS = 10.0
_SCAN_SECONDS = 0.1
"""How often new topics are searched: the longest time that the first message of a new topic stays unnoticed."""
_OPEN_SECONDS = 0.5
"""How long one request may spend on opening logs."""
_REOPEN_SECONDS = 5.0
"""How long to wait before a log that could not be opened is tried again."""


@dataclass
class _BacklogTopic:
    topic: Topic
    record: TopicRecord
    log: Log | None = None
    listener: Callable[[], None] | None = None
    moved: int = 0
    error: IcestreamError | None = None
    tried_at: float = field(default=-_REOPEN_SECONDS)


class Backlog:
    def __init__(self, topics: Topics, table_watch: TableWatch, storage_format: StorageFormat) -> None:
        self._topics = topics
        self._table_watch = table_watch
        self._format = storage_format
        self._lock = threading.Lock()
        self._moved = threading.Condition(self._lock)
        self._scanning = threading.Lock()
        self._scanned_at = -_SCAN_SECONDS
        self._life = uuid4().hex
        self._number = 0
        self._waiting = 0
        self._watched: dict[TopicName, _BacklogTopic] = {}
        table_watch.listeners.add(self._note_awaited)

    def ask(self, pattern: str = "*", *, mark: str | None = None, wait_seconds: float = 0.0) -> PipelineBacklog:
        """Return the topics that match and have moved since `mark`; all that match if the mark is another process's.

        `complete` is false while logs are still to be opened: the caller asks again.
        """
        deadline = monotonic() + min(wait_seconds, MAX_WAIT_SECONDS)
        since = self._since(mark)
        while True:
            complete = self._scan(now=not since)
            number, changed = self._changed(since)
            if any(watched.log is not None and watched.log.state is LogState.CLOSED for watched in changed):
                complete = self._scan(now=True)  # deleted since the last scan, and perhaps created again
                number, changed = self._changed(since)
            entries = [self._entry(watched) for watched in changed if fnmatchcase(str(watched.topic.name), pattern)]
            left = deadline - monotonic()
            if entries or left <= 0 or not complete:
                return PipelineBacklog(f"{self._life}-{number}", complete, entries)
            since = number
            self._wait_past(number, min(left, _SCAN_SECONDS))

    def _changed(self, since: int) -> tuple[int, list[_BacklogTopic]]:
        with self._lock:
            return self._number, [watched for watched in self._watched.values() if watched.moved > since]

    def _wait_past(self, number: int, seconds: float) -> None:
        with self._lock:
            self._waiting += 1
            try:
                self._moved.wait_for(lambda: self._number > number, seconds)
            finally:
                self._waiting -= 1

    def _since(self, mark: str | None) -> int:
        life, _, number = (mark or "").partition("-")
        return int(number) if life == self._life and number.isdecimal() else 0

    def _scan(self, *, now: bool) -> bool:
        """Note topics that came, went, changed or were opened; return whether every log was looked at."""
        with self._scanning:
            if not now and monotonic() - self._scanned_at < _SCAN_SECONDS:
                return True
            topics = {topic.name: topic for topic in self._topics.find() if topic.record.has_table}
            for name in self._watched.keys() - topics.keys():
                self._forget(name)
            complete = self._watch(list(topics.values()))
            if complete:
                self._scanned_at = monotonic()
            return complete

    def _watch(self, topics: list[Topic]) -> bool:
        deadline = monotonic() + _OPEN_SECONDS
        for topic in topics:
            watched = self._watched.get(topic.name)
            if watched is None or watched.topic is not topic:
                self._forget(topic.name)
                watched = _BacklogTopic(topic, topic.record)
                with self._lock:
                    self._watched[topic.name] = watched
            if watched.log is None or watched.log is not topic.opened_log:
                if monotonic() > deadline:
                    return False
                self._open(watched)
            elif watched.record is not topic.record:
                watched.record = topic.record
                self._note(watched)
        return True

    def _open(self, watched: _BacklogTopic) -> None:
        if monotonic() - watched.tried_at < _REOPEN_SECONDS:
            return
        watched.tried_at = monotonic()
        try:
            log = watched.topic.log
        except IcestreamError as error:
            watched.error = error
            self._note(watched)
            return
        watched.log, watched.error = log, None
        watched.listener = lambda: self._note(watched)
        log.listeners.add(watched.listener)
        self._note(watched)

    def _forget(self, name: TopicName) -> None:
        with self._lock:
            watched = self._watched.pop(name, None)
        if watched is not None and watched.log is not None and watched.listener is not None:
            watched.log.listeners.discard(watched.listener)

    def _note(self, watched: _BacklogTopic) -> None:
        """Note that a topic has moved. The committing thread calls it, so it only takes a number."""
        with self._lock:
            self._number += 1
            watched.moved = self._number
            if self._waiting:
                self._moved.notify_all()

    def _note_awaited(self, topic: Topic) -> None:
        """Note that a caller waits for the topic's table. The next scan finds topics that are not watched yet."""
        watched = self._watched.get(topic.name)
        if watched is not None and watched.topic is topic:
            self._note(watched)

    def _entry(self, watched: _BacklogTopic) -> TopicBacklog:
        record, log = watched.record, watched.log
        return TopicBacklog(
            topic=record.topic,
            stream_id=record.stream_id,
            epoch=record.epoch,
            schema=record.encoded_schema,
            partition_by=record.partition_by,
            sort_by=record.sort_by,
            start_offset=log.start_offset if log is not None else 0,
            durable_end=log.durable_end if log is not None else 0,
            nbytes=log.nbytes if log is not None else 0,
            awaited_end=self._table_watch.awaited_end(watched.topic),
            error=None if watched.error is None else str(watched.error),
            format=self._format,
            in_table_below=watched.topic.in_table_below if log is not None else 0,
        )
