"""OTLP over gRPC.

Requests come in as bytes: gRPC decompresses them, within the same limit as plain ones, and parses nothing. A worker
thread handles one request from its arrival to its response, so the number of threads bounds how many are in memory.
Connections end after a while, with time for open requests: that spreads senders over brokers behind one address, and
takes workers back from a sender that opens requests and never completes them.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import grpc

from icestream.model.errors import UnavailableError
from icestream.model.names import url_host
from icestream.server.metrics import BrokerMetrics
from icestream.server.otlp.receiver import Receiver
from icestream.server.otlp.status import Status, status_of
from icestream.telemetry import Signal

METHODS = {
    Signal.TRACES: "opentelemetry.proto.collector.trace.v1.TraceService",
    Signal.LOGS: "opentelemetry.proto.collector.logs.v1.LogsService",
    Signal.METRICS: "opentelemetry.proto.collector.metrics.v1.MetricsService",
}
_DOOR = "otlp_grpc"
_WORKERS = 64
_STREAMS_A_CONNECTION = 100
"""Beyond it a client waits, which is better than to be refused."""
_CONNECTION_AGE_MS = 120_000
_CONNECTION_GRACE_MS = 30_000
_STATUS_DETAILS = "grpc-status-details-bin"
_RETRY_INFO = "google.rpc.retryinfo-bin"
"""Not in the specification, but OpenTelemetry's Python SDK reads it."""


class GrpcDoor:
    """Serves between `start` and `stop`."""

    def __init__(self, receiver: Receiver, metrics: BrokerMetrics, host: str, port: int) -> None:
        self._receiver = receiver
        self._metrics = metrics
        self._host = url_host(host)
        self._workers = ThreadPoolExecutor(_WORKERS, thread_name_prefix="otlp")
        self._server = grpc.server(
            self._workers,
            options=[
                ("grpc.max_receive_message_length", receiver.options.max_request_bytes),
                ("grpc.so_reuseport", 0),  # a second broker at the same port must fail, not share it
                ("grpc.max_concurrent_streams", _STREAMS_A_CONNECTION),
                ("grpc.max_connection_age_ms", _CONNECTION_AGE_MS),
                ("grpc.max_connection_age_grace_ms", _CONNECTION_GRACE_MS),
            ],
            maximum_concurrent_rpcs=receiver.max_requests,
        )
        handlers = [
            grpc.method_handlers_generic_handler(
                service, {"Export": grpc.unary_unary_rpc_method_handler(self._export(signal))}
            )
            for signal, service in METHODS.items()
        ]
        self._server.add_generic_rpc_handlers(handlers)
        self.port = self._bind(port)

    @property
    def address(self) -> str:
        return f"http://{self._host}:{self.port}"

    def _bind(self, port: int) -> int:
        try:
            return self._server.add_insecure_port(f"{self._host}:{port}")
        except RuntimeError as error:
            raise UnavailableError(
                "the door for OpenTelemetry over gRPC cannot be opened",
                operation="open door",
                place=f"{self._host}:{port}",
                remedy="stop what listens there, or set server.otlp_grpc_port; a negative number leaves the door shut",
                retryable=False,
            ) from error

    def start(self) -> None:
        self._server.start()

    def stop(self, timeout: float) -> None:
        """Take no more requests, let the open ones finish, and cut those that have not after `timeout` seconds."""
        self._server.stop(timeout).wait()
        self._workers.shutdown(wait=False, cancel_futures=True)

    def _export(self, signal: Signal) -> Callable[[bytes, grpc.ServicerContext], bytes]:
        def export(request: bytes, context: grpc.ServicerContext) -> bytes:
            with self._metrics.open_stream(_DOOR):
                try:
                    return self._respond(signal, request, context)
                except Exception as error:  # noqa: BLE001 (made into a status, and logged where it is no refusal)
                    return _refuse(context, status_of(error, f"receive {signal}"))

        return export

    def _respond(self, signal: Signal, request: bytes, context: grpc.ServicerContext) -> bytes:
        headers = _headers(context)
        receiver, budget = self._receiver, self._receiver.budget
        sender = receiver.identify(headers, signal)
        with receiver.counting(signal, sender):
            budget.take(len(request))
            try:
                response: bytes = receiver.export(signal, sender, request).SerializeToString()
            finally:
                budget.give_back(len(request))
        return response


def _headers(context: grpc.ServicerContext) -> dict[str, str]:
    """Those that are text, different values of one joined by commas.

    No tenant, dataset or token reads like that, so a request that names two is refused, and none is chosen for it.
    """
    values: dict[str, dict[str, None]] = {}
    for key, value in context.invocation_metadata() or ():
        if isinstance(value, str):
            values.setdefault(key, {})[value] = None
    return {key: ", ".join(different) for key, different in values.items()}


def _refuse(context: grpc.ServicerContext, status: Status) -> bytes:
    """The status, without raising: gRPC would log that as a fault."""
    context.set_code(status.code)
    context.set_details(status.message)
    details = [(_STATUS_DETAILS, status.to_bytes())]
    info = status.retry_info
    if info is not None:
        details.append((_RETRY_INFO, info))
    context.set_trailing_metadata(tuple(details))
    return b""
