"""The stream reader, called as Spark calls it; and how ranges are cut. Without Spark."""

import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType
from tests.integration.spark.conftest import messages
from tests.topics import Topics

from icestream.client import Client, TopicDescription
from icestream.client.pipeline import RangeReader
from icestream.model.errors import IcestreamError, InvalidRequestError, OffsetOutOfRangeError, TopicNotFoundError
from icestream.model.names import TopicName
from icestream.spark import IcestreamSource
from icestream.spark.columns import FrameRows, frame_schema
from icestream.spark.options import SourceOptions
from icestream.spark.plan import OffsetRange, plan
from icestream.spark.source import TopicStreamReader

Open = Callable[..., TopicStreamReader]


@pytest.fixture
def opened(topics: Topics) -> Iterator[Open]:
    readers: list[TopicStreamReader] = []

    def made(topic: TopicName, **options: str) -> TopicStreamReader:
        source = IcestreamSource({"broker": topics.broker.flight, "topic": str(topic), **options})
        reader = source.streamReader(source.schema())
        assert isinstance(reader, TopicStreamReader)
        readers.append(reader)
        return reader

    yield made
    for reader in readers:
        reader.stop()


def ends(offset: dict[str, Any]) -> int:
    return int(offset["offset"])


def ranges(found: Any) -> list[tuple[int, int]]:
    return [(part.start, part.end) for part in found]


def test_steps_go_on_from_what_was_planned_last(topics: Topics, opened: Open) -> None:
    topic = topics.create("reader/steps")
    topics.publish(topic, messages(0, 25))
    reader = opened(topic, maxMessagesPerTrigger="10")
    first = reader.latestOffset()
    assert first == reader.latestOffset()
    assert ranges(reader.partitions(reader.initialOffset(), first)) == [(0, 10)]
    second = reader.latestOffset()
    assert ends(second) == 20
    assert ranges(reader.partitions(first, second)) == [(10, 20)]
    third = reader.latestOffset()
    assert ranges(reader.partitions(second, third)) == [(20, 25)]
    assert reader.latestOffset() == third


def test_a_reader_goes_on_from_the_checkpoint(topics: Topics, opened: Open) -> None:
    topic = topics.create("reader/checkpoint")
    topics.publish(topic, messages(0, 25))
    before = opened(topic, maxMessagesPerTrigger="10")
    logged = json.loads(json.dumps(before.latestOffset()))
    reader = opened(topic, maxMessagesPerTrigger="7", start="latest")
    assert reader.partitions(logged, logged) == []
    assert ends(reader.latestOffset()) == 17


def test_the_first_batch_begins_where_it_began_before_the_crash(topics: Topics, opened: Open) -> None:
    topic = topics.create("reader/first")
    topics.publish(topic, messages(0, 25))
    before = opened(topic, start="latest")
    before.latestOffset()
    topics.publish(topic, messages(25, 5))
    logged = before.latestOffset()
    topics.publish(topic, messages(30, 5))
    reader = opened(topic, start="latest")
    assert reader.partitions(logged, logged) == []
    assert ranges(reader.partitions(reader.initialOffset(), logged)) == [(25, 30)]
    assert ends(reader.latestOffset()) == 35


def test_a_limit_is_refused_where_spark_settles_the_end_too_early(topics: Topics, opened: Open) -> None:
    topic = topics.create("reader/wrapper")
    topics.publish(topic, messages(0, 25))
    logged = opened(topic).latestOffset()
    reader = opened(topic, maxMessagesPerTrigger="10")
    reader.latestOffset()
    with pytest.raises(InvalidRequestError, match="triggerAvailableNowWrapper"):
        reader.partitions(logged, logged)
    without = opened(topic)
    end = without.latestOffset()
    assert without.partitions(logged, logged) == []
    assert ranges(without.partitions(logged, end)) == []


def test_positions_of_another_stream_are_refused(topics: Topics, opened: Open) -> None:
    topic = topics.create("reader/again")
    topics.publish(topic, messages(0, 25))
    logged = opened(topic).latestOffset()
    topics.client.delete_topic(topic)
    topics.client.create_topic(topic)
    reader = opened(topic)
    reader.partitions(logged, logged)
    with pytest.raises(TopicNotFoundError, match="deleted and created again"):
        reader.latestOffset()
    with pytest.raises(TopicNotFoundError, match="deleted and created again"):
        reader.partitions(reader.initialOffset(), logged)
    with pytest.raises(InvalidRequestError, match="is not a position of this source"):
        reader.partitions({"offset": 3}, {"offset": 3})


def test_a_position_beyond_the_end_is_refused(topics: Topics, opened: Open) -> None:
    topic = topics.create("reader/beyond")
    topics.publish(topic, messages(0, 5))
    reader = opened(topic)
    beyond = {**reader.latestOffset(), "offset": 6}
    reader.partitions(beyond, beyond)
    with pytest.raises(OffsetOutOfRangeError, match="the topic ends at 5, before the position 6"):
        reader.latestOffset()


def test_ranges_are_cut_by_bytes_and_by_count(topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = topics.create("reader/cut")
    for first in range(0, 2_000, 100):
        topics.publish(topic, messages(first, 100))
    topics.drain(topic)
    topics.publish(topic, messages(2_000, 100))
    config = tmp_path / "settings.yaml"
    config.write_text(
        json.dumps({"data_dir": str(topics.broker.data_dir), "catalog": {"name": topics.settings.catalog.name}})
    )

    def cut(start: int, end: int, **given: str) -> list[OffsetRange]:
        options = SourceOptions.parse({"broker": topics.broker.flight, "topic": str(topic), **given})
        found = plan(options, topics.client, topics.client.describe_topic(topic), start, end)
        assert [number for part in found for number in range(part.start, part.end)] == list(range(start, end))
        return found

    assert cut(5, 5) == []
    assert len(cut(0, 2_100)) == 1
    assert 3 < len(cut(0, 2_100, partitionBytes="40000")) < 21
    assert ranges(cut(10, 20, minPartitions="4")) == [(10, 13), (13, 16), (16, 19), (19, 20)]
    parts = cut(1_000, 2_100, config=str(config))
    assert [(part.start, part.end, part.from_table) for part in parts] == [(1_000, 2_000, True), (2_000, 2_100, False)]
    assert pickle.loads(pickle.dumps(parts)) == parts
    monkeypatch.setattr("icestream.spark.plan.MAX_PARTITIONS", 3)
    for given in ({}, {"config": str(config)}):
        with pytest.raises(InvalidRequestError, match=r"more than 3 partitions.*; raise partitionBytes"):
            cut(0, 2_100, partitionBytes="10000", **given)


def test_a_broken_connection_is_taken_up_behind_the_last_batch(
    topics: Topics, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topics.create("reader/broken")
    for _ in range(20):
        topics.publish(topic, [bytes(1_000)] * 1_000)
    reader = opened(topic)
    (part,) = reader.partitions(reader.initialOffset(), reader.latestOffset())
    starts: list[int] = []
    read_range = Client.read_range

    def counted(client: Client, topic: TopicName | str, stream_id: str, start: int, end: int) -> RangeReader:
        starts.append(start)
        return read_range(client, topic, stream_id, start, end)

    monkeypatch.setattr(Client, "read_range", counted)
    offsets: list[int] = []
    for batch in reader.read(part):
        if not offsets:
            topics.broker.kill()
            topics.broker.start()
        offsets += batch.column(0).to_pylist()
    assert offsets == list(range(20_000))
    assert len(starts) > 1


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"topc": "a/b"}, "there is no option 'topc'; options are broker, topic, start"),
        ({"topic": ""}, "the option 'topic' is missing"),
        ({"topic": "a/b/c"}, "a/b/c"),
        ({"start": "yesterday"}, "'yesterday' is not a start position"),
        ({"end": "-1"}, "the option end is a whole number from 0"),
        ({"MINPARTITIONS": "many"}, "the option minPartitions is a whole number from 1 to 100000, not 'many'"),
        ({"maxMessagesPerTrigger": "0"}, "the option maxMessagesPerTrigger is a whole number from 1"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], problem: str) -> None:
    with pytest.raises(IcestreamError) as said:
        SourceOptions.parse({"broker": "grpc://127.0.0.1:1", "topic": "a/b", **options})
    assert problem in str(said.value)


def test_batches_and_streams_have_options_of_their_own() -> None:
    given = {"broker": "grpc://127.0.0.1:1", "topic": "a/b"}
    schema = StructType()
    with pytest.raises(InvalidRequestError, match="maxMessagesPerTrigger is an option of streams"):
        IcestreamSource({**given, "maxMessagesPerTrigger": "5"}).reader(schema)
    with pytest.raises(InvalidRequestError, match="end is an option of batches"):
        IcestreamSource({**given, "end": "5"}).streamReader(schema)


@pytest.mark.parametrize(
    ("options", "problem"),
    [({"start": "11"}, "the offset 11 is beyond the end, 10"), ({"end": "11"}, "the topic ends at 10, before 11")],
)
def test_a_range_beyond_the_end_is_refused(topics: Topics, options: dict[str, str], problem: str) -> None:
    if not topics.client.create_topic("reader/short", if_not_exists=True).durable_end:
        topics.publish(TopicName.parse("reader/short"), messages(0, 10))
    source = IcestreamSource({"broker": topics.broker.flight, "topic": "reader/short", **options})
    with pytest.raises(OffsetOutOfRangeError, match=problem):
        source.reader(source.schema()).partitions()


def test_a_schema_of_the_users_own_must_be_the_topics(topics: Topics) -> None:
    topic = topics.create("reader/schema")
    source = IcestreamSource({"broker": topics.broker.flight, "topic": str(topic)})
    assert source.reader(StructType().add("payload", "binary").add("offset", "long")).partitions() == []
    with pytest.raises(InvalidRequestError, match="the column 'payload' is binary, not string"):
        source.reader(StructType().add("payload", "string")).partitions()


def test_columns_that_a_topic_has_gained_are_left_out() -> None:
    old = pa.schema([pa.field("colour", pa.dictionary(pa.int8(), pa.string())), pa.field("at", pa.timestamp("ns"))])
    described = SimpleNamespace(topic="a/b", schema=old)
    schema = frame_schema(cast("TopicDescription", described))
    assert schema.simpleString().endswith("_sequence:bigint,colour:string,at:timestamp_ntz,at_nanos:int>")
    rows = FrameRows(StructType([schema["at_nanos"], schema["colour"]]))
    batch = pa.RecordBatch.from_arrays(
        [pa.array(["red", None]).dictionary_encode(), pa.array([1_001, -1], pa.timestamp("ns")), pa.array([1, 2])],
        names=["colour", "at", "new"],
    )
    assert rows.of(batch).to_pydict() == {"at_nanos": [1, 999], "colour": ["red", None]}
    with pytest.raises(InvalidRequestError, match="the topic has lost its column 'colour'"):
        rows.of(batch.select(["at"]))


def test_options_hide_the_token(topics: Topics) -> None:
    options = SourceOptions.parse({"broker": topics.broker.flight, "topic": "a/b", "token": "sesame"})
    assert "sesame" not in repr(options)
    with options.connect() as client:
        assert isinstance(client, Client)


def test_workers_load_neither_the_iceberg_library_nor_the_settings_for_ordinary_topics() -> None:
    program = "import sys, icestream.spark; print(sorted({'pyiceberg', 'pydantic'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
