"""Cutting a range of offsets into partitions: by bytes where the log has it, by count where only the table has."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import ceil

from pyspark.sql.datasource import InputPartition

from icestream.client import Client, TopicDescription
from icestream.model.errors import InvalidRequestError, OffsetOutOfRangeError
from icestream.spark.options import MAX_PARTITIONS, OPERATION, Options

_HISTORY_MESSAGES = 1_000_000
"""In a partition, where nothing tells how large messages are."""

_PIECES_A_CALL = 1_000


@dataclass(frozen=True)
class OffsetRange(InputPartition):
    """One task's part: the offsets from `start` to before `end`."""

    stream_id: str
    start: int
    end: int
    from_table: bool = False
    """Read from the table's data files; else from the broker, whatever tier it has the messages in."""

    def cut(self, most: int) -> "Iterator[OffsetRange]":
        """Parts of `most` offsets."""
        for start in range(self.start, self.end, most):
            yield OffsetRange(self.stream_id, start, min(start + most, self.end), self.from_table)


def plan(options: Options, client: Client, topic: TopicDescription, start: int, end: int) -> list[OffsetRange]:
    """The partitions of a range, in offset order; none of an empty one."""
    if start >= end:
        return []
    history = OffsetRange(topic.stream_id, start, start)
    if options.settings is not None:
        from icestream.spark.history import committed_offset  # noqa: PLC0415 - loads the Iceberg library

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
    options: Options, client: Client, topic: TopicDescription, start: int, end: int
) -> Iterator[OffsetRange]:
    cuts = [start]
    try:
        while cuts[-1] < end:
            cuts += client.cut_range(
                options.topic, cuts[-1], end, piece_bytes=options.partition_bytes, max_pieces=_PIECES_A_CALL
            )
            _check_number(len(cuts), topic)
    except OffsetOutOfRangeError:  # pruned since the topic was described: the table has it now
        yield from OffsetRange(topic.stream_id, start, end).cut(_messages_a_partition(options, client, topic))
        return
    for first, behind in pairwise(cuts):
        yield OffsetRange(topic.stream_id, first, behind)


def _messages_a_partition(options: Options, client: Client, topic: TopicDescription) -> int:
    """By the mean size of the messages that the log has."""
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
