"""`spark.readStream`: a topic as it goes on, a range of offsets a step.

Spark 4.1 asks a Python source for its newest position without saying where the query stands, so the limit of a step is
applied here, from what Spark has planned last. A query that goes on from a checkpoint tells that first: it plans an
empty range at its last position.
"""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from icestream.client import Client, TopicDescription
from icestream.model.errors import IcestreamError, InvalidRequestError
from icestream.spark.columns import FrameRows, check_schema
from icestream.spark.options import OPERATION, Options
from icestream.spark.plan import OffsetRange, plan
from icestream.spark.position import Position, offset_of
from icestream.spark.tasks import Patience, read_range

_IDLE_SECONDS = 0.05
"""Spark asks again every 10 ms while there is nothing new, which an idle query is not worth."""


class TopicStreamReader(DataSourceStreamReader):
    """One lives in the driver as long as the query; tasks have copies, which only read."""

    def __init__(self, options: Options, schema: StructType) -> None:
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
            # The end of the step was settled before this told where the query stands: it may lie behind.
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
        """Where a query without a checkpoint begins; settled once."""
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
        """The topic as it is now; a query outlives a broker that is restarted."""
        patience = Patience()
        while True:
            try:
                return self._open().describe_topic(self._options.topic)
            except IcestreamError as error:
                patience.wait(error)
