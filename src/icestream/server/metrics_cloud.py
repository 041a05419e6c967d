"""How far topics are in the cloud, as metrics."""

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from icestream.storage import Topic
from icestream.storage.stats import upload_figures

_GAUGES = {
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
_COUNTERS = {
    "uploads": ("icestream_topic_uploads", "Objects of the topic that were uploaded."),
    "uploaded_bytes": ("icestream_topic_uploaded_bytes", "Size of these."),
    "upload_failures": ("icestream_topic_upload_failures", "Uploads of the topic that failed and were tried again."),
}


def cloud_metrics(reported: Iterable[Topic]) -> Iterator[Metric]:
    """Series of topics that have a part in the cloud; the families are there for all."""
    families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {
        **{field: GaugeMetricFamily(name, text, labels=["topic"]) for field, (name, text) in _GAUGES.items()},
        **{field: CounterMetricFamily(name, text, labels=["topic"]) for field, (name, text) in _COUNTERS.items()},
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
