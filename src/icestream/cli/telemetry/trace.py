"""`icestream trace`: prints a trace as a tree."""

import shutil
import sys
from collections.abc import Iterator
from typing import Any

import click

from icestream.cli.main import discard_stdout
from icestream.cli.options import broker_option, fresh_option, json_option, no_color_option
from icestream.cli.output import Paint, has_colours, json_text, rfc3339
from icestream.cli.telemetry.common import (
    dataset_option,
    naming_tenant,
    parse_trace_id,
    query_bytes,
    severity_text,
    table_name,
    telemetry_topic,
    tenant_option,
)
from icestream.cli.telemetry.trace_tree import LogRecord, SpanEvent, SpanNode, Trace, TraceSpan, build, nanoseconds
from icestream.cli.telemetry.trace_view import DEFAULT_WIDTH, KINDS, MIN_WIDTH, draw
from icestream.client import BrokerEndpoint, Client
from icestream.model.errors import IcestreamError, TopicNotFoundError
from icestream.model.names import TopicName

# A trace as one JSON object: spans are inside their parents

_STATUS = {0: "unset", 1: "ok", 2: "error"}


def trace_json(trace_id: str, trace: Trace, *, logs: bool = False) -> Iterator[str]:
    """Yield the text in parts. A tree may be deeper than `json` can encode, so it is assembled here."""
    head: dict[str, Any] = {
        "trace_id": trace_id,
        "start_time": rfc3339(trace.start_ns // 1000) if trace.start_ns else None,
        "start_time_unix_nano": trace.start_ns or None,
        "duration_ns": trace.duration_ns,
        "span_count": trace.span_count,
        "error_count": trace.error_count,
        "services": trace.services,
    }
    if logs:
        head["logs"] = [_record_json(record) for record in trace.stray_records]
    yield f'{json_text(head)[:-1]}, "spans": ['
    opened = 0
    for node, depth, _ in trace.walk():
        is_sibling = depth < opened
        yield "]}" * (opened - depth) + (", " if is_sibling else "")
        yield f'{json_text(_fields(node, trace, logs=logs))[:-1]}, "children": ['
        opened = depth + 1
    yield "]}" * opened + "]}"


def _fields(node: SpanNode, trace: Trace, *, logs: bool) -> dict[str, Any]:
    span = node.span
    fields: dict[str, Any] = {
        "span_id": _hex(span.span_id),
        "parent_span_id": _hex(span.parent_id),
        "place": node.position.value,
        "copies": node.copies,
        "service": span.service,
        "name": span.name,
        "kind": KINDS.get(span.kind, "unspecified" if span.kind == 0 else str(span.kind)),
        "start_time_unix_nano": span.start_ns or None,
        "end_time_unix_nano": span.end_ns or None,
        "offset_ns": span.start_ns - trace.start_ns if span.start_ns else None,
        "duration_ns": span.duration_ns,
        "status": _STATUS.get(span.status_code, str(span.status_code)),
        "status_message": span.status_message,
        "attributes": span.attributes,
        "events": [
            {"time_unix_nano": event.time_ns or None, "name": event.name, "attributes": event.attributes}
            for event in span.events
        ],
    }
    if logs:
        fields["logs"] = [_record_json(record) for record in node.records]
    return fields


def _record_json(record: LogRecord) -> dict[str, Any]:
    return {
        "span_id": _hex(record.span_id),
        "time_unix_nano": record.time_ns or None,
        "severity": record.severity,
        "service": record.service,
        "body": record.body,
    }


def _hex(value: bytes | None) -> str | None:
    return None if value is None else value.hex()


# Spans and log records from the broker, by trace id: only files that can have it are read

_SPAN_COLUMNS = (
    "span_id, parent_span_id, service_name, name, kind, start_time_unix_nano, end_time_unix_nano, status_code, "
    "status_message"
)
_RECORD_COLUMNS = "span_id, time_unix_nano, observed_time_unix_nano, severity_number, severity_text, service_name, body"


def spans_query(topic: TopicName, trace_id: bytes, *, details: bool, limit: int) -> str:
    """Return the SQL. Attributes and events, most of a span's bytes, are read for `details` only."""
    return _query(topic, f"{_SPAN_COLUMNS}, attributes, events" if details else _SPAN_COLUMNS, trace_id, limit)


def read_spans(
    client: Client, topic: TopicName, trace_id: bytes, *, details: bool, fresh: bool, limit: int
) -> list[TraceSpan]:
    return [_span(row) for row in _rows(client, spans_query(topic, trace_id, details=details, limit=limit), fresh)]


def read_records(client: Client, topic: TopicName, trace_id: bytes, *, fresh: bool, limit: int) -> list[LogRecord]:
    return [_record(row) for row in _rows(client, _query(topic, _RECORD_COLUMNS, trace_id, limit), fresh)]


def _query(topic: TopicName, columns: str, trace_id: bytes, limit: int) -> str:
    condition = f"trace_id = {query_bytes(trace_id)}"
    return f"SELECT {columns} FROM {table_name(topic)} WHERE {condition} LIMIT {limit}"  # noqa: S608 - names and bytes


def _rows(client: Client, query: str, fresh: bool) -> Iterator[dict[str, Any]]:
    for batch in client.sql_batches(query, fresh=fresh):
        yield from batch.to_pylist()


def _span(row: dict[str, Any]) -> TraceSpan:
    return TraceSpan(
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


def _event(fields: dict[str, Any]) -> SpanEvent:
    """Convert an event. In rows published as Arrow its fields may be null."""
    return SpanEvent(
        nanoseconds(fields["time_unix_nano"] or 0), fields["name"] or "", dict(fields.get("attributes") or ())
    )


def _record(row: dict[str, Any]) -> LogRecord:
    return LogRecord(
        span_id=row["span_id"],
        time_ns=nanoseconds(row["time_unix_nano"] or row["observed_time_unix_nano"]),
        severity=severity_text(row["severity_number"], row["severity_text"]),
        service=row["service_name"],
        body=row["body"] or "",
    )


# The command


@click.command(name="trace", epilog="Example: icestream trace 5b8aa5a2d2c872e8321cf37308d69df2 --tenant acme --events")
@click.argument("trace_id", metavar="ID", callback=parse_trace_id)
@tenant_option
@dataset_option
@click.option("--events", is_flag=True, help="Print events and status messages below their spans.")
@click.option("--logs", is_flag=True, help="Print the trace's log records below their spans.")
@fresh_option
@click.option(
    "--max",
    "limit",
    type=click.IntRange(min=1),
    default=100_000,
    show_default=True,
    metavar="N",
    help="Read at most N spans, and N log records.",
)
@click.option(
    "--width",
    type=click.IntRange(min=MIN_WIDTH, max=10_000),
    metavar="N",
    help=f"Width in columns.  [default: the terminal's, or {DEFAULT_WIDTH}]",
)
@no_color_option
@json_option
@broker_option
def command(
    trace_id: bytes,
    tenant: str,
    dataset: str | None,
    events: bool,
    logs: bool,
    fresh: bool,
    limit: int,
    width: int | None,
    no_color: bool,
    as_json: bool,
    broker: BrokerEndpoint,
) -> None:
    """Print a trace as a tree, with a bar for the time of each span.

    ID is 32 hexadecimal digits, with or without dashes, or the value of a traceparent header. With --json the spans are
    objects inside their parents, as deep as the trace is, with all their attributes and events.
    """
    topic = telemetry_topic(tenant, dataset, "traces")
    with Client(broker) as client, naming_tenant(tenant):
        spans = read_spans(client, topic, trace_id, details=events or as_json, fresh=fresh, limit=limit + 1)
        log_topic = telemetry_topic(tenant, dataset, "logs")
        records = _records(client, log_topic, trace_id, fresh=fresh, limit=limit + 1) if logs else []
    if not spans and not records:
        raise IcestreamError(
            f"there is no span of trace {trace_id.hex()}",
            operation="trace",
            place=str(topic),
            remedy="check the id and the tenant" + ("" if fresh else ", or use --fresh"),
        )
    for found, what in ((spans, "spans"), (records, "log records")):
        if len(found) > limit:
            click.echo(f"only the first {limit:,} {what}; --max reads more", err=True)
    trace = build(spans[:limit], records[:limit])
    try:
        if as_json:
            sys.stdout.buffer.writelines(part.encode() for part in trace_json(trace_id.hex(), trace, logs=logs))
            sys.stdout.buffer.write(b"\n")
        else:
            columns = width or shutil.get_terminal_size((DEFAULT_WIDTH, 0)).columns
            paint = Paint(enabled=has_colours(wanted=not no_color))
            lines = draw(trace_id.hex(), trace, width=max(MIN_WIDTH, columns), paint=paint, events=events)
            sys.stdout.buffer.writelines(f"{line}\n".encode() for line in lines)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        discard_stdout()


def _records(client: Client, topic: TopicName, trace_id: bytes, *, fresh: bool, limit: int) -> list[LogRecord]:
    """Return the log records; none if the tenant has no logs."""
    try:
        return read_records(client, topic, trace_id, fresh=fresh, limit=limit)
    except TopicNotFoundError:
        click.echo(f"no log records: there is no topic {topic}", err=True)
        return []
