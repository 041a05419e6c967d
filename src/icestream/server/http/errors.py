"""Errors as HTTP responses: `{"error": {...}}` with a status that fits the error's code."""

import json
from typing import Any

import msgspec
import structlog
from starlette.responses import Response

from icestream.model.errors import IcestreamError

RETRY_AFTER_SECONDS = 1
CHALLENGE = 'Bearer realm="icestream"'
_MAX_SHOWN = 200
_encode = msgspec.json.Encoder().encode
_log = structlog.get_logger(__name__)


class NoSuchRouteError(IcestreamError):
    code = "no_such_route"


class MethodNotAllowedError(IcestreamError):
    code = "method_not_allowed"


class UnsupportedMediaTypeError(IcestreamError):
    """A body in a format that the route does not take."""

    code = "unsupported_media_type"


class NotAcceptableError(IcestreamError):
    """A response was asked for in a format that it cannot have."""

    code = "not_acceptable"


class SlowRequestError(IcestreamError):
    """Nothing of a body arrived for too long."""

    code = "slow_request"
    retryable = True


STATUS = {
    "invalid_name": 400,
    "invalid_request": 400,
    "invalid_message": 400,
    "unauthenticated": 401,
    "permission_denied": 403,
    "origin_refused": 403,
    "no_such_route": 404,
    "topic_not_found": 404,
    "subscription_not_found": 404,
    "method_not_allowed": 405,
    "not_acceptable": 406,
    "slow_request": 408,
    "topic_exists": 409,
    "conflict": 409,
    "subscription_busy": 409,
    "sequence_gap": 409,
    "producer_fenced": 409,
    "stale_epoch": 409,
    "commit_conflict": 409,
    "incompatible_table": 409,
    "ledger_mismatch": 409,
    "consumer_gone": 410,
    "too_large": 413,
    "unsupported_media_type": 415,
    "offset_out_of_range": 416,
    "upgrade_required": 426,
    "limit_reached": 429,
    "overloaded": 429,
    "log_unavailable": 503,
    "log_lost": 503,
    "table_lost": 503,
    "unavailable": 503,
    "catalog_unavailable": 503,
    "snapshot_expired": 503,
    "commit_unknown": 503,
    "closed": 503,
    "deadline": 504,
    "disk_full": 507,
}
"""Every other code is 500: the caller cannot do anything about it."""


def json_response(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(json_bytes(content), status, headers, "application/json")


def json_bytes(content: Any) -> bytes:
    try:
        return _encode(content)
    except UnicodeEncodeError:  # half a surrogate pair, which an error may quote from a request
        return json.dumps(msgspec.to_builtins(content), ensure_ascii=False).encode("utf-8", "replace")


def error_response(error: IcestreamError, headers: dict[str, str] | None = None) -> Response:
    status = STATUS.get(error.code, 500)
    headers = dict(headers or {})
    if status == 401:  # noqa: PLR2004
        headers["WWW-Authenticate"] = CHALLENGE
    if error.retryable and status in (429, 503, 507):
        headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
    return json_response({"error": error.to_dict()}, status, headers)


def unexpected_response(error: Exception, operation: str) -> Response:
    """Log a fault of icestream itself with its trace, and return a response without it."""
    _log.error("http_request_failed", operation=operation, exc_info=error)
    return error_response(IcestreamError(f"internal error: {type(error).__name__}", operation=operation))


def shorten(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…"
