"""The three kinds of telemetry, and the request of each."""

from enum import StrEnum
from typing import Any

from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Signal(StrEnum):
    """The value is also the name of the tenant's topic."""

    TRACES = "traces"
    LOGS = "logs"
    METRICS = "metrics"


REQUESTS: dict[Signal, Any] = {
    Signal.TRACES: ExportTraceServiceRequest,
    Signal.LOGS: ExportLogsServiceRequest,
    Signal.METRICS: ExportMetricsServiceRequest,
}
"""The message that an exporter sends."""


def new_request(signal: Signal) -> Message:
    made: Message = REQUESTS[signal]()
    return made
