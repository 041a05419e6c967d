"""A Spark session that knows the source, one for all these tests, and topics of a real broker."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from tests.servers import require
from tests.topics import Topics

import icestream.spark
from icestream.config import PipelineSettings, Settings
from icestream.model.messages import message_batch
from icestream.model.names import TopicName
from icestream.pipeline.spark.java import java_home
from icestream.pipeline.spark.session import LOOPBACK, properties

Load = Callable[..., DataFrame]


@pytest.fixture(scope="package")
def session() -> Iterator[SparkSession]:
    """On the context of other tests, if this process has one: it can have no second."""
    require("spark")
    running = SparkContext._active_spark_context
    if running is None:
        os.environ["JAVA_HOME"] = str(java_home())
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    builder = SparkSession.builder
    for name, value in properties(Settings(pipeline=PipelineSettings(master="local[2]"))).items():
        builder = builder.config(name, value)
    session = (
        builder.config("spark.sql.session.timeZone", "UTC").config("spark.sql.shuffle.partitions", "2").getOrCreate()
    )
    icestream.spark.register(session)
    yield session
    if running is None:
        session.stop()
        gateway = SparkContext._gateway
        assert gateway is not None
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()
        SparkContext._gateway = SparkContext._jvm = None


@pytest.fixture
def load(session: SparkSession, topics: Topics) -> Load:
    """A batch frame of a topic."""

    def made(topic: TopicName | str, /, **options: str | int) -> DataFrame:
        reader = session.read.format("icestream")
        return reader.options(**{"broker": topics.broker.flight, "topic": str(topic), **options}).load()

    return made


@pytest.fixture
def load_stream(session: SparkSession, topics: Topics) -> Load:
    def made(topic: TopicName | str, /, **options: str | int) -> DataFrame:
        reader = session.readStream.format("icestream")
        return reader.options(**{"broker": topics.broker.flight, "topic": str(topic), **options}).load()

    return made


def messages(first: int, count: int) -> pa.RecordBatch:
    numbers = range(first, first + count)
    return message_batch(
        [b"%d" % number * (number % 50) for number in numbers],
        keys=[b"k%d" % (number % 7) if number % 3 else None for number in numbers],
        attributes=[{"number": str(number)} if number % 2 else None for number in numbers],
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """PySpark leaves sockets to the garbage collector."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))
