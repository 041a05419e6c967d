"""One message as a Python object, for people who do not want Arrow."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pyarrow as pa

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Message:
    __slots__ = (
        "_attributes",
        "key",
        "offset",
        "payload",
        "producer",
        "publish_time_us",
        "redelivery_count",
        "sequence",
    )

    def __init__(
        self,
        offset: int,
        publish_time_us: int,
        producer: str,
        sequence: int,
        key: bytes | None,
        attributes: list[tuple[str, str]] | None,
        payload: bytes,
        redelivery_count: int = 0,
    ) -> None:
        self.offset = offset
        self.publish_time_us = publish_time_us
        self.producer = producer
        self.sequence = sequence
        self.key = key
        self.payload = payload
        self.redelivery_count = redelivery_count
        """How often a subscription has delivered it before; 0 for readers without a subscription."""
        self._attributes = attributes

    @property
    def attributes(self) -> dict[str, str]:
        return dict(self._attributes) if self._attributes else {}

    @property
    def publish_time(self) -> datetime:
        return _EPOCH + timedelta(microseconds=self.publish_time_us)

    def __repr__(self) -> str:
        return f"Message(offset={self.offset}, key={self.key!r}, payload={len(self.payload)} bytes)"


def messages_of(batch: pa.RecordBatch) -> Iterator[Message]:
    """The messages of a reader's or a subscription's batch, made column by column."""
    offsets, times, producers, sequences, keys, attributes, payloads, *redelivery_counts = batch.columns
    nothing = [None] * batch.num_rows
    return map(
        Message,
        offsets.to_pylist(),
        times.cast(pa.int64()).to_pylist(),
        producers.to_pylist(),
        sequences.to_pylist(),
        nothing if keys.null_count == len(keys) else keys.to_pylist(),
        nothing if attributes.null_count == len(attributes) else attributes.to_pylist(),
        payloads.to_pylist(),
        *(counts.to_pylist() for counts in redelivery_counts),
    )
