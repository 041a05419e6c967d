"""What a failed call means: whether etcd may have done it, whether to ask again, and the error for the caller."""

from enum import Enum, auto

import grpc

from icestream.metadata.leases import LeaseExpiredError
from icestream.metadata.store import CompactedError
from icestream.model.errors import (
    DamagedError,
    IcestreamError,
    InvalidRequestError,
    LimitReachedError,
    TooLargeError,
    UnavailableError,
)

_NOT_SENT = (
    "failed to connect to all addresses",
    "DNS resolution failed",
    "etcdserver: no leader",
    "etcdserver: too many requests",
)
_BAD_TOKEN = ("etcdserver: invalid auth token", "etcdserver: revision of auth store is old")
_ACCESS = ("authentication failed", "user name is empty", "permission denied", "invalid auth token")
_PASSING = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.INTERNAL,  # a broken connection may look like this
    grpc.StatusCode.UNKNOWN,  # so may a proposal that a change of leaders dropped
}


class AccessDeniedError(IcestreamError):
    """etcd does not know the user, or does not let it do this."""

    code = "access_denied"


class StreamEndedError(grpc.RpcError):
    """A stream that etcd ended without an error of gRPC's."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self._reason = reason

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return self._reason


class Failure(Enum):
    NOT_DONE = auto()
    """It did not reach etcd, or etcd turned it away: ask again."""
    LOST = auto()
    """The answer is lost: etcd may have done it, or may still do it."""
    BAD_TOKEN = auto()
    """Not done; a new token is needed."""
    FINAL = auto()
    """Asking again gives the same answer."""


def failure_of(error: grpc.RpcError) -> Failure:
    code, text = error.code(), text_of(error)
    if text.startswith(_BAD_TOKEN):
        return Failure.BAD_TOKEN
    if text.startswith(_NOT_SENT):
        return Failure.NOT_DONE
    return Failure.LOST if code in _PASSING else Failure.FINAL


def is_compacted(error: grpc.RpcError) -> bool:
    return error.code() is grpc.StatusCode.OUT_OF_RANGE and "compacted" in text_of(error)


def is_future(error: grpc.RpcError) -> bool:
    return error.code() is grpc.StatusCode.OUT_OF_RANGE and "future revision" in text_of(error)


def is_reply_too_large(error: grpc.RpcError) -> bool:
    """The reply is beyond our own limit, so it was not received."""
    return error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in text_of(error)


def error_for(error: grpc.RpcError, *, operation: str, place: str) -> IcestreamError:
    code, text = error.code(), text_of(error)
    kind: type[IcestreamError] = IcestreamError
    remedy = ""
    if code in _PASSING:
        kind, remedy = UnavailableError, "try again when etcd can be reached"
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
