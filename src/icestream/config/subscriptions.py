"""What subscriptions may hold, and how they keep their progress."""

from typing import Annotated

from pydantic import Field

from icestream.config.fields import GIB, KIB, MIB, Section, Unit


class SubscriptionSettings(Section):
    """Limits of subscriptions and their consumers. Used by the subscription engine."""

    session_timeout_ms: int = Field(
        default=30_000,
        ge=100,
        le=86_400_000,
        description="A consumer that is silent for so long is disconnected, and what it holds goes to others.",
    )
    progress_interval_ms: int = Field(
        default=1_000,
        ge=1,
        le=3_600_000,
        description="A subscription's progress is written at most once in this time.",
    )
    max_unacknowledged_messages: Annotated[int, Unit("messages")] = Field(
        default=1_000_000,
        ge=1,
        le=4_000_000,
        description="How far a subscription's deliveries may be ahead of its oldest unacknowledged message.",
    )
    max_buffer_bytes: int = Field(
        default=8 * MIB,
        ge=64 * KIB,
        le=GIB,
        description="Most bytes that a subscription reads ahead of its consumers; one published batch always fits.",
    )
    max_subscriptions: Annotated[int, Unit("subscriptions")] = Field(
        default=10_000, ge=1, le=1_000_000, description="Most subscriptions of all topics; one more is refused."
    )
    max_consumers: Annotated[int, Unit("consumers")] = Field(
        default=1_000, ge=1, le=4_000, description="Most consumers of one subscription; one more is refused."
    )
    max_dispatch_delay_ms: int = Field(
        default=100,
        ge=0,
        le=10_000,
        description="With many subscriptions on a topic each lets new messages collect, at most for this long; with "
        "few there is no delay.",
    )
