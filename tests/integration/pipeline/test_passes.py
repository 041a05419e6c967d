"""Messages become rows: each once, in order, of every kind of topic."""

import threading
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc
from tests.integration.pipeline.conftest import InlineJobs, Pipelines

from icestream.model.messages import message_batch
from icestream.pipeline.spark.session import Spark

MIB = 1024 * 1024


def test_what_was_published_is_in_the_table_once_and_in_order(pipelines: Pipelines) -> None:
    runner = pipelines.runner()
    pipelines.publish("events", [b"a", b"b"], [b"c"])
    figures = pipelines.drain(runner)
    pipelines.check("events", [b"a", b"b", b"c"])
    pipelines.publish("events", [b"d"])
    pipelines.drain(runner)
    pipelines.check("events", [b"a", b"b", b"c", b"d"])
    told = figures.topics[pipelines.topic("events")]
    assert (told.messages, told.files, told.commits, told.committed_offset) == (3, 1, 1, 3)


def test_keys_attributes_producer_and_times_come_through(pipelines: Pipelines) -> None:
    batch = message_batch([b"p1", b"p2"], [b"k", None], [[("source", "web")], None])
    with pipelines.client.producer(pipelines.topic("rich"), name="me") as producer:
        producer.send_batch(batch).result()
    pipelines.drain(pipelines.runner())
    rows = pipelines.rows("rich")
    assert rows.column("key").to_pylist() == [b"k", None]
    assert rows.column("attributes").to_pylist() == [[("source", "web")], None]
    assert rows.column("producer").to_pylist() == ["me", "me"]
    assert rows.column("sequence").to_pylist() == [0, 1]
    times = pipelines.client.read(pipelines.topic("rich")).column("publish_time")
    assert rows.column("publish_time").to_pylist() == times.to_pylist()


def test_one_job_writes_all_topics(pipelines: Pipelines, inline: InlineJobs) -> None:
    for number in range(20):
        pipelines.publish(f"t{number}", [str(number).encode()] * (number + 1))
    pipelines.drain(pipelines.runner(inline))
    assert inline.jobs == 1
    for number in range(20):
        pipelines.check(f"t{number}", [str(number).encode()] * (number + 1))


def test_with_nothing_due_there_is_no_job(pipelines: Pipelines, inline: InlineJobs) -> None:
    pipelines.client.create_topic(pipelines.topic("empty"))
    runner = pipelines.runner(inline)
    pipelines.drain(runner)
    assert runner.passes.run().topics == {}
    assert inline.jobs == 0
    assert pipelines.tables.find(pipelines.topic("empty")) is None


def test_a_topic_with_its_own_schema_gets_its_columns_and_later_those_that_are_added(pipelines: Pipelines) -> None:
    schema = pa.schema(
        [
            pa.field("name", pa.string(), nullable=False),
            pa.field("tags", pa.list_(pa.string())),
            pa.field("price", pa.decimal128(10, 2)),
        ]
    )
    topic = pipelines.topic("own")
    pipelines.client.create_topic(topic, schema)
    rows = pa.record_batch([["a", "b"], [["x"], None], pa.array([None, 3], pa.decimal128(10, 2))], schema=schema)
    pipelines.publish("own", rows)
    runner = pipelines.runner()
    pipelines.drain(runner)
    longer = schema.append(pa.field("size", pa.int64()))
    pipelines.client.update_topic(topic, schema=longer)
    with pipelines.client.producer(topic) as producer:
        producer.send_batch(
            pa.record_batch([["c"], [None], pa.array([None], pa.decimal128(10, 2)), [7]], schema=longer)
        ).result()
    pipelines.drain(runner)
    found = pipelines.rows("own")
    assert found.column("_offset").to_pylist() == [0, 1, 2]
    assert found.column("name").to_pylist() == ["a", "b", "c"]
    assert found.column("tags").to_pylist() == [["x"], None, None]
    assert found.column("size").to_pylist() == [None, None, 7]


def test_a_partitioned_topic_has_files_by_partition(pipelines: Pipelines) -> None:
    topic = pipelines.topic("parts")
    pipelines.client.create_topic(topic, partition_by=["bucket(4, key)"])
    count = 100
    pipelines.publish("parts", message_batch([b"x"] * count, [str(number).encode() for number in range(count)]))
    pipelines.drain(pipelines.runner())
    pipelines.check("parts", [b"x"] * count)
    table = pipelines.tables.find(topic)
    assert table is not None
    assert len({task.file.partition for task in table.iceberg.scan().plan_files()}) == 4


def test_a_large_backlog_goes_out_in_bounded_steps_with_all_cores_at_work(
    pipelines: Pipelines, inline: InlineJobs
) -> None:
    payload = bytes(1000)
    for _ in range(40):
        pipelines.publish("large", [payload] * 1000)
    pipelines.publish("small", [b"s"])
    runner = pipelines.runner(inline, pipeline={"max_task_bytes": 8 * MIB, "max_pass_bytes": 16 * MIB})
    figures = pipelines.drain(runner)
    assert inline.jobs == 3
    assert figures.topics[pipelines.topic("large")].commits == 3
    assert figures.topics[pipelines.topic("large")].files >= 5
    pipelines.check("large")
    pipelines.check("small", [b"s"])


def test_draining_does_not_wait_for_what_is_published_meanwhile(pipelines: Pipelines) -> None:
    pipelines.publish("growing", [b"before"])

    class Publishing(InlineJobs):
        def run(self, parcels, /):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
            pipelines.publish("growing", [b"after"])
            return super().run(parcels)

    jobs = Publishing()
    pipelines.drain(pipelines.runner(jobs))
    assert jobs.jobs == 1
    assert pipelines.rows("growing").column("payload").to_pylist() == [b"before"]


def test_the_loop_writes_messages_when_they_have_waited_for_the_flush_interval(
    pipelines: Pipelines, spark: Spark
) -> None:
    stopping = threading.Event()
    runner = pipelines.runner(spark, writer={"flush_interval_ms": 200})
    loop = threading.Thread(target=runner.run, args=(stopping,))
    loop.start()
    try:
        pipelines.publish("loop", [b"1"], [b"2"])
        assert pipelines.client.wait_committed(pipelines.topic("loop"), 1, 60, hurry=False).snapshot_id
    finally:
        stopping.set()
        loop.join()
    pipelines.check("loop", [b"1", b"2"])


def test_nobody_who_waits_for_the_table_waits_for_the_flush_interval(pipelines: Pipelines, inline: InlineJobs) -> None:
    stopping = threading.Event()
    runner = pipelines.runner(inline, writer={"flush_interval_ms": 3_600_000})
    loop = threading.Thread(target=runner.run, args=(stopping,))
    loop.start()
    try:
        pipelines.publish("first", [b"what is there at the start goes at once"])
        assert pipelines.client.wait_committed(pipelines.topic("first"), 0, 60).snapshot_id
        pipelines.publish("patient", [b"1"])
        with pipelines.client.producer(pipelines.topic("hasty")) as producer:
            assert producer.send(b"1").wait_committed(timeout=60).snapshot_id
        with pipelines.client.producer(pipelines.topic("hasty"), ack="table") as producer:
            receipt = producer.send(b"2")
            assert receipt.result(timeout=60) == 1
            assert receipt.snapshot_id == receipt.wait_committed(timeout=60).snapshot_id
    finally:
        stopping.set()
        loop.join()
    pipelines.check("hasty", [b"1", b"2"])


def test_figures_of_passes_are_in_the_brokers_stats(pipelines: Pipelines, inline: InlineJobs) -> None:
    pipelines.publish("told", [b"a", b"b"])
    before = pipelines.client.stats()["pipeline"]
    pipelines.drain(pipelines.runner(inline))
    after = pipelines.client.stats()["pipeline"]
    assert after["messages"] - before["messages"] == 2
    assert after["commits"] - before["commits"] == 1
    topic = after["topics"][str(pipelines.topic("told"))]
    assert (topic["committed_offset"], topic["error"], topic["durable_end"]) == (2, None, 2)
    assert topic["translate_seconds"] > 0
    assert topic["commit_seconds"] > 0


def test_publish_times_of_a_day_partition_are_whole(pipelines: Pipelines, inline: InlineJobs) -> None:
    topic = pipelines.topic("days")
    pipelines.client.create_topic(topic, partition_by=["day(publish_time)"], sort_by=["key"])
    pipelines.publish("days", message_batch([b"1", b"2", b"3"], [b"c", b"a", b"b"]))
    pipelines.drain(pipelines.runner(inline))
    pipelines.check("days", [b"1", b"2", b"3"])
    today = pc.max(pipelines.rows("days").column("publish_time")).as_py()
    assert abs(today - datetime.now(UTC)) < timedelta(days=1)
