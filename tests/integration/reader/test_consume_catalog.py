"""`icestream consume --catalog`, and `IcebergStorage.read_only`: a topic's table with no broker."""

import asyncio
import json
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.reading import TOPIC, Stage, reading_settings

from icestream.cli.consume import command as consume
from icestream.cli.consume import render_json
from icestream.model.errors import CatalogUnavailableError, TopicNotFoundError
from icestream.model.offsets import StartPosition
from icestream.storage import IcebergStorage
from icestream.table import Tables


def run(path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(consume, [TOPIC, *arguments, "--data", str(path)], catch_exceptions=False)


def test_the_output_is_that_of_a_broker(stage: Stage, tmp_path: Path) -> None:
    for number in range(30):
        stage.publish([b"%d" % number, bytes([0xFF, number])])
    stage.commit(50).tag("fifty")
    topic = stage.topic
    expected = b"".join(render_json(batch) for batch in topic.read(stage.reader(0), end=50)).decode()
    stage.storage.close()
    assert run(tmp_path, "--catalog").stdout == expected
    lines = expected.splitlines()
    assert run(tmp_path, "--catalog", "--from", "48").stdout.splitlines() == lines[48:]
    assert run(tmp_path, "--catalog", "--from", "tag:fifty").stdout == ""
    assert run(tmp_path, "--from", "7", "--max", "3", "--catalog").stdout.splitlines() == lines[7:10]
    uri = f"--catalog=sqlite:///{tmp_path / 'catalog.db'}"
    assert CliRunner().invoke(consume, [TOPIC, uri]).stdout == expected
    found = run(tmp_path, "--catalog", "--filter", "offset in (3, 5)").stdout.splitlines()
    assert [json.loads(line)["offset"] for line in found] == [3, 5]


def test_wrong_use_is_said_to_be_so(tmp_path: Path) -> None:
    with pytest.raises(TopicNotFoundError, match="no table of this topic"):
        run(tmp_path, "--catalog")
    assert not (tmp_path / "catalog.db").exists()
    assert run(tmp_path, "--catalog", "somewhere").exit_code == 2
    assert run(tmp_path, "--catalog", "--subscription", "s").exit_code == 2


def test_a_reader_with_no_broker_waits_for_the_table_and_follows_it(tmp_path: Path) -> None:
    settings = reading_settings(tmp_path)
    found: list[bytes] = []
    some, all_ = threading.Event(), threading.Event()

    async def follow() -> None:
        async with IcebergStorage.read_only(settings) as storage:
            async for message in await storage.create_reader(TOPIC, StartPosition.earliest()):
                found.append(message.payload)
                if len(found) == 1:
                    some.set()
                if len(found) == 5:
                    return

    def run_it() -> None:
        asyncio.run(follow())
        all_.set()

    thread = threading.Thread(target=run_it)
    thread.start()
    stage = Stage(tmp_path)  # takes the lock of the data directory, which the reader does not need
    stage.publish([b"0", b"1"])
    stage.commit()
    assert some.wait(60)
    stage.publish([b"2", b"3", b"4"])
    stage.commit()
    assert all_.wait(60)
    thread.join()
    assert found == [b"0", b"1", b"2", b"3", b"4"]
    stage.close()


def test_without_following_it_ends_at_what_is_committed(stage: Stage) -> None:
    stage.publish([b"0", b"1", b"2"])
    stage.commit(2)

    async def read() -> list[bytes]:
        async with IcebergStorage.read_only(stage.settings) as storage:
            assert await storage.list_topics() == [TOPIC]
            return [message.payload async for message in await storage.create_reader(TOPIC, follow=False)]

    assert asyncio.run(read()) == [b"0", b"1"]


def test_a_topic_that_was_made_again_ends_its_readers(stage: Stage) -> None:
    stage.publish([b"0"])
    stage.commit()
    with IcebergStorage.read_only(stage.settings) as storage:
        reader = storage.reader(TOPIC)
        assert len(reader.read()) == 1
        stage.storage.delete(TOPIC)
        stage.storage.topics.create(TOPIC)
        stage.publish([b"other"])
        stage.commit()
        with pytest.raises(TopicNotFoundError, match="deleted and created again"):
            reader.wait(60)
        reader.close()


def test_a_catalog_that_is_away_is_a_retryable_error(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.publish([b"0"])
    stage.commit()

    def away(*_: object) -> None:
        raise CatalogUnavailableError("away")

    with IcebergStorage.read_only(stage.settings) as storage:
        reader = storage.reader(TOPIC)
        with monkeypatch.context() as outage:
            outage.setattr(Tables, "find", away)
            with pytest.raises(CatalogUnavailableError):
                reader.read()
        assert len(reader.read()) == 1
        reader.close()
