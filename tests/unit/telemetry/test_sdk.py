"""What OpenTelemetry's own SDK makes of a program arrives as rows and comes back as it was."""

from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from icestream.telemetry import Signal, to_batch, to_request

RESOURCE = Resource({"service.name": "shop", "process.command_args": ["shop", "--fast"]})


def rows_of(signal: Signal, request: Any) -> list[dict[str, Any]]:
    batch = to_batch(signal, request.SerializeToString())
    assert type(request).FromString(to_request(signal, batch)) == request
    found: list[dict[str, Any]] = batch.to_pylist()
    return found


def test_spans() -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider(resource=RESOURCE, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test", "1.0", attributes={"team": "red"})
    with tracer.start_as_current_span("order", attributes={"items": 3, "tags": ["a", "b"]}) as parent:
        parent.add_event("paid", {"amount": 9.5})
        with (
            pytest.raises(ZeroDivisionError),
            tracer.start_as_current_span("ship", links=[trace.Link(parent.get_span_context())]),
        ):
            raise ZeroDivisionError
    child, root = rows_of(Signal.TRACES, encode_spans(exporter.get_finished_spans()))

    assert (root["name"], root["service_name"], root["parent_span_id"]) == ("order", "shop", None)
    assert (child["parent_span_id"], child["trace_id"]) == (root["span_id"], root["trace_id"])
    assert dict(root["attributes"]) == {"items": "3", "tags": '["a","b"]'}
    assert dict(root["events"][0]["attributes"]) == {"amount": "9.5"}
    assert child["links"][0]["span_id"] == root["span_id"]
    assert (child["status_code"], child["events"][0]["name"]) == (2, "exception")
    assert dict(child["resource"]["attributes"])["process.command_args"] == '["shop","--fast"]'
    assert dict(child["scope"]["attributes"]) == {"team": "red"}


def test_metrics() -> None:
    reader = InMemoryMetricReader()
    meter = MeterProvider([reader], resource=RESOURCE, shutdown_on_exit=False).get_meter("test")
    meter.create_counter("orders", unit="1").add(2, {"country": "de"})
    meter.create_histogram("latency").record(0.25)
    meter.create_gauge("load").set(0.5)
    data = reader.get_metrics_data()
    assert data is not None
    found = {row["name"]: row for row in rows_of(Signal.METRICS, encode_metrics(data))}

    assert (found["orders"]["type"], found["orders"]["value_int"]) == ("sum", 2)
    assert found["orders"]["is_monotonic"]
    assert (found["latency"]["count"], found["latency"]["sum"], found["latency"]["min"]) == (1, 0.25, 0.25)
    assert found["load"]["value_double"] == 0.5
    assert {row["service_name"] for row in found.values()} == {"shop"}
