import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.servers import require

from icestream.config import Settings
from icestream.pipeline.spark.java import is_stripped, java_home
from icestream_servers import SparkCluster

JOB = Path(__file__).with_name("spark_job.py")


def run_job(master: str) -> list[tuple[str, int]]:
    done = subprocess.run(
        [sys.executable, str(JOB), master],
        env=os.environ | {"JAVA_HOME": str(java_home()), "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    return [(folder, count) for folder, count in json.loads(done.stdout.splitlines()[-1])]


def test_a_worker_that_was_killed_joins_again(spark_cluster: SparkCluster) -> None:
    spark_cluster.workers[0].kill()
    spark_cluster.workers[0].start()
    assert spark_cluster.spark_master.state()["aliveworkers"] == 2


def test_a_cluster_names_settings_that_load(spark_cluster: SparkCluster) -> None:
    assert Settings(**spark_cluster.settings()).pipeline.master == spark_cluster.master


def test_spark_runs_on_the_packaged_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    require("spark")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with monkeypatch.context() as without_java:
        without_java.setenv("PATH", str(tmp_path))
        home = java_home()
    assert is_stripped(home)
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java_home() == home
    assert sum(count for _, count in run_job("local[1]")) == 1_000
