"""Rows to requests: what `to_batch` did, backwards.

Items are grouped by resource, scope and the schema URLs of both, data points also by metric, in the order in which each
group first appears; inside a group the rows' order is kept. So a request whose groups were split or interleaved comes
back with each group once, and a group without any item, which makes no row, does not come back.

This way is for exporting and for checking, not for the hot path: it builds protobuf objects row by row.
"""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from google.protobuf.message import DecodeError
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.metrics.v1.metrics_pb2 import Exemplar
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from icestream.model.errors import InvalidMessageError
from icestream.telemetry.groups import Groups, Row, attributes_of
from icestream.telemetry.schemas import BASE
from icestream.telemetry.signals import Signal, new_request
from icestream.telemetry.values import set_value

_UNSIGNED = 2**64


def to_request(signal: Signal, batch: pa.RecordBatch) -> bytes:
    """A serialized request with the items of the rows. Promoted and unknown columns are not looked at."""
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
                f"row {number} is none that a request of {signal} makes: {error}", operation="encode telemetry"
            ) from error
    return request.SerializeToString()


def _unsigned(number: int) -> int:
    """The 64 bits of a signed number, read as an unsigned one."""
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
