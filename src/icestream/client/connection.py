"""The Flight connection: calls out, typed errors back."""

import json
import os
import random
import threading
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl

from icestream.client.endpoint import BrokerEndpoint
from icestream.model.errors import (
    ClosedError,
    DeadlineError,
    IcestreamError,
    InvalidRequestError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnavailableError,
    error_from_dict,
)

CLIENT = "-event_engine_client"
SERVER = "-event_engine_listener"

_VARIABLE = "GRPC_EXPERIMENTS"
_NOWHERE = "grpc://127.0.0.1:1"
_lock = threading.Lock()
_done = False


def poll_directly(side: str) -> None:
    """Have the thread that waits for the network poll it by itself. Call it before the first Flight client or server.

    By default every message passes through gRPC's event engine: a thread that polls wakes one that reads, which wakes
    the one that waits. With the engine switched off a round trip takes about half the time (docs/decisions/0006). The
    switch is an environment variable that gRPC reads once. It is set only until Flight's gRPC has read it, and never
    where it is set already. Each process switches its own side only: with both off, a server did not always end.
    """
    global _done  # noqa: PLW0603 - gRPC's own switch is one for the whole process
    with _lock:
        if _done or _VARIABLE in os.environ:
            return
        _done = True
        os.environ[_VARIABLE] = side
        try:
            fl.connect(_NOWHERE).close()  # connects to nothing, but makes gRPC read its switches
        finally:
            del os.environ[_VARIABLE]


_CHANNEL = [
    # Clients in one process do not share each other's broken connections.
    ("grpc.use_local_subchannel_pool", 1),
    # Flight's streams cannot be cancelled from outside: keepalive notices a broker that stopped answering.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
]


class Connection:
    """Flight calls to one broker. Safe to use from several threads."""

    def __init__(self, endpoint: BrokerEndpoint, *, timeout_s: float) -> None:
        self.endpoint = endpoint
        self.url = endpoint.url
        self._closed = False
        headers = [] if endpoint.token is None else [(b"authorization", f"Bearer {endpoint.token}".encode())]
        self._options = partial(fl.FlightCallOptions, headers=headers)
        self._call = self._options(timeout=timeout_s)
        self._stream = self._options()
        poll_directly(CLIENT)
        self._new_client = partial(
            fl.FlightClient,
            endpoint.location,
            tls_root_certs=endpoint.root_certificates,
            generic_options=_CHANNEL,
        )
        self._client = self._new_client()

    def action(self, name: str, fields: dict[str, Any], *, timeout_s: float | None = None) -> dict[str, Any]:
        """Make an administrative call; fields that are None are left out. `timeout_s` is for calls that take long."""
        self.check_open(name)
        body = json.dumps({key: value for key, value in fields.items() if value is not None}).encode()
        retries = 1
        options = self._call if timeout_s is None else self._options(timeout=timeout_s)
        while True:
            try:
                results = list(self._client.do_action(fl.Action(name, body), options))
            except (fl.FlightError, pa.ArrowException) as error:
                failure = self.typed(error, name)
                if not (retries and _not_sent(error)):
                    raise failure from error
                retries -= 1  # the broker may be back since the channel last tried: try once more on the new channel
            else:
                break
        response: dict[str, Any] = json.loads(results[0].body.to_pybytes()) if results else {}
        return response

    def get(self, ticket: dict[str, Any], operation: str = "read") -> Any:
        """Return a reader of the ticket's stream. Errors of the broker show when it is read from."""
        self.check_open(operation)
        try:
            return self._client.do_get(fl.Ticket(json.dumps(ticket).encode()), self._stream)
        except (fl.FlightError, pa.ArrowException) as error:
            raise self.typed(error, operation) from error

    def put(self, schema: pa.Schema) -> tuple[Any, Any]:
        """Open a publish stream; return its writer, and the reader of its acknowledgements."""
        self.check_open("publish")
        try:
            writer, reader = self._client.do_put(fl.FlightDescriptor.for_path("publish"), schema, self._stream)
        except (fl.FlightError, pa.ArrowException) as error:
            raise self.typed(error, "publish") from error
        return writer, reader

    def exchange(self, path: str) -> tuple[Any, Any]:
        """Open a stream in both directions; return its writer and its reader. Errors show when it is read from."""
        self.check_open(path)
        try:
            writer, reader = self._client.do_exchange(fl.FlightDescriptor.for_path(path), self._stream)
        except (fl.FlightError, pa.ArrowException) as error:
            raise self.typed(error, path) from error
        return writer, reader

    def typed(self, error: Exception, operation: str) -> IcestreamError:
        """Return the broker's own error if the call carries one, else what the transport's error means."""
        fields = _error_fields(error)
        if fields is not None:
            return error_from_dict(fields)
        reason = _first_sentence(error)
        if isinstance(error, fl.FlightUnavailableError | fl.FlightCancelledError):
            self._renew_channel()
            return UnavailableError(
                f"cannot reach a broker at {self.url}",
                operation=operation,
                place=reason,
                remedy="check the address and that the broker runs",
            )
        if isinstance(error, fl.FlightTimedOutError):
            return DeadlineError(f"no response from the broker at {self.url} in time", operation=operation)
        if isinstance(error, fl.FlightUnauthenticatedError | fl.FlightUnauthorizedError):
            is_known = isinstance(error, fl.FlightUnauthorizedError)
            return (PermissionDeniedError if is_known else UnauthenticatedError)(
                f"the broker at {self.url} refuses this client: {reason}", operation=operation, remedy="check the token"
            )
        if isinstance(error, pa.ArrowInvalid | pa.ArrowNotImplementedError | pa.ArrowKeyError):
            return InvalidRequestError(reason, operation=operation)
        return IcestreamError(f"the broker at {self.url} failed: {reason}", operation=operation)

    def _renew_channel(self) -> None:
        """Use a new channel from now on: a broken one tries to connect only now and then.

        Streams on the old channel go on to their end; it is closed with the last of them.
        """
        if not self._closed:
            self._client = self._new_client()

    def check_open(self, operation: str) -> None:
        if self._closed:
            raise ClosedError("the client is closed", operation=operation)

    def close(self) -> None:
        self._closed = True
        self._client.close()


def is_temporary(error: IcestreamError) -> bool:
    """Tell whether trying again may help. A broker that is stopping says that it is closed; another one starts."""
    return error.retryable or isinstance(error, ClosedError)


def _error_fields(error: Exception) -> dict[str, Any] | None:
    extra = getattr(error, "extra_info", None)
    if not extra:
        return None
    try:
        fields = json.loads(extra)
    except ValueError:
        return None
    return fields if isinstance(fields, dict) and "code" in fields else None


def _not_sent(error: Exception) -> bool:
    """Tell whether the call failed before it could have had any effect."""
    return isinstance(error, fl.FlightUnavailableError) and "failed to connect" in str(error)


def _first_sentence(error: Exception) -> str:
    """Return the error's text without the trace and gRPC's debug context that Flight appends."""
    text = str(error).split(". gRPC client debug context", 1)[0].split(". Detail: Python exception", 1)[0]
    return text.removeprefix("Flight returned ").split("with message: ", 1)[-1]


class Backoff:
    """How long to wait before the next try: exponential, with jitter so that clients do not return all at once."""

    def __init__(self, first_s: float = 0.02, limit_s: float = 2.0) -> None:
        self._first_s = first_s
        self._limit_s = limit_s
        self._tries = 0

    def next(self) -> float:
        ceiling = min(self._limit_s, self._first_s * (1 << min(self._tries, 16)))
        self._tries += 1
        jitter: float = random.uniform(0.5, 1.0)  # noqa: S311 - no secret
        return ceiling * jitter

    def reset(self) -> None:
        self._tries = 0
