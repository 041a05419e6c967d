"""What the topics hold for the pipeline, told at the price of what has changed.

Every answer carries a mark. A question that brings the mark back is answered with the topics that have moved since;
with a time to wait it is answered when the first one moves. A mark of another broker process is answered with all
topics, so nobody has to know that a broker was restarted. A listener on each open log takes the note; a poll of a
thousand idle topics looks at none of their logs. That somebody waits for a topic's table counts as a move too.

Topics without a table are none of its matter.

Logs that were not used since the start are opened here, a few at a time: what they hold may never have reached a table.
"""

import threading
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from time import monotonic
from typing import Any, NamedTuple
from uuid import uuid4

from icestream.model.errors import IcestreamError
from icestream.model.names import TopicName
from icestream.model.sparse_index import SparseIndex
from icestream.storage import IcebergStorage, Topic, TopicRecord
from icestream.wal import Log, LogSnapshot, LogState, SealedSegment

MAX_WAIT_SECONDS = 10.0
_SCAN_SECONDS = 0.1
"""How often new topics are looked for, and so the longest that the first message of a new topic stays unnoticed."""
_OPEN_SECONDS = 0.5
"""How long one question may spend on opening logs."""
_REOPEN_SECONDS = 5.0
"""How long a log that could not be opened is left alone."""


@dataclass
class _Watched:
    topic: Topic
    record: TopicRecord
    log: Log | None = None
    listener: Callable[[], None] | None = None
    moved: int = 0
    error: IcestreamError | None = None
    tried_at: float = field(default=-_REOPEN_SECONDS)


class Backlog:
    def __init__(self, storage: IcebergStorage) -> None:
        self._storage = storage
        self._lock = threading.Lock()
        self._moved = threading.Condition(self._lock)
        self._scanning = threading.Lock()
        self._scanned_at = -_SCAN_SECONDS
        self._life = uuid4().hex
        self._number = 0
        self._waiting = 0
        self._watched: dict[TopicName, _Watched] = {}
        storage.table_watch.listeners.add(self._note_awaited)

    def ask(self, pattern: str = "*", *, mark: str | None = None, wait_seconds: float = 0.0) -> dict[str, Any]:
        """The topics that match and have moved since `mark`; all that match when the mark is not from here.

        `complete` is false while logs are still to be opened: ask again.
        """
        deadline = monotonic() + min(wait_seconds, MAX_WAIT_SECONDS)
        since = self._since(mark)
        while True:
            complete = self._scan(now=not since)
            number, changed = self._changed(since)
            if any(watched.log is not None and watched.log.state is LogState.CLOSED for watched in changed):
                complete = self._scan(now=True)  # deleted since the last scan, and perhaps made again
                number, changed = self._changed(since)
            entries = [self._entry(watched) for watched in changed if fnmatchcase(str(watched.topic.name), pattern)]
            left = deadline - monotonic()
            if entries or left <= 0 or not complete:
                return {"mark": f"{self._life}-{number}", "complete": complete, "topics": entries}
            since = number
            self._wait_past(number, min(left, _SCAN_SECONDS))

    def _changed(self, since: int) -> tuple[int, list[_Watched]]:
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
        """Take note of topics that came, went, changed or were opened; whether every log was looked into."""
        with self._scanning:
            if not now and monotonic() - self._scanned_at < _SCAN_SECONDS:
                return True
            topics = {topic.name: topic for topic in self._storage.topics.find() if topic.record.has_table}
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
                watched = _Watched(topic, topic.record)
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

    def _open(self, watched: _Watched) -> None:
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

    def _note(self, watched: _Watched) -> None:
        """The listener: on the path of acknowledgements, so it only takes a number."""
        with self._lock:
            self._number += 1
            watched.moved = self._number
            if self._waiting:
                self._moved.notify_all()

    def _note_awaited(self, topic: Topic) -> None:
        """Somebody waits for the topic's table; one that is not watched yet is found by the next scan."""
        watched = self._watched.get(topic.name)
        if watched is not None and watched.topic is topic:
            self._note(watched)

    def _entry(self, watched: _Watched) -> dict[str, Any]:
        record, log = watched.record, watched.log
        return {
            "topic": record.topic,
            "stream_id": record.stream_id,
            "epoch": record.epoch,
            "schema": record.schema,
            "partition_by": list(record.partition_by),
            "sort_by": list(record.sort_by),
            "start_offset": log.start_offset if log is not None else 0,
            "durable_end": log.durable_end if log is not None else 0,
            "bytes": log.nbytes if log is not None else 0,
            "awaited_end": self._storage.table_watch.awaited_end(watched.topic),
            "error": None if watched.error is None else str(watched.error),
            "format": self._storage.settings.storage.format,
        }


# --------------------
# Cutting a range of a log into pieces of about equal bytes, by the segments' sparse indexes.


class _Stretch(NamedTuple):
    """One segment's part of the log: offsets `first` to `end`, which begins `before` bytes into the log."""

    first: int
    end: int
    before: int
    sparse: SparseIndex

    def position(self, offset: int) -> int:
        """Bytes of log before the frame that holds `offset`, to within the distance of the index's entries."""
        return self.before + (self.sparse.position_of_offset(offset) or 0)


def cut_range(log: Log, start: int, end: int, *, piece_bytes: int, max_pieces: int) -> list[int]:
    """Where each of the first `max_pieces` pieces of the range ends; the last number is `end` if they reach so far."""
    stretches = _stretches(log, log.snapshot, start, end)
    cuts: list[int] = []
    offset = start
    while offset < end and len(cuts) < max_pieces:
        offset = min(end, _cut(stretches, offset, piece_bytes))
        cuts.append(offset)
    return cuts


def _cut(stretches: list[_Stretch], start: int, piece_bytes: int) -> int:
    """The first offset that lies `piece_bytes` or more behind the one at `start`."""
    target: int | None = None
    for stretch in stretches:
        if stretch.end <= start:
            continue
        if target is None:
            target = stretch.position(start) + piece_bytes
        offsets = range(max(start + 1, stretch.first), stretch.end)
        place = bisect_left(offsets, target, key=stretch.position)
        if place < len(offsets):
            return offsets[place]
    return stretches[-1].end


def _stretches(log: Log, snapshot: LogSnapshot, start: int, end: int) -> list[_Stretch]:
    found: list[_Stretch] = []
    before = 0
    for segment in snapshot.sealed:
        first, segment_end = segment.header.base_offset, segment.footer.end_offset
        if segment_end > start and first < end:
            found.append(_Stretch(first, segment_end, before, _index(log, segment)))
        before += segment.footer.position
    active = snapshot.active
    if snapshot.end_offset > start:
        found.append(_Stretch(active.header.base_offset, snapshot.end_offset, before, active.index))
    return found


def _index(log: Log, segment: SealedSegment) -> SparseIndex:
    file = log.context.files.open(segment.path)
    try:
        return log.indexes.get(segment, file)
    finally:
        file.close()
