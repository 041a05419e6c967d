"""icestream's errors as Flight statuses: the error object travels as the status' extra information."""

import contextlib
import json
from collections.abc import Iterator

import pyarrow as pa
import structlog
from pyarrow import flight

from icestream.model.errors import (
    IcestreamError,
    InvalidRequestError,
    PermissionDeniedError,
    UnauthenticatedError,
)

_MAX_TEXT = 1000  # statuses travel in HTTP/2 headers, which are small
_log = structlog.get_logger(__name__)


def to_flight_error(error: IcestreamError) -> flight.FlightError:
    fields = error.to_dict()
    for name in ("message", "place", "remedy"):
        fields[name] = fields[name][:_MAX_TEXT]
    if isinstance(error, UnauthenticatedError):
        kind = flight.FlightUnauthenticatedError
    elif isinstance(error, PermissionDeniedError):
        kind = flight.FlightUnauthorizedError
    else:
        kind = flight.FlightUnavailableError if error.retryable else flight.FlightServerError
    text = str(error)[:_MAX_TEXT].encode(errors="backslashreplace").decode()  # a name may hold half a surrogate pair
    return kind(text, json.dumps(fields).encode())


@contextlib.contextmanager
def flight_errors(operation: str) -> Iterator[None]:
    """Turn what goes wrong inside into a Flight status; a fault of icestream's own is logged with its trace."""
    try:
        yield
    except IcestreamError as error:
        raise to_flight_error(error) from error
    except flight.FlightError:
        raise
    except pa.ArrowInvalid as error:
        raise to_flight_error(InvalidRequestError(f"not valid Arrow: {error}", operation=operation)) from error
    except Exception as error:
        _log.exception("a call failed", operation=operation)
        raise to_flight_error(IcestreamError(f"internal error: {error!r}", operation=operation)) from error
