"""A trace's spans, and its log records, from a broker: by id, so that only files that can have it are read."""

from collections.abc import Iterator
from typing import Any

from icestream.cli.severities import severity_text
from icestream.cli.sql_literals import query_bytes, table_name
from icestream.cli.trace_tree import Event, Record, Span, nanoseconds
from icestream.client import Client
from icestream.model.names import TopicName

_SPAN = (
    "span_id, parent_span_id, service_name, name, kind, start_time_unix_nano, end_time_unix_nano, status_code, "
    "status_message"
)
_RECORD = "span_id, time_unix_nano, observed_time_unix_nano, severity_number, severity_text, service_name, body"


def spans_query(topic: TopicName, trace_id: bytes, *, details: bool, limit: int) -> str:
    """Attributes and events are read only for `details`: they are most of a span's bytes."""
    return _query(topic, f"{_SPAN}, attributes, events" if details else _SPAN, trace_id, limit)


def read_spans(
    client: Client, topic: TopicName, trace_id: bytes, *, details: bool, fresh: bool, limit: int
) -> list[Span]:
    return [_span(row) for row in _rows(client, spans_query(topic, trace_id, details=details, limit=limit), fresh)]


def read_records(client: Client, topic: TopicName, trace_id: bytes, *, fresh: bool, limit: int) -> list[Record]:
    return [_record(row) for row in _rows(client, _query(topic, _RECORD, trace_id, limit), fresh)]


def _query(topic: TopicName, columns: str, trace_id: bytes, limit: int) -> str:
    condition = f"trace_id = {query_bytes(trace_id)}"
    return f"SELECT {columns} FROM {table_name(topic)} WHERE {condition} LIMIT {limit}"  # noqa: S608 - names and bytes


def _rows(client: Client, query: str, fresh: bool) -> Iterator[dict[str, Any]]:
    for batch in client.sql_batches(query, fresh=fresh):
        yield from batch.to_pylist()


def _span(row: dict[str, Any]) -> Span:
    return Span(
        span_id=row["span_id"],
        parent_id=row["parent_span_id"],
        service=row["service_name"],
        name=row["name"],
        kind=row["kind"],
        start_ns=nanoseconds(row["start_time_unix_nano"]),
        end_ns=nanoseconds(row["end_time_unix_nano"]),
        status_code=row["status_code"] or 0,
        status_message=row["status_message"] or "",
        attributes=dict(row.get("attributes") or ()),
        events=tuple(_event(fields or {}) for fields in row.get("events") or ()),
    )


def _event(fields: dict[str, Any]) -> Event:
    """Rows that were published as Arrow may lack what is inside."""
    return Event(nanoseconds(fields["time_unix_nano"] or 0), fields["name"] or "", dict(fields.get("attributes") or ()))


def _record(row: dict[str, Any]) -> Record:
    return Record(
        span_id=row["span_id"],
        time_ns=nanoseconds(row["time_unix_nano"] or row["observed_time_unix_nano"]),
        severity=severity_text(row["severity_number"], row["severity_text"]),
        service=row["service_name"],
        body=row["body"] or "",
    )
