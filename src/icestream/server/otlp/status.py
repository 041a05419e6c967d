"""Errors as `google.rpc.Status`, which both protocols speak, with `RetryInfo` where a sender may try again.

The two messages are written by hand: they are a number, a text and a duration, and not worth a library of their own.
"""

import json
import math
from typing import NamedTuple

import grpc
import structlog
from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration

from icestream.model.errors import IcestreamError
from icestream.telemetry.tenants import RateLimitedError

RETRY_SECONDS = 1.0
_RETRY_INFO = "type.googleapis.com/google.rpc.RetryInfo"
_MAX_TEXT = 500  # statuses travel in HTTP/2 headers, which are small
_FINAL = {
    "unauthenticated": (grpc.StatusCode.UNAUTHENTICATED, 401),
    "permission_denied": (grpc.StatusCode.PERMISSION_DENIED, 403),
    "tenant_refused": (grpc.StatusCode.PERMISSION_DENIED, 403),
    "invalid_name": (grpc.StatusCode.INVALID_ARGUMENT, 400),
    "invalid_request": (grpc.StatusCode.INVALID_ARGUMENT, 400),
    "invalid_message": (grpc.StatusCode.INVALID_ARGUMENT, 400),
    "too_large": (grpc.StatusCode.INVALID_ARGUMENT, 413),
    "limit_reached": (grpc.StatusCode.RESOURCE_EXHAUSTED, 429),
    "no_such_route": (grpc.StatusCode.UNIMPLEMENTED, 404),
    "method_not_allowed": (grpc.StatusCode.UNIMPLEMENTED, 405),
    "slow_request": (grpc.StatusCode.DEADLINE_EXCEEDED, 408),
    "unsupported_media_type": (grpc.StatusCode.INVALID_ARGUMENT, 415),
}
"""What will not change by sending again.

A limit that is reached does not say when it will not be: that tells gRPC's senders to give up, while HTTP has no code
that says so, and senders try again for as long as they are set to.
"""
_PASSES = frozenset({"closed", "topic_not_found", "topic_exists"})
"""The broker is stopping, or a topic was deleted in between: the next try finds another broker, or makes the topic."""
_log = structlog.get_logger(__name__)


class Status(NamedTuple):
    code: grpc.StatusCode
    http: int
    message: str
    retry_seconds: float | None = None
    """When to send the same again; None: never."""

    @classmethod
    def of(cls, error: IcestreamError) -> "Status":
        text = str(error)[:_MAX_TEXT].encode(errors="backslashreplace").decode()
        if isinstance(error, RateLimitedError):
            return cls(grpc.StatusCode.RESOURCE_EXHAUSTED, 429, text, error.retry_after_seconds)
        if (error.retryable and error.code not in _FINAL) or error.code in _PASSES:
            return cls(grpc.StatusCode.UNAVAILABLE, 503, text, RETRY_SECONDS)
        code, http = _FINAL.get(error.code, (grpc.StatusCode.INTERNAL, 500))
        return cls(code, http, text)

    @property
    def number(self) -> int:
        """GRPC's own of the code."""
        number: int = self.code.value[0]
        return number

    @property
    def retry_after(self) -> str | None:
        """Return whole seconds, for HTTP."""
        return str(max(1, math.ceil(self.retry_seconds))) if self.retry_seconds is not None else None

    @property
    def retry_info(self) -> bytes | None:
        """A `google.rpc.RetryInfo`."""
        if self.retry_seconds is None:
            return None
        delay = Duration()
        delay.FromMilliseconds(math.ceil(self.retry_seconds * 1000))
        return _field(1, delay.SerializeToString())

    def to_bytes(self) -> bytes:
        data = b"\x08" + _varint(self.number) + _field(2, self.message.encode())
        info = self.retry_info
        if info is not None:
            data += _field(3, Any(type_url=_RETRY_INFO, value=info).SerializeToString())
        return data

    def to_json(self) -> bytes:
        fields: dict[str, object] = {"code": self.number, "message": self.message}
        if self.retry_seconds is not None:
            delay = f"{math.ceil(self.retry_seconds * 1000) / 1000:g}s"
            fields["details"] = [{"@type": _RETRY_INFO, "retryDelay": delay}]
        return json.dumps(fields).encode()


def status_of(error: Exception, operation: str) -> Status:
    """Log a fault of icestream itself with its trace, and return an error without it."""
    if isinstance(error, IcestreamError):
        return Status.of(error)
    _log.error("otlp_request_failed", operation=operation, exc_info=error)
    return Status(grpc.StatusCode.INTERNAL, 500, f"internal error: {type(error).__name__}")


def _field(number: int, data: bytes) -> bytes:
    """A field of text, bytes or a message."""
    return bytes([number << 3 | 2]) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:  # noqa: PLR2004 - seven bits a byte
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)
