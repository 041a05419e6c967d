"""What the broker counts, in a registry of its own.

The methods are called once per batch, commit or stream, never per message. Those on the path of an acknowledgement only
take a note; the notes are counted when somebody asks, or when many have gathered. What the storage knows already is not
counted a second time: `StorageCollector` reads it when somebody asks.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder

from icestream import __version__
from icestream.server.metrics_pipeline import PipelineCollector, ProcessState
from icestream.server.metrics_storage import StorageCollector
from icestream.server.metrics_subscriptions import SubscriptionCollector
from icestream.server.metrics_telemetry import TenantCollector
from icestream.server.pipeline_figures import PipelineFigures
from icestream.server.tenant_figures import TenantFigures
from icestream.storage import IcebergStorage

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
        self._ack_seconds = Histogram(
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
        self._commit_frames = Histogram(
            "icestream_wal_commit_frames",
            "Frames written by one group commit.",
            buckets=_FRAME_BUCKETS,
            registry=registry,
        )
        self._written_bytes = Counter("icestream_wal_written_bytes", "Bytes written to the logs.", registry=registry)
        self._sync_seconds = Histogram(
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
        """What the pipeline has told."""
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
        for messages, nbytes, seconds in _take_all(self._publish_notes):
            self._batches.inc()
            self._messages.inc(messages)
            self._bytes.inc(nbytes)
            self._ack_seconds.observe(seconds)
        for frames, nbytes, seconds in _take_all(self._commit_notes):
            self._commit_frames.observe(frames)
            self._written_bytes.inc(nbytes)
            self._sync_seconds.observe(seconds)

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
    """Take notes away one by one, so that each is counted once, whoever else counts or adds at the same time."""
    with contextlib.suppress(IndexError):
        while True:
            yield notes.popleft()
