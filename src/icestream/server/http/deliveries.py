"""Batches that a subscription delivers, as JSON messages."""

from typing import Any

import pyarrow as pa

from icestream.model.message import messages_of
from icestream.model.messages import STREAM_SCHEMA
from icestream.server.http.errors import NotAcceptableError
from icestream.server.http.operations import ARROW_STREAM
from icestream.server.http.reading import message_as_json
from icestream.subscription import Subscription

_STREAM_COLUMNS = STREAM_SCHEMA.names


def delivered_as_json(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Each message as a plain read gives it, and how often it was sent before."""
    return [
        {**message_as_json(message), "redelivery_count": message.redelivery_count} for message in messages_of(batch)
    ]


def check_has_json(subscription: Subscription, *, operation: str) -> None:
    if subscription.schema.names[: len(_STREAM_COLUMNS)] != _STREAM_COLUMNS:
        raise NotAcceptableError(
            "the topic has columns of its own, which have no JSON form here",
            operation=operation,
            place=str(subscription.topic),
            remedy=f"receive with Accept: {ARROW_STREAM}",
        )


def ranges_of(offsets: list[int], ranges: list[list[int]]) -> list[tuple[int, int]]:
    """Messages named one by one and in stretches, as stretches; neighbours are joined."""
    found: list[tuple[int, int]] = []
    for first, end in sorted([*((offset, offset + 1) for offset in offsets), *((first, end) for first, end in ranges)]):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        elif first < end:
            found.append((first, end))
    return found


def offset_ranges(batch: pa.RecordBatch) -> list[tuple[int, int]]:
    """The messages of a batch."""
    return ranges_of(batch.column(0).to_pylist(), [])
