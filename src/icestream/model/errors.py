"""Every error that icestream raises on purpose.

One base class. Each error says what was being done (`operation`), where (`place`), what is wrong (the message), what
helps (`remedy`) and whether the same call may succeed later (`retryable`). Errors cross the wire as a dictionary and
come out as the same class on the other side.
"""

from typing import Any, ClassVar


class IcestreamError(Exception):
    code: ClassVar[str] = "error"
    retryable: bool = False

    def __init__(
        self,
        message: str,
        *,
        operation: str = "",
        place: str = "",
        remedy: str = "",
        retryable: bool | None = None,
        details: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.operation = operation
        self.place = place
        self.remedy = remedy
        self.details = details or {}
        if retryable is not None:
            self.retryable = retryable

    def __str__(self) -> str:
        text = f"{self.operation}: {self.message}" if self.operation else self.message
        if self.place:
            text += f" [{self.place}]"
        if self.remedy:
            text += f"; {self.remedy}"
        return text

    def __reduce__(self) -> tuple[Any, ...]:
        return (error_from_dict, (self.to_dict(),))

    def to_dict(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "message": self.message,
            "operation": self.operation,
            "place": self.place,
            "remedy": self.remedy,
            "retryable": self.retryable,
            "details": self.details,
        }


class InvalidNameError(IcestreamError):
    """A topic, namespace, producer or subscription name that is not allowed."""

    code = "invalid_name"


class InvalidRequestError(IcestreamError):
    """A request that can never succeed as it stands."""

    code = "invalid_request"


class InvalidMessageError(InvalidRequestError):
    """Message data that does not fit the topic's schema, or is not valid Arrow."""

    code = "invalid_message"


class TooLargeError(InvalidRequestError):
    """A message, batch or request beyond its size limit."""

    code = "too_large"


class LimitReachedError(IcestreamError):
    """A configured maximum (topics, connections) is reached."""

    code = "limit_reached"


class OverloadedError(LimitReachedError):
    """A limit that frees up by itself, such as bytes in flight: back off and try again."""

    code = "overloaded"
    retryable = True


class UnauthenticatedError(IcestreamError):
    """No token, or one that nobody gave out."""

    code = "unauthenticated"


class PermissionDeniedError(IcestreamError):
    """A token that is not for this. Whether what was asked for exists is not told."""

    code = "permission_denied"


class TopicNotFoundError(IcestreamError):
    code = "topic_not_found"


class TopicExistsError(IcestreamError):
    code = "topic_exists"


class SubscriptionNotFoundError(IcestreamError):
    code = "subscription_not_found"


class OffsetOutOfRangeError(IcestreamError):
    """An offset below the first kept message or beyond the end."""

    code = "offset_out_of_range"


class SequenceError(IcestreamError):
    """A producer's batch that leaves a hole after its last one."""

    code = "sequence_gap"


class ProducerFencedError(IcestreamError):
    """A producer whose name another one has been opened with since."""

    code = "producer_fenced"


class StaleEpochError(IcestreamError):
    """Another owner has taken the topic over."""

    code = "stale_epoch"


class LogUnavailableError(IcestreamError):
    """The log could not write or sync. Nothing of this call was acknowledged; it reopens itself, so try again."""

    code = "log_unavailable"
    retryable = True


class DamagedError(IcestreamError):
    """Bytes that were durable are missing or changed. Never skipped, never repaired without being asked."""

    code = "damaged"


class ObjectNotFoundError(IcestreamError):
    """The object store has no object of that name."""

    code = "object_not_found"


class ObjectExistsError(IcestreamError):
    """The object store has an object of that name already; it was left as it is."""

    code = "object_exists"


class DiskFullError(OverloadedError, LogUnavailableError):
    """The disk of the log is full, or nearly so. Nothing of this call was stored; what was acknowledged is safe."""

    code = "disk_full"


class LogLostError(IcestreamError):
    """The log of a topic that had one is gone. It can be recovered from the cloud and the table."""

    code = "log_lost"


class DirectoryInUseError(IcestreamError):
    code = "directory_in_use"


class ConflictError(IcestreamError):
    """A compare-and-swap found something else than expected."""

    code = "conflict"
    retryable = True


class SubscriptionBusyError(ConflictError):
    """The subscription has consumers that stand against this: a second one, another type, another filter."""

    code = "subscription_busy"
    retryable = False


class UnavailableError(IcestreamError):
    """A server or store cannot be reached right now."""

    code = "unavailable"
    retryable = True


class CatalogUnavailableError(UnavailableError):
    """The Iceberg catalog, or the store of the tables' files, cannot be reached or refuses to work right now."""

    code = "catalog_unavailable"


class CommitConflictError(ConflictError):
    """Somebody committed to the table in between. Load the table again and look at its ledger before anything else."""

    code = "commit_conflict"


class CommitUnknownError(IcestreamError):
    """A commit whose outcome is not known: keep every file, load the table again and look at its ledger."""

    code = "commit_unknown"
    retryable = True


class IncompatibleTableError(IcestreamError):
    """A table that belongs to another stream, or cannot hold what the topic holds. It was not written to."""

    code = "incompatible_table"


class SnapshotExpiredError(IcestreamError):
    """A snapshot was removed, with its files, while it was read. Load the table again and read on from the offset."""

    code = "snapshot_expired"
    retryable = True


class LedgerMismatchError(IcestreamError):
    """A commit that does not begin where the table ends. Load the table again and plan from its ledger."""

    code = "ledger_mismatch"
    retryable = True


class ClosedError(IcestreamError):
    """A call on something that was closed."""

    code = "closed"


class DeadlineError(IcestreamError):
    """Waiting took longer than the caller allowed; the outcome is not known."""

    code = "deadline"
    retryable = True


def _subclasses(cls: type[IcestreamError]) -> list[type[IcestreamError]]:
    return [cls, *(found for sub in cls.__subclasses__() for found in _subclasses(sub))]


def error_from_dict(fields: dict[str, Any]) -> IcestreamError:
    """The error that `to_dict` described; an unknown code becomes the base class."""
    by_code = {cls.code: cls for cls in _subclasses(IcestreamError)}
    cls = by_code.get(str(fields.get("code")), IcestreamError)
    return cls(
        str(fields.get("message", "unknown error")),
        operation=str(fields.get("operation", "")),
        place=str(fields.get("place", "")),
        remedy=str(fields.get("remedy", "")),
        retryable=bool(fields.get("retryable", False)),
        details=dict(fields.get("details") or {}),
    )
