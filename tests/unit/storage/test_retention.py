"""What logs and cloud objects give up: each kind of topic by its own rule, and on a full disk whatever may go."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.storage.shelf import MINUTE_US, Shelf

from icestream.config import CloudRetentionSettings, RetentionSettings, Settings
from icestream.model.enums import StorageKind
from icestream.model.errors import CatalogUnavailableError
from icestream.model.messages import message_batch
from icestream.storage import IcebergStorage, Topic
from icestream.storage.cloud import MetadataRegistry, TopicCloud
from icestream.storage.disk import Disk
from icestream.storage.retention import Retention, make_room, prune_logs, prune_objects
from icestream.storage.topic import TableProgress

MESSAGES = 10
FAR_US = 1 << 62
OLD = RetentionSettings(time_minutes=1)
KEPT = RetentionSettings()
CLOUD_OLD = CloudRetentionSettings(time_minutes=1)


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[IcebergStorage]:
    given = {"wal": {"max_file_size": 4096}, "reader": {"poll_interval_ms": 600_000}}
    with IcebergStorage(Settings.model_validate({"data_dir": tmp_path, **given})) as opened:
        yield opened


def filled(storage: IcebergStorage, name: str = "a/b", **limits: Any) -> Topic:
    """A topic of ten messages, each in a segment of its own."""
    topic = storage.topics.create(name, **limits)
    for _ in range(MESSAGES):
        storage.publish(topic, message_batch([b"x" * 4000]))
    return topic


def uploaded(topic: Topic, *ends: int, storage_kind: StorageKind = StorageKind.TABLE, uploads: bool = True) -> Shelf:
    """Give a topic objects up to these offsets."""
    topic.use(msgspec.structs.replace(topic.record, storage=storage_kind))
    shelf = Shelf(topic.name, topic.record.stream_id, uploads=uploads)
    for end in ends:
        shelf.add(end, time_us=end * MINUTE_US)
    topic.cloud = shelf.cloud
    return shelf


def start_after(topic: Topic, settings: RetentionSettings = OLD, now_us: int = FAR_US) -> int:
    prune_logs([topic], settings, now_us)
    return topic.log.start_offset


# The log


def test_the_size_that_a_log_may_have_counts_in_mebibytes(tmp_path: Path) -> None:
    given = {"wal": {"max_file_size": 4096}, "reader": {"poll_interval_ms": 600_000}}
    with IcebergStorage(Settings.model_validate({"data_dir": tmp_path, **given})) as storage:
        topic = storage.topics.create("a/b", retention_mb=1)
        for _ in range(3):
            storage.publish(topic, message_batch([b"x" * 340_000]))
        topic.committed = TableProgress(3)
        assert 1_000_000 < topic.log.nbytes < 1 << 20
        assert start_after(topic, KEPT) == 0
        storage.publish(topic, message_batch([b"x" * 340_000]))
        topic.committed = TableProgress(4)
        assert start_after(topic, KEPT) == 1


def test_a_table_topic_without_uploads_goes_by_its_table_alone(storage: IcebergStorage) -> None:
    topic = filled(storage)
    assert start_after(topic) == 0
    topic.committed = TableProgress(4)
    assert start_after(topic) == 4
    shelf = uploaded(topic, 2, uploads=False)
    topic.committed = TableProgress(6)
    shelf.store.asked.clear()
    assert start_after(topic) == 6
    assert not shelf.store.asked


def test_a_table_topic_with_uploads_waits_for_both(storage: IcebergStorage) -> None:
    topic = filled(storage)
    shelf = uploaded(topic, 3)
    assert start_after(topic) == 0
    topic.committed = TableProgress(7)
    assert start_after(topic) == 3
    shelf.add(8)
    assert start_after(topic) == 7
    topic.committed = TableProgress(9)
    assert start_after(topic) == 8


def test_a_log_topic_goes_by_its_objects_and_by_the_brokers_limits(storage: IcebergStorage) -> None:
    topic = filled(storage, retention_minutes=1, retention_mb=1)
    uploaded(topic, 3, 6, storage_kind=StorageKind.LOG)
    assert start_after(topic, KEPT) == 0
    assert start_after(topic) == 6
    uploaded(topic, 8, storage_kind=StorageKind.LOG, uploads=False)
    assert start_after(topic) == 8


def test_the_log_of_a_log_topic_gives_up_what_the_cloud_has_given_up(storage: IcebergStorage) -> None:
    topic = filled(storage, retention_minutes=1)
    shelf = uploaded(topic, 3, 6, 9, storage_kind=StorageKind.LOG)
    assert prune_objects([topic], CloudRetentionSettings(), (6 + 1) * MINUTE_US + 1) == 2
    assert shelf.ranges == [(6, 9)]
    assert start_after(topic, KEPT) == 6


def test_a_quiet_log_topic_does_not_keep_in_its_open_segment_what_the_cloud_has_given_up(tmp_path: Path) -> None:
    with IcebergStorage(Settings(data_dir=tmp_path)) as storage:
        topic = filled(storage, retention_minutes=1)
        shelf = uploaded(topic, 3, 6, storage_kind=StorageKind.LOG)
        assert start_after(topic, KEPT) == 0
        assert not topic.log.snapshot.sealed
        assert prune_objects([topic], CLOUD_OLD, FAR_US) == 1
        assert start_after(topic, KEPT) == 0
        assert [segment.footer.end_offset for segment in topic.log.snapshot.sealed] == [10]
        shelf.add(10)
        shelf.add(12)
        assert prune_objects([topic], CLOUD_OLD, FAR_US) == 2
        assert start_after(topic, KEPT) == 10
        assert len(topic.log.snapshot.sealed) == 0


def test_a_log_topic_without_a_store_keeps_everything(storage: IcebergStorage) -> None:
    topic = filled(storage)
    uploaded(topic, storage_kind=StorageKind.LOG)
    topic.cloud = None
    assert start_after(topic) == 0


def test_the_log_keeps_what_cannot_be_read_back_from_the_store(storage: IcebergStorage) -> None:
    topic = filled(storage)
    topic.committed = TableProgress(10)
    shelf = uploaded(topic, 2, 4, 6)
    shelf.store.refuses.add("stat")
    assert start_after(topic) == 0
    shelf.store.refuses.clear()
    del shelf.store.contents[sorted(shelf.store.contents)[1]]
    assert start_after(topic) == 2


def test_a_table_topics_own_limits_win_over_the_brokers(storage: IcebergStorage) -> None:
    topic = filled(storage, retention_minutes=60)
    topic.committed = TableProgress(10)
    last_us = topic.log.snapshot.sealed[0].footer.last_time_us
    assert start_after(topic, OLD, last_us + 30 * MINUTE_US) == 0
    assert start_after(topic, OLD, last_us + 60 * MINUTE_US + 1) >= 1


# The full disk


def test_a_full_disk_takes_what_is_elsewhere_whatever_the_limits_oldest_topic_first(
    storage: IcebergStorage, tmp_path: Path
) -> None:
    first, second, third = (filled(storage, name) for name in ("a/z", "a/y", "a/x"))
    for topic in (first, second, third):
        topic.committed = TableProgress(6)
    looks = iter([1, 1, 1, 1, 10**9])  # full at first; still so before the first and the second topic
    disk = Disk(tmp_path, 100, measure=lambda _: next(looks))
    Retention(lambda: [third, second, first], storage.settings, disk).keep_room()
    assert [topic.log.start_offset for topic in (first, second, third)] == [6, 6, 0]


def test_a_full_disk_takes_nothing_that_is_nowhere_else(storage: IcebergStorage) -> None:
    topic = filled(storage)
    uploaded(topic, 4)
    assert make_room([topic]) == 0
    topic.committed = TableProgress(10)
    assert make_room([topic]) == 4


def test_the_watch_makes_room_only_while_the_disk_is_full(storage: IcebergStorage, tmp_path: Path) -> None:
    topic = filled(storage)
    topic.committed = TableProgress(5)
    free = [10**9, 1, 10**9]
    disk = Disk(tmp_path, 100, measure=lambda _: free[0])
    retention = Retention(lambda: [topic], storage.settings, disk)
    retention.keep_room()
    assert topic.log.start_offset == 0
    free.pop(0)
    retention.keep_room()
    assert topic.log.start_offset == 5
    assert disk.is_full
    free.pop(0)
    retention.keep_room()
    assert not disk.is_full


# The cloud


def test_objects_of_a_table_topic_go_by_what_the_catalog_says_now(
    storage: IcebergStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = filled(storage)
    shelf = uploaded(topic, 3, 6, 9)
    asked: list[str] = []

    class Table:
        class ledger:  # noqa: N801 - stands in for an attribute
            committed_offset = 4

    def find() -> list[type[Table]]:
        asked.append("catalog")
        return [Table]

    monkeypatch.setattr(topic, "find_fed_tables", find)
    assert prune_objects([topic], CLOUD_OLD, FAR_US) == 0
    assert not asked  # nothing was known to be in the table
    topic.committed = TableProgress(9)
    assert prune_objects([topic], CloudRetentionSettings(time_minutes=None), FAR_US) == 0
    assert not asked  # nothing had had its time
    assert prune_objects([topic], CLOUD_OLD, FAR_US) == 1
    assert shelf.ranges == [(3, 6), (6, 9)]
    monkeypatch.setattr(topic, "find_fed_tables", lambda: [None])
    assert prune_objects([topic], CLOUD_OLD, FAR_US) == 0


def test_objects_stay_while_one_of_two_tables_lacks_their_messages(
    storage: IcebergStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = filled(storage)
    shelf = uploaded(topic, 3, 6, 9)

    class Full:
        class ledger:  # noqa: N801 - stands in for an attribute
            committed_offset = 9

    class Behind:
        class ledger:  # noqa: N801 - as above
            committed_offset = 3

    topic.committed = TableProgress(9)
    monkeypatch.setattr(topic, "find_fed_tables", lambda: [Full, Behind])
    assert prune_objects([topic], CLOUD_OLD, FAR_US) == 1
    assert shelf.ranges == [(3, 6), (6, 9)]
    monkeypatch.setattr(topic, "find_fed_tables", lambda: [Full, None])
    assert prune_objects([topic], CLOUD_OLD, FAR_US) == 0


def test_objects_of_a_log_topic_go_by_its_own_limits_alone(storage: IcebergStorage) -> None:
    topic = filled(storage)
    shelf = uploaded(topic, 3, 6, 9, storage_kind=StorageKind.LOG)
    assert prune_objects([topic], CLOUD_OLD, FAR_US) == 0
    topic.use(msgspec.structs.replace(topic.record, retention_minutes=5))
    assert prune_objects([topic], CLOUD_OLD, (3 + 5) * MINUTE_US) == 0
    assert prune_objects([topic], CLOUD_OLD, (3 + 5) * MINUTE_US + 1) == 1
    assert shelf.ranges == [(3, 6), (6, 9)]


def test_objects_that_this_broker_does_not_own_are_left_alone(storage: IcebergStorage) -> None:
    topic = filled(storage, retention_minutes=1)
    shelf = uploaded(topic, 3, 6, storage_kind=StorageKind.LOG)
    registry = MetadataRegistry(shelf.metadata, topic.name, topic.record.stream_id)  # it has claimed nothing
    topic.cloud = TopicCloud(topic.name, topic.record.stream_id, shelf.store, registry)
    assert prune_objects([topic], CLOUD_OLD, FAR_US) == 0
    assert shelf.ranges == [(0, 3), (3, 6)]


def test_one_topic_that_fails_does_not_keep_the_others_from_it(storage: IcebergStorage) -> None:
    topics = [filled(storage, name, retention_minutes=1) for name in ("a/a", "a/b")]
    shelves = [uploaded(topic, 3, 6, storage_kind=StorageKind.LOG) for topic in topics]
    taken_over = MetadataRegistry(shelves[0].metadata, topics[0].name, topics[0].record.stream_id)
    taken_over.claim(replace(shelves[0].head, epoch=2))
    assert prune_objects(topics, CLOUD_OLD, FAR_US) == 1
    assert [shelf.ranges for shelf in shelves] == [[(0, 3), (3, 6)], [(3, 6)]]


def test_a_store_that_is_away_ends_the_round(storage: IcebergStorage) -> None:
    """It would be waited for, for each topic anew."""
    topics = [filled(storage, name, retention_minutes=1) for name in ("a/a", "a/b")]
    shelves = [uploaded(topic, 3, 6, storage_kind=StorageKind.LOG) for topic in topics]
    shelves[0].store.refuses.update({"delete", "stat"})
    assert prune_objects(topics, CLOUD_OLD, FAR_US) == 0
    assert prune_logs(topics, OLD, FAR_US) == 0
    assert len(shelves[1].ranges) == 2
    shelves[0].store.refuses.clear()
    assert prune_objects(topics, CLOUD_OLD, FAR_US) == 1
    assert prune_logs(topics, OLD, FAR_US) == 12


def test_a_catalog_that_is_away_holds_up_no_topic_that_needs_none(
    storage: IcebergStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def away(topic: Topic) -> None:
        asked.append(str(topic.name))
        raise CatalogUnavailableError("away")

    topics = [filled(storage, name, retention_minutes=1) for name in ("a/a", "a/b", "a/c")]
    kinds = [StorageKind.TABLE, StorageKind.TABLE, StorageKind.LOG]
    shelves = [uploaded(topic, 3, 6, storage_kind=kind) for topic, kind in zip(topics, kinds, strict=True)]
    for topic in topics:
        topic.committed = TableProgress(10)
    monkeypatch.setattr(Topic, "find_fed_tables", away)
    assert prune_objects(topics, CLOUD_OLD, FAR_US) == 1
    assert [len(shelf.ranges) for shelf in shelves] == [2, 2, 1]
    assert asked == ["a/a"], "a catalog that is away is asked once a round"


def test_a_full_disk_takes_what_the_table_has_though_the_object_store_is_away(storage: IcebergStorage) -> None:
    topics = [filled(storage, name) for name in ("a/a", "a/b")]
    for topic in topics:
        topic.committed = TableProgress(10)
    uploaded(topics[0], 10).store.refuses.update({"stat", "read"})
    assert make_room(topics) > 0
    assert [topic.log.start_offset > 0 for topic in topics] == [False, True]


def test_a_topic_that_fails_in_an_unknown_way_holds_up_no_other(
    storage: IcebergStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = [filled(storage, name) for name in ("a/a", "a/b")]
    topics[1].committed = TableProgress(10)
    monkeypatch.setattr(topics[0].log, "revive", lambda: 1 // 0)
    assert make_room(topics) > 0
    assert topics[1].log.start_offset > 0


def test_a_storage_that_closes_does_not_wait_for_a_round_to_end(storage: IcebergStorage) -> None:
    topic = filled(storage)
    topic.committed = TableProgress(10)
    retention = Retention(lambda: [topic], storage.settings, storage.disk)
    retention.stop()
    retention.run()
    retention.keep_room()
    assert topic.log.start_offset == 0


def test_left_over_objects_are_looked_for_at_first_and_then_once_a_day(storage: IcebergStorage) -> None:
    topic = filled(storage, retention_minutes=1)
    shelf = uploaded(topic, 3, 6, 9, storage_kind=StorageKind.LOG)
    hours = [1]
    retention = Retention(
        lambda: [topic], storage.settings, storage.disk, clock=lambda: FAR_US + hours[0] * 60 * MINUTE_US
    )
    shelf.store.refuses.add("delete")
    retention.run()
    assert len(shelf.ranges) == 3
    shelf.store.refuses.clear()
    retention.run()
    assert shelf.ranges == [(6, 9)]

    def lists() -> int:
        return sum(what == "list" for what, _ in shelf.store.asked)

    before = lists()
    hours[0] = 24
    retention.run()
    assert lists() == before
    hours[0] = 26
    retention.run()
    assert lists() == before + 1
