"""`spark.readStream`: a query stops, fails, and goes on from its checkpoint; each message comes once."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from tests.integration.spark.conftest import Load, messages
from tests.topics import Topics

from icestream.model.names import TopicName

SECONDS = 60


class Sink:
    """Takes the offsets of each batch; a batch that Spark repeats replaces itself, as in any exactly-once sink."""

    def __init__(self, checkpoint: Path) -> None:
        self.batches: dict[int, list[int]] = {}
        self.fails = False
        self._checkpoint = checkpoint

    def start(self, frame: DataFrame, **trigger: Any) -> StreamingQuery:
        writer = frame.select(frame.columns[0]).writeStream.option("checkpointLocation", str(self._checkpoint))
        return (writer.trigger(**trigger) if trigger else writer).foreachBatch(self._take).start()

    def drain(self, frame: DataFrame, **trigger: Any) -> None:
        """Run until all that is there now was taken."""
        query = self.start(frame, **trigger)
        try:
            if trigger:
                assert query.awaitTermination(SECONDS)
            else:
                query.processAllAvailable()
        finally:
            query.stop()

    @property
    def offsets(self) -> list[int]:
        return [offset for number in sorted(self.batches) for offset in self.batches[number]]

    def _take(self, frame: DataFrame, number: int) -> None:
        offsets = sorted(row[0] for row in frame.collect())
        if self.fails:
            raise RuntimeError("the sink is full")
        self.batches[number] = offsets


@pytest.fixture
def sink(tmp_path: Path) -> Sink:
    return Sink(tmp_path / "checkpoint")


def test_a_query_that_is_stopped_again_and_again_misses_and_doubles_nothing(
    topics: Topics, load_stream: Load, sink: Sink
) -> None:
    topic = topics.create("spark/restarts")
    topics.publish(topic, messages(0, 500))

    def publish() -> None:
        for first in range(500, 1_500, 50):
            topics.publish(topic, messages(first, 50))

    publishing = threading.Thread(target=publish)
    publishing.start()
    for _ in range(2):
        query = sink.start(load_stream(topic, maxMessagesPerTrigger=70))
        seen = len(sink.batches)
        while len(sink.batches) < seen + 2 and query.isActive:
            time.sleep(0.05)
        query.stop()
    publishing.join()
    sink.drain(load_stream(topic, maxMessagesPerTrigger=400))
    assert sink.offsets == list(range(1_500))
    sizes = [len(sink.batches[number]) for number in sorted(sink.batches)]
    assert max(sizes[:4]) == 70
    assert max(sizes) <= 400


def test_available_now_takes_what_is_there_and_ends(topics: Topics, load_stream: Load, sink: Sink) -> None:
    topic = topics.create("spark/now")
    topics.publish(topic, messages(0, 100))
    sink.drain(load_stream(topic, minPartitions=2), availableNow=True)
    assert sink.offsets == list(range(100))
    topics.publish(topic, messages(100, 100))
    sink.drain(load_stream(topic), availableNow=True)
    assert sink.offsets == list(range(200))


def test_a_first_batch_that_failed_is_repeated_from_where_it_began(
    topics: Topics, load_stream: Load, sink: Sink
) -> None:
    topic = topics.create("spark/first")
    topics.publish(topic, messages(0, 30))
    sink.fails = True
    with pytest.raises(StreamingQueryException, match="the sink is full"):
        sink.drain(load_stream(topic, start="latest"))
    topics.publish(topic, messages(30, 10))
    sink.fails = False
    sink.drain(load_stream(topic, start="latest"))
    assert sink.offsets == list(range(30, 40))


def test_a_topic_that_was_made_again_is_noticed(topics: Topics, load_stream: Load, sink: Sink) -> None:
    topic = topics.create("spark/again")
    topics.publish(topic, messages(0, 10))
    sink.drain(load_stream(topic))
    remake(topics, topic)
    with pytest.raises(StreamingQueryException, match="the topic was deleted and created again") as said:
        sink.drain(load_stream(topic))
    assert "start the query with a new checkpoint" in str(said.value)
    assert sink.offsets == list(range(10))


def test_a_query_outlives_a_restart_of_the_broker(topics: Topics, load_stream: Load, sink: Sink) -> None:
    topic = topics.create("spark/outlives", retention_minutes=1)
    topics.publish(topic, messages(0, 100))
    query = sink.start(load_stream(topic))
    try:
        query.processAllAvailable()
        topics.broker.kill()
        topics.broker.start()
        topics.publish(topic, messages(100, 100))
        query.processAllAvailable()
    finally:
        query.stop()
    assert sink.offsets == list(range(200))


def remake(topics: Topics, topic: TopicName) -> None:
    topics.client.delete_topic(topic)
    topics.client.create_topic(topic)
    topics.publish(topic, messages(0, 20))
