"""The broker's metrics for Prometheus, in a registry of their own.

The methods are called once for each batch, commit or stream, never for each message. Methods on the path of an
acknowledgement only append a note; the notes are counted at the next scrape, or when there are many. Figures that the
storage has are not counted a second time: collectors such as `StorageCollector` read them at a scrape.
"""

import contextlib
import threading
from bisect import bisect_left
from collections import Counter as Tally
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from math import isfinite
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from icestream import __version__
from icestream.model.errors import ClosedError, IcestreamError
from icestream.protocol.admin import TenantStats
from icestream.storage import (
    OTHER_TENANT,
    IcebergStorage,
    PipelineFigures,
    TenantFigures,
    Topic,
    seconds_ahead,
    table_figures,
    upload_figures,
)
from icestream.subscription import BrokerSubscription, SubscriptionStats
from icestream.wal import Log, LogState


class BulkHistogram(Collector):
    """A histogram that takes many values at once: counting each by the library's takes as long as a small message."""

    def __init__(self, name: str, text: str, *, buckets: Sequence[float], registry: CollectorRegistry) -> None:
        self._name = name
        self._text = text
        self._bounds = [*buckets, float("inf")]
        self._lock = threading.Lock()
        self._counts = [0] * len(self._bounds)
        self._sum = 0.0
        registry.register(self)

    def observe_all(self, values: Sequence[float]) -> None:
        with self._lock:
            for value in values:
                self._counts[bisect_left(self._bounds, value)] += 1
            self._sum += sum(values)

    def describe(self) -> Iterable[Metric]:
        return [HistogramMetricFamily(self._name, self._text)]

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            counts, total = list(accumulate(self._counts)), self._sum
        names = [str(float(bound)) if isfinite(bound) else "+Inf" for bound in self._bounds]
        buckets = [(name, float(count)) for name, count in zip(names, counts, strict=True)]
        yield HistogramMetricFamily(self._name, self._text, buckets=buckets, sum_value=total)


# The pipeline's own figures.


_COUNTERS = {
    "passes": "Passes of the pipeline.",
    "messages": "Messages that it put into tables.",
    "bytes": "Arrow bytes of these.",
    "files": "Data files that it committed.",
    "file_bytes": "Size of these files.",
    "commits": "Commits that it made.",
    "conflicts": "Commit attempts that were refused because of another commit, or had an unknown outcome.",
    "failures": "Ranges that could not be written or committed, and are tried again.",
    "lost": "Messages in lost ranges; tables have no rows for them.",
    "quarantined": "Frames that it put into quarantine.",
    "translate_seconds": "Time that tasks took to turn log into files.",
    "commit_seconds": "Time that commits took.",
    "pass_seconds": "Time that passes took.",
}


class ProcessState(Protocol):
    @property
    def pid(self) -> int | None: ...

    @property
    def starts(self) -> int: ...


class PipelineCollector(Collector):
    def __init__(self, figures: PipelineFigures) -> None:
        self._figures = figures
        self.process: Callable[[], ProcessState] | None = None

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        sums = self._figures.sums()
        for name, text in _COUNTERS.items():
            yield CounterMetricFamily(f"icestream_pipeline_{name}", text, value=sums[name])
        failing = GaugeMetricFamily(
            "icestream_topic_pipeline_failing", "1 while the pipeline cannot write the topic.", labels=["topic"]
        )
        for topic, figures in self._figures.topics().items():
            failing.add_metric([topic], float(figures["error"] is not None))
        yield failing
        if self.process is not None:
            state = self.process()
            yield GaugeMetricFamily(
                "icestream_pipeline_running", "1 while the pipeline's process runs.", value=float(state.pid is not None)
            )
            yield CounterMetricFamily(
                "icestream_pipeline_starts", "Times that the pipeline's process was started.", value=state.starts
            )


# Topics in the cloud.


_CLOUD_GAUGES = {
    "uploaded_offset": ("icestream_topic_uploaded_offset", "Offset below which everything is in the cloud."),
    "upload_lag_messages": ("icestream_topic_upload_lag_messages", "Messages not in the cloud yet."),
    "upload_lag_bytes": ("icestream_topic_upload_lag_bytes", "About the bytes of these."),
    "upload_lag_seconds": (
        "icestream_topic_upload_lag_seconds",
        "Age of the oldest message that is not in the cloud.",
    ),
    "cloud_objects": ("icestream_topic_cloud_objects", "Objects of the topic in the cloud."),
    "cloud_bytes": ("icestream_topic_cloud_bytes", "Size of the topic's objects in the cloud."),
}
_CLOUD_COUNTERS = {
    "uploads": ("icestream_topic_uploads", "Objects of the topic that were uploaded."),
    "uploaded_bytes": ("icestream_topic_uploaded_bytes", "Size of these."),
    "upload_failures": ("icestream_topic_upload_failures", "Uploads of the topic that failed and were tried again."),
}


def cloud_metrics(reported: Iterable[Topic]) -> Iterator[Metric]:
    """Series of topics that have a part in the cloud; the families are there for all."""
    families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {
        **{field: GaugeMetricFamily(name, text, labels=["topic"]) for field, (name, text) in _CLOUD_GAUGES.items()},
        **{field: CounterMetricFamily(name, text, labels=["topic"]) for field, (name, text) in _CLOUD_COUNTERS.items()},
    }
    failing = GaugeMetricFamily(
        "icestream_topic_upload_failing", "1 while the last upload of the topic failed.", labels=["topic"]
    )
    ask = True
    for topic in reported:
        if topic.cloud is None:
            continue
        name = [str(topic.name)]
        figures = upload_figures(topic, ask=ask)
        ask = ask and figures.uploaded_offset is not None  # a store that is away is waited for once
        for field, family in families.items():
            if (value := getattr(figures, field)) is not None:
                family.add_metric(name, value)
        failing.add_metric(name, float(figures.upload_error is not None))
    yield from (*families.values(), failing)


# Topics. Only open logs are looked at: a scrape opens and recovers nothing. The number of series is bounded: the first
# topics by name are reported, and how many were left out.


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
        "icestream_topic_quarantined", "Frames of the topic that are quarantined.", labels=labels
    )
    unusable = GaugeMetricFamily(
        "icestream_topic_table_unusable", "1 while the table is lost or was set back.", labels=labels
    )
    ahead = GaugeMetricFamily(
        "icestream_topic_publish_time_ahead_seconds",
        "How far publish times are ahead of the clock; 0 if less than a minute.",
        labels=labels,
    )
    for topic, log in reported:
        ahead.add_metric([str(topic.name)], seconds_ahead(log))
        if topic.record.has_table:
            unusable.add_metric([str(topic.name)], float(topic.table_error is not None))
        quarantined.add_metric([str(topic.name)], topic.committed.quarantined)
        for gauge, figure in zip((committed, lag, lag_bytes, lag_seconds), table_figures(topic, log), strict=True):
            if figure is not None:
                gauge.add_metric([str(topic.name)], figure)
        name, snapshot, state = [str(topic.name)], log.snapshot, log.state
        start.add_metric(name, snapshot.start_offset)
        end.add_metric(name, snapshot.end_offset)
        nbytes.add_metric(name, log.nbytes)
        segments.add_metric(name, len(snapshot.sealed) + 1)
        hits.add_metric(name, log.cache.hits)
        misses.add_metric(name, log.cache.misses)
        for possible in LogState:
            states.add_metric([*name, possible.value], float(possible is state))
    yield from (start, end, nbytes, segments, hits, misses, states)
    yield from (committed, lag, lag_bytes, lag_seconds, quarantined, unusable, ahead)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)


# Subscriptions. Only topics with an open log are looked at. The number of series is bounded: the first by topic and
# name are reported, and how many were left out.


MAX_REPORTED_SUBSCRIPTIONS = 1_000
_LABELS = ["topic", "subscription"]
_SUBSCRIPTION_GAUGES = {
    "lag_messages": "Messages that are not acknowledged.",
    "lag_bytes": "About the bytes of these.",
    "lag_seconds": "Age of the oldest message that is not acknowledged.",
    "unacknowledged": "Messages that consumers have and did not acknowledge yet.",
}
_SUBSCRIPTION_COUNTERS = {
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


def _stats(subscription: BrokerSubscription) -> SubscriptionStats | None:
    try:
        return subscription.stats()
    except IcestreamError:  # deleted a moment ago, or its topic's log cannot be used, which other figures say
        return None


def _metrics(reported: list[SubscriptionStats]) -> Iterator[Metric]:
    families = {
        name: GaugeMetricFamily(f"icestream_subscription_{name}", text, labels=_LABELS)
        for name, text in _SUBSCRIPTION_GAUGES.items()
    } | {
        name: CounterMetricFamily(f"icestream_subscription_{name}", text, labels=_LABELS)
        for name, text in _SUBSCRIPTION_COUNTERS.items()
    }
    consumers = GaugeMetricFamily("icestream_subscription_consumers", "Consumers that are connected.", labels=_LABELS)
    for stats in reported:
        labels = [str(stats.topic), stats.subscription]
        consumers.add_metric(labels, len(stats.consumers))
        for name, family in families.items():
            if (value := getattr(stats, name)) is not None:
                family.add_metric(labels, value)
    yield from (*families.values(), consumers)


# Tenants. The number of series is bounded: tenants that were seen first have their own, the others share `(other)`. No
# counter falls, not even when a tenant is deleted.


_RECEIVED = {
    "requests": "Requests of telemetry that were accepted.",
    "rows": "Spans, log records and data points of these that are durable.",
    "bytes": "Bytes of these requests, decompressed.",
    "rejected_rows": "Rows of these requests that were not stored.",
}
_WRITTEN = {
    "messages": "Messages that the pipeline put into the tenant's tables.",
    "bytes": "Arrow bytes of these.",
    "commits": "Commits that it made.",
    "failures": "Ranges that it could not write or commit.",
}


class TenantCollector(Collector):
    def __init__(self, tenants: TenantFigures, max_tenants: int) -> None:
        self._tenants = tenants
        self._max_tenants = max_tenants
        self._named: set[str] = set()
        self._written = _Written()
        self._lock = threading.Lock()
        """For those who ask at the same time."""

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        try:
            figures = self._tenants.all()
        except ClosedError:
            return
        with self._lock:
            by_label = [(self._label(one.tenant), one) for one in figures]
            written = self._written.add_up(by_label)
        yield from _received(by_label)
        yield from _written(written)
        yield from _lags(by_label)

    def _label(self, tenant: str) -> str:
        if tenant not in self._named and len(self._named) < self._max_tenants:
            self._named.add(tenant)
        return tenant if tenant in self._named else OTHER_TENANT


Labelled = list[tuple[str, TenantStats]]


def _received(figures: Labelled) -> Iterator[Metric]:
    for name, text in _RECEIVED.items():
        counted: Tally[tuple[str, ...]] = Tally()
        for tenant, one in figures:
            for signal, counts in one.received.items():
                counted[tenant, signal] += getattr(counts, name)
        yield _counter(f"icestream_tenant_received_{name}", text, ["tenant", "signal"], counted)
    refused: Tally[tuple[str, ...]] = Tally()
    for tenant, one in figures:
        for signal, counts in one.received.items():
            for code, count in counts.refused.items():
                refused[tenant, signal, code] += count
    text = "Requests of telemetry that were refused, by error code."
    yield _counter("icestream_tenant_refused_requests", text, ["tenant", "signal", "code"], refused)


class _Written:
    """What the pipeline wrote, by label. Its sums of a tenant end with the tenant's topics; here they stay."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[str, Tally[str]]] = {}
        """Of the tenants that there were the last time."""
        self._gone: dict[str, Tally[str]] = {}

    def add_up(self, figures: Labelled) -> dict[str, Tally[str]]:
        now = {
            one.tenant: (label, Tally({name: getattr(one.pipeline, name) for name in _WRITTEN}))
            for label, one in figures
        }
        for tenant, (label, before) in self._last.items():
            if tenant not in now or not before <= now[tenant][1]:
                self._gone.setdefault(label, Tally()).update(before)
        self._last = now
        sums = {label: Tally(counts) for label, counts in self._gone.items()}
        for label, counts in now.values():
            sums.setdefault(label, Tally()).update(counts)
        return sums


def _written(sums: dict[str, Tally[str]]) -> Iterator[Metric]:
    for name, text in _WRITTEN.items():
        counted: Tally[tuple[str, ...]] = Tally({(label,): counts[name] for label, counts in sums.items()})
        yield _counter(f"icestream_tenant_table_{name}", text, ["tenant"], counted)


def _lags(figures: Labelled) -> Iterator[Metric]:
    messages: Tally[str] = Tally()
    seconds: dict[str, float] = {}
    for tenant, one in figures:
        messages[tenant] += one.table_lag_messages
        seconds[tenant] = max(seconds.get(tenant, 0.0), one.table_lag_seconds)
    lag = GaugeMetricFamily(
        "icestream_tenant_table_lag_messages", "The tenant's messages that are not in tables yet.", labels=["tenant"]
    )
    age = GaugeMetricFamily("icestream_tenant_table_lag_seconds", "Age of the oldest of these.", labels=["tenant"])
    for tenant, count in messages.items():
        lag.add_metric([tenant], count)
        age.add_metric([tenant], seconds[tenant])
    yield from (lag, age)


def _counter(name: str, text: str, labels: list[str], counted: Tally[tuple[str, ...]]) -> CounterMetricFamily:
    made = CounterMetricFamily(name, text, labels=labels)
    for values, count in counted.items():
        made.add_metric(list(values), count)
    return made


_LATENCY_BUCKETS = (
    *(round(digit * 10**exponent, 6) for exponent in range(-4, 1) for digit in (1.0, 2.0, 3.0, 5.0, 7.0)),
    10.0,
)
"""100 µs to 10 s, five steps a decade: fine enough around a millisecond to see a slow disk from a slow network."""

_FRAME_BUCKETS = tuple(float(1 << power) for power in range(11))
_MAX_CODES = 100
_MAX_NOTES = 1000


class _Registry(CollectorRegistry):
    def __init__(self, count_notes: Callable[[], None]) -> None:
        super().__init__()
        self._count_notes = count_notes

    def collect(self) -> Iterator[Metric]:
        """Without the time that each counter was made at, which would double the number of series."""
        self._count_notes()
        for metric in super().collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric


class BrokerMetrics:
    def __init__(self, storage: IcebergStorage | None = None) -> None:
        registry = self.registry = _Registry(self._count_notes)
        self._publish_notes: deque[tuple[int, int, float]] = deque()
        self._commit_notes: deque[tuple[int, int, float]] = deque()
        self._batches = Counter(
            "icestream_published_batches", "Published batches that were acknowledged.", registry=registry
        )
        self._messages = Counter(
            "icestream_published_messages", "Published messages that were acknowledged.", registry=registry
        )
        self._bytes = Counter("icestream_published_bytes", "Arrow bytes of acknowledged batches.", registry=registry)
        self._ack_seconds = BulkHistogram(
            "icestream_publish_ack_seconds",
            "From the arrival of a batch to its acknowledgement.",
            buckets=_LATENCY_BUCKETS,
            registry=registry,
        )
        self._refused = Counter(
            "icestream_refused_batches", "Published batches that were refused.", ["code"], registry=registry
        )
        self._refused_by_code: dict[str, Counter] = {}
        self._duplicates = Counter(
            "icestream_duplicate_batches", "Batches that had been stored before.", registry=registry
        )
        self._commit_frames = BulkHistogram(
            "icestream_wal_commit_frames",
            "Frames written by one group commit.",
            buckets=_FRAME_BUCKETS,
            registry=registry,
        )
        self._written_bytes = Counter("icestream_wal_written_bytes", "Bytes written to the logs.", registry=registry)
        self._sync_seconds = BulkHistogram(
            "icestream_wal_sync_seconds",
            "Duration of the writing and syncing of one group commit.",
            buckets=_LATENCY_BUCKETS,
            registry=registry,
        )
        self._delivered_messages = Counter(
            "icestream_delivered_messages", "Messages handed to readers.", registry=registry
        )
        self._delivered_bytes = Counter(
            "icestream_delivered_bytes", "Arrow bytes of messages handed to readers.", registry=registry
        )
        self._open_streams = Gauge(
            "icestream_open_streams", "Streams and requests that are open.", ["door"], registry=registry
        )
        self._streams_by_door: dict[str, Gauge] = {}
        info = Gauge("icestream_build_info", "Always 1; the label is the version.", ["version"], registry=registry)
        info.labels(__version__).set(1)
        ProcessCollector(registry=registry)
        self.pipeline = PipelineFigures(lambda name: storage is None or storage.topics.has(name))
        """The pipeline's reports."""
        self._pipeline_collector = PipelineCollector(self.pipeline)
        registry.register(self._pipeline_collector)
        self.tenants: TenantFigures | None = None
        """None without a storage."""
        if storage is not None:
            self.tenants = TenantFigures(storage, self.pipeline)
            registry.register(TenantCollector(self.tenants, storage.settings.telemetry.max_metric_tenants))
            registry.register(StorageCollector(storage))
            registry.register(SubscriptionCollector(storage))

    def watch_pipeline(self, process: Callable[[], ProcessState]) -> None:
        """Show how the pipeline's process fares, too."""
        self._pipeline_collector.process = process

    def published(self, messages: int, nbytes: int, seconds: float) -> None:
        self._publish_notes.append((messages, nbytes, seconds))
        if len(self._publish_notes) >= _MAX_NOTES:
            self._count_notes()

    def refused(self, code: str) -> None:
        counter = self._refused_by_code.get(code)
        if counter is None:
            known = len(self._refused_by_code) < _MAX_CODES
            counter = self._refused_by_code[code] = self._refused.labels(code if known else "other")
        counter.inc()

    def duplicate(self) -> None:
        self._duplicates.inc()

    def committed(self, frames: int, nbytes: int, sync_seconds: float) -> None:
        """Called by the thread that commits, for `IcebergStorage.on_commit`."""
        self._commit_notes.append((frames, nbytes, sync_seconds))
        if len(self._commit_notes) >= _MAX_NOTES:
            self._count_notes()

    def _count_notes(self) -> None:
        if published := list(_take_all(self._publish_notes)):
            messages, nbytes, seconds = zip(*published, strict=True)
            self._batches.inc(len(published))
            self._messages.inc(sum(messages))
            self._bytes.inc(sum(nbytes))
            self._ack_seconds.observe_all(seconds)
        if commits := list(_take_all(self._commit_notes)):
            frames, nbytes, seconds = zip(*commits, strict=True)
            self._commit_frames.observe_all(frames)
            self._written_bytes.inc(sum(nbytes))
            self._sync_seconds.observe_all(seconds)

    def delivered(self, messages: int, nbytes: int) -> None:
        self._delivered_messages.inc(messages)
        self._delivered_bytes.inc(nbytes)

    @contextlib.contextmanager
    def open_stream(self, door: str) -> Iterator[None]:
        """Count a stream of a door for as long as it is open."""
        gauge = self._streams_by_door.get(door)
        if gauge is None:
            gauge = self._streams_by_door[door] = self._open_streams.labels(door)
        gauge.inc()
        try:
            yield
        finally:
            gauge.dec()

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """The metrics in the text format that an `Accept` header asks for, and that format's content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type


def _take_all(notes: deque[tuple[int, int, float]]) -> Iterator[tuple[int, int, float]]:
    """Take notes away one by one: each is counted once, although other threads count or add at the same time."""
    with contextlib.suppress(IndexError):
        while True:
            yield notes.popleft()
