"""The topics of tenants. They are created at first use, and get columns that settings promote later.

Tables are partitioned by publish time, not by the times that rows claim: a sender with a wrong clock, or a hostile one,
could otherwise make any number of partitions. Look-ups by a row's own time use the bounds of files. Spans are sorted by
trace, so that a trace is in few row groups; log records and data points are sorted by service.
"""

import threading

import pyarrow as pa

from icestream.config import TelemetrySettings
from icestream.model.errors import InvalidRequestError, LimitReachedError, TopicNotFoundError
from icestream.model.messages import encode_schema
from icestream.model.names import TopicName
from icestream.storage import IcebergStorage, Topic
from icestream.telemetry.schemas import ConversionOptions, Signal, topic_schema

SORT_BY = {
    Signal.TRACES: ("trace_id", "start_time_unix_nano"),
    Signal.LOGS: ("service_name", "time"),
    Signal.METRICS: ("service_name", "name", "time"),
}


def topic_name(tenant: str, dataset: str | None, signal: Signal) -> TopicName:
    """Return `tenant/traces`, or `tenant/dataset_traces`. Tenant and dataset have been checked."""
    return TopicName(tenant, f"{dataset}_{signal}" if dataset is not None else str(signal))


def is_telemetry(name: TopicName) -> bool:
    """Return whether a topic has the name of a signal's topic, with or without a dataset."""
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
        """The tenants with topics, and the state of the topics in which they were found."""

    def has_tenant(self, tenant: str) -> bool:
        """Return whether a tenant has a telemetry topic. Topics are searched again when they have changed."""
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
        """Return the topic, with at least the columns of the signal. Create it if it is missing."""
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
        """Create a topic. One at a time, so that concurrent requests do not exceed the limit."""
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
        """Add promoted columns that the topic lacks. Raise if it is not a topic of this signal."""
        found = topic.body_schema
        missing = [field for field in wanted if field.name not in found.names]
        same = all(found.field(field.name).equals(field) for field in wanted if field.name in found.names)
        if not same or topic.record.encoded_schema is None or not all(field.nullable for field in missing):
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
