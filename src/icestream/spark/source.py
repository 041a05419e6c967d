"""The data source as Spark sees it: its name, a topic's columns, and the batch and stream readers."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from icestream.client import Client, TopicDescription
from icestream.model.errors import IcestreamError, InvalidRequestError, OffsetOutOfRangeError
from icestream.spark.columns import FrameRows, check_schema, frame_schema
from icestream.spark.options import OPERATION, SourceOptions
from icestream.spark.plan import OffsetRange, Position, offset_of, plan
from icestream.spark.tasks import RetryWindow, read_range

NAME = "icestream"
_IDLE_SECONDS = 0.05
"""While there is nothing new, Spark asks every 10 ms. This pause keeps an idle query cheap."""


class TopicBatchReader(DataSourceReader):
    """`spark.read`: a range of a topic, which is fixed when the query is planned."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
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
        """Read one partition. Spark starts a task without one if there are none."""
        if not isinstance(partition, OffsetRange):
            return iter(())
        return read_range(self._options, partition, FrameRows(self._schema))


class TopicStreamReader(DataSourceStreamReader):
    """`spark.readStream`: a topic as it grows, a range of offsets a step.

    One lives in the driver as long as the query; tasks have copies, which only read.

    Spark 4.1 asks a Python source for its newest position without saying where the query stands. So the limit of a
    step is applied here, from what Spark planned last. A query that continues from a checkpoint plans an empty range
    at its last position first.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options.for_stream()
        self._schema = schema
        self._client: Client | None = None
        self._initial: Position | None = None
        self._planned: Position | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return self._begin(self._describe()).to_json()

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        topic = self._describe()
        position = self._planned or self._begin(topic)
        position.check(topic)
        if topic.durable_end == position.offset:
            time.sleep(_IDLE_SECONDS)
        return position.at(min(topic.durable_end, position.offset + self._limit)).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first, last = Position.from_json(start), Position.from_json(end)
        if start == end and self._initial is not None and self._options.max_messages_per_trigger is not None:
            # Spark fixed the end of the step before it said where the query stands: the end may lie before that.
            raise InvalidRequestError(
                "maxMessagesPerTrigger does not work with spark.sql.streaming.triggerAvailableNowWrapper.enabled",
                operation=OPERATION,
                place=str(self._options.topic),
                remedy="leave one of the two out",
            )
        self._planned = last
        if start == end:
            return []
        topic = self._describe()
        last.check(topic)
        begin = first.begin_of_batch_to(last)
        return plan(self._options, self._open(), topic, begin, last.offset)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, OffsetRange)
        return read_range(self._options, partition, FrameRows(self._schema))

    def stop(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    @property
    def _limit(self) -> int:
        return self._options.max_messages_per_trigger or (1 << 62)

    def _begin(self, topic: TopicDescription) -> Position:
        """Return where a query without a checkpoint begins; determined once."""
        if self._initial is None:
            check_schema(self._schema, topic)
            offset = offset_of(self._options.start, self._open(), topic)
            self._initial = Position.initial(topic.stream_id, offset)
        return self._initial

    def _open(self) -> Client:
        if self._client is None:
            self._client = self._options.connect()
        return self._client

    def _describe(self) -> TopicDescription:
        """Return the topic as it is now. Wait for a broker that is restarted."""
        retrying = RetryWindow()
        while True:
            try:
                return self._open().describe_topic(self._options.topic)
            except IcestreamError as error:
                retrying.wait(error)


class IcestreamSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        options = SourceOptions.parse(self.options)
        with options.connect() as client:
            return frame_schema(client.describe_topic(options.topic), options.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        return TopicBatchReader(SourceOptions.parse(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return TopicStreamReader(SourceOptions.parse(self.options), schema)


def register(spark: SparkSession) -> None:
    """Register the source, for `spark.read.format("icestream")` and `spark.readStream.format("icestream")`."""
    spark.dataSource.register(IcestreamSource)
