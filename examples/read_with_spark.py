"""Reads topics' tables with Spark SQL: `python examples/read_with_spark.py DATA_DIR TOPIC ...`.

`SparkSql` starts a session with Iceberg's runtime and the catalog of the settings. A session of your own needs
the jars of `python -m icestream.pipeline.spark.jars` and the options of `icestream.table.spark_catalog_options`.
"""

import sys
from contextlib import closing
from pathlib import Path

from icestream.config import Settings
from icestream.model.names import TopicName
from icestream.pipeline.maintenance.session import SparkSql


def main(data_dir: Path, topics: list[str]) -> None:
    with closing(SparkSql(Settings(data_dir=data_dir))) as spark:
        for topic in topics:
            show(spark, TopicName.parse(topic))


def show(spark: SparkSql, topic: TopicName) -> None:
    table = spark.table(topic)
    messages = spark.session.table(table)
    # Topics with columns of their own, such as telemetry, have `_offset` where the others have `offset`.
    is_own = "_offset" in messages.columns
    shown = ("_offset", "_publish_time", "_producer") if is_own else ("offset", "publish_time", "payload")
    messages.select(*shown).orderBy(shown[0]).show(3)
    spark.session.table(f"{table}.snapshots").select("committed_at", "operation").show()
    print(f"{messages.count()} rows")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
