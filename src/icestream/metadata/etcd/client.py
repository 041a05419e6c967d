"""Calls of etcd, repeated on the next endpoint, with a pause after each round, until the time is up."""

import random
import threading
import time
from collections.abc import Callable
from enum import Enum, auto
from pathlib import Path
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from icestream.metadata.etcd import messages as m
from icestream.metadata.etcd.messages import AuthenticateRequest
from icestream.metadata.etcd.options import EtcdOptions
from icestream.metadata.store import MAX_PAGE_BYTES, CompactedError, LeaseExpiredError
from icestream.model.errors import (
    ClosedError,
    DamagedError,
    IcestreamError,
    InvalidRequestError,
    LimitReachedError,
    TooLargeError,
    UnavailableError,
)

Metadata = tuple[tuple[str, str], ...]
RequestT = TypeVar("RequestT", bound=Message)
ReplyT = TypeVar("ReplyT", bound=Message)


class Calls:
    """The remote calls of etcd on one channel."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel
        self.range = self.unary("KV/Range", m.RangeRequest, m.RangeResponse)
        self.txn = self.unary("KV/Txn", m.TxnRequest, m.TxnResponse)
        self.lease_grant = self.unary("Lease/LeaseGrant", m.LeaseGrantRequest, m.LeaseGrantResponse)
        self.lease_revoke = self.unary("Lease/LeaseRevoke", m.LeaseRevokeRequest, m.LeaseRevokeResponse)
        self.lease_time_to_live = self.unary(
            "Lease/LeaseTimeToLive", m.LeaseTimeToLiveRequest, m.LeaseTimeToLiveResponse
        )
        self.lease_keep_alive = self._stream("Lease/LeaseKeepAlive", m.LeaseKeepAliveRequest, m.LeaseKeepAliveResponse)
        self.watch = self._stream("Watch/Watch", m.WatchRequest, m.WatchResponse)
        self.authenticate = self.unary("Auth/Authenticate", m.AuthenticateRequest, m.AuthenticateResponse)

    def unary(
        self, method: str, request: type[RequestT], reply: type[ReplyT]
    ) -> "grpc.UnaryUnaryMultiCallable[RequestT, ReplyT]":
        """Return a call of etcd with one request and one reply."""
        return self._channel.unary_unary(
            _path(method), request_serializer=request.SerializeToString, response_deserializer=reply.FromString
        )

    def _stream(
        self, method: str, request: type[RequestT], reply: type[ReplyT]
    ) -> "grpc.StreamStreamMultiCallable[RequestT, ReplyT]":
        return self._channel.stream_stream(
            _path(method), request_serializer=request.SerializeToString, response_deserializer=reply.FromString
        )


def _path(method: str) -> str:
    return f"/etcdserverpb.{method}"


MAX_REPLY_BYTES = 2 * MAX_PAGE_BYTES

_CHANNEL_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.max_receive_message_length", MAX_REPLY_BYTES),
    # Notice a member that vanished. etcd refuses pings more often than every 5 seconds.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # Reconnect soon to a member that comes back.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 500),
    # A metadata store is in the same network; an HTTP proxy leads out of it.
    ("grpc.enable_http_proxy", 0),
)


class Endpoint:
    def __init__(self, channel: grpc.Channel) -> None:
        self.channel = channel
        self.calls = Calls(channel)


class Endpoints:
    """Connections to the members of a cluster. Calls use the preferred one until it fails. Thread-safe."""

    def __init__(self, options: EtcdOptions) -> None:
        if not options.endpoints:
            raise InvalidRequestError("no endpoint is given", operation="open etcd", remedy="give at least one")
        credentials = _credentials(options)
        is_secure = options.ca_file is not None or options.cert_file is not None
        self._lock = threading.Lock()
        self._preferred = 0
        self._endpoints = [Endpoint(_channel(text, credentials, is_secure=is_secure)) for text in options.endpoints]

    def __len__(self) -> int:
        return len(self._endpoints)

    def preferred(self) -> Endpoint:
        with self._lock:
            return self._endpoints[self._preferred]

    def failed(self, endpoint: Endpoint) -> None:
        """Prefer the next endpoint, unless another thread has changed it."""
        with self._lock:
            if self._endpoints[self._preferred] is endpoint:
                self._preferred = (self._preferred + 1) % len(self._endpoints)

    def close(self) -> None:
        for endpoint in self._endpoints:
            endpoint.channel.close()


def _channel(text: str, credentials: grpc.ChannelCredentials, *, is_secure: bool) -> grpc.Channel:
    scheme, _, address = text.rpartition("://")
    address = address.rstrip("/")
    if scheme == "https" or (not scheme and is_secure):
        return grpc.secure_channel(address, credentials, options=_CHANNEL_OPTIONS)
    return grpc.insecure_channel(address, options=_CHANNEL_OPTIONS)


def _credentials(options: EtcdOptions) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(_read(options.ca_file), _read(options.key_file), _read(options.cert_file))


def _read(path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidRequestError(
            f"the file cannot be read: {error.strerror}", operation="open etcd", place=str(path)
        ) from error


# Failed calls: whether etcd may have executed it, whether to repeat it, and the error for the caller

_NOT_SENT = (
    "failed to connect to all addresses",
    "DNS resolution failed",
    "etcdserver: no leader",
    "etcdserver: too many requests",
)
_BAD_TOKEN = ("etcdserver: invalid auth token", "etcdserver: revision of auth store is old")
_ACCESS = ("authentication failed", "user name is empty", "permission denied", "invalid auth token")
_TRANSIENT = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.INTERNAL,  # a broken connection may look like this
    grpc.StatusCode.UNKNOWN,  # so may a proposal that a leader change dropped
}


class AccessDeniedError(IcestreamError):
    """etcd does not know the user, or refuses it this access."""

    code = "access_denied"


class StreamEndedError(grpc.RpcError):
    """etcd ended a stream without a gRPC error."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self._reason = reason

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return self._reason


class Failure(Enum):
    NOT_DONE = auto()
    """The call did not reach etcd, or etcd refused it: repeat it."""
    LOST = auto()
    """The response is lost: etcd may have executed the call, or may still do so."""
    BAD_TOKEN = auto()
    """Not executed; a new token is needed."""
    FINAL = auto()
    """A repetition would have the same result."""


def failure_of(error: grpc.RpcError) -> Failure:
    code, text = error.code(), text_of(error)
    if text.startswith(_BAD_TOKEN):
        return Failure.BAD_TOKEN
    if text.startswith(_NOT_SENT):
        return Failure.NOT_DONE
    return Failure.LOST if code in _TRANSIENT else Failure.FINAL


def is_compacted(error: grpc.RpcError) -> bool:
    return error.code() is grpc.StatusCode.OUT_OF_RANGE and "compacted" in text_of(error)


def is_future(error: grpc.RpcError) -> bool:
    return error.code() is grpc.StatusCode.OUT_OF_RANGE and "future revision" in text_of(error)


def is_reply_too_large(error: grpc.RpcError) -> bool:
    """Return whether the reply exceeds the client's limit; it was not received then."""
    return error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in text_of(error)


def error_for(error: grpc.RpcError, *, operation: str, place: str) -> IcestreamError:
    code, text = error.code(), text_of(error)
    kind: type[IcestreamError] = IcestreamError
    remedy = ""
    if code in _TRANSIENT:
        kind, remedy = UnavailableError, "try again when etcd is reachable"
    elif code is grpc.StatusCode.NOT_FOUND and "lease" in text:
        kind, remedy = LeaseExpiredError, "take a new lease"
    elif is_compacted(error):
        kind, remedy = CompactedError, "list the prefix again, then watch from the revision taken before listing"
    elif any(reason in text for reason in _ACCESS):
        kind, remedy = AccessDeniedError, "check metadata.etcd_user, metadata.etcd_password and the user's roles"
    elif "space exceeded" in text:
        kind, remedy = LimitReachedError, "compact and defragment etcd, raise its quota, then clear its alarm"
    elif "too large" in text or "too many operations" in text or is_reply_too_large(error):
        kind, remedy = TooLargeError, "use several transactions, or raise etcd's --max-request-bytes and --max-txn-ops"
    elif code is grpc.StatusCode.DATA_LOSS:
        kind, remedy = DamagedError, "restore the etcd cluster"
    elif code is grpc.StatusCode.INVALID_ARGUMENT:
        kind = InvalidRequestError
    return kind(text.removeprefix("etcdserver: "), operation=operation, place=place, remedy=remedy)


def text_of(error: grpc.RpcError) -> str:
    return error.details() or ""


# A member that lost its cluster responds with an error, not with silence, so that another one is tried.
_ALWAYS: Metadata = (("hasleader", "true"),)


class Tokens:
    """The token for a user and password: requested when first needed, and again when it has expired. Thread-safe."""

    def __init__(self, options: EtcdOptions) -> None:
        self._user = options.user
        self._password = options.password
        self._lock = threading.Lock()
        self._metadata: Metadata | None = None if options.user else _ALWAYS

    @property
    def can_renew(self) -> bool:
        return self._user is not None

    def metadata(self, calls: Calls, timeout_seconds: float) -> Metadata:
        """Return the metadata of every call."""
        with self._lock:
            if self._metadata is None:
                self._metadata = _ALWAYS + self._authenticated(calls, timeout_seconds)
            return self._metadata

    def refused(self, metadata: Metadata) -> None:
        """Request another token for the next call, unless another thread has done so."""
        with self._lock:
            if self._metadata == metadata and self.can_renew:
                self._metadata = None

    def _authenticated(self, calls: Calls, timeout_seconds: float) -> Metadata:
        request = AuthenticateRequest(name=self._user, password=self._password)
        try:
            return (("token", calls.authenticate(request, timeout=timeout_seconds, metadata=_ALWAYS).token),)
        except grpc.RpcError as error:
            if "authentication is not enabled" in text_of(error):
                return ()  # as in etcd's own client: the cluster needs no authentication
            raise


Result = TypeVar("Result")
Send = Callable[[Calls, float, Metadata], Result]

_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 1.0
_FIRST_ATTEMPT_SECONDS = 1.0
_MOST_TOKENS_PER_CALL = 3


class LostResponseError(Exception):
    """etcd may or may not have executed a call."""


class Deadline:
    """The time for a call, and for each attempt.

    A silent endpoint must leave time for the others, and a slow etcd needs time to respond. So the first attempt is
    short, and each attempt without a response doubles the time of the next.
    """

    def __init__(self, seconds: float) -> None:
        self._at = time.monotonic() + seconds
        self._attempt_seconds = _FIRST_ATTEMPT_SECONDS

    @property
    def left_seconds(self) -> float:
        return max(0.0, self._at - time.monotonic())

    @property
    def attempt_seconds(self) -> float:
        """How long the next attempt may take."""
        return min(self.left_seconds, self._attempt_seconds)

    def lengthen_attempts(self) -> None:
        self._attempt_seconds *= 2


class EtcdClient:
    """Calls etcd with retries. Thread-safe."""

    def __init__(self, options: EtcdOptions) -> None:
        self.place = options.place
        self.endpoints = Endpoints(options)
        self.tokens = Tokens(options)
        self._timeout_seconds = options.timeout_seconds
        self._closed = threading.Event()

    def deadline(self) -> Deadline:
        return Deadline(self._timeout_seconds)

    def call(
        self,
        operation: str,
        send: Send[Result],
        *,
        place: str = "",
        deadline: Deadline | None = None,
        repeatable: bool = True,
    ) -> Result:
        """Return the result of `send`. Raise `LostResponseError` if its response is lost and it is not `repeatable`."""
        deadline = deadline or self.deadline()
        failures = tokens = 0
        while True:
            self.check_open(operation)
            endpoint = self.endpoints.preferred()
            metadata: Metadata | None = None
            try:
                metadata = self.tokens.metadata(endpoint.calls, deadline.attempt_seconds)
                return send(endpoint.calls, deadline.attempt_seconds, metadata)
            except ValueError:  # how gRPC refuses a call on a closed channel
                self.check_open(operation)
                raise
            except grpc.RpcError as error:
                self.check_open(operation)
                failure = failure_of(error)
                if failure is Failure.BAD_TOKEN and self.tokens.can_renew and tokens < _MOST_TOKENS_PER_CALL:
                    tokens += 1
                    if metadata is not None:
                        self.tokens.refused(metadata)
                    continue
                if failure in (Failure.FINAL, Failure.BAD_TOKEN):
                    raise error_for(error, operation=operation, place=place or self.place) from error
                self.endpoints.failed(endpoint)
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    deadline.lengthen_attempts()
                if failure is Failure.LOST and metadata is not None and not repeatable:
                    raise LostResponseError(text_of(error)) from error
                failures += 1
                self.pause(failures, deadline.left_seconds)
                if not deadline.left_seconds:
                    raise UnavailableError(
                        f"etcd does not respond: {text_of(error)}",
                        operation=operation,
                        place=self.place,
                        remedy="try again when etcd is reachable",
                    ) from error

    def pause(self, failures: int, longest_seconds: float = _LONGEST_PAUSE_SECONDS) -> None:
        """Wait after a round of failures on all endpoints, longer each time. Closing ends the wait."""
        rounds, rest = divmod(failures, len(self.endpoints))
        if rest == 0:
            seconds = min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2 ** min(rounds - 1, 10))
            spread = random.uniform(0.5, 1.0)  # noqa: S311  # spreads the load; no security depends on it
            self._closed.wait(min(longest_seconds, seconds * spread))

    def check_open(self, operation: str) -> None:
        if self._closed.is_set():
            raise ClosedError("the metadata store is closed", operation=operation, place=self.place)

    @property
    def is_closed(self) -> bool:
        return self._closed.is_set()

    def refuse_calls(self) -> None:
        """Start closing: calls raise `ClosedError`, and waiting ones wake up."""
        self._closed.set()

    def close(self) -> None:
        self.refuse_calls()
        self.endpoints.close()
