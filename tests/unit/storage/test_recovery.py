"""Topics whose log is lost: what the broker does with them, and how they come back from the cloud."""

import itertools
import json
import shutil
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.cloud_objects import FragileStore
from tests.unit.storage.disaster import PATIENCE, TOPIC, Disaster, names, publish, rows, storage

from icestream.cloud.object import ObjectName
from icestream.config import load_settings
from icestream.metadata import keys, open_metadata_store
from icestream.metadata.sqlite import SqliteMetadataStore
from icestream.model.errors import (
    InvalidRequestError,
    LogLostError,
    ObjectNotFoundError,
    SequenceError,
    StaleEpochError,
    TopicNotFoundError,
)
from icestream.model.messages import message_batch
from icestream.model.names import TopicName
from icestream.storage import IcebergStorage
from icestream.storage.cloud.discovery import FoundObject, in_order
from icestream.storage.cloud.recovery import RecoveryReport
from icestream.storage.cloud.reservation import STEP
from icestream.storage.lost_topics import LostTopics
from icestream.wal import LocalFiles


def check(store: IcebergStorage, report: RecoveryReport, kept: dict[int, bytes], seen: range) -> None:
    """Everything uploaded is there, everything else that was seen is told as lost, and new offsets are new."""
    assert rows(store) == kept
    assert report.lost_first == len(kept)
    assert report.lost_end is not None
    assert report.lost_end >= seen.stop
    assert report.next_offset == report.lost_end
    assert store.topic(TOPIC).log.durable_end == report.next_offset
    assert publish(store, 2) == range(report.next_offset, report.next_offset + 2)
    assert rows(store).keys() == kept.keys() | {report.next_offset, report.next_offset + 1}


# The guard


def test_a_topic_whose_log_is_gone_says_so_and_leaves_the_others_alone(tmp_path: Path) -> None:
    path = tmp_path
    plain = load_settings(overrides={"data_dir": path})
    with IcebergStorage(plain) as store:
        for name in (TOPIC, "default/other"):
            store.topics.create(name)
            publish(store, 3, name=name)
    shutil.rmtree(path / "wal" / "default" / "events")
    with IcebergStorage(plain) as store:
        with pytest.raises(LogLostError, match="icestream topic recover default/events"):
            publish(store, 1)
        with pytest.raises(LogLostError):
            rows(store)
        assert publish(store, 1, name="default/other") == range(3, 4)
        assert [str(name) for name in store.topics.lost()] == [TOPIC]
        lost, sound = store.stats()
        assert "is not in this data directory" in (lost.error or "")
        assert sound.error is None
        with pytest.raises(InvalidRequestError, match="without an object store"):
            store.recover_topic(TOPIC)
        store.delete(TOPIC)
        store.topics.create(TOPIC)
        assert publish(store, 1) == range(1)


def test_a_topic_that_was_never_used_has_no_log_to_lose(tmp_path: Path) -> None:
    plain = load_settings(overrides={"data_dir": tmp_path})
    with IcebergStorage(plain) as store:
        store.topics.create(TOPIC)
    with IcebergStorage(plain) as store:
        assert not store.topics.lost()
        assert publish(store, 1) == range(1)
        assert store.topic(TOPIC).record.has_log


def as_of_an_earlier_version(record: bytes) -> bytes:
    later = ("has_log", "log_id", "log_location")
    return json.dumps({name: value for name, value in json.loads(record).items() if name not in later}).encode()


def test_a_record_of_an_earlier_version_says_nothing_about_its_log(tmp_path: Path) -> None:
    plain = load_settings(overrides={"data_dir": tmp_path})
    with IcebergStorage(plain) as store:
        store.topics.create(TOPIC)
        publish(store, 1)
    with open_metadata_store(sqlite_path=tmp_path / "metadata.db") as metadata:
        entry = metadata.get(keys.topic(TopicName.parse("default/events")))
        assert entry is not None
        metadata.put(entry.key, as_of_an_earlier_version(entry.value))
    shutil.rmtree(tmp_path / "wal")
    with IcebergStorage(plain) as store:
        assert publish(store, 1) == range(1)


def test_an_uploaded_log_has_been_there_whatever_the_record_says(
    tmp_path: Path, objects: FragileStore, disaster: Disaster
) -> None:
    store = storage(tmp_path).open()
    store.topics.create(TOPIC)
    publish(store, 2)
    store.topic(TOPIC).cloud.flush(PATIENCE)  # type: ignore[union-attr]
    disaster.strike(store, keep_metadata=True)
    with open_metadata_store(sqlite_path=tmp_path / "metadata.db") as metadata:
        entry = metadata.get("/topics/" + TOPIC)
        assert entry is not None
        metadata.put(entry.key, as_of_an_earlier_version(entry.value))
    with storage(tmp_path) as again:
        with pytest.raises(LogLostError):
            publish(again, 1)
        assert again.recover_topic(TOPIC).lost_first == 2
    assert objects.objects


def test_a_log_that_the_topic_has_left_behind_is_not_used(tmp_path: Path, objects: FragileStore) -> None:
    with storage(tmp_path) as store:
        store.topics.create(TOPIC)
        publish(store, 2)
    (tmp_path / "wal" / "default").rename(tmp_path / "aside")
    with storage(tmp_path) as store:
        assert store.recover_topic(TOPIC).epoch == 2
    shutil.rmtree(tmp_path / "wal" / "default")
    (tmp_path / "aside").rename(tmp_path / "wal" / "default")
    with storage(tmp_path) as store, pytest.raises(StaleEpochError, match="gone on elsewhere in epoch 2"):
        publish(store, 1)
    assert objects.objects


# Coming back


@pytest.mark.parametrize("keep_metadata", [True, False])
def test_a_topic_comes_back_with_all_that_was_uploaded(
    tmp_path: Path, objects: FragileStore, disaster: Disaster, *, keep_metadata: bool
) -> None:
    store = storage(tmp_path).open()
    store.topics.create(TOPIC, retention_minutes=77)
    topic = store.topic(TOPIC)
    assert topic.cloud is not None
    for count in (3, 4):
        publish(store, count)
        topic.cloud.flush(PATIENCE)
    kept = rows(store)
    seen = publish(store, 5)
    disaster.strike(store, keep_metadata=keep_metadata)
    made = names(objects)
    with storage(tmp_path) as again:
        assert [str(name) for name in again.topics.lost()] == ([TOPIC] if keep_metadata else [])
        assert [str(name) for name in again.topics.recoverable()] == ([] if keep_metadata else [TOPIC])
        report = again.recover_topic(TOPIC)
        end = STEP if keep_metadata else 2 * STEP
        assert (report.stream_id, report.epoch) == (topic.record.stream_id, 2)
        assert (report.objects, report.cloud_first_offset, report.cloud_end) == (len(made), 0, 7)
        assert report.bytes == sum(len(objects.objects[key]) for key in made)
        assert (
            report.message
            == f"offsets 7 to {end - 1} at most may have been acknowledged after the last upload and are lost"
        )
        assert again.topic(TOPIC).record.retention_minutes == 77
        check(again, report, kept, seen)
        with pytest.raises(InvalidRequestError, match="nothing to recover"):
            again.recover_topic(TOPIC)
        cloud = again.topic(TOPIC).cloud
        assert cloud is not None
        assert cloud.flush(PATIENCE) == report.next_offset + 2
        after = rows(again)
    with storage(tmp_path) as once_more:
        assert rows(once_more) == after
        assert not once_more.topics.lost()


def test_nothing_is_lost_after_a_clean_end(tmp_path: Path, objects: FragileStore) -> None:
    with storage(tmp_path) as store:
        store.topics.create(TOPIC)
        publish(store, 3, producer="p")
        kept = rows(store)
    shutil.rmtree(tmp_path / "wal")
    with storage(tmp_path) as store:
        report = store.recover_topic(TOPIC)
        assert (report.lost_first, report.lost_end, report.next_offset) == (None, None, 3)
        assert report.message == "nothing is lost"
        assert rows(store) == kept
        again = store.publish(store.topic(TOPIC), message_batch([b"p 2"]), producer="p", sequence=2)
        assert (again.duplicate, again.base_offset) == (True, 2)
        with pytest.raises(SequenceError):
            publish(store, 1, producer="p", sequence=9)
        assert publish(store, 1, producer="p", sequence=3) == range(3, 4)
    assert objects.objects


def test_producers_go_on_behind_messages_that_are_lost(
    tmp_path: Path, objects: FragileStore, disaster: Disaster
) -> None:
    store = storage(tmp_path).open()
    store.topics.create(TOPIC)
    publish(store, 3, producer="p")
    store.topic(TOPIC).cloud.flush(PATIENCE)  # type: ignore[union-attr]
    publish(store, 4, producer="p", sequence=3)
    disaster.strike(store, keep_metadata=False)
    with storage(tmp_path) as again:
        first = again.recover_topic(TOPIC).next_offset
    with storage(tmp_path) as again:
        repeated = again.publish(again.topic(TOPIC), message_batch([b"p 2"]), producer="p", sequence=2)
        assert (repeated.duplicate, repeated.base_offset) == (True, 2)
        assert publish(again, 1, producer="p", sequence=7) == range(first, first + 1)
        with pytest.raises(SequenceError):  # from here on it counts as before
            publish(again, 1, producer="p", sequence=20)
    assert objects.objects


def test_an_object_that_was_not_described_yet_is_taken_in(
    tmp_path: Path, objects: FragileStore, disaster: Disaster
) -> None:
    store = storage(tmp_path).open()
    store.topics.create(TOPIC)
    publish(store, 2)
    store.topic(TOPIC).cloud.flush(PATIENCE)  # type: ignore[union-attr]
    with closing(sqlite3.connect(tmp_path / "metadata.db")) as live, closing(sqlite3.connect(tmp_path / "old")) as old:
        live.backup(old)
    before = len(names(objects))
    publish(store, 3)
    store.topic(TOPIC).cloud.flush(PATIENCE)  # type: ignore[union-attr]
    kept = rows(store)
    disaster.strike(store, keep_metadata=False)
    made = names(objects)
    (tmp_path / "old").rename(tmp_path / "metadata.db")
    with storage(tmp_path) as again:
        report = again.recover_topic(TOPIC)
        assert report.objects == len(made)
        assert f"{objects.name}: {len(made) - before} objects that were not described" in report.sources
        check(again, report, kept, range(5))
    assert objects.objects


def test_damaged_objects_are_told_of_and_keep_nobody_from_the_others(
    tmp_path: Path, objects: FragileStore, disaster: Disaster
) -> None:
    store = storage(tmp_path).open()
    store.topics.create(TOPIC)
    for _ in range(3):
        publish(store, 2)
        store.topic(TOPIC).cloud.flush(PATIENCE)  # type: ignore[union-attr]
    kept = rows(store)
    disaster.strike(store, keep_metadata=False)
    made = names(objects)
    middle = made[len(made) // 2]
    name = ObjectName.parse(middle)
    assert name is not None
    objects.flip(middle, len(objects.objects[middle]) - 1)
    with storage(tmp_path) as again:
        report = again.recover_topic(TOPIC)
        assert any(middle in source and source.startswith("damaged") for source in report.sources)
        gap = f"no object has the offsets {name.first_offset} to {name.end_offset - 1}"
        assert any(gap in source for source in report.sources)
        assert (report.objects, report.cloud_end) == (len(made) - 1, 6)
        assert rows(again, name.end_offset) == {offset: kept[offset] for offset in range(name.end_offset, 6)}
        assert publish(again, 1) == range(report.next_offset, report.next_offset + 1)


def three_objects(store: IcebergStorage, kind: str = "log") -> dict[int, bytes]:
    """A topic of three batches of two messages, each in an object of its own; what is read of it."""
    topic = store.topics.create(TOPIC, storage=kind)
    assert topic.cloud is not None
    for number in range(3):
        store.publish(topic, message_batch([b"a%d" % number, b"b%d" % number]))
        topic.cloud.flush(PATIENCE)
    return rows(store)


def test_a_store_that_has_not_one_of_the_objects_is_another_one(tmp_path: Path, objects: FragileStore) -> None:
    with storage(tmp_path) as store:
        kept = three_objects(store)
    shutil.rmtree(tmp_path / "wal")
    right, objects.objects = objects.objects, {}
    with storage(tmp_path) as store:
        with pytest.raises(ObjectNotFoundError, match=r"not one of the topic's 3 objects .* is this the right store"):
            store.recover_topic(TOPIC)
        objects.objects = right
        report = store.recover_topic(TOPIC)
        assert (report.epoch, report.message) == (2, "nothing is lost")  # nothing had changed
        assert rows(store) == kept


@pytest.mark.parametrize("damage", ["gone", "its end", "its frames"])
@pytest.mark.parametrize(("number", "first"), [(0, 0), (1, 2), (2, 4)])
def test_uploaded_messages_that_cannot_be_read_are_not_called_safe(
    tmp_path: Path, objects: FragileStore, damage: str, number: int, first: int
) -> None:
    with storage(tmp_path) as store:
        three_objects(store)
    shutil.rmtree(tmp_path / "wal")
    key = names(objects)[number]
    match damage:
        case "gone":
            del objects.objects[key]
        case "its end":
            objects.flip(key, len(objects.objects[key]) - 1)
        case "its frames":
            objects.flip(key, 70)
    looked_at = damage != "its frames" or number == 2  # only the last object is read through
    with storage(tmp_path) as store:
        report = store.recover_topic(TOPIC)
        assert report.unreadable == ([(first, first + 2)] if looked_at else [])
        said = (
            f"offsets {first} to {first + 1} cannot be read: their objects are gone or damaged, and no table has them"
        )
        assert report.message == (said if looked_at else "nothing is lost")
        assert report.next_offset == 6


def test_what_the_table_has_of_lost_objects_is_safe(tmp_path: Path, objects: FragileStore) -> None:
    with storage(tmp_path) as store:
        three_objects(store, "table")
    shutil.rmtree(tmp_path / "wal")
    for key in names(objects)[:2]:
        del objects.objects[key]
    with storage(tmp_path) as store, pytest.MonkeyPatch.context() as patch:
        patch.setattr(LostTopics, "_committed_offset", lambda *_: 3)
        assert store.recover_topic(TOPIC).unreadable == [(3, 4)]


def test_of_two_streams_of_a_name_the_newer_one_comes_back(
    tmp_path: Path, objects: FragileStore, disaster: Disaster
) -> None:
    store = storage(tmp_path).open()
    old = store.topics.create(TOPIC).record.stream_id
    publish(store, 9)
    store.topic(TOPIC).cloud.flush(PATIENCE)  # type: ignore[union-attr]
    left = dict(objects.objects)
    store.delete(TOPIC)
    store.topics.create(TOPIC)
    publish(store, 2)
    store.topic(TOPIC).cloud.flush(PATIENCE)  # type: ignore[union-attr]
    kept = rows(store)
    objects.objects |= left
    disaster.strike(store, keep_metadata=False)
    with storage(tmp_path) as again:
        report = again.recover_topic(TOPIC)
        assert any(old in source and "left alone" in source for source in report.sources)
        check(again, report, kept, range(2))


def test_a_topic_that_only_the_cloud_knows_is_not_made_anew(
    tmp_path: Path, objects: FragileStore, disaster: Disaster
) -> None:
    store = storage(tmp_path).open()
    store.topics.create(TOPIC)
    publish(store, 2)
    store.topic(TOPIC).cloud.flush(PATIENCE)  # type: ignore[union-attr]
    disaster.strike(store, keep_metadata=False)
    with storage(tmp_path) as again:
        with pytest.raises(LogLostError, match="icestream topic recover"):
            again.topics.create(TOPIC, if_not_exists=True)
        again.recover_topic(TOPIC)
        again.delete(TOPIC)
        assert not objects.objects
        again.topics.create(TOPIC)
        assert publish(again, 1) == range(1)


def test_a_topic_that_nobody_knows_cannot_be_recovered(tmp_path: Path, objects: FragileStore) -> None:
    with storage(tmp_path) as store, pytest.raises(TopicNotFoundError, match="memory://fragile knows the topic"):
        store.recover_topic("default/unheard")
    assert not objects.objects


def test_a_broker_that_still_runs_elsewhere_is_fenced(
    tmp_path: Path, objects: FragileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icestream.storage.logs.directory_in_use", lambda _: False)  # as if on another machine
    shared = tmp_path / "shared.db"
    with storage(tmp_path / "a", metadata__sqlite_path=shared) as stale:
        stale.topics.create(TOPIC)
        publish(stale, 2)
        cloud = stale.topic(TOPIC).cloud
        assert cloud is not None
        cloud.flush(PATIENCE)
        kept = rows(stale)
        publish(stale, 3)
        with storage(tmp_path / "b", metadata__sqlite_path=shared) as successor:
            report = successor.recover_topic(TOPIC)
            with pytest.raises(StaleEpochError):
                cloud.flush(PATIENCE)
            check(successor, report, kept, range(5))
            successor.topic(TOPIC).cloud.flush(PATIENCE)  # type: ignore[union-attr]
            assert rows(successor).keys() == kept.keys() | {report.next_offset, report.next_offset + 1}
    assert objects.objects


# Killed on the way


class Killed(BaseException):
    """The process ends here."""


def kill_at(patch: pytest.MonkeyPatch, fatal: int) -> None:
    """Count this thread's changes of metadata and files; the one with the number does not happen."""
    changes, here = itertools.count(), threading.current_thread()

    def counted(kind: type, name: str) -> None:
        original = getattr(kind, name)

        def call(*arguments: Any, **options: Any) -> Any:
            if threading.current_thread() is here and next(changes) == fatal:
                raise Killed
            return original(*arguments, **options)

        patch.setattr(kind, name, call)

    counted(SqliteMetadataStore, "transaction")
    for name in ("open", "make_directory", "replace", "remove_tree", "sync_directory"):
        counted(LocalFiles, name)


@pytest.mark.parametrize("keep_metadata", [True, False])
def test_a_recovery_that_is_killed_anywhere_is_completed_by_the_next(
    tmp_path: Path, objects: FragileStore, disaster: Disaster, *, keep_metadata: bool
) -> None:
    store = storage(tmp_path).open()
    store.topics.create(TOPIC)
    for _ in range(2):
        publish(store, 2)
        store.topic(TOPIC).cloud.flush(PATIENCE)  # type: ignore[union-attr]
    kept = rows(store)
    seen = publish(store, 3)
    disaster.strike(store, keep_metadata=keep_metadata)
    left, whole = dict(objects.objects), tmp_path / "whole"
    shutil.copytree(tmp_path, whole, ignore=lambda *_: ["whole"])
    kills = 0
    for fatal in itertools.count():
        path = tmp_path / f"try-{fatal}"
        shutil.copytree(whole, path)
        objects.objects = dict(left)
        with storage(path) as broker, pytest.MonkeyPatch.context() as patch:
            kill_at(patch, fatal)
            try:
                broker.recover_topic(TOPIC)
            except Killed:
                kills += 1
            else:
                break
        with storage(path) as broker:
            if broker.topics.lost() or broker.topics.recoverable():
                report = broker.recover_topic(TOPIC)
                check(broker, report, kept, seen)
            else:  # killed behind the last step: it lives
                assert rows(broker) == kept
                assert publish(broker, 1).start >= seen.stop
        shutil.rmtree(path)
    assert kills > 8


# Which objects make up a stream


def found(first: int, end: int, epoch: int = 1) -> FoundObject:
    return FoundObject(f"{first}-{end}-{epoch}", ObjectName(first, end, epoch), 100)


@pytest.mark.parametrize(
    ("listed", "chosen"),
    [
        ([found(0, 5), found(5, 9)], ["0-5-1", "5-9-1"]),
        # A try that failed has left a longer or a shorter object than the one that counts.
        ([found(0, 7), found(0, 5), found(5, 9)], ["0-5-1", "5-9-1"]),
        ([found(0, 3), found(0, 5), found(5, 9)], ["0-5-1", "5-9-1"]),
        ([found(0, 5), found(5, 9), found(5, 7)], ["0-5-1", "5-9-1"]),
        # An owner of the past went on uploading what its successor gave up.
        ([found(0, 5), found(5, 9), found(9, 12), found(5, 8, 2)], ["0-5-1", "5-8-2"]),
        ([found(0, 5), found(5, 9), found(7, 12, 2)], ["0-5-1", "7-12-2"]),
        # One is missing.
        ([found(0, 5), found(7, 9)], ["0-5-1", "7-9-1"]),
        ([], []),
    ],
)
def test_objects_are_chosen_by_owner_and_reach(listed: list[FoundObject], chosen: list[str]) -> None:
    assert [one.key for one in in_order(listed)] == chosen
    assert [one.key for one in in_order(reversed(listed))] == chosen
