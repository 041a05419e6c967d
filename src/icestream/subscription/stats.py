"""Figures of a subscription."""

from typing import TYPE_CHECKING

from icestream.model.errors import IcestreamError
from icestream.protocol.subscribe import SubscriptionDescription
from icestream.subscription.source import SubscriptionSource

if TYPE_CHECKING:
    from icestream.subscription.subscription import BrokerSubscription


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


def describe(subscription: "BrokerSubscription") -> SubscriptionDescription:
    """Return a subscription's figures and options."""
    stats = subscription.stats()
    figures = {name: getattr(stats, name) for name in stats.__struct_fields__}
    return SubscriptionDescription(**figures, options=subscription.options.to_json())
