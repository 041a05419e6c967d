"""The metadata store is lost, or another one, and the logs are not: what lies in the cloud is known again."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cloud_objects import FragileStore
from tests.unit.storage.disaster import PATIENCE, TOPIC, Disaster, names, publish, rows, storage

from icestream.cloud import ObjectDescriptor
from icestream.model.errors import LogLostError, ObjectNotFoundError, StaleEpochError, UnavailableError
from icestream.storage import IcebergStorage
from icestream.storage.cloud import MetadataRegistry


def make_history(store: IcebergStorage) -> dict[int, bytes]:
    """A topic of 8 messages in 4 objects, whose log begins at offset 6."""
    topic = store.topics.create(TOPIC, storage="log", retention_minutes=77_000)
    assert topic.cloud is not None
    for _ in range(4):
        topic.log.rotate_past(topic.log.durable_end)
        publish(store, 2)
        topic.cloud.flush(PATIENCE)
    topic.log.prune(6)
    assert topic.log.start_offset == 6
    return rows(store)


def described(store: IcebergStorage) -> list[ObjectDescriptor]:
    cloud = store.topic(TOPIC).cloud
    assert cloud is not None
    return [replace(one, created_us=0) for one in cloud.registry.objects()]


def lose_metadata(path: Path) -> None:
    for file in path.glob("metadata.db*"):
        file.unlink()


def test_all_objects_are_described_anew_and_none_is_taken_for_an_orphan(tmp_path: Path, objects: FragileStore) -> None:
    with storage(tmp_path) as store:
        kept = make_history(store)
        before = described(store)
    made = names(objects)
    lose_metadata(tmp_path)
    for _ in range(2):  # and by the next run either
        with storage(tmp_path) as store:
            assert rows(store) == kept
            store.retention.run()
            assert names(objects) == made
            topic = store.topic(TOPIC)
            assert topic.cloud is not None
            assert described(store) == before
            assert topic.cloud.flush(PATIENCE) == 8
            assert (topic.record.storage, topic.record.retention_minutes) == ("log", 77_000)
    with storage(tmp_path) as store:
        assert publish(store, 2) == range(8, 10)
        assert store.topic(TOPIC).cloud.flush(PATIENCE) == 10  # type: ignore[union-attr]
        assert rows(store).keys() == set(range(10))


def test_nothing_is_published_before_the_object_store_could_be_looked_at(tmp_path: Path, objects: FragileStore) -> None:
    with storage(tmp_path) as store:
        kept = make_history(store)
    lose_metadata(tmp_path)
    objects.is_away = True
    with storage(tmp_path) as store:
        with pytest.raises(UnavailableError) as raised:
            publish(store, 1)
        assert raised.value.retryable
        objects.is_away = False
        assert publish(store, 1) == range(8, 9)
        assert rows(store).keys() == kept.keys() | {8}


def test_who_is_killed_before_the_claim_describes_the_objects_again(
    tmp_path: Path, objects: FragileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with storage(tmp_path) as store:
        kept = make_history(store)
    lose_metadata(tmp_path)

    def away(*_: object) -> None:
        raise UnavailableError("the metadata store is away")

    with monkeypatch.context() as patched:
        patched.setattr(MetadataRegistry, "claim", away)
        with storage(tmp_path) as store, pytest.raises(UnavailableError):
            publish(store, 1)
    with storage(tmp_path) as store:
        assert rows(store) == kept
        head = store.topic(TOPIC).cloud.registry.head()  # type: ignore[union-attr]
        assert head is not None
        assert (head.first_offset, head.uploaded_end, head.object_count) == (0, 8, len(names(objects)))


def test_an_object_that_cannot_be_described_is_not_an_orphan_either(tmp_path: Path, objects: FragileStore) -> None:
    with storage(tmp_path) as store:
        kept = make_history(store)
    lose_metadata(tmp_path)
    made = names(objects)
    objects.flip(made[0], len(objects.objects[made[0]]) - 1)
    for _ in range(2):
        with storage(tmp_path) as store:
            assert rows(store, 2) == {offset: kept[offset] for offset in range(2, 8)}
            store.retention.run()
            assert names(objects) == made


def test_a_store_that_has_nothing_of_an_uploaded_topic_is_another_one(tmp_path: Path, objects: FragileStore) -> None:
    with storage(tmp_path) as store:
        kept = make_history(store)
    lose_metadata(tmp_path)
    right, objects.objects = objects.objects, {}
    with storage(tmp_path) as store, pytest.raises(ObjectNotFoundError, match="is this the right store"):
        publish(store, 1)
    objects.objects = right
    with storage(tmp_path) as store:
        assert rows(store) == kept


def test_a_log_that_is_behind_the_objects_is_not_used(tmp_path: Path, objects: FragileStore) -> None:
    with storage(tmp_path) as store:
        make_history(store)
        store.topic(TOPIC).log.checkpoint()
        shutil.copytree(tmp_path / "wal" / "default", tmp_path / "older")
        publish(store, 3)
    shutil.rmtree(tmp_path / "wal" / "default")
    (tmp_path / "older").rename(tmp_path / "wal" / "default")
    lose_metadata(tmp_path)
    with storage(tmp_path) as store, pytest.raises(LogLostError, match="the cloud has messages up to offset 10"):
        publish(store, 1)
    assert objects.objects


def test_a_log_whose_topic_has_gone_on_elsewhere_is_not_used(
    tmp_path: Path, objects: FragileStore, disaster: Disaster
) -> None:
    store = storage(tmp_path).open()
    make_history(store)
    shutil.copytree(tmp_path / "wal" / "default", tmp_path / "older")
    disaster.strike(store, keep_metadata=True)
    with storage(tmp_path) as store:
        store.recover_topic(TOPIC)
        publish(store, 3)
        store.topic(TOPIC).cloud.flush(PATIENCE)  # type: ignore[union-attr]
    shutil.rmtree(tmp_path / "wal" / "default")
    (tmp_path / "older").rename(tmp_path / "wal" / "default")
    lose_metadata(tmp_path)
    with storage(tmp_path) as store, pytest.raises(StaleEpochError, match="owner of epoch 2"):
        publish(store, 1)
    assert objects.objects
