"""Small OTLP requests of each signal, for tests of the doors."""

from typing import Any

from icestream.telemetry import Signal
from icestream.telemetry.schemas import REQUESTS

START = 1_700_000_000_123_456_789


def request(signal: Signal, items: int = 1, *, name: str = "item", **resources: str) -> Any:
    """Items of one resource, whose attributes are `resources`."""
    made = REQUESTS[signal]()
    add(made, signal, items, name=name, **resources)
    return made


def add(made: Any, signal: Signal, items: int, *, name: str = "item", **resources: str) -> None:
    """One more resource with items."""
    groups = {Signal.TRACES: "resource_spans", Signal.LOGS: "resource_logs", Signal.METRICS: "resource_metrics"}
    group = getattr(made, groups[signal]).add()
    for key, value in {"service.name": "shop", **resources}.items():
        group.resource.attributes.add(key=key).value.string_value = value
    for number in range(items):
        label = f"{name} {number}"
        if signal is Signal.TRACES:
            span = (group.scope_spans or [group.scope_spans.add()])[0].spans.add(name=label, start_time_unix_nano=START)
            span.trace_id, span.span_id = number.to_bytes(16), (number + 1).to_bytes(8)
        elif signal is Signal.LOGS:
            record = (group.scope_logs or [group.scope_logs.add()])[0].log_records.add(time_unix_nano=START)
            record.body.string_value = label
        else:
            metric = (group.scope_metrics or [group.scope_metrics.add()])[0].metrics.add(name=label)
            metric.gauge.data_points.add(time_unix_nano=START, as_int=number)


def serialized(signal: Signal, items: int = 1, *, name: str = "item", **resources: str) -> bytes:
    data: bytes = request(signal, items, name=name, **resources).SerializeToString()
    return data
