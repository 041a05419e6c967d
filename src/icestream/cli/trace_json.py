"""A trace as JSON: one object, in which spans are inside their parents."""

from collections.abc import Iterator
from typing import Any

from icestream.cli.formatting import rfc3339
from icestream.cli.terminal import json_text
from icestream.cli.trace_tree import Node, Record, Trace
from icestream.cli.trace_view import KINDS

_STATUS = {0: "unset", 1: "ok", 2: "error"}


def trace_json(trace_id: str, trace: Trace, *, logs: bool = False) -> Iterator[str]:
    """The text in pieces. It is put together here, as a tree may be deeper than `json` can go."""
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
        head["logs"] = [_record(record) for record in trace.stray_records]
    yield f'{json_text(head)[:-1]}, "spans": ['
    opened = 0
    for node, depth, _ in trace.walk():
        is_sibling = depth < opened
        yield "]}" * (opened - depth) + (", " if is_sibling else "")
        yield f'{json_text(_fields(node, trace, logs=logs))[:-1]}, "children": ['
        opened = depth + 1
    yield "]}" * opened + "]}"


def _fields(node: Node, trace: Trace, *, logs: bool) -> dict[str, Any]:
    span = node.span
    fields: dict[str, Any] = {
        "span_id": _hex(span.span_id),
        "parent_span_id": _hex(span.parent_id),
        "place": node.place.value,
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
        fields["logs"] = [_record(record) for record in node.records]
    return fields


def _record(record: Record) -> dict[str, Any]:
    return {
        "span_id": _hex(record.span_id),
        "time_unix_nano": record.time_ns or None,
        "severity": record.severity,
        "service": record.service,
        "body": record.body,
    }


def _hex(value: bytes | None) -> str | None:
    return None if value is None else value.hex()
