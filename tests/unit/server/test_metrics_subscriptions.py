"""What subscriptions are behind, as metrics."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from icestream.config import Settings
from icestream.model.messages import message_batch
from icestream.model.offsets import StartPosition
from icestream.server.metrics import BrokerMetrics, SubscriptionCollector
from icestream.storage import IcebergStorage


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[IcebergStorage]:
    with IcebergStorage(Settings(data_dir=tmp_path)) as storage:
        yield storage


def value(metrics: BrokerMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"icestream_{name}", labels)


def test_lag_and_deliveries_are_reported_by_topic_and_subscription(storage: IcebergStorage) -> None:
    storage.publish(storage.topics.create("a/b"), message_batch([b"x" * 100] * 10))
    metrics = BrokerMetrics(storage)
    subscription = storage.subscriptions.open("a/b", "s", start=StartPosition.offset(4))
    labels = {"topic": "a/b", "subscription": "s"}
    assert value(metrics, "subscription_lag_messages", **labels) == 6
    assert (value(metrics, "subscription_lag_bytes", **labels) or 0) > 600
    assert (value(metrics, "subscription_lag_seconds", **labels) or 0) > 0
    assert value(metrics, "subscription_consumers", **labels) == 0
    session = subscription.connect("worker")
    batch = session.receive(timeout_seconds=30)
    assert batch is not None
    assert batch.num_rows == 6
    session.nack([(4, 6)], delay_ms=0)
    session.receive(timeout_seconds=30)
    session.ack([(4, 9)])
    assert value(metrics, "subscription_unacknowledged", **labels) == 1
    assert value(metrics, "subscription_redeliveries_total", **labels) == 2
    assert value(metrics, "subscription_dead_letters_total", **labels) == 0
    assert value(metrics, "subscription_consumers", **labels) == 1
    session.ack([(9, 10)])
    assert value(metrics, "subscription_lag_messages", **labels) == 0
    assert value(metrics, "subscription_lag_seconds", **labels) == 0


def test_the_number_of_reported_subscriptions_is_bounded_and_the_rest_counted(storage: IcebergStorage) -> None:
    for topic in ("a/b", "a/c"):
        storage.publish(storage.topics.create(topic), message_batch([b"x"]))
        for number in range(3):
            storage.subscriptions.open(topic, f"s{number}")
    registry = CollectorRegistry()
    registry.register(SubscriptionCollector(storage, max_subscriptions=4))
    reported = [
        (sample.labels["topic"], sample.labels["subscription"])
        for metric in registry.collect()
        for sample in metric.samples
        if sample.name == "icestream_subscription_lag_messages"
    ]
    assert reported == [("a/b", "s0"), ("a/b", "s1"), ("a/b", "s2"), ("a/c", "s0")]
    assert registry.get_sample_value("icestream_subscriptions") == 6
    assert registry.get_sample_value("icestream_unreported_subscriptions") == 2


def test_asking_opens_no_log(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    with IcebergStorage(settings) as storage:
        storage.publish(storage.topics.create("a/b"), message_batch([b"x"]))
        storage.subscriptions.open("a/b", "s")
    with IcebergStorage(settings) as storage:
        metrics = BrokerMetrics(storage)
        assert value(metrics, "subscriptions") == 1
        assert value(metrics, "subscription_lag_messages", topic="a/b", subscription="s") is None
        assert storage.topics.opened() == []
