"""What is verified of topics whose log is lost or mended: a loss is never called sound, and what is sound no damage."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from click.testing import CliRunner, Result
from tests.cloud_objects import FragileStore

from icestream.cli.main import cli
from icestream.config import Settings, load_settings
from icestream.metadata import keys
from icestream.model.errors import UnavailableError
from icestream.model.messages import message_batch
from icestream.model.names import TopicName
from icestream.storage import IcebergStorage
from icestream.storage.facade import open_store
from icestream.storage.record import TopicRecord
from icestream.storage.verify import Clouds, DirectoryLogs, Verification, open_tables, verify_topic
from icestream.wal import LocalFiles
from icestream.wal.repair import repair_directory
from icestream.wal.segment import SEGMENT_HEADER_BYTES, SUFFIX

NAME = TopicName("default", "events")
NOBODY = "grpc://127.0.0.1:1"
METADATA_FILES = ("metadata.db", "metadata.db-wal", "metadata.db-shm")


@pytest.fixture
def objects(monkeypatch: pytest.MonkeyPatch) -> FragileStore:
    """The object store of everything that the test opens."""
    store = FragileStore()
    monkeypatch.setattr("icestream.cloud.opendal_store.open_object_store", lambda *_: store)
    return store


@pytest.fixture
def settings(tmp_path: Path, objects: FragileStore) -> Settings:
    assert not objects.objects
    given: dict[str, Any] = {
        "data_dir": tmp_path / "data",
        "cloud.backend": "fs",
        "cloud.root": "/nowhere",
        "uploader.enabled": True,
        "uploader.interval_seconds": 3600,
    }
    return load_settings(overrides=given)


@pytest.fixture
def storage(settings: Settings) -> Iterator[IcebergStorage]:
    with IcebergStorage(settings) as opened:
        yield opened


def fill(storage: IcebergStorage, *, kind: str = "table", uploads: int = 1) -> None:
    topic = storage.topics.create(NAME, storage=kind)
    for _ in range(uploads):
        storage.publish(topic, message_batch([b"x"] * 5))
        assert topic.cloud is not None
        topic.cloud.flush(60)


def lose(settings: Settings, *, metadata: bool) -> None:
    assert settings.data_dir is not None
    shutil.rmtree(settings.data_dir / "wal")
    if metadata:
        for name in METADATA_FILES:
            (settings.data_dir / name).unlink(missing_ok=True)


def verify(settings: Settings) -> Verification:
    logs = DirectoryLogs(Path(str(settings.wal.dir)))
    with Clouds(settings) as clouds, open_tables(settings) as tables:
        return verify_topic(NAME, logs.view, tables, find_cloud=clouds.find, missing=logs.missing(clouds).get)


def command(settings: Settings, *arguments: str) -> Result:
    environ = {"ICESTREAM_CLOUD__BACKEND": "fs", "ICESTREAM_CLOUD__ROOT": "/nowhere"}
    data = f"--data={settings.data_dir}"
    return CliRunner().invoke(cli, ["verify", "--json", data, f"--broker={NOBODY}", *arguments], env=environ)


@pytest.mark.parametrize("metadata", [False, True])
@pytest.mark.parametrize("chosen", ["--all", str(NAME)])
def test_a_lost_disk_is_no_sound_one(
    settings: Settings, storage: IcebergStorage, chosen: str, *, metadata: bool
) -> None:
    fill(storage)
    storage.close()
    assert command(settings, chosen).exit_code == 0
    lose(settings, metadata=metadata)
    done = command(settings, chosen)
    (topic,) = json.loads(done.stdout)["topics"]
    assert (done.exit_code, topic["topic"]) == (1, str(NAME))
    (finding,) = topic["findings"]
    assert finding["kind"] == "damaged"
    assert "topic recover" in finding["text"]


@pytest.mark.parametrize("chosen", ["--all", str(NAME)])
def test_a_store_that_is_away_is_told_of_each_topic(
    settings: Settings, storage: IcebergStorage, objects: FragileStore, monkeypatch: pytest.MonkeyPatch, chosen: str
) -> None:
    fill(storage)
    storage.close()
    objects.is_away = True

    def away(_: object) -> NoReturn:
        raise UnavailableError("the store is away", place=objects.name)

    monkeypatch.setattr(objects, "list", away)
    done = command(settings, chosen)
    answer = json.loads(done.stdout)
    assert (done.exit_code, answer["sound"]) == (1, False)
    (topic,) = answer["topics"]
    assert topic["topic"] == str(NAME)
    found = {(finding["kind"], finding["text"]) for finding in topic["findings"]}
    assert ("unchecked", "the store is away") in found


def test_a_store_that_is_away_where_no_log_is_left_is_an_error(
    settings: Settings, storage: IcebergStorage, objects: FragileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(storage)
    storage.close()
    lose(settings, metadata=True)

    def away(_: object) -> NoReturn:
        raise UnavailableError("the store is away", place=objects.name)

    monkeypatch.setattr(objects, "list", away)
    done = command(settings, "--all")
    assert (done.exit_code, done.stdout) == (1, "")


def test_topics_that_need_no_log_are_not_called_lost(settings: Settings, storage: IcebergStorage) -> None:
    fill(storage)
    storage.topics.create("default/never_used")
    storage.close()
    with open_store(settings) as metadata:
        entry = metadata.get(keys.topic(NAME))
        assert entry is not None
        record = TopicRecord.from_bytes(entry.value)
        metadata.put(keys.topic(NAME), record.marked_for_deletion(keep_table=False).to_bytes())
    with Clouds(settings) as clouds:
        assert clouds.missing(set()) == {}


def test_looking_makes_no_files(settings: Settings) -> None:
    assert settings.data_dir is not None
    settings.data_dir.mkdir()
    assert command(settings, "--all").exit_code == 0
    assert command(settings, str(NAME)).exit_code == 1
    assert list(settings.data_dir.iterdir()) == []


def test_a_log_topic_without_its_disk_lacks_no_table(
    settings: Settings, storage: IcebergStorage, objects: FragileStore
) -> None:
    fill(storage, kind="log", uploads=3)
    cloud = storage.topic(NAME).cloud
    assert cloud is not None
    first, head = cloud.registry.objects()[0], cloud.registry.refresh()
    left = replace(
        head,
        first_offset=first.end_offset,
        object_count=head.object_count - 1,
        object_bytes=head.object_bytes - first.size,
    )
    cloud.registry.remove([first], left)
    objects.delete(first.key)
    storage.close()
    lose(settings, metadata=False)
    report = verify(settings)
    (finding,) = report.findings
    assert "its log is lost" in finding.text
    assert (report.waiting, report.cloud_first) == (0, 5)


def test_what_a_repair_gave_up_at_the_beginning_has_no_time_and_is_sound(settings: Settings) -> None:
    with IcebergStorage(load_settings(overrides={"data_dir": settings.data_dir})) as plain:
        topic = plain.topics.create(NAME)
        directory = topic.log.directory
        for _ in range(5):
            plain.publish(topic, message_batch([b"x"]))
    segment = min(path for path in directory.glob(f"*{SUFFIX}") if path.stat().st_size > SEGMENT_HEADER_BYTES)
    damaged = bytearray(segment.read_bytes())
    damaged[SEGMENT_HEADER_BYTES + 30] ^= 1
    segment.write_bytes(damaged)
    repair_directory(LocalFiles(), directory)
    with IcebergStorage(settings) as uploading:
        cloud = uploading.topic(NAME).cloud
        assert cloud is not None
        _ = uploading.topic(NAME).log
        assert cloud.flush(60) == 5
        assert cloud.registry.objects()[0].first_time_us > 0
    report = verify(settings)
    assert report.is_sound, report.findings
    assert (report.lost, report.cloud_compared) == (1, 4)
