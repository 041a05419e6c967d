"""Sends a trace and its log records with OpenTelemetry's SDK: `python examples/send_telemetry.py TENANT`.

Needs opentelemetry-sdk and opentelemetry-exporter-otlp-proto-grpc. Sends to OTEL_EXPORTER_OTLP_ENDPOINT, by default
http://localhost:4317, with the token ICESTREAM_TOKEN if it is set. Prints the trace's id, or exits with 1 if the broker
did not accept everything. Then try

    icestream trace ID --tenant TENANT --logs
"""

import logging
import os
import sys
import time
from collections.abc import Sequence

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import LoggerProvider, LoggingHandler, ReadableLogRecord
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, LogRecordExportResult
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult

missing = {"spans", "log records"}  # not accepted yet; the SDK itself only logs errors


class Spans(OTLPSpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = super().export(spans)
        if result is SpanExportResult.SUCCESS:
            missing.discard("spans")
        return result


class Records(OTLPLogExporter):
    def export(self, batch: Sequence[ReadableLogRecord]) -> LogRecordExportResult:
        result = super().export(batch)
        if result is LogRecordExportResult.SUCCESS:
            missing.discard("log records")
        return result


tenant = sys.argv[1] if len(sys.argv) > 1 else "acme"
headers = {"x-tenant-id": tenant}
if token := os.environ.get("ICESTREAM_TOKEN"):
    headers["authorization"] = f"Bearer {token}"
resource = Resource.create({"service.name": "shop"})

spans = TracerProvider(resource=resource)
spans.add_span_processor(BatchSpanProcessor(Spans(headers=headers, insecure=True)))
tracer = spans.get_tracer("example")

records = LoggerProvider(resource=resource)
records.add_log_record_processor(BatchLogRecordProcessor(Records(headers=headers, insecure=True)))
log = logging.getLogger("shop")
log.setLevel(logging.INFO)
log.addHandler(LoggingHandler(logger_provider=records))

with tracer.start_as_current_span("checkout", kind=trace.SpanKind.SERVER) as root:
    log.info("an order of 3 items")
    with tracer.start_as_current_span("reserve stock"):
        time.sleep(0.02)
    with tracer.start_as_current_span("charge card", kind=trace.SpanKind.CLIENT) as charge:
        for attempt in (1, 2):
            with tracer.start_as_current_span("POST /charges") as call:
                call.set_attribute("attempt", attempt)
                time.sleep(0.03)
                if attempt == 1:
                    log.warning("timeout, attempt %d", attempt)
                    call.set_status(trace.StatusCode.ERROR, "timeout")
        charge.add_event("charged", {"amount": 42})

spans.shutdown()
records.shutdown()
if missing:
    sys.exit(f"{' and '.join(sorted(missing))} were not accepted, for the reason above")
print(f"{root.get_span_context().trace_id:032x}")
