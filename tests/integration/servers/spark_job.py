"""A small job, run in a process of its own: which folders its tasks worked in, and how much they counted, as JSON."""

import json
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from pyspark.sql import SparkSession


def count(numbers: Iterable[int]) -> Iterator[tuple[str, int]]:
    found = sum(1 for _ in numbers)
    time.sleep(0.2)  # so that one executor does not take both tasks
    yield str(Path.cwd()), found


def main() -> None:
    properties = {
        "spark.master": sys.argv[1],
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.executor.memory": "512m",
        "spark.cores.max": "2",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    }
    builder = SparkSession.builder
    for name, value in properties.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        counted = spark.sparkContext.parallelize(range(1_000), 2).mapPartitions(count).collect()
        sys.stdout.write(f"{json.dumps(counted)}\n")
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
