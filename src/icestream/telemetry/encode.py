"""Turns rows into requests: the inverse of `to_batch`.

Items are grouped by resource, scope and the schema URLs of both, data points also by metric, in the order in which each
group first appears. Inside a group the rows' order is kept. So a request whose groups were split or interleaved comes
back with each group once. A group without items makes no row, and does not come back.

This is for exporting and checking, not for the hot path: it builds protobuf objects row by row.
"""

from collections.abc import Callable
from typing import Any, cast

import pyarrow as pa
from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.metrics.v1.metrics_pb2 import Exemplar, Metric
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from icestream.model.errors import InvalidMessageError
from icestream.telemetry.attributes import key_values, set_value
from icestream.telemetry.schemas import BASE, Signal, new_request

Row = dict[str, Any]
Key = tuple[bytes | str, ...]

_LISTS = {
    Signal.TRACES: ("resource_spans", "scope_spans"),
    Signal.LOGS: ("resource_logs", "scope_logs"),
    Signal.METRICS: ("resource_metrics", "scope_metrics"),
}
_ABSENT = "absent"


class Groups:
    """The resources, scopes and metrics of a request, each once, found by their serialized form and their parent's."""

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
    """Return the metric of a data point, without points."""
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


_UNSIGNED = 2**64


def to_request(signal: Signal, batch: pa.RecordBatch) -> bytes:
    """Return a serialized request with the items of the rows. Promoted and unknown columns are ignored."""
    names = BASE[signal].names
    if missing := sorted(set(names).difference(batch.schema.names)):
        raise InvalidMessageError(
            f"the rows lack the columns {', '.join(missing)} of {signal}", operation="encode telemetry"
        )
    request = new_request(signal)
    groups = Groups(request, signal)
    add = _ADD[signal]
    for number, row in enumerate(batch.select(names).to_pylist()):
        try:
            add(groups, row)
        except (ValueError, TypeError, AttributeError, DecodeError) as error:
            raise InvalidMessageError(
                f"row {number} cannot be turned into a {signal} request: {error}", operation="encode telemetry"
            ) from error
    return request.SerializeToString()


def _unsigned(number: int) -> int:
    """Read the 64 bits of a signed number as an unsigned one."""
    return number % _UNSIGNED


def _add_span(groups: Groups, row: Row) -> None:
    span: Span = groups.scope_of(row).spans.add(
        trace_id=row["trace_id"] or b"",
        span_id=row["span_id"] or b"",
        parent_span_id=row["parent_span_id"] or b"",
        trace_state=row["trace_state"],
        flags=row["flags"],
        name=row["name"],
        kind=row["kind"],
        start_time_unix_nano=_unsigned(row["start_time_unix_nano"]),
        end_time_unix_nano=_unsigned(row["end_time_unix_nano"]),
        attributes=attributes_of(row),
        dropped_attributes_count=row["dropped_attributes_count"],
        dropped_events_count=row["dropped_events_count"],
        dropped_links_count=row["dropped_links_count"],
    )
    if row["status_code"] is not None:
        span.status.SetInParent()
        span.status.code = row["status_code"]
        span.status.message = row["status_message"]
    for event in row["events"]:
        span.events.add(
            time_unix_nano=_unsigned(event["time_unix_nano"]),
            name=event["name"],
            attributes=attributes_of(event),
            dropped_attributes_count=event["dropped_attributes_count"],
        )
    for link in row["links"]:
        span.links.add(
            trace_id=link["trace_id"] or b"",
            span_id=link["span_id"] or b"",
            trace_state=link["trace_state"],
            flags=link["flags"],
            attributes=attributes_of(link),
            dropped_attributes_count=link["dropped_attributes_count"],
        )


def _add_log(groups: Groups, row: Row) -> None:
    record: LogRecord = groups.scope_of(row).log_records.add(
        time_unix_nano=_unsigned(row["time_unix_nano"]),
        observed_time_unix_nano=_unsigned(row["observed_time_unix_nano"]),
        severity_number=row["severity_number"],
        severity_text=row["severity_text"],
        event_name=row["event_name"],
        trace_id=row["trace_id"] or b"",
        span_id=row["span_id"] or b"",
        flags=row["flags"],
        attributes=attributes_of(row),
        dropped_attributes_count=row["dropped_attributes_count"],
    )
    if row["body_otlp"] is not None:
        record.body.ParseFromString(row["body_otlp"])
        record.body.SetInParent()
    elif row["body_type"] is not None:
        set_value(record.body, row["body_type"], row["body"])


def _add_point(groups: Groups, row: Row) -> None:
    point = getattr(groups.metric_of(row), row["type"]).data_points.add(
        start_time_unix_nano=_unsigned(row["start_time_unix_nano"]),
        time_unix_nano=_unsigned(row["time_unix_nano"]),
        flags=row["flags"],
        attributes=attributes_of(row),
    )
    for name in ("sum", "min", "max", "scale", "zero_threshold"):
        if row[name] is not None:
            setattr(point, name, row[name])
    for name in ("count", "zero_count"):
        if row[name] is not None:
            setattr(point, name, _unsigned(row[name]))
    _set_number(point, row)
    if row["bucket_counts"] is not None:
        point.bucket_counts.extend(map(_unsigned, row["bucket_counts"]))
        point.explicit_bounds.extend(row["explicit_bounds"])
    for name in ("positive", "negative"):
        if (buckets := row[name]) is not None:
            made = getattr(point, name)
            made.SetInParent()
            made.offset = buckets["offset"]
            made.bucket_counts.extend(map(_unsigned, buckets["bucket_counts"]))
    for quantile in row["quantile_values"] or ():
        point.quantile_values.add(**quantile)
    for exemplar in row["exemplars"] or ():
        _add_exemplar(point.exemplars.add(), exemplar)


def _add_exemplar(exemplar: Exemplar, row: Row) -> None:
    exemplar.time_unix_nano = _unsigned(row["time_unix_nano"])
    exemplar.trace_id = row["trace_id"] or b""
    exemplar.span_id = row["span_id"] or b""
    exemplar.filtered_attributes.extend(attributes_of(row, "filtered_attributes"))
    _set_number(exemplar, row)


def _set_number(message: Any, row: Row) -> None:
    if row["value_int"] is not None:
        message.as_int = row["value_int"]
    if row["value_double"] is not None:
        message.as_double = row["value_double"]


_ADD: dict[Signal, Callable[[Groups, Row], None]] = {
    Signal.TRACES: _add_span,
    Signal.LOGS: _add_log,
    Signal.METRICS: _add_point,
}
