"""`spark.read` over a real broker and its tables."""

import json
import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tests.integration.spark.conftest import Load, messages
from tests.topics import Topics

ODD_TYPES = pa.schema(
    [
        pa.field("number", pa.uint64(), nullable=False),
        pa.field("small", pa.int8()),
        pa.field("half", pa.float16()),
        pa.field("price", pa.decimal128(12, 2)),
        pa.field("at", pa.timestamp("ns", tz="Europe/Berlin")),
        pa.field("local", pa.timestamp("ms")),
        pa.field("day", pa.date64()),
        pa.field("time", pa.time64("us")),
        pa.field("took", pa.duration("ms")),
        pa.field("text", pa.large_string()),
        pa.field("id", pa.binary(4)),
        pa.field("tags", pa.large_list(pa.struct([pa.field("name", pa.string()), pa.field("id", pa.binary(2))]))),
        pa.field("sizes", pa.map_(pa.string(), pa.uint8())),
    ]
)


def odd_rows(count: int) -> pa.RecordBatch:
    moment = datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=UTC)
    rows = [
        {
            "number": (1 << 64) - 1 - number,
            "small": number % 100,
            "half": number / 2,
            "price": Decimal(number) / 100,
            "at": moment + timedelta(days=number),
            "local": moment.replace(tzinfo=None, microsecond=1000),
            "day": date(2026, 1, 1) + timedelta(days=number),
            "time": moment.time(),
            "took": timedelta(milliseconds=number),
            "text": "é" * number,
            "id": b"%04d" % number,
            "tags": [{"name": "a", "id": b"xy"}, None] if number % 3 else None,
            "sizes": {"a": 255, "b": None},
        }
        if number % 5
        else {"number": number}
        for number in range(count)
    ]
    return pa.RecordBatch.from_pylist(rows, ODD_TYPES)


def test_a_frame_holds_exactly_the_messages_of_its_range(topics: Topics, load: Load) -> None:
    topic = topics.create("spark/ranges")
    for first in range(0, 4_000, 500):
        topics.publish(topic, messages(first, 500))
    chosen = random.Random(5)
    for _ in range(3):
        start, end = sorted(chosen.choices(range(4_001), k=2))
        frame = load(topic, start=start, end=end, partitionBytes=chosen.choice([20_000, 1 << 26]))
        assert frame.toArrow().equals(topics.client.read(topic, start, end)), (start, end)
    whole = load(topic, partitionBytes=20_000)
    assert whole.toArrow().equals(topics.client.read(topic))
    assert whole.rdd.getNumPartitions() > 2


def test_a_topic_with_its_own_columns_looks_like_its_table(topics: Topics, load: Load) -> None:
    topic = topics.create("spark/odd", ODD_TYPES)
    topics.publish(topic, odd_rows(40))
    from_log = load(topic).toArrow()
    (task,) = topics.drain(topic).iceberg.scan().plan_files()
    stored = pq.read_table(task.file.file_path.removeprefix("file://"))
    assert from_log.column_names == stored.column_names
    for name in stored.column_names:
        assert from_log[name].to_pylist() == stored[name].to_pylist(), name
    assert "at_nanos" in from_log.column_names


def test_a_frame_can_have_some_of_the_columns(topics: Topics, load: Load, session: SparkSession) -> None:
    topic = topics.create("spark/columns")
    topics.publish(topic, messages(0, 10))
    rows = topics.client.read(topic)
    assert load(topic, columns="payload, offset").toArrow().equals(rows.select(["payload", "offset"]))
    asked = session.read.format("icestream").schema("key binary, offset bigint")
    found = asked.options(broker=topics.broker.flight, topic=str(topic)).load().toArrow()
    assert found.to_pylist() == rows.select(["key", "offset"]).to_pylist()


def test_a_frame_starts_at_a_time_or_at_the_end(topics: Topics, load: Load) -> None:
    topic = topics.create("spark/starts")
    topics.publish(topic, messages(0, 10))
    topics.publish(topic, messages(10, 10))
    rows = topics.client.read(topic)
    moment = rows["publish_time"][10].as_py()
    assert load(topic, start=moment.isoformat()).toArrow()["offset"].to_pylist() == list(range(10, 20))
    assert load(topic, start="latest").count() == 0


def test_history_can_come_from_the_tables_files(topics: Topics, load: Load, tmp_path: Path) -> None:
    topic = topics.create("spark/history")
    topics.publish(topic, messages(0, 300))
    topics.drain(topic)
    topics.publish(topic, messages(300, 200))
    config = tmp_path / "settings.yaml"
    catalog = {"name": topics.settings.catalog.name}
    config.write_text(json.dumps({"data_dir": str(topics.broker.data_dir), "catalog": catalog}))
    frame = load(topic, config=str(config), start=100, minPartitions=4)
    assert frame.rdd.getNumPartitions() == 4
    assert frame.toArrow().equals(topics.client.read(topic, 100))


def test_what_is_wrong_is_said_where_it_shows_first(topics: Topics, load: Load) -> None:
    topic = topics.create("spark/wrong")
    topics.publish(topic, messages(0, 10))
    with pytest.raises(PySparkException) as said:
        load(topic, topc="a/b")
    assert "there is no option 'topc'; options are broker, topic, start, end" in str(said.value)
    with pytest.raises(PySparkException) as said:
        load(topic, start=5, end=4).count()
    assert "the range begins at 5, behind its end 4" in str(said.value)
    with pytest.raises(PySparkException) as said:
        load(topic, columns="price")
    assert "the topic has no columns 'price' [spark/wrong]; it has offset, publish_time" in str(said.value)
