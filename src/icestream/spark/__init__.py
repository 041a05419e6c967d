"""Topics as Spark DataFrames, in batch and streaming: the data source `icestream`.

    icestream.spark.register(spark)
    spark.read.format("icestream").option("broker", "grpc://host:8815").option("topic", "default/events").load()

What it guarantees:

- A DataFrame holds exactly the topic's messages of its range, each once, with the columns of the topic's table.
  Messages that a repair of the log gave up are in no row; tasks log how many.
- A streaming query's position is an offset of one stream. A query that continues from its checkpoint has no gap and no
  duplicate. If the topic was deleted and created again, the query fails.
- A task reads one range of offsets as Arrow batches and holds a few of them, however long the range.
- A broker that is unreachable for less than a minute fails nothing.

Modules: `source` registers the source and has the batch and the stream reader; `options` checks the options;
`columns` turns a topic's batches into a DataFrame's; `plan` cuts a range of offsets into partitions and has the
position of a streaming query; `tasks` reads one partition from the broker, and `history` reads it from the table's
files.

Spark's Python workers on the driver and on executors import this package, so it must be installed there. They load the
Iceberg library, which takes a second, only to read a table's files.
"""

from icestream.spark.source import IcestreamSource, register

__all__ = ["IcestreamSource", "register"]
