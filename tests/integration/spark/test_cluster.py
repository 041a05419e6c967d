"""The example on a real Standalone cluster: executors reach the broker, and share nothing else with the driver."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
from tests.integration.spark.conftest import messages
from tests.topics import Topics

from icestream.pipeline.spark.java import java_home
from icestream_servers import SparkCluster

ROOT = Path(__file__).parents[3]
QUICK_START = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


EXAMPLE = ROOT / "examples" / "spark_source.py"
ONE_AFTER_ANOTHER = """
import runpy, sys
example, broker, folder, *topics = sys.argv[1:]
for number, topic in enumerate(topics):
    sys.argv = [example, broker, topic, f"{folder}/{number}"]
    runpy.run_path(example, run_name="__main__")
"""


def test_the_example_reads_topics_on_a_cluster(topics: Topics, spark_cluster: SparkCluster, tmp_path: Path) -> None:
    """An ordinary topic, and one with columns of its own, in one driver: each gets a session."""
    own = pa.record_batch({"price": pa.array(range(500))})
    plain, columns = topics.create("spark/cluster", None), topics.create("spark/columns", own.schema)
    for first in range(0, 2_000, 500):
        topics.publish(plain, messages(first, 500))
        topics.publish(columns, own)
    spark = {"spark.master": spark_cluster.master, **spark_cluster.settings()["pipeline"]["spark"]}
    spark |= {f"spark.{side}.extraJavaOptions": QUICK_START for side in ("driver", "executor")}
    spark |= {"spark.ui.enabled": "false", "spark.cores.max": "1", "spark.sql.shuffle.partitions": "1"}
    options = " ".join(f"--conf '{name}={value}'" for name, value in spark.items())
    environ = {"JAVA_HOME": str(java_home()), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [
            *(sys.executable, "-c", ONE_AFTER_ANOTHER, EXAMPLE),
            *(topics.broker.flight, tmp_path, str(plain), str(columns)),
        ],
        env={**os.environ, **environ, "PYSPARK_SUBMIT_ARGS": f"{options} pyspark-shell"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("2000 messages in 1 partitions") == 2
    assert done.stdout.count("batch 0: 2000 messages") == 2
