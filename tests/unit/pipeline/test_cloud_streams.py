"""What a pipeline finds in metadata store and object store, and how often it reads the same there."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cloud_objects import FragileStore

from icestream.cloud.object import topic_prefix
from icestream.config import Settings, load_settings
from icestream.metadata.sqlite import SqliteMetadataStore
from icestream.model.messages import message_batch
from icestream.model.names import TopicName
from icestream.pipeline.cloud_backlog import CloudBacklog, CloudStreams
from icestream.storage import IcebergStorage

NAMES = [TopicName("default", f"t{number}") for number in range(3)]


@pytest.fixture
def objects(monkeypatch: pytest.MonkeyPatch) -> FragileStore:
    store = FragileStore()
    monkeypatch.setattr("icestream.cloud.opendal_store.open_object_store", lambda *_: store)
    return store


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    given: dict[str, Any] = {
        "data_dir": tmp_path / "data",
        "cloud.backend": "fs",
        "cloud.root": "/nowhere",
        "uploader.enabled": True,
        "uploader.interval_seconds": 3600,
    }
    return load_settings(overrides=given)


@pytest.fixture
def storage(settings: Settings, objects: FragileStore) -> Iterator[IcebergStorage]:
    """Three topics, each of one object."""
    assert not objects.objects
    with IcebergStorage(settings) as storage:
        for name in NAMES:
            storage.topics.create(name)
            upload(storage, name)
        yield storage


def upload(storage: IcebergStorage, name: TopicName) -> None:
    topic = storage.topic(name)
    storage.publish(topic, message_batch([b"x"]))
    assert topic.cloud is not None
    topic.cloud.flush(60)


def ends(found: list[CloudBacklog]) -> dict[TopicName, int]:
    return {one.name: one.durable_end for one in found}


def test_one_topic_is_found_without_looking_at_all(
    settings: Settings, storage: IcebergStorage, objects: FragileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(storage.topics) == 3
    listed: list[str] = []
    lists = SqliteMetadataStore.list

    def note(self: SqliteMetadataStore, prefix: str, **options: Any) -> Any:
        listed.append(prefix)
        return lists(self, prefix, **options)

    monkeypatch.setattr(SqliteMetadataStore, "list", note)
    streams = CloudStreams(settings, objects)
    assert ends(streams.find(str(NAMES[1]))) == {NAMES[1]: 1}
    assert {prefix for prefix in listed if str(NAMES[1]) not in prefix} == set()
    assert ends(streams.find("default/nobody")) == {}
    assert ends(streams.find("default/*")) == dict.fromkeys(NAMES, 1)


def test_what_was_read_is_not_read_again_until_it_changes(
    tmp_path: Path, settings: Settings, storage: IcebergStorage, objects: FragileStore
) -> None:
    elsewhere = settings.model_copy(
        update={"metadata": settings.metadata.model_copy(update={"sqlite_path": tmp_path / "nowhere.db"})}
    )
    streams = CloudStreams(elsewhere, objects)

    def read(pattern: str = "*", *, anew: bool = False) -> tuple[dict[TopicName, int], set[str]]:
        objects.reads.clear()
        found = ends(streams.find(pattern, reread_records=anew))
        return found, {"/".join(key.split("/")[:2]) for key, _, _ in objects.reads}

    everyone = {str(name) for name in NAMES}
    assert read() == (dict.fromkeys(NAMES, 1), everyone)
    assert read() == (dict.fromkeys(NAMES, 1), set())
    assert read(anew=True) == (dict.fromkeys(NAMES, 1), everyone)
    assert all(key.endswith("topic.json") for key, _, _ in objects.reads)
    upload(storage, NAMES[1])
    assert read() == (dict.fromkeys(NAMES, 1) | {NAMES[1]: 2}, {str(NAMES[1])})
    for key in list(objects.objects):
        if key.startswith(topic_prefix(NAMES[0])):
            objects.delete(key)
    assert read(str(NAMES[2])) == ({NAMES[2]: 1}, set())
    assert read() == ({NAMES[1]: 2, NAMES[2]: 1}, set())
    assert len(streams._known) == 2, "what is gone is forgotten"
