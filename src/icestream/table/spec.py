"""What a topic wants of its table."""

from dataclasses import dataclass

import pyarrow as pa

from icestream.model.names import TopicName


@dataclass(frozen=True)
class TableSpec:
    topic: TopicName
    stream_id: str
    epoch: int
    schema: pa.Schema
    """What readers of the topic get: the envelope and the topic's columns."""
    partition_by: tuple[str, ...] = ()
    """Such as `day(publish_time)` or `bucket(16, key)`; see `partitions`."""
    sort_by: tuple[str, ...] = ()
    """Columns that each row group is sorted by; the offset when there are none."""
