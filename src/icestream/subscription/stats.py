"""Figures of a subscription."""

from dataclasses import dataclass

from icestream.model.errors import IcestreamError
from icestream.subscription.source import SubscriptionSource


@dataclass(frozen=True)
class ConsumerStats:
    name: str
    connected_us: int
    unacknowledged: int
    credit_messages: int
    is_active: bool
    """Gets messages; the others of a failover subscription wait."""


@dataclass(frozen=True)
class SubscriptionStats:
    topic: str
    subscription: str
    type: str
    filter: str | None
    floor_offset: int
    """Everything below it is acknowledged."""
    read_offset: int
    """Everything below it was looked at."""
    durable_end: int
    acknowledged_ranges: int
    """Above the floor."""
    unacknowledged: int
    """Messages that are with consumers."""
    redeliveries: int
    """Messages that were delivered another time, since the subscription was made."""
    dead_letters: int
    """Messages that went to the dead-letter topic, since the subscription was made."""
    lag_messages: int
    """Not acknowledged yet; those that a filter has not seen are all counted."""
    lag_bytes: int
    """About: by the mean size of messages."""
    lag_seconds: float
    """About how long ago the oldest of them was published."""
    consumers: tuple[ConsumerStats, ...]


def lag_seconds(source: SubscriptionSource, floor: int, floor_time_us: int | None, now_us: int) -> float:
    """Age of the message at the floor."""
    if floor_time_us is None:
        try:
            floor_time_us = source.time_at(floor)
        except IcestreamError:  # not readable: other figures say so
            return 0.0
    if floor_time_us is None:
        return 0.0
    return max(0.0, (now_us - floor_time_us) / 1e6)
