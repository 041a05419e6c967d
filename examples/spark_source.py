"""A topic as a Spark DataFrame: `spark-submit examples/spark_source.py BROKER TOPIC [CHECKPOINT]`.

With plain python instead of spark-submit, Spark runs on this machine. With a checkpoint folder the program also reads
the topic as a stream: each run takes the messages since the last one.
"""

import os
import sys

from pyspark.sql import DataFrame, SparkSession

import icestream.spark


def show_batch(messages: DataFrame, number: int) -> None:
    print(f"batch {number}: {messages.count()} messages")


def main(broker: str, topic: str, checkpoint: str | None) -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers need icestream as well
    spark = SparkSession.builder.appName("icestream source").getOrCreate()
    icestream.spark.register(spark)

    messages = spark.read.format("icestream").options(broker=broker, topic=topic).load()
    # Topics with columns of their own, such as telemetry, have `_offset` where the others have `offset`.
    messages.orderBy("_offset" if "_offset" in messages.columns else "offset").show(3)
    print(f"{messages.count()} messages in {messages.rdd.getNumPartitions()} partitions")

    if checkpoint is not None:
        stream = spark.readStream.format("icestream").options(broker=broker, topic=topic).load()
        writer = stream.writeStream.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        writer.foreachBatch(show_batch).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None)  # noqa: PLR2004
