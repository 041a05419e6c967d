"""History on a real S3 server: uploaded, let go from the log, and read again."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.reading import PATIENCE_SECONDS, TOPIC, pairs

from icestream.config import Settings
from icestream.model.errors import DamagedError
from icestream.model.messages import message_batch
from icestream.model.offsets import StartPosition
from icestream.storage import IcebergStorage, Topic
from icestream_servers import S3Server
from icestream_servers.s3 import ACCESS_KEY, REGION, SECRET_KEY

MESSAGES = 20_000
FRAME = 500


@pytest.fixture
def settings(tmp_path: Path, s3_server: S3Server) -> Settings:
    cloud: dict[str, Any] = {
        "backend": "s3",
        "root": f"s3://{s3_server.bucket}/{uuid4()}",
        "region": REGION,
        "endpoint": s3_server.url,
        "access_key": ACCESS_KEY,
        "secret_key": SECRET_KEY,
    }
    uploader = {"enabled": True, "interval_seconds": 3_600}
    wal = {"max_file_size": 1 << 20}
    return Settings.model_validate({"data_dir": tmp_path, "cloud": cloud, "uploader": uploader, "wal": wal})


@pytest.fixture
def storage(settings: Settings) -> Iterator[IcebergStorage]:
    with IcebergStorage(settings) as opened:
        yield opened


def payload(offset: int) -> bytes:
    return b"%08d" % offset + b"x" * 242


def fill(storage: IcebergStorage) -> Topic:
    """A topic without a table, whose log has nothing but its last segment; all of it is uploaded."""
    topic = storage.topics.create(TOPIC, storage="log")
    for first in range(0, MESSAGES, FRAME):
        storage.publish(topic, message_batch([payload(offset) for offset in range(first, first + FRAME)]))
        if first == MESSAGES // 2:
            flush(topic)
    flush(topic)
    topic.log.cache.clear()
    topic.log.prune(MESSAGES)
    assert topic.log.start_offset > MESSAGES // 2
    return topic


def flush(topic: Topic) -> None:
    assert topic.cloud is not None
    assert topic.cloud.flush(PATIENCE_SECONDS) == topic.log.durable_end


def check(topic: Topic, start: int) -> None:
    expected = start
    for batch in topic.read(topic.reader(StartPosition.offset(start))):
        found = pairs(batch)
        assert found == [(offset, payload(offset)) for offset in range(expected, expected + len(found))]
        expected += len(found)
    assert expected == MESSAGES


def test_all_of_it_is_read_again_from_any_offset(storage: IcebergStorage) -> None:
    topic = fill(storage)
    for start in (0, 1, 7_777, MESSAGES // 2, MESSAGES - 1):
        check(topic, start)
    assert topic.earliest_offset == 0


def test_a_restarted_broker_finds_its_objects(settings: Settings, storage: IcebergStorage) -> None:
    fill(storage)
    storage.close()
    with IcebergStorage(settings) as again:
        check(again.topic(TOPIC), 3)


def test_a_lost_object_is_told_by_name(storage: IcebergStorage) -> None:
    topic = fill(storage)
    cloud = topic.cloud
    assert cloud is not None
    descriptor = cloud.objects.find(0)
    assert descriptor is not None
    cloud.store.delete(descriptor.key)
    reader = topic.reader(StartPosition.earliest())
    with pytest.raises(DamagedError, match="missing") as caught:
        reader.read()
    assert caught.value.details["object"] == descriptor.key
    assert caught.value.details["end_offset"] == descriptor.end_offset
    reader.close()
    check(topic, descriptor.end_offset)
