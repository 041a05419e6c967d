"""OpenTelemetry's doors: OTLP over gRPC and over HTTP, as `docs/telemetry.md` describes them.

A success means that every row is durable in the log, except those that the response counts as rejected. A failure is
retryable exactly if sending the same request again can help.
"""

from icestream.server.otlp.grpc_door import GrpcDoor
from icestream.server.otlp.http_door import otlp_app
from icestream.server.otlp.receiver import Receiver

__all__ = ["GrpcDoor", "Receiver", "otlp_app"]
