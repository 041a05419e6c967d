"""OpenTelemetry's own exporters: all signals, both protocols, plain and compressed."""

import logging
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter as GrpcLogs
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcMetrics
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpans
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter as HttpLogs
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpMetrics
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpans
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from tests.integration.otlp.conftest import Doors

from icestream.telemetry import Signal

RESOURCE = Resource({"service.name": "shop"})
PLAIN, GZIP = "plain", "gzip"
EXPORTERS: dict[tuple[str, Signal], Callable[..., Any]] = {
    ("grpc", Signal.TRACES): GrpcSpans,
    ("grpc", Signal.LOGS): GrpcLogs,
    ("grpc", Signal.METRICS): GrpcMetrics,
    ("http", Signal.TRACES): HttpSpans,
    ("http", Signal.LOGS): HttpLogs,
    ("http", Signal.METRICS): HttpMetrics,
}
pytestmark = pytest.mark.parametrize("compression", [PLAIN, GZIP])


def exporter(doors: Doors, protocol: str, signal: Signal, compression: str, tenant: str) -> Any:
    make = EXPORTERS[protocol, signal]
    headers = {"x-tenant-id": tenant}
    if protocol == "grpc":
        chosen = grpc.Compression.Gzip if compression == GZIP else grpc.Compression.NoCompression
        return make(endpoint=doors.grpc_address, insecure=True, headers=headers, compression=chosen)
    return make(
        endpoint=f"{str(doors.http.base_url).rstrip(chr(47))}/v1/{signal}",
        headers=headers,
        compression=Compression.Gzip if compression == GZIP else Compression.NoCompression,
    )


@pytest.mark.parametrize("protocol", ["grpc", "http"])
class TestExporters:
    def test_spans(self, doors: Doors, protocol: str, compression: str) -> None:
        tenant = f"spans-{protocol}-{compression}"
        provider = TracerProvider(resource=RESOURCE, shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(exporter(doors, protocol, Signal.TRACES, compression, tenant)))
        tracer = provider.get_tracer("test")
        for number in range(600):
            with tracer.start_as_current_span(f"span {number}", attributes={"number": number}):
                pass
        assert provider.force_flush()
        provider.shutdown()
        rows = doors.rows(f"{tenant}/traces")
        assert sorted(rows["name"].to_pylist()) == sorted(f"span {number}" for number in range(600))
        assert set(rows["service_name"].to_pylist()) == {"shop"}

    def test_log_records(self, doors: Doors, protocol: str, compression: str) -> None:
        tenant = f"logs-{protocol}-{compression}"
        provider = LoggerProvider(resource=RESOURCE, shutdown_on_exit=False)
        made = exporter(doors, protocol, Signal.LOGS, compression, tenant)
        provider.add_log_record_processor(BatchLogRecordProcessor(made))
        logger = provider.get_logger("test")
        for number in range(20):
            logger.emit(body=f"line {number}", severity_text=logging.getLevelName(logging.INFO), timestamp=number + 1)
        assert provider.force_flush()
        provider.shutdown()
        rows = doors.rows(f"{tenant}/logs")
        assert rows["body"].to_pylist() == [f"line {number}" for number in range(20)]
        assert rows["time_unix_nano"].to_pylist() == list(range(1, 21))

    def test_data_points(self, doors: Doors, protocol: str, compression: str) -> None:
        tenant = f"metrics-{protocol}-{compression}"
        reader = PeriodicExportingMetricReader(
            exporter(doors, protocol, Signal.METRICS, compression, tenant), export_interval_millis=float("inf")
        )
        provider = MeterProvider([reader], resource=RESOURCE, shutdown_on_exit=False)
        meter = provider.get_meter("test")
        meter.create_counter("orders").add(3)
        meter.create_histogram("latency").record(0.5)
        assert provider.force_flush()
        rows = doors.rows(f"{tenant}/metrics").to_pylist()
        assert {(row["name"], row["type"]) for row in rows} == {("orders", "sum"), ("latency", "histogram")}
        provider.shutdown()
