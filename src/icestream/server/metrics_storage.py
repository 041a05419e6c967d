"""What the storage knows, read when the metrics are asked for.

Only logs that are open are looked at: asking for metrics opens and recovers nothing. The number of series is bounded by
reporting the first topics by name, and how many were left out.
"""

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from icestream.model.errors import ClosedError
from icestream.server.metrics_cloud import cloud_metrics
from icestream.storage import IcebergStorage, Topic
from icestream.storage.stats import table_figures
from icestream.wal import Log, LogState

MAX_REPORTED_TOPICS = 1_000


class StorageCollector(Collector):
    def __init__(self, storage: IcebergStorage, *, max_topics: int = MAX_REPORTED_TOPICS) -> None:
        self._storage = storage
        self._max_topics = max_topics

    def describe(self) -> Iterable[Metric]:
        """Nothing: otherwise registering would collect, before the storage is open."""
        return []

    def collect(self) -> Iterator[Metric]:
        storage = self._storage
        yield _gauge(
            "icestream_in_flight_bytes",
            "Bytes of received batches that wait for their acknowledgement.",
            storage.budget.used_bytes,
        )
        try:
            topics = storage.topics.find()
        except ClosedError:
            return
        opened = [(topic, log) for topic in topics if (log := topic.opened_log) is not None]
        reported = opened[: self._max_topics]
        yield _gauge("icestream_topics", "Topics of this broker.", len(topics))
        yield _gauge("icestream_open_topics", "Topics whose log is open, because it was used.", len(opened))
        yield _gauge(
            "icestream_unreported_topics",
            f"Open topics without metrics of their own, which the first {self._max_topics} by name have.",
            len(opened) - len(reported),
        )
        yield _gauge("icestream_cache_bytes", "Memory held by the ordered cache.", storage.cache.nbytes)
        disk = storage.disk
        yield _gauge("icestream_disk_free_bytes", "Room on the disk of the logs, at the last look.", disk.free_bytes)
        yield _gauge("icestream_disk_full", "1 while publishing is refused for want of room.", float(disk.is_full))
        yield _gauge("icestream_wal_open_files", "Segments held open.", storage.files.open_count)
        yield from _topic_metrics(reported)
        yield from cloud_metrics(topic for topic, _ in reported)


def _topic_metrics(reported: list[tuple[Topic, Log]]) -> Iterator[Metric]:
    labels = ["topic"]
    start = GaugeMetricFamily("icestream_topic_start_offset", "First offset that is kept.", labels=labels)
    end = GaugeMetricFamily("icestream_topic_durable_end", "Offset below which everything is durable.", labels=labels)
    nbytes = GaugeMetricFamily("icestream_topic_wal_bytes", "Size of the topic's log on disk.", labels=labels)
    segments = GaugeMetricFamily("icestream_topic_wal_segments", "Segments of the topic's log.", labels=labels)
    hits = CounterMetricFamily("icestream_topic_cache_hits", "Reads that the ordered cache served.", labels=labels)
    misses = CounterMetricFamily("icestream_topic_cache_misses", "Reads that went to the files.", labels=labels)
    states = GaugeMetricFamily(
        "icestream_topic_state", "1 for the state that the topic's log is in.", labels=[*labels, "state"]
    )
    committed = GaugeMetricFamily(
        "icestream_topic_committed_offset", "Offset below which everything is in the table.", labels=labels
    )
    lag = GaugeMetricFamily("icestream_topic_table_lag_messages", "Messages not in the table yet.", labels=labels)
    lag_bytes = GaugeMetricFamily("icestream_topic_table_lag_bytes", "About the bytes of these.", labels=labels)
    lag_seconds = GaugeMetricFamily(
        "icestream_topic_table_lag_seconds", "Age of the oldest message that is not in the table.", labels=labels
    )
    quarantined = GaugeMetricFamily(
        "icestream_topic_quarantined", "Frames of the topic that were put aside.", labels=labels
    )
    for topic, log in reported:
        quarantined.add_metric([str(topic.name)], topic.committed.quarantined)
        for gauge, figure in zip((committed, lag, lag_bytes, lag_seconds), table_figures(topic, log), strict=True):
            if figure is not None:
                gauge.add_metric([str(topic.name)], figure)
        name, visible, state = [str(topic.name)], log.visible, log.state
        start.add_metric(name, visible.start_offset)
        end.add_metric(name, visible.end_offset)
        nbytes.add_metric(name, log.nbytes)
        segments.add_metric(name, len(visible.sealed) + 1)
        hits.add_metric(name, log.cache.hits)
        misses.add_metric(name, log.cache.misses)
        for possible in LogState:
            states.add_metric([*name, possible.value], float(possible is state))
    yield from (start, end, nbytes, segments, hits, misses, states, committed, lag, lag_bytes, lag_seconds, quarantined)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)
