import json

import grpc
import pytest
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status as GoogleStatus  # type: ignore[import-untyped]

from icestream.model.errors import (
    ClosedError,
    DamagedError,
    DiskFullError,
    IcestreamError,
    InvalidMessageError,
    InvalidNameError,
    LimitReachedError,
    LogUnavailableError,
    OverloadedError,
    TooLargeError,
    TopicNotFoundError,
    UnauthenticatedError,
)
from icestream.server.otlp.status import Status, status_of
from icestream.telemetry.tenants import RateLimitedError, TenantRefusedError

CODES = grpc.StatusCode
RETRYABLE_HTTP = {429, 502, 503, 504}
RETRYABLE_GRPC = {CODES.UNAVAILABLE, CODES.RESOURCE_EXHAUSTED}


@pytest.mark.parametrize(
    ("error", "code", "http", "retryable"),
    [
        (UnauthenticatedError("x"), CODES.UNAUTHENTICATED, 401, False),
        (TenantRefusedError("x"), CODES.PERMISSION_DENIED, 403, False),
        (InvalidNameError("x"), CODES.INVALID_ARGUMENT, 400, False),
        (InvalidMessageError("x"), CODES.INVALID_ARGUMENT, 400, False),
        (TooLargeError("x"), CODES.INVALID_ARGUMENT, 413, False),
        (RateLimitedError("x", details={"retry_after_seconds": 2.5}), CODES.RESOURCE_EXHAUSTED, 429, True),
        (OverloadedError("x"), CODES.UNAVAILABLE, 503, True),
        (DiskFullError("x"), CODES.UNAVAILABLE, 503, True),
        (LogUnavailableError("x"), CODES.UNAVAILABLE, 503, True),
        (ClosedError("x"), CODES.UNAVAILABLE, 503, True),
        (TopicNotFoundError("x"), CODES.UNAVAILABLE, 503, True),
        (DamagedError("x"), CODES.INTERNAL, 500, False),
        (ZeroDivisionError("secret"), CODES.INTERNAL, 500, False),
    ],
)
def test_only_what_may_succeed_later_is_told_as_retryable(
    error: Exception, code: grpc.StatusCode, http: int, retryable: bool
) -> None:
    status = status_of(error, "test")
    assert (status.code, status.http) == (code, http)
    assert (status.http in RETRYABLE_HTTP) is retryable
    assert (status.code in RETRYABLE_GRPC) is retryable
    assert (status.retry_after is not None) is retryable
    assert "secret" not in status.message


def test_a_limit_that_does_not_pass_by_itself_says_no_time() -> None:
    status = Status.of(LimitReachedError("x"))
    assert (status.code, status.http) == (CODES.RESOURCE_EXHAUSTED, 429)
    assert status.retry_after is None
    assert status.retry_info is None
    assert not GoogleStatus.FromString(status.to_bytes()).details


@pytest.mark.parametrize("text", ["short", "é" * 3000, "half a pair \ud800", "x" * 127, "x" * 128])
@pytest.mark.parametrize("retry", [None, 0.001, 2.5, 100_000.0])
def test_the_bytes_are_those_of_googles_message(text: str, retry: float | None) -> None:
    message = Status.of(IcestreamError(text)).message
    status = Status(CODES.UNAVAILABLE, 503, message, retry)
    parsed = GoogleStatus.FromString(status.to_bytes())
    assert (parsed.code, parsed.message) == (14, status.message)
    written = json.loads(status.to_json())
    assert (written["code"], written["message"]) == (14, status.message)
    if retry is None:
        assert not parsed.details
        assert "details" not in written
    else:
        info = RetryInfo()
        assert parsed.details[0].Unpack(info)
        assert info.retry_delay.ToMilliseconds() == round(retry * 1000)
        assert float(written["details"][0]["retryDelay"].removesuffix("s")) == pytest.approx(retry)


def test_whole_seconds_are_never_too_few() -> None:
    assert [Status(CODES.UNAVAILABLE, 503, "", seconds).retry_after for seconds in (0.001, 1.0, 2.5)] == ["1", "1", "3"]
