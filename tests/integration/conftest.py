"""What several kinds of integration tests share: Spark SQL, topics with tables, and a storage."""

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from tests.reading import Stage
from tests.servers import require
from tests.topics import Topics

from icestream.broker_process import BrokerProcess
from icestream.config import PipelineSettings, Settings
from icestream.pipeline.spark.session import Spark
from icestream_servers.spark_process import SparkProcess


@pytest.fixture(scope="session")
def spark_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkProcess]:
    require("spark")
    require("iceberg-jars")
    with SparkProcess(tmp_path_factory.mktemp("spark-sql")) as process:
        yield process


@pytest.fixture(scope="session")
def spark() -> Iterator[Spark]:
    """The pipeline's session, of which a process can have one."""
    with Spark(Settings(pipeline=PipelineSettings(master="local[2]"))) as spark:
        yield spark


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topics]:
    """A broker without a pipeline, whose catalog has a name that no other test's has."""
    data_dir: Path = tmp_path_factory.mktemp("topics")
    environ = {"ICESTREAM_CATALOG__NAME": f"c{uuid4().hex[:12]}"}
    with BrokerProcess(data_dir, environ=environ) as broker, Topics(broker, environ) as topics:
        yield topics


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """A storage with a topic and its table, without a broker."""
    opened = Stage(tmp_path)
    yield opened
    opened.close()
