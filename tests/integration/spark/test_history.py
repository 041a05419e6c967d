"""Messages that only the table has, and messages that nobody has any more."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.integration.spark.conftest import messages
from tests.reading import TOPIC, Stage
from tests.topics import Topics

from icestream.broker_process import BrokerProcess
from icestream.model.errors import DamagedError
from icestream.server.flight.door import FlightDoor
from icestream.server.metrics import BrokerMetrics
from icestream.spark import IcestreamSource
from icestream.spark.source import TopicBatchReader
from icestream.wal.files import LocalFiles
from icestream.wal.repair import repair_directory


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path / "data")
    yield stage
    stage.close()


@pytest.fixture
def broker(stage: Stage) -> Iterator[str]:
    door = FlightDoor(stage.storage, BrokerMetrics(stage.storage), host="127.0.0.1", port=0, version="0")
    yield f"grpc://127.0.0.1:{door.port}"
    door.end_streams()
    door.shutdown()


def test_a_frame_goes_from_the_tables_first_message_to_the_logs_last(
    session: SparkSession, stage: Stage, broker: str
) -> None:
    stage.publish([b"%04d" % number * 50 for number in range(100)])
    snapshot = stage.commit().snapshot_id
    stage.publish([b"%04d" % number * 50 for number in range(100, 200)])
    stage.commit().tag("billing")
    stage.publish([b"%04d" % number * 50 for number in range(200, 300)])
    stage.commit()
    assert stage.prune() >= 100
    stage.publish([b"%04d" % number * 50 for number in range(300, 310)])

    def offsets(**options: str) -> list[int]:
        frame = session.read.format("icestream").options(broker=broker, topic=TOPIC, columns="offset", **options).load()
        return [row.offset for row in frame.collect()]

    assert offsets(partitionBytes="20000") == list(range(310))
    assert offsets(start=f"snapshot:{snapshot}", end="250") == list(range(100, 250))
    assert offsets(start="tag:billing") == list(range(200, 310))


def read(broker: str, topic: str, **options: str) -> list[int]:
    source = IcestreamSource({"broker": broker, "topic": topic, "columns": "offset", **options})
    reader = source.reader(source.schema())
    assert isinstance(reader, TopicBatchReader)
    return [
        offset for part in reader.partitions() for batch in reader.read(part) for offset in batch.column(0).to_pylist()
    ]


def test_lost_messages_are_in_no_row_and_in_the_tasks_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    environ = {"ICESTREAM_WAL__MAX_FILE_SIZE": "65536", "ICESTREAM_CATALOG__NAME": "lost"}
    topic = "spark/lost"
    with BrokerProcess(tmp_path / "data", environ=environ) as broker, Topics(broker, environ) as topics:
        name = topics.create(topic)
        for number in range(30):
            topics.publish(name, [b"%d" % number + bytes(10_000)])
        assert broker.terminate() == 0
        log = broker.data_dir / "wal" / "spark" / "lost"
        sorted(log.glob("*.log"))[1].unlink()
        ((first, after),) = repair_directory(LocalFiles(), log).lost
        broker.start()
        kept = [*range(first), *range(after, 30)]
        with caplog.at_level(logging.WARNING, logger="icestream.spark.tasks"):
            assert read(broker.flight, topic) == kept
        assert f"count={after - first} start=0 end=30" in caplog.text
        topics.drain(name)
        config = tmp_path / "settings.yaml"
        config.write_text(json.dumps({"data_dir": str(broker.data_dir), "catalog": {"name": "lost"}}))
        assert read(broker.flight, topic, config=str(config)) == kept


def test_a_table_that_lacks_messages_is_an_error(topics: Topics, tmp_path: Path) -> None:
    topic = topics.create("spark/lacks")
    topics.publish(topic, messages(0, 10))
    topics.drain(topic)
    topics.publish(topic, messages(10, 10))
    table = topics.drain(topic)
    table.iceberg.delete("offset = 3")
    config = tmp_path / "settings.yaml"
    catalog = {"name": topics.settings.catalog.name}
    config.write_text(json.dumps({"data_dir": str(topics.broker.data_dir), "catalog": catalog}))
    with pytest.raises(DamagedError, match="has 19 messages from 0 to 20, not 20"):
        read(topics.broker.flight, str(topic), config=str(config))
