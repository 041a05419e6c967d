"""OpenTelemetry's doors: OTLP over gRPC and over HTTP, as `docs/telemetry.md` describes them.

An answer of success means that every row is in the log, on disk, but for those that it tells as rejected. A failure is
retryable for the sender exactly if sending the same request again can help.
"""

from icestream.server.otlp.grpc_door import GrpcDoor
from icestream.server.otlp.http_door import otlp_app
from icestream.server.otlp.receiver import Receiver

__all__ = ["GrpcDoor", "Receiver", "otlp_app"]
