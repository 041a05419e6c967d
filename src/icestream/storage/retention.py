"""Retention: logs and cloud objects give up what is confirmed elsewhere, or has expired.

The log of a topic gives up segments that age or size makes superfluous, and only those whose messages have been read
back from where they stay: the table (all tables, where the storage format feeds two), the cloud, or both where the
topic has both. The limits are the topic's own or else those of `wal.retention`. A topic without a table has its own
limits for the cloud, where its messages end: its log follows `wal.retention`, and gives up what the cloud has given up,
so that nobody reads what retention has taken. Both give up whole segments and objects, oldest first: a message stays
until its whole segment or object has expired, and the newest object always stays.

While the disk is full the limits do not matter: every segment whose messages are elsewhere goes.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import Enum, auto
from itertools import islice
from weakref import WeakKeyDictionary

import structlog

from icestream.config import CloudRetentionSettings, RetentionSettings, Settings
from icestream.model.clock import Clock, now_us
from icestream.model.errors import UnavailableError
from icestream.model.units import MIB
from icestream.storage.cloud.retention import (
    confirmed_end,
    expired_below,
    published_before,
    remove_objects,
    remove_orphans,
)
from icestream.storage.cloud.topic_cloud import TopicCloud
from icestream.storage.disk import Disk
from icestream.storage.topic import Topic
from icestream.wal import Log

_MINUTE_US = 60_000_000
_DAY_US = 24 * 60 * _MINUTE_US
_MAX_SWEEPS = 100
"""How many topics one round searches for orphaned objects."""
_log = structlog.get_logger(__name__)


class _Store(Enum):
    """What a round may have to ask."""

    CATALOG = auto()
    CLOUD = auto()
    """The object store, or the records about its objects."""


class _StoreSkippedError(Exception):
    """A needed store has failed earlier in the round."""


class StoreOutages:
    """The stores that failed in a round: each is asked once, not once for every topic."""

    def __init__(self) -> None:
        self._away: set[_Store] = set()

    @contextmanager
    def calling(self, store: _Store) -> Iterator[None]:
        if store in self._away:
            raise _StoreSkippedError
        try:
            yield
        except UnavailableError:
            self._away.add(store)
            raise


class Retention:
    """Retention of all topics of a storage, in rounds."""

    def __init__(
        self, topics: Callable[[], list[Topic]], settings: Settings, disk: Disk, clock: Clock = now_us
    ) -> None:
        self._topics = topics
        self._settings = settings
        self._disk = disk
        self._clock = clock
        self._swept: WeakKeyDictionary[TopicCloud, int] = WeakKeyDictionary()
        self._stopping = threading.Event()

    def run(self) -> None:
        """Run a round. Objects go first: the log of a topic without a table follows them."""
        now = self._clock()
        prune_objects(self._each(), self._settings.cloud.retention, now)
        self._sweep(now)
        prune_logs(self._each(), self._settings.wal.retention, now)

    def keep_room(self) -> None:
        """Check the disk; while it is full, remove all that may go, from the topic with the oldest messages on."""
        if not self._disk.look():
            oldest_first = sorted(self._each(), key=_oldest_us)
            make_room(topic for topic in oldest_first if not self._stopping.is_set() and not self._disk.look())

    def stop(self) -> None:
        """End running rounds soon, however slow a store is."""
        self._stopping.set()

    def _each(self) -> Iterator[Topic]:
        return (topic for topic in self._topics() if not self._stopping.is_set())

    def _sweep(self, now_us: int) -> None:
        """Remove what interrupted removals have left: of each topic at first sight, and then once a day."""
        due = islice((topic for topic in self._each() if self._is_due(topic, now_us)), _MAX_SWEEPS)

        def sweep(topic: Topic, stores: StoreOutages) -> int:
            assert topic.cloud is not None
            with stores.calling(_Store.CLOUD):
                removed = remove_orphans(topic.cloud)
            self._swept[topic.cloud] = now_us
            if removed:
                _log.info("orphaned_objects_removed", topic=topic.record.topic, objects=removed)
            return removed

        _total(due, sweep)

    def _is_due(self, topic: Topic, now_us: int) -> bool:
        cloud = topic.cloud
        if cloud is None or cloud.registry.owned is None:
            return False
        return now_us - self._swept.get(cloud, -_DAY_US) >= _DAY_US


def prune_logs(topics: Iterable[Topic], settings: RetentionSettings, now_us: int) -> int:
    """Prune all open logs once; return how many segments were removed."""

    def prune(topic: Topic, stores: StoreOutages) -> int:
        own = topic.record if topic.record.has_table else None
        minutes = (own and own.retention_minutes) or settings.time_minutes
        megabytes = (own and own.retention_mb) or settings.size_mb
        return _prune(topic, stores, minutes, megabytes, now_us)

    return _total(topics, prune)


def make_room(topics: Iterable[Topic]) -> int:
    """Remove all segments that are confirmed elsewhere, whatever the limits; return how many."""
    return _total(topics, lambda topic, stores: _prune(topic, stores, 0, 0, now_us()))


def _oldest_us(topic: Topic) -> int:
    log = topic.opened_log
    sealed = log.snapshot.sealed if log is not None else ()
    return sealed[0].footer.last_time_us if sealed else 0


def _prune(topic: Topic, stores: StoreOutages, minutes: int | None, megabytes: int | None, now_us: int) -> int:
    log = topic.opened_log
    if log is None or not log.revive():  # a full disk may have failed it, and refuses the append that would reopen it
        return 0
    if topic.cloud is not None and not topic.record.has_table:
        with stores.calling(_Store.CLOUD):
            gone = topic.cloud.objects.first_offset or 0
        log.rotate_past(gone)  # else the log of an idle topic would keep it for long
    below = _removable_below(topic, log, stores, minutes, megabytes, now_us)
    count = topic.prune_log(below) if below > log.start_offset else 0
    if count:
        _log.info("segments_removed", topic=topic.record.topic, segments=count, start_offset=log.start_offset)
    return count


def _removable_below(
    topic: Topic, log: Log, stores: StoreOutages, minutes: int | None, megabytes: int | None, now_us: int
) -> int:
    """Return the offset below which segments may go: everything in them was read back from where it stays."""
    has_table, cloud = topic.record.has_table, topic.cloud
    if cloud is None and not has_table:
        return log.start_offset
    relies_on_cloud = cloud is not None and (cloud.uploads or not has_table)
    ends = [topic.committed_in_all_tables] if has_table else []
    gone = 0
    if cloud is not None and relies_on_cloud:
        with stores.calling(_Store.CLOUD):
            ends.append(cloud.uploaded_end)
            gone = (cloud.objects.first_offset or 0) if not has_table else 0
    below = prunable_below(
        log, committed=min(ends), minutes=minutes, megabytes=megabytes, now_us=now_us, expired_below=gone
    )
    if cloud is not None and relies_on_cloud and below > log.start_offset:
        with stores.calling(_Store.CLOUD):
            return min(below, confirmed_end(cloud, below))
    return below


def prunable_below(
    log: Log, *, committed: int, minutes: int | None, megabytes: int | None, now_us: int, expired_below: int = 0
) -> int:
    """Return the offset below which sealed segments may go: none past `committed`, all before `expired_below`."""
    snapshot = log.snapshot
    nbytes = log.nbytes
    below = snapshot.start_offset
    firsts = [*(segment.footer.first_time_us for segment in snapshot.sealed[1:]), snapshot.active.first_time_us]
    ends = published_before([segment.footer.last_time_us for segment in snapshot.sealed], firsts)
    for segment, last_time_us in zip(snapshot.sealed, ends, strict=True):
        footer = segment.footer
        too_old = minutes is not None and last_time_us < now_us - minutes * _MINUTE_US
        too_much = megabytes is not None and nbytes > megabytes * MIB
        is_expired = footer.end_offset <= expired_below
        if footer.end_offset > committed or not (too_old or too_much or is_expired):
            break
        below = footer.end_offset
        nbytes -= footer.position
    return below


def prune_objects(topics: Iterable[Topic], settings: CloudRetentionSettings, now_us: int) -> int:
    """Prune the objects of this broker's topics once; return how many were removed."""

    def prune(topic: Topic, stores: StoreOutages) -> int:
        cloud = topic.cloud
        if cloud is None or cloud.registry.owned is None:
            return 0
        below = _expired_below(topic, cloud, stores, settings, now_us)
        with stores.calling(_Store.CLOUD):
            count = remove_objects(cloud, below, now_us)
        if count:
            first = cloud.objects.first_offset
            _log.info("cloud_objects_removed", topic=topic.record.topic, objects=count, start_offset=first)
        return count

    return _total(topics, prune)


def _expired_below(
    topic: Topic, cloud: TopicCloud, stores: StoreOutages, settings: CloudRetentionSettings, now_us: int
) -> int:
    record = topic.record
    with stores.calling(_Store.CLOUD):
        spans = cloud.objects.spans
    if not record.has_table:
        own, size = record.retention_minutes, record.retention_mb
        return expired_below(spans, safe_end=None, minutes=own, megabytes=size, now_us=now_us)
    minutes, megabytes = settings.time_minutes, settings.size_mb
    known, first = topic.committed_in_all_tables, spans[0].first_offset if spans else 0
    if expired_below(spans, safe_end=known, minutes=minutes, megabytes=megabytes, now_us=now_us) <= first:
        return 0
    with stores.calling(_Store.CATALOG):
        tables = topic.find_fed_tables()  # a final deletion reads the catalog first
    committed = min(table.ledger.committed_offset if table is not None else 0 for table in tables)
    return expired_below(spans, safe_end=committed, minutes=minutes, megabytes=megabytes, now_us=now_us)


def _total(topics: Iterable[Topic], work: Callable[[Topic, StoreOutages], int]) -> int:
    """Sum up the work over topics. The failure of one topic, or of its store, does not stop the others."""
    total, stores = 0, StoreOutages()
    for topic in topics:
        try:
            total += work(topic, stores)
        except _StoreSkippedError:
            continue
        except Exception as error:  # noqa: BLE001 - whatever it is, the other topics have nothing to do with it
            _log.warning("topic_retention_failed", topic=topic.record.topic, error=str(error))
    return total
