"""Every example that reads a table runs, and finds all of it."""

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from tests.servers import require
from tests.topics import Topics

from icestream.broker_process import BrokerProcess

EXAMPLES = Path(__file__).parents[3] / "examples"
TOPIC = "default/events"
OWN_TOPIC = "default/orders"


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Topics with 30 messages in their tables, on the defaults that the examples expect; one has its own columns."""
    folder = tmp_path_factory.mktemp("examples")
    with BrokerProcess(folder) as broker, Topics(broker, {"ICESTREAM_CATALOG__NAME": "icestream"}) as topics:
        topics.fill(topics.create(TOPIC), 3)
        orders = pa.record_batch({"offset": pa.array(["no message's"] * 30), "price": pa.array(range(30))})
        own = topics.create(OWN_TOPIC, orders.schema)
        topics.publish(own, orders)
        topics.drain(own)
    return folder


@pytest.mark.parametrize("topic", [TOPIC, OWN_TOPIC])
@pytest.mark.parametrize("engine", ["pyiceberg", "duckdb", "polars"])
def test_an_example_reads_the_table(data_dir: Path, engine: str, topic: str) -> None:
    assert run_example(f"read_with_{engine}.py", str(data_dir), topic).count("30 rows") == 1


def test_the_example_for_spark_reads_several_tables_in_one_session(data_dir: Path) -> None:
    require("spark")
    require("iceberg-jars")
    assert run_example("read_with_spark.py", str(data_dir), TOPIC, OWN_TOPIC).count("30 rows") == 2


def run_example(name: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments], capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
