"""The topics of tenants: found, made at first use, and given the columns that settings promote later."""

import threading

import pyarrow as pa

from icestream.config import TelemetrySettings
from icestream.model.errors import InvalidRequestError, LimitReachedError, TopicNotFoundError
from icestream.model.messages import encode_schema
from icestream.model.names import TopicName
from icestream.storage import IcebergStorage, Topic
from icestream.telemetry.schemas import ConversionOptions, Signal, topic_schema

# --------------------
# What a tenant's topics are called and how their tables are laid out: known to all who may make one.
#
# Tables are partitioned by the time of publishing, not by the times that rows claim: a sender with a wrong clock, or a
# hostile one, would otherwise make as many partitions as it likes. Look-ups by a row's own time are served by the
# bounds
# of files. Spans are sorted by trace, so that a trace is found in few row groups; log records and data points by
# service.


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


class TelemetryTopics:
    def __init__(self, storage: IcebergStorage, settings: TelemetrySettings, options: ConversionOptions) -> None:
        self._storage = storage
        self._max_topics = settings.max_topics_per_tenant
        self._partition_by = partition_by(settings)
        self._schemas = {signal: topic_schema(signal, options) for signal in Signal}
        self._making = threading.Lock()
        self._tenants: tuple[int, frozenset[str]] = (-1, frozenset())
        """Those that have datasets or more, and which state of the topics that was found in."""

    def has_tenant(self, tenant: str) -> bool:
        """Whether a tenant has a topic of telemetry, a dataset's too. Topics are looked through when they changed."""
        topics = self._storage.topics
        if any(topics.has(topic_name(tenant, None, signal)) for signal in Signal):
            return True
        changes, tenants = self._tenants
        if changes != topics.changes:
            changes = topics.changes
            tenants = frozenset(topic.name.namespace for topic in topics.find() if is_telemetry(topic.name))
            self._tenants = (changes, tenants)
        return tenant in tenants

    def get(self, tenant: str, dataset: str | None, signal: Signal) -> Topic:
        """The topic, which is made where it is missing, and has at least the columns of the signal."""
        name = topic_name(tenant, dataset, signal)
        try:
            topic = self._storage.topics.get(name)
        except TopicNotFoundError:
            topic = self._make(name, signal)
        wanted = self._schemas[signal]
        if not topic.body_schema.equals(wanted):
            self._fit(topic, wanted)
        return topic

    def _make(self, name: TopicName, signal: Signal) -> Topic:
        """One at a time, so that those who race for the last one that is allowed do not all get one."""
        with self._making:
            if not self._storage.topics.has(name):
                self._check_room(name)
            return self._storage.topics.create(
                name,
                schema=self._schemas[signal],
                partition_by=self._partition_by,
                sort_by=SORT_BY[signal],
                if_not_exists=True,
            )

    def _check_room(self, name: TopicName) -> None:
        count = sum(is_telemetry(other.name) for other in self._storage.topics.find(f"{name.namespace}/"))
        if count >= self._max_topics:
            raise LimitReachedError(
                f"the tenant has {count} topics already",
                operation="publish telemetry",
                place=name.namespace,
                remedy="use fewer datasets, or raise telemetry.max_topics_per_tenant",
            )

    def _fit(self, topic: Topic, wanted: pa.Schema) -> None:
        """Add promoted columns that the topic lacks; one that is no topic of this signal is refused."""
        found = topic.body_schema
        missing = [field for field in wanted if field.name not in found.names]
        same = all(found.field(field.name).equals(field) for field in wanted if field.name in found.names)
        if not same or topic.record.schema is None or not all(field.nullable for field in missing):
            raise InvalidRequestError(
                "the topic has other columns than telemetry has",
                operation="publish telemetry",
                place=str(topic.name),
                remedy="delete or rename the topic, or use a dataset",
            )
        if missing:
            with self._making:
                found = topic.body_schema
                added = [field for field in missing if field.name not in found.names]
                if added:
                    schema = pa.schema([*found, *added])
                    self._storage.topics.update(topic.name, {"schema": encode_schema(schema)})
