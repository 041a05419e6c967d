"""The broker's counters, and what is read from the storage when they are asked for."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from icestream import __version__
from icestream.config import Settings
from icestream.model.errors import CatalogUnavailableError
from icestream.model.messages import message_batch
from icestream.server.metrics import BrokerMetrics, StorageCollector
from icestream.storage import IcebergStorage
from icestream.table import Tables

DOCS = Path(__file__).parents[3] / "docs" / "metrics.md"


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[IcebergStorage]:
    with IcebergStorage(Settings(data_dir=tmp_path)) as storage:
        yield storage


def value(metrics: BrokerMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def test_a_published_batch_is_counted_once_with_its_messages_and_bytes() -> None:
    metrics = BrokerMetrics()
    metrics.published(10, 1000, 0.0004)
    metrics.published(5, 500, 20.0)
    assert value(metrics, "icestream_published_batches_total") == 2
    assert value(metrics, "icestream_published_messages_total") == 15
    assert value(metrics, "icestream_published_bytes_total") == 1500
    assert value(metrics, "icestream_publish_ack_seconds_bucket", le="0.0003") == 0
    assert value(metrics, "icestream_publish_ack_seconds_bucket", le="0.0005") == 1
    assert value(metrics, "icestream_publish_ack_seconds_bucket", le="10.0") == 1
    assert value(metrics, "icestream_publish_ack_seconds_bucket", le="+Inf") == 2


def test_refusals_are_counted_by_code_and_their_number_is_bounded() -> None:
    metrics = BrokerMetrics()
    for number in range(150):
        metrics.refused(f"code-{number}")
    assert value(metrics, "icestream_refused_batches_total", code="code-0") == 1
    assert value(metrics, "icestream_refused_batches_total", code="other") == 50


def test_a_group_commit_is_counted_with_its_frames_bytes_and_sync() -> None:
    metrics = BrokerMetrics()
    metrics.committed(3, 4096, 0.001)
    assert value(metrics, "icestream_wal_commit_frames_count") == 1
    assert value(metrics, "icestream_wal_commit_frames_sum") == 3
    assert value(metrics, "icestream_wal_written_bytes_total") == 4096
    assert value(metrics, "icestream_wal_sync_seconds_sum") == 0.001


def test_streams_are_counted_while_they_are_open() -> None:
    metrics = BrokerMetrics()
    with metrics.open_stream("flight"), metrics.open_stream("flight"), metrics.open_stream("http"):
        assert value(metrics, "icestream_open_streams", door="flight") == 2
        assert value(metrics, "icestream_open_streams", door="http") == 1
    assert value(metrics, "icestream_open_streams", door="flight") == 0


def test_counts_are_exact_under_many_threads() -> None:
    metrics = BrokerMetrics()

    def work() -> None:
        for _ in range(1000):
            metrics.published(2, 3, 0.001)
            metrics.refused("overloaded")

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert value(metrics, "icestream_published_messages_total") == 16_000
    assert value(metrics, "icestream_refused_batches_total", code="overloaded") == 8000


def test_two_brokers_in_a_process_count_for_themselves() -> None:
    first, second = BrokerMetrics(), BrokerMetrics()
    first.duplicate()
    assert value(first, "icestream_duplicate_batches_total") == 1
    assert value(second, "icestream_duplicate_batches_total") == 0


def test_the_version_is_told() -> None:
    assert value(BrokerMetrics(), "icestream_build_info", version=__version__) == 1


def test_asking_for_metrics_opens_no_log(storage: IcebergStorage) -> None:
    storage.topics.create("a/idle")
    metrics = BrokerMetrics(storage)
    metrics.render()
    assert storage.topics.opened() == []
    assert value(metrics, "icestream_topics") == 1
    assert value(metrics, "icestream_open_topics") == 0


def test_an_open_topic_is_reported(storage: IcebergStorage) -> None:
    storage.publish(storage.topics.create("a/b"), message_batch([b"x", b"y"]))
    metrics = BrokerMetrics(storage)
    assert value(metrics, "icestream_topic_durable_end", topic="a/b") == 2
    assert value(metrics, "icestream_topic_state", topic="a/b", state="open") == 1
    assert value(metrics, "icestream_wal_open_files") == storage.files.open_count
    assert value(metrics, "icestream_cache_bytes") == storage.cache.nbytes


def test_the_lag_of_a_table_that_cannot_be_read_is_reported(
    storage: IcebergStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise CatalogUnavailableError("away")

    monkeypatch.setattr(Tables, "find", away)
    storage.publish(storage.topics.create("a/b"), message_batch([b"x", b"y"]))
    metrics = BrokerMetrics(storage)
    assert value(metrics, "icestream_topic_committed_offset", topic="a/b") is None
    assert value(metrics, "icestream_topic_table_lag_messages", topic="a/b") == 2
    assert value(metrics, "icestream_topic_table_lag_seconds", topic="a/b") is not None


def test_the_number_of_reported_topics_is_bounded_and_the_rest_counted(storage: IcebergStorage) -> None:
    for name in ("d", "c", "b", "a"):
        _ = storage.topics.create(f"x/{name}").log
    registry = CollectorRegistry()
    registry.register(StorageCollector(storage, max_topics=2))
    reported = {
        sample.labels["topic"]
        for metric in registry.collect()
        for sample in metric.samples
        if sample.name == "icestream_topic_durable_end"
    }
    assert reported == {"x/a", "x/b"}
    assert registry.get_sample_value("icestream_unreported_topics") == 2


def test_metrics_can_be_made_before_the_storage_is_open_and_asked_for_after_it_is_closed(tmp_path: Path) -> None:
    storage = IcebergStorage(Settings(data_dir=tmp_path))
    metrics = BrokerMetrics(storage)
    assert b"icestream_in_flight_bytes" in metrics.render()[0]
    with storage:
        assert b"icestream_topics 0.0" in metrics.render()[0]
    assert b"icestream_topics" not in metrics.render()[0]


def test_the_page_lists_every_metric_with_its_help(storage: IcebergStorage) -> None:
    storage.publish(storage.topics.create("a/b"), message_batch([b"x"]))
    text = DOCS.read_text(encoding="utf-8")
    families = list(BrokerMetrics(storage).registry.collect())
    assert len(families) > 20
    for family in families:
        name = f"{family.name}_total" if family.type == "counter" else family.name
        assert f"| `{name}` | {family.type} |" in text, name
    listed = {line.split("`")[1].removesuffix("_total") for line in text.splitlines() if line.startswith("| `")}
    assert listed == {family.name for family in families}
