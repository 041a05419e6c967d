import asyncio
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from structlog.testing import capture_logs
from tests.cloud_objects import FragileStore

from icestream.cloud import topic_prefix
from icestream.config import load_settings
from icestream.metadata import keys, open_metadata_store
from icestream.model.errors import (
    DamagedError,
    DirectoryInUseError,
    InvalidMessageError,
    InvalidRequestError,
    LimitReachedError,
    OverloadedError,
    TooLargeError,
    TopicExistsError,
    TopicNotFoundError,
    UnavailableError,
)
from icestream.model.messages import message_batch
from icestream.model.names import TopicName
from icestream.storage import IcebergStorage, StartPosition, Topic
from icestream.storage.topics import Topics
from icestream.subscription import Subscriptions
from icestream.wal import LocalFiles


def storage(path: Path, **overrides: object) -> IcebergStorage:
    return IcebergStorage(
        load_settings(overrides={"data_dir": path} | {key.replace("__", "."): v for key, v in overrides.items()})
    )


def payloads(store: IcebergStorage, name: str) -> list[bytes]:
    table = pa.Table.from_batches(
        list(store.topic(name).read(store.topic(name).reader(StartPosition.earliest()))),
        store.topic(name).stream_schema,
    )
    found: list[bytes] = table["payload"].to_pylist()
    return found


def test_a_second_process_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    with storage(tmp_path), pytest.raises(DirectoryInUseError, match="another broker uses this data directory"):
        storage(tmp_path).open()
    with storage(tmp_path):
        pass


def test_topics_are_there_after_a_restart(tmp_path: Path) -> None:
    with storage(tmp_path) as store:
        topic = store.topics.create("default/events", ack="memory", retention_minutes=5)
        store.publish(topic, message_batch([b"a", b"b"]))
        before = topic.describe()
    with storage(tmp_path) as store:
        after = store.topic("default/events").describe()
        assert after.to_dict() | {"committed_offset": None} == before.to_dict() | {"committed_offset": None}
        assert payloads(store, "default/events") == [b"a", b"b"]


def test_creating_a_topic_twice_is_an_error_unless_it_may_exist(tmp_path: Path) -> None:
    with storage(tmp_path) as store:
        first = store.topics.create("default/events")
        with pytest.raises(TopicExistsError):
            store.topics.create("default/events")
        assert store.topics.create("default/events", if_not_exists=True) is first


def test_a_deleted_topic_is_gone_and_its_name_makes_another_stream(tmp_path: Path) -> None:
    with storage(tmp_path) as store:
        topic = store.topics.create("default/events")
        store.publish(topic, message_batch([b"old"]))
        store.topics.delete("default/events")
        with pytest.raises(TopicNotFoundError):
            store.topic("default/events")
        again = store.topics.create("default/events")
        assert again.record.stream_id != topic.record.stream_id
        assert again.log.durable_end == 0
        assert payloads(store, "default/events") == []
    with storage(tmp_path) as store:
        assert payloads(store, "default/events") == []


def test_a_deletion_that_was_cut_short_is_finished_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise UnavailableError("not now")

    with monkeypatch.context() as cut_short, storage(tmp_path) as store:
        topic = store.topics.create("default/events")
        store.publish(topic, message_batch([b"old"]))
        cut_short.setattr(Topics, "_finish", refuse)
        store.topics.delete("default/events")
    with storage(tmp_path) as store:
        assert store.topics.find() == []
        assert not (tmp_path / "wal" / "default" / "events").exists()


def test_logs_without_a_record_are_taken_in_not_deleted(tmp_path: Path) -> None:
    with storage(tmp_path) as store:
        store.publish(store.topics.create("default/events"), message_batch([b"precious"]))
    for path in tmp_path.glob("metadata.db*"):
        path.unlink()
    with storage(tmp_path) as store:
        assert payloads(store, "default/events") == [b"precious"]


def test_a_damaged_topic_does_not_keep_others_from_working(tmp_path: Path) -> None:
    with storage(tmp_path) as store:
        for name in ("default/good", "default/bad"):
            store.publish(store.topics.create(name), message_batch([b"x"]))
    shutil.copy(tmp_path / "wal/default/good/checkpoint.json", tmp_path / "wal/default/bad/checkpoint.json")
    (tmp_path / "wal/default/bad/00000000000000000000.log").write_bytes(b"")
    with storage(tmp_path) as store:
        assert payloads(store, "default/good") == [b"x"]
        with pytest.raises(Exception, match=r"durable bytes are lost|segment"):
            store.topic("default/bad").describe()


def test_limits_have_clear_errors(tmp_path: Path) -> None:
    limits = {"max_message_bytes": 100, "max_batch_bytes": 2000, "max_in_flight_bytes": 2000, "max_topics": 2}
    with storage(tmp_path, **{f"server__{key}": value for key, value in limits.items()}) as store:
        topic = store.topics.create("default/one")
        store.topics.create("default/two")
        with pytest.raises(LimitReachedError, match=r"server\.max_topics"):
            store.topics.create("default/three")
        with pytest.raises(TooLargeError, match=r"server\.max_message_bytes"):
            store.publish(topic, message_batch([b"x" * 200]))
        with pytest.raises(TooLargeError, match=r"server\.max_batch_bytes"):
            store.publish(topic, message_batch([b"x" * 90] * 30))
        store.budget.take(1900)
        with pytest.raises(OverloadedError, match=r"server\.max_in_flight_bytes"):
            store.publish(topic, message_batch([b"x" * 80]))
        store.budget.give_back(1900)
        with pytest.raises(InvalidMessageError, match="empty"):
            store.publish(topic, message_batch([]))
        assert store.budget.used_bytes == 0
        assert topic.log.durable_end == 0


def test_a_topic_can_have_columns_of_its_own(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("tags", pa.list_(pa.string()))])
    with storage(tmp_path) as store:
        topic = store.topics.create("default/rows", schema=schema)
        store.publish(topic, pa.record_batch({"id": [1, 2], "tags": [["a"], None]}, schema=schema))
        with pytest.raises(InvalidMessageError):
            store.publish(topic, message_batch([b"x"]))
    with storage(tmp_path) as store:
        (batch,) = store.topic("default/rows").reader(StartPosition.earliest()).read()
        assert batch.to_pydict()["tags"] == [["a"], None]
        assert batch.to_pydict()["_offset"] == [0, 1]


def test_only_some_of_a_topic_can_be_changed(tmp_path: Path) -> None:
    with storage(tmp_path) as store:
        store.topics.create("default/events")
        assert store.topics.update("default/events", {"ack": "memory"}).describe().ack == "memory"
        for changes in ({"schema": "x"}, {"ack": "never"}, {"retention_mb": -1}, {"retention_minutes": True}):
            with pytest.raises(InvalidRequestError):
                store.topics.update("default/events", changes)
    with storage(tmp_path) as store:
        assert store.topic("default/events").describe().ack == "memory"


def test_auto_creation_is_a_setting(tmp_path: Path) -> None:
    with storage(tmp_path / "on") as store:
        assert store.topic("default/new", create=True).describe().durable_end == 0
    with storage(tmp_path / "off", topics__auto_create=False) as store, pytest.raises(TopicNotFoundError):
        store.topic("default/new", create=True)


def test_the_facade_serves_asyncio_programs(tmp_path: Path) -> None:
    async def story() -> None:
        async with storage(tmp_path) as store:
            await store.initialize_topic("default/events")
            assert await store.store("default/events", [b"a", b"b"]) == range(2)
            reader = await store.create_reader("default/events", StartPosition.offset(1))
            assert (await anext(reader)).payload == b"b"
            waiting = asyncio.ensure_future(anext(reader))
            await store.store("default/events", [b"c"])
            assert (await waiting).payload == b"c"
            await reader.aclose()  # type: ignore[attr-defined]
            stats = await store.get_topic_stats("default/events")
            assert (stats.message_count, stats.durable_end) == (3, 3)
            assert await store.list_topics() == ["default/events"]
            await store.delete_topic("default/events")
            assert await store.list_topics() == []

    asyncio.run(story())


def test_a_retention_of_zero_takes_the_limit_away(tmp_path: Path) -> None:
    with storage(tmp_path) as store:
        store.topics.create("default/events", retention_mb=5)
        assert store.topics.update("default/events", {"retention_mb": 0}).describe().retention_mb is None


def test_what_is_not_a_log_in_the_data_directory_does_not_stop_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with storage(tmp_path) as store:
        store.publish(store.topics.create("default/events"), message_batch([b"x"]))
    (tmp_path / "wal" / "notes.txt").write_text("a stray file")
    (tmp_path / "wal" / "default" / "notes.txt").write_text("another one")
    (tmp_path / "wal" / "lost+found").mkdir()
    names = LocalFiles.names

    def refuse(files: LocalFiles, directory: Path) -> list[str]:
        if directory.name == "lost+found":
            raise PermissionError(13, "Permission denied")
        return names(files, directory)

    monkeypatch.setattr(LocalFiles, "names", refuse)
    with capture_logs() as events, storage(tmp_path) as store:
        assert [str(topic.name) for topic in store.topics.find()] == ["default/events"]
        assert payloads(store, "default/events") == [b"x"]
    ignored = {Path(event["path"]).name for event in events if event["event"] == "log_directory_ignored"}
    assert ignored == {"notes.txt", "lost+found"}


@pytest.mark.parametrize("harm", ["stream.json", "record"])
def test_a_topic_that_cannot_be_read_does_not_stop_the_start_and_keeps_its_name(tmp_path: Path, harm: str) -> None:
    with storage(tmp_path) as store:
        for name in ("default/good", "default/bad"):
            store.publish(store.topics.create(name), message_batch([b"x"]))
    with open_metadata_store(sqlite_path=tmp_path / "metadata.db") as metadata:
        key = keys.topic(TopicName("default", "bad"))
        if harm == "record":
            metadata.put(key, b"garbage")
        else:
            metadata.delete(key)
            (tmp_path / "wal/default/bad/stream.json").write_text("garbage")
    with storage(tmp_path) as store:
        assert payloads(store, "default/good") == [b"x"]
        with pytest.raises(DamagedError):
            store.topic("default/bad", create=True)
        with pytest.raises(DamagedError):
            store.topics.create("default/bad")


def test_files_that_cannot_be_removed_do_not_stop_the_start_and_are_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched, storage(tmp_path) as store:
        topic = store.topics.create("default/events")
        store.publish(topic, message_batch([b"old"]))
        patched.setattr(LocalFiles, "remove_tree", refuse)
        store.topics.delete("default/events")
        with pytest.raises(TopicExistsError, match="Input/output error"):
            store.topics.create("default/events")
    aside = tmp_path / "wal" / ".deleted" / topic.record.stream_id
    assert aside.exists()
    with monkeypatch.context() as patched:
        patched.setattr(LocalFiles, "remove_tree", refuse)
        with storage(tmp_path) as store:
            assert store.topics.find() == []
    with storage(tmp_path) as store:
        assert not aside.exists()
        assert store.topics.create("default/events").log.durable_end == 0


def test_a_topic_made_again_after_a_delete_that_was_cut_short_has_no_subscriptions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise UnavailableError("not now")

    with monkeypatch.context() as cut_short, storage(tmp_path) as store:
        store.topics.create("default/events")
        store.subscriptions.open("default/events", "opened")
        cut_short.setattr(Subscriptions, "delete_topic", refuse)
        store.topics.delete("default/events")
    with storage(tmp_path) as store:
        store.topics.create("default/events")
        assert store.subscriptions.find() == []
        assert len(store.subscriptions) == 0
    with storage(tmp_path) as store:
        assert len(store.subscriptions) == 0


def test_a_create_during_a_delete_is_told_of_the_delete_and_removes_nothing_in_use(
    tmp_path: Path, objects: FragileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icestream.storage.topics._PATIENCE_SECONDS", 0.01)
    cloud = {"cloud__backend": "fs", "cloud__root": "/nowhere", "uploader__enabled": True}
    refused: list[TopicExistsError] = []
    with storage(tmp_path, **cloud) as store:
        topic = store.topics.create("default/events")
        store.publish(topic, message_batch([b"x"]))
        deleted = store.topics.on_deleted

        def create_meanwhile(topic: Topic) -> None:
            objects.objects.setdefault(f"{topic_prefix(topic.name)}something", b"")
            with pytest.raises(TopicExistsError, match="is being deleted") as raised:
                store.topics.create("default/events")
            refused.append(raised.value)
            store.topics.deletions.finish_all()
            assert (tmp_path / "wal/default/events").exists()
            deleted(topic)

        store.topics.on_deleted = create_meanwhile
        store.topics.delete("default/events")
        store.topics.deletions.finish_all()
        assert not (tmp_path / "wal/default/events").exists()
    assert len(refused) == 1


def test_a_copy_of_a_logs_directory_does_not_replace_the_topics_record(tmp_path: Path) -> None:
    with storage(tmp_path) as store:
        store.publish(store.topics.create("default/events", retention_minutes=5), message_batch([b"x"]))
    shutil.copytree(tmp_path / "wal/default/events", tmp_path / "wal/default/events.bak")
    with storage(tmp_path) as store:
        [topic] = store.topics.find()
        assert (str(topic.name), topic.record.retention_minutes) == ("default/events", 5)
