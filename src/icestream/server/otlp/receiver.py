"""What both doors do with a request, once they have its bytes."""

import contextlib
from collections.abc import Iterator, Mapping
from time import perf_counter
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from icestream.model.errors import IcestreamError
from icestream.server.metrics import BrokerMetrics
from icestream.storage import IcebergStorage
from icestream.telemetry import Signal
from icestream.telemetry.ingest import Ingest
from icestream.telemetry.tenants import TelemetrySender

_RESPONSES: dict[Signal, tuple[Any, str]] = {
    Signal.TRACES: (ExportTraceServiceResponse, "rejected_spans"),
    Signal.LOGS: (ExportLogsServiceResponse, "rejected_log_records"),
    Signal.METRICS: (ExportMetricsServiceResponse, "rejected_data_points"),
}


class Receiver:
    def __init__(self, storage: IcebergStorage, metrics: BrokerMetrics) -> None:
        self._ingest = Ingest(storage)
        self._metrics = metrics
        if metrics.tenants is not None:
            metrics.tenants.received = self._ingest.statistics
        self.budget = storage.budget
        self.options = self._ingest.options
        self.max_requests = storage.settings.server.max_connections

    def identify(self, headers: Mapping[str, str], signal: Signal) -> TelemetrySender:
        with self.counting(signal, None):
            return self._ingest.tenants.identify(headers)

    @contextlib.contextmanager
    def counting(self, signal: Signal, sender: TelemetrySender | None) -> Iterator[None]:
        """Count a request as refused if it is; doors do all that they do with one in here."""
        try:
            yield
        except IcestreamError as error:
            self._metrics.refused(error.code)
            self._ingest.statistics.refused(sender.tenant if sender is not None else None, signal, error.code)
            raise

    def export(self, signal: Signal, sender: TelemetrySender, request: bytes, *, is_json: bool = False) -> Any:
        """The response, as a message; it is made when the request is durable."""
        started = perf_counter()
        stored = self._ingest.store(signal, sender, request, is_json=is_json)
        if stored.rows:
            self._metrics.published(stored.rows, stored.nbytes, perf_counter() - started)
        kind, counter = _RESPONSES[signal]
        response = kind()
        if stored.rejected:
            setattr(response.partial_success, counter, stored.rejected)
            response.partial_success.error_message = stored.reason
        return response
