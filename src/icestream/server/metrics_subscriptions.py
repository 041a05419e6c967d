"""How far subscriptions are, read when the metrics are asked for.

Only topics whose log is open are looked at: asking for metrics opens and recovers nothing. The number of series is
bounded by reporting the first subscriptions by topic and name, and how many were left out.
"""

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from icestream.model.errors import ClosedError, IcestreamError
from icestream.storage import IcebergStorage
from icestream.subscription import Subscription, SubscriptionStats

MAX_REPORTED_SUBSCRIPTIONS = 1_000
_LABELS = ["topic", "subscription"]
_GAUGES = {
    "lag_messages": "Messages that are not acknowledged.",
    "lag_bytes": "About the bytes of these.",
    "lag_seconds": "Age of the oldest message that is not acknowledged.",
    "unacknowledged": "Messages that consumers have and did not acknowledge yet.",
}
_COUNTERS = {
    "redeliveries": "Messages that were sent again.",
    "dead_letters": "Messages that went to the dead-letter topic.",
}


class SubscriptionCollector(Collector):
    def __init__(self, storage: IcebergStorage, *, max_subscriptions: int = MAX_REPORTED_SUBSCRIPTIONS) -> None:
        self._storage = storage
        self._max_subscriptions = max_subscriptions

    def describe(self) -> Iterable[Metric]:
        """Nothing: otherwise registering would collect, before the storage is open."""
        return []

    def collect(self) -> Iterator[Metric]:
        storage = self._storage
        try:
            opened = {topic.name for topic in storage.topics.find() if topic.opened_log is not None}
            found = storage.subscriptions.find()
        except ClosedError:
            return
        reported = [subscription for subscription in found if subscription.topic in opened]
        yield GaugeMetricFamily("icestream_subscriptions", "Subscriptions of this broker.", value=len(found))
        yield GaugeMetricFamily(
            "icestream_unreported_subscriptions",
            "Subscriptions of open topics without metrics of their own, which the first "
            f"{self._max_subscriptions} by name have.",
            value=max(0, len(reported) - self._max_subscriptions),
        )
        reported = reported[: self._max_subscriptions]
        yield from _metrics([stats for subscription in reported if (stats := _stats(subscription)) is not None])


def _stats(subscription: Subscription) -> SubscriptionStats | None:
    try:
        return subscription.stats()
    except IcestreamError:  # deleted a moment ago, or its topic's log cannot be used, which other figures say
        return None


def _metrics(reported: list[SubscriptionStats]) -> Iterator[Metric]:
    families = {
        name: GaugeMetricFamily(f"icestream_subscription_{name}", text, labels=_LABELS)
        for name, text in _GAUGES.items()
    } | {
        name: CounterMetricFamily(f"icestream_subscription_{name}", text, labels=_LABELS)
        for name, text in _COUNTERS.items()
    }
    consumers = GaugeMetricFamily("icestream_subscription_consumers", "Consumers that are connected.", labels=_LABELS)
    for stats in reported:
        labels = [str(stats.topic), stats.subscription]
        consumers.add_metric(labels, len(stats.consumers))
        for name, family in families.items():
            if (value := getattr(stats, name)) is not None:
                family.add_metric(labels, value)
    yield from (*families.values(), consumers)
