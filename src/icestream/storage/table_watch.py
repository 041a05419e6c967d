"""Follows the topics' tables: reads their committed offsets from the catalog, and calls those who wait for them.

The pipeline reports its commits, but only the catalog counts: a publish is acknowledged at the level `table`, and
segments are deleted, by what was read back. Without reports, every topic whose table is behind its log, or not known
yet, is polled. A catalog that cannot be reached delays this and nothing else.

`load` or the first read imports the Iceberg library, and the first read opens the catalog, so that commands that only
read logs start fast.
"""

import threading
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from time import monotonic, thread_time
from typing import TYPE_CHECKING

import structlog

from icestream.config import Settings
from icestream.model.clock import now_us
from icestream.model.errors import IcestreamError, OverloadedError, TableLostError, UnavailableError
from icestream.model.names import TopicName
from icestream.storage.record import no_table
from icestream.storage.repeated_warnings import RepeatedWarnings
from icestream.storage.topic import TableProgress, Topic

if TYPE_CHECKING:
    from icestream.table import Tables

MAX_WAITERS_PER_TOPIC = 100_000
_MAX_SHARE = 0.05
"""The share of this process' time for polling tables without a report."""
_MAX_ASKING_SHARE = 0.3
"""The share of the time, the catalog's responses included."""
_log = structlog.get_logger(__name__)

Waiter = Callable[[TableProgress | IcestreamError], None]


class TableWatch:
    def __init__(self, settings: Settings, topics: Callable[[], list[Topic]]) -> None:
        self._settings = settings
        self._topics = topics
        self._interval_seconds = settings.reader.poll_interval_ms / 1000
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._hinted: set[TopicName] = set()
        self._waiters: dict[Topic, list[tuple[int, int, Waiter]]] = {}
        self._awaited: dict[Topic, int] = {}
        self.listeners: set[Callable[[Topic], None]] = set()
        """Called when a caller waits for a higher offset of a topic than any before; they must be quick."""
        self._numbers = count()
        self._in_turn: deque[Topic] = deque()
        self._closed = False
        self._warnings = RepeatedWarnings()
        self._opening = threading.Lock()
        self._opened: Tables | None = None
        self._thread = threading.Thread(target=self._run, name="table-watch", daemon=True)

    @property
    def tables(self) -> "Tables":
        with self._opening:
            if self._opened is None:
                from icestream.table import Tables  # noqa: PLC0415 - see above

                self._opened = Tables(self._settings)
            return self._opened

    def load(self) -> None:
        """Import what reading tables needs now. The catalog is not opened."""
        self.tables.load()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop; the waiters get an error."""
        with self._lock:
            self._closed = True
            self._wake.notify_all()
        if self._thread.is_alive():
            self._thread.join()
        with self._lock:
            waiting, self._waiters = self._waiters, {}
        for topic, waiters in waiting.items():
            for _, _, waiter in waiters:
                waiter(UnavailableError("the broker is stopping", place=str(topic.name), remedy="connect again"))
        if self._opened is not None:
            self._opened.close()

    def hint(self, name: TopicName) -> None:
        """Read this topic's table now."""
        with self._lock:
            self._hinted.add(name)
            self._wake.notify_all()

    def when_committed(self, topic: Topic, end: int, waiter: Waiter, *, hurry: bool = True) -> None:
        """Call `waiter` once all messages below `end` are in the table, or it is certain that they will not be.

        The watching thread calls it, or this one at once; it must be quick. Unless it is in no hurry, the backlog tells
        the pipeline, which then does not wait for more messages.
        """
        if not topic.record.has_table:
            raise no_table(topic.record.topic, "there is nothing to wait for")
        with self._lock:
            if self._closed:
                raise UnavailableError("the broker is stopping", place=str(topic.name), remedy="connect again")
            committed = topic.committed
            is_met = committed.covers(end)
            is_news = hurry and not is_met and end > self.awaited_end(topic)
            if not is_met:
                self._add_waiter(topic, end, waiter)
            if is_news:
                self._awaited[topic] = end
        if is_met:
            waiter(committed)
        if is_news:
            for listener in tuple(self.listeners):
                listener(topic)

    def awaited_end(self, topic: Topic) -> int:
        """Return the offset up to which callers wait for the table; 0 if none does."""
        return self._awaited.get(topic, 0)

    def wait(self, topic: Topic, end: int, timeout_seconds: float, *, hurry: bool = True) -> TableProgress | None:
        """Wait until the table has all messages below `end`; return None at the time-out."""
        told = threading.Event()
        results: list[TableProgress | IcestreamError] = []

        def tell(result: TableProgress | IcestreamError) -> None:
            results.append(result)
            told.set()

        self.when_committed(topic, end, tell, hurry=hurry and timeout_seconds > 0)
        if not told.wait(timeout_seconds):
            self._forget(topic, tell)
        if not results:
            return None
        if isinstance(results[0], IcestreamError):
            raise results[0]
        return results[0]

    def deleted(self, topic: Topic) -> None:
        """End all waits for a deleted topic."""
        with self._lock:
            waiters = self._take_waiters(topic)
        for _, _, waiter in waiters:
            waiter(topic.gone_error())

    def _add_waiter(self, topic: Topic, end: int, waiter: Waiter) -> None:
        waiters = self._waiters.setdefault(topic, [])
        if len(waiters) >= MAX_WAITERS_PER_TOPIC:
            raise OverloadedError(
                f"{len(waiters)} callers wait for the table already", place=str(topic.name), remedy="try later"
            )
        heappush(waiters, (end, next(self._numbers), waiter))

    def _forget(self, topic: Topic, waiter: Waiter) -> None:
        with self._lock:
            kept = sorted(entry for entry in self._waiters.get(topic, []) if entry[2] is not waiter)
            if kept:
                self._waiters[topic] = kept
                self._awaited[topic] = min(self.awaited_end(topic), kept[-1][0])
            else:
                self._take_waiters(topic)

    def _take_waiters(self, topic: Topic) -> list[tuple[int, int, Waiter]]:
        self._awaited.pop(topic, None)
        return self._waiters.pop(topic, [])

    def _run(self) -> None:
        poll_at = monotonic() + self._interval_seconds
        while True:
            with self._lock:
                self._wake.wait_for(lambda: self._closed or self._hinted, max(0.0, poll_at - monotonic()))
                if self._closed:
                    return
                hinted, self._hinted = self._hinted, set()
            try:
                self._look_at(hinted)
                if monotonic() >= poll_at:
                    poll_at = monotonic() + self._poll()
            except Exception:  # noqa: BLE001 - the thread serves all topics: one of them must not end it
                _log.exception("table_watch_failed")
                poll_at = monotonic() + self._interval_seconds

    def _look_at(self, names: set[TopicName]) -> None:
        if names:
            for topic in self._topics():
                if topic.name in names and topic.record.has_table:
                    self._look(topic)

    def _poll(self) -> float:
        """Read the table of the next topic; return the seconds until the one after it.

        One at a time, with pauses: a round over thousands of topics must not delay publishers.
        """
        if not self._in_turn:
            self._in_turn.extend(topic for topic in self._topics() if topic.record.has_table and self._is_behind(topic))
        if not self._in_turn:
            return self._interval_seconds
        started, started_work = monotonic(), thread_time()
        self._look(self._in_turn.popleft())
        if not self._in_turn:
            return self._interval_seconds
        taken, worked = monotonic() - started, thread_time() - started_work
        return max(worked / _MAX_SHARE, taken / _MAX_ASKING_SHARE) - taken

    def _is_behind(self, topic: Topic) -> bool:
        log = topic.opened_log
        return log is not None and log.durable_end > 0 and topic.committed_in_all_tables < log.durable_end

    def _look(self, topic: Topic) -> None:
        name = str(topic.name)
        try:
            found = [self._read(table, topic.record.stream_id) for table in topic.fed_tables]
            lost = self._lost_error(topic, found)
        except IcestreamError as error:
            if error.retryable:  # an outage concerns all tables: it is said once, not for each topic
                if self._warnings.is_due(""):
                    _log.warning("catalog_read_failed", topic=name, error=str(error))
            else:
                topic.table_error = str(error)
                if self._warnings.is_due(name):
                    _log.warning("table_unusable", topic=name, error=str(error))
            return
        self._warnings.end("")
        if lost is None:
            if topic.table_error is not None:
                _log.info("table_usable_again", topic=name, committed_offset=found[0].offset)
            topic.table_error = None
            self._warnings.end(name)
        else:
            topic.table_error = str(lost)
            if self._warnings.is_due(name):
                _log.error("table_lost", topic=name, error=lost.message, remedy=lost.remedy, **lost.details)
        self._show(topic, *found)

    def _lost_error(self, topic: Topic, found: list[TableProgress]) -> TableLostError | None:
        """Return the error if the tables end before the offset that the topic's table has reached once."""
        if max(one.offset or 0 for one in found) >= topic.in_table_below:
            return None
        try:
            topic.find_fullest_table()
        except TableLostError as error:
            return error
        return None

    def _read(self, name: TopicName, stream_id: str) -> TableProgress:
        """Return a table's progress; nothing for a missing table, and for one of another stream."""
        table = self.tables.find(name)
        if table is None or table.ledger.stream_id != stream_id:
            return TableProgress(0, None, now_us())
        return TableProgress(table.ledger.committed_offset, table.snapshot_id, now_us(), len(table.quarantined))

    def _show(self, topic: Topic, committed: TableProgress, also: TableProgress | None = None) -> None:
        reached: list[Waiter] = []
        with self._lock:
            topic.committed, topic.second_table_progress = committed, also
            waiters = self._waiters.get(topic, [])
            while waiters and committed.covers(waiters[0][0]):
                reached.append(heappop(waiters)[2])
            if not waiters:
                self._take_waiters(topic)
        for waiter in reached:
            waiter(committed)
