"""Cuts a range of offsets into partitions: by bytes if the log has it, by count if only the table has it."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from typing import Any, Self

from pyspark.sql.datasource import InputPartition

from icestream.client import Client, TopicDescription
from icestream.model.errors import InvalidRequestError, OffsetOutOfRangeError, TopicNotFoundError
from icestream.model.messages import first_offset
from icestream.model.offsets import StartPosition
from icestream.spark.options import MAX_PARTITIONS, OPERATION, SourceOptions

_HISTORY_MESSAGES = 1_000_000
"""In a partition, where nothing tells how large messages are."""

_RANGES_PER_CALL = 1_000


@dataclass(frozen=True)
class OffsetRange(InputPartition):
    """One task's part: the offsets from `start` to before `end`."""

    stream_id: str
    start: int
    end: int
    from_table: bool = False
    """Read from the table's data files; else from the broker, from whichever tier it has the messages in."""

    def cut(self, most: int) -> "Iterator[OffsetRange]":
        """Yield parts of at most `most` offsets."""
        for start in range(self.start, self.end, most):
            yield OffsetRange(self.stream_id, start, min(start + most, self.end), self.from_table)


def plan(options: SourceOptions, client: Client, topic: TopicDescription, start: int, end: int) -> list[OffsetRange]:
    """Return the partitions of a range, in offset order."""
    if start >= end:
        return []
    history = OffsetRange(topic.stream_id, start, start)
    if options.settings is not None:
        from icestream.spark.history import committed_offset  # noqa: PLC0415 - loads the Iceberg library, a second

        in_table = min(end, max(start, committed_offset(options, topic.stream_id)))
        history = OffsetRange(topic.stream_id, start, in_table, from_table=True)
    log_start = min(end, max(history.end, topic.start_offset))
    pruned = OffsetRange(topic.stream_id, history.end, log_start)
    most = _messages_a_partition(options, client, topic) if start < log_start else 1
    _check_number((log_start - start) // most, topic)
    ranges = [*history.cut(most), *pruned.cut(most), *_log_ranges(options, client, topic, log_start, end)]
    most = ceil((end - start) / options.min_partitions)
    return [part for found in ranges for part in found.cut(most)]


def _log_ranges(
    options: SourceOptions, client: Client, topic: TopicDescription, start: int, end: int
) -> Iterator[OffsetRange]:
    cuts = [start]
    try:
        while cuts[-1] < end:
            cuts += client.cut_range(
                options.topic, cuts[-1], end, range_bytes=options.partition_bytes, max_ranges=_RANGES_PER_CALL
            )
            _check_number(len(cuts), topic)
    except OffsetOutOfRangeError:  # pruned since the topic was described: the table has it now
        yield from OffsetRange(topic.stream_id, start, end).cut(_messages_a_partition(options, client, topic))
        return
    for first, behind in pairwise(cuts):
        yield OffsetRange(topic.stream_id, first, behind)


def _messages_a_partition(options: SourceOptions, client: Client, topic: TopicDescription) -> int:
    """Estimate by the mean size of the messages in the log."""
    (figures,) = client.stats(topic.topic)["topics"]
    if not figures["message_count"] or not figures["bytes_stored"]:
        return _HISTORY_MESSAGES
    return max(1, options.partition_bytes * int(figures["message_count"]) // int(figures["bytes_stored"]))


def _check_number(partitions: int, topic: TopicDescription) -> None:
    if partitions > MAX_PARTITIONS:
        raise InvalidRequestError(
            f"the range makes more than {MAX_PARTITIONS} partitions",
            operation=OPERATION,
            place=topic.topic,
            remedy="raise partitionBytes",
        )


_NEW_CHECKPOINT = "start the query with a new checkpoint"


@dataclass(frozen=True)
class Position:
    """Where a streaming query stands, as Spark writes it into the checkpoint.

    Spark logs the end of a batch before it runs the batch, but not where the first one begins. To repeat the first
    batch it asks for its begin again, and `latest` or a time may mean another offset by then. So every position
    carries the offset at which the query began, and the first batch takes its begin from there.
    """

    stream_id: str
    offset: int
    """Earlier batches hold all messages before it."""
    begun_at: int
    is_initial: bool = False

    @classmethod
    def initial(cls, stream_id: str, offset: int) -> Self:
        return cls(stream_id, offset, offset, is_initial=True)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Self:
        match fields:
            case {"stream": str(stream_id), "initial_offset": int(offset)}:
                return cls.initial(stream_id, offset)
            case {"stream": str(stream_id), "begun_at": int(begun_at), "offset": int(offset)}:
                return cls(stream_id, offset, begun_at)
        raise InvalidRequestError(
            f"{fields!r:.200} is not a position of this source", operation=OPERATION, remedy=_NEW_CHECKPOINT
        )

    def to_json(self) -> dict[str, Any]:
        """Spark compares positions as text, so equal ones have equal text, and an initial one equals no other."""
        if self.is_initial:
            return {"stream": self.stream_id, "initial_offset": self.offset}
        return {"stream": self.stream_id, "begun_at": self.begun_at, "offset": self.offset}

    def at(self, offset: int) -> "Position":
        return Position(self.stream_id, offset, self.begun_at)

    def begin_of_batch_to(self, end: "Position") -> int:
        """The first offset of the batch from here to `end`."""
        return end.begun_at if self.is_initial else self.offset

    def check(self, topic: TopicDescription) -> None:
        """Raise unless the topic is still the stream of this position."""
        if topic.stream_id != self.stream_id:
            raise TopicNotFoundError(
                f"the topic was deleted and created again: its stream is {topic.stream_id}, not {self.stream_id}",
                operation=OPERATION,
                place=topic.topic,
                remedy=_NEW_CHECKPOINT,
            )
        if topic.durable_end < self.offset:
            raise OffsetOutOfRangeError(
                f"the topic ends at {topic.durable_end}, before the position {self.offset}",
                operation=OPERATION,
                place=topic.topic,
                remedy=_NEW_CHECKPOINT,
            )


def offset_of(start: StartPosition, client: Client, topic: TopicDescription) -> int:
    """Return the offset that a start position means; the topic's end if no message follows."""
    match start.kind:
        case "offset":
            if start.value > topic.durable_end:
                raise OffsetOutOfRangeError(
                    f"the offset {start.value} is beyond the end, {topic.durable_end}",
                    operation=OPERATION,
                    place=topic.topic,
                )
            return int(start.value)
        case "latest":
            return topic.durable_end
    with client.consume(topic.topic, start) as consumer:
        for batch in consumer.batches():
            if batch.num_rows:
                return first_offset(batch)
    return topic.durable_end
