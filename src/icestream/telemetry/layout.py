"""What a tenant's topics are called and how their tables are laid out: known to all who may make one.

Tables are partitioned by the time of publishing, not by the times that rows claim: a sender with a wrong clock, or a
hostile one, would otherwise make as many partitions as it likes. Look-ups by a row's own time are served by the bounds
of files. Spans are sorted by trace, so that a trace is found in few row groups; log records and data points by service.
"""

from icestream.config import TelemetrySettings
from icestream.model.names import TopicName
from icestream.telemetry.signals import Signal

SORT_BY = {
    Signal.TRACES: ("trace_id", "start_time_unix_nano"),
    Signal.LOGS: ("service_name", "time"),
    Signal.METRICS: ("service_name", "name", "time"),
}


def topic_name(tenant: str, dataset: str | None, signal: Signal) -> TopicName:
    """`tenant/traces`, or `tenant/dataset_traces`. Tenant and dataset have been checked."""
    return TopicName(tenant, f"{dataset}_{signal}" if dataset is not None else str(signal))


def is_telemetry(name: TopicName) -> bool:
    """Whether a topic is called like one of a signal, of a dataset or not."""
    return any(name.name == signal or name.name.endswith(f"_{signal}") for signal in Signal)


def partition_by(settings: TelemetrySettings) -> tuple[str, ...]:
    return () if settings.partition == "none" else (f"{settings.partition}(_publish_time)",)
