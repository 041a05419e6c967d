"""The example on a real Standalone cluster: executors reach the broker, and share nothing else with the driver."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from tests.integration.spark.conftest import messages
from tests.topics import Topics

from icestream.pipeline.spark.java import java_home
from icestream_servers import SparkCluster

ROOT = Path(__file__).parents[3]
QUICK_START = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


@pytest.mark.parametrize("name", ["spark/cluster", "spark/columns"])
def test_the_example_reads_a_topic_on_a_cluster(
    topics: Topics, spark_cluster: SparkCluster, tmp_path: Path, name: str
) -> None:
    own = pa.record_batch({"price": pa.array(range(500))}) if name == "spark/columns" else None
    topic = topics.create(name, None if own is None else own.schema)
    for first in range(0, 2_000, 500):
        topics.publish(topic, messages(first, 500) if own is None else own)
    spark = {"spark.master": spark_cluster.master, **spark_cluster.settings()["pipeline"]["spark"]}
    spark |= {f"spark.{side}.extraJavaOptions": QUICK_START for side in ("driver", "executor")}
    spark |= {"spark.ui.enabled": "false", "spark.cores.max": "1", "spark.sql.shuffle.partitions": "1"}
    options = " ".join(f"--conf '{name}={value}'" for name, value in spark.items())
    environ = {"JAVA_HOME": str(java_home()), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [
            sys.executable,
            ROOT / "examples" / "spark_source.py",
            topics.broker.flight,
            str(topic),
            tmp_path / "checkpoint",
        ],
        env={**os.environ, **environ, "PYSPARK_SUBMIT_ARGS": f"{options} pyspark-shell"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "2000 messages in 1 partitions" in done.stdout
    assert "batch 0: 2000 messages" in done.stdout
