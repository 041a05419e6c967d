"""`spark.read`: a range of a topic, which is settled when the query is planned."""

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from icestream.model.errors import InvalidRequestError, OffsetOutOfRangeError
from icestream.spark.columns import FrameRows, check_schema
from icestream.spark.options import OPERATION, Options
from icestream.spark.plan import OffsetRange, plan
from icestream.spark.position import offset_of
from icestream.spark.tasks import read_range


class TopicReader(DataSourceReader):
    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options.for_batch()
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        with options.connect() as client:
            topic = client.describe_topic(options.topic)
            check_schema(self._schema, topic)
            start = offset_of(options.start, client, topic)
            end = topic.durable_end if options.end is None else options.end
            if end > topic.durable_end:
                raise OffsetOutOfRangeError(
                    f"the topic ends at {topic.durable_end}, before {end}", operation=OPERATION, place=topic.topic
                )
            if start > end:
                raise InvalidRequestError(
                    f"the range begins at {start}, behind its end {end}", operation=OPERATION, place=topic.topic
                )
            return plan(options, client, topic, start, end)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """One partition; Spark makes a task without any where there are none."""
        if not isinstance(partition, OffsetRange):
            return iter(())
        return read_range(self._options, partition, FrameRows(self._schema))
