"""Topics as Spark DataFrames, in batch and streaming: the data source `icestream`.

    icestream.spark.register(spark)
    spark.read.format("icestream").option("broker", "grpc://host:8815").option("topic", "default/events").load()

What it guarantees:

- A DataFrame holds exactly the topic's messages of its range, each once, with the columns that the topic's table has.
  Messages that a repair of the log gave up are in no row; tasks log how many these were.
- A streaming query's position is an offset of one stream. A query that goes on from its checkpoint has no gap and no
  duplicate; where the topic was deleted and made again it fails, rather than go on with other messages.
- A task reads one range of offsets as Arrow batches and holds one or a few of them, however long the range.
- A broker that is away for a moment costs time, and fails nothing.

How it is built: `source` is what Spark is told of; `options` reads what users give; `columns` turns a topic's batches
into what Spark takes; `plan` cuts a range of offsets into partitions, and `tasks` reads one of them, from the broker
or by `history` from the table's files; `batch` and `stream` are Spark's two kinds of readers, and `position` is what a
streaming query writes into its checkpoint.

Spark's Python workers, on the driver and on executors, import this package: it must be installed there too. They start
quickly, as the Iceberg library is loaded only for what needs it.
"""

from icestream.spark.source import IcestreamSource, register

__all__ = ["IcestreamSource", "register"]
