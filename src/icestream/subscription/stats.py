"""Figures of a subscription."""

from dataclasses import dataclass


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
