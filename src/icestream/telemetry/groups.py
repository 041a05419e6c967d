"""The resources, scopes and metrics of a request that is made from rows: each once, where its first row stands."""

from typing import Any, cast

from google.protobuf.message import Message
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from icestream.telemetry.attributes import key_values
from icestream.telemetry.signals import Signal

Row = dict[str, Any]
Key = tuple[bytes | str, ...]

_LISTS = {
    Signal.TRACES: ("resource_spans", "scope_spans"),
    Signal.LOGS: ("resource_logs", "scope_logs"),
    Signal.METRICS: ("resource_metrics", "scope_metrics"),
}
_ABSENT = "absent"


class Groups:
    """Messages that are found by what they say: their serialized form and that of what they stand in."""

    def __init__(self, request: Message, signal: Signal) -> None:
        self._request = request
        self._resource_list, self._scope_list = _LISTS[signal]
        self._found: dict[Key, Any] = {}

    def scope_of(self, row: Row) -> Any:
        return self._scope_of(row)[1]

    def metric_of(self, row: Row) -> Metric:
        scope_key, scope = self._scope_of(row)
        head = _metric(row)
        key = (*scope_key, _identity(head))
        if key not in self._found:
            self._found[key] = scope.metrics.add()
            self._found[key].CopyFrom(head)
        return cast("Metric", self._found[key])

    def _scope_of(self, row: Row) -> tuple[Key, Any]:
        resource, scope = _resource(row["resource"]), _scope(row["scope"])
        outer = (_identity(resource), row["resource_schema_url"])
        if outer not in self._found:
            self._found[outer] = getattr(self._request, self._resource_list).add(schema_url=row["resource_schema_url"])
            if resource is not None:
                self._found[outer].resource.CopyFrom(resource)
        inner = (*outer, _identity(scope), row["scope_schema_url"])
        if inner not in self._found:
            self._found[inner] = getattr(self._found[outer], self._scope_list).add(schema_url=row["scope_schema_url"])
            if scope is not None:
                self._found[inner].scope.CopyFrom(scope)
        return inner, self._found[inner]


def _identity(message: Message | None) -> bytes | str:
    return _ABSENT if message is None else message.SerializeToString(deterministic=True)


def attributes_of(row: Row, name: str = "attributes") -> list[KeyValue]:
    return key_values(row[name], row[f"{name}_types"], row[f"{name}_otlp"])


def _resource(found: Row | None) -> Resource | None:
    if found is None:
        return None
    return Resource(
        attributes=attributes_of(found),
        dropped_attributes_count=found["dropped_attributes_count"],
        entity_refs=found["entity_refs"],
    )


def _scope(found: Row | None) -> InstrumentationScope | None:
    if found is None:
        return None
    return InstrumentationScope(
        name=found["name"],
        version=found["version"],
        attributes=attributes_of(found),
        dropped_attributes_count=found["dropped_attributes_count"],
    )


def _metric(row: Row) -> Metric:
    """The metric of a data point, without points."""
    metric = Metric(
        name=row["name"], description=row["description"], unit=row["unit"], metadata=attributes_of(row, "metadata")
    )
    data = getattr(metric, row["type"])
    data.SetInParent()
    if row["aggregation_temporality"] is not None:
        data.aggregation_temporality = row["aggregation_temporality"]
    if row["is_monotonic"] is not None:
        data.is_monotonic = row["is_monotonic"]
    return metric
