"""Every error that icestream raises on purpose.

They have one base class. Each error has the failed operation (`operation`), where it failed (`place`), what is wrong
(the message), what to do (`remedy`), and whether the same call may succeed later (`retryable`). An error crosses the
wire as a dictionary and arrives as the same class.
"""

from typing import Any, ClassVar, Self


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
    """A request that can never succeed unchanged."""

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
    """No token, or an unknown one."""

    code = "unauthenticated"


class PermissionDeniedError(IcestreamError):
    """The token does not permit this. The error does not reveal whether the requested thing exists."""

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
    """A producer's batch that does not follow its last one."""

    code = "sequence_gap"


class ProducerFencedError(IcestreamError):
    """Another producer was opened later under the same name."""

    code = "producer_fenced"


class StaleEpochError(IcestreamError):
    """Another broker owns the topic now."""

    code = "stale_epoch"


class LogUnavailableError(IcestreamError):
    """The log could not write or sync. The batch is not acknowledged. The log reopens itself: try again."""

    code = "log_unavailable"
    retryable = True


class DamagedError(IcestreamError):
    """Durable bytes are missing or changed. They are never skipped, and repaired only on request."""

    code = "damaged"


class RowsDeletedError(DamagedError):
    """Another engine deleted rows of a topic's table, and nobody has accepted that."""

    code = "rows_deleted"


class ObjectNotFoundError(IcestreamError):
    """The object store has no object of that name."""

    code = "object_not_found"


class ObjectExistsError(IcestreamError):
    """The object store already has an object of that name, and did not change it."""

    code = "object_exists"


class DiskFullError(OverloadedError, LogUnavailableError):
    """The disk of the log is full or almost full. The batch is not stored; acknowledged messages are safe."""

    code = "disk_full"


class LogLostError(IcestreamError):
    """A topic's log is missing. It can be recovered from the cloud and the table."""

    code = "log_lost"


class TableLostError(IcestreamError):
    """Messages were in a topic's table, and the catalog does not have that table, or only an older state of it."""

    code = "table_lost"

    @classmethod
    def of(cls, topic: str, found: int, expected: int) -> Self:
        """Return the error for tables that hold the messages below `found`, and once held those below `expected`.

        A catalog that was lost, or was restored from an older copy, causes it. The tables' files may all be there.
        """
        ends = f"the catalog's table ends at offset {found}" if found else "the catalog has no table with any of them"
        return cls(
            f"the messages below offset {expected} were in the topic's table, and {ends}",
            operation="open table",
            place=topic,
            remedy="restore the catalog from a copy, or register the table from its files with "
            f"`icestream table register {topic}`",
            details={"in_table_below": expected, "committed_offset": found},
        )


class DirectoryInUseError(IcestreamError):
    code = "directory_in_use"


class ConflictError(IcestreamError):
    """A compare-and-swap found another value than expected."""

    code = "conflict"
    retryable = True


class SubscriptionBusyError(ConflictError):
    """The subscription's present consumers exclude this: a second consumer, another type, another filter."""

    code = "subscription_busy"
    retryable = False


class UnavailableError(IcestreamError):
    """A server or store cannot be reached right now."""

    code = "unavailable"
    retryable = True


class CatalogUnavailableError(UnavailableError):
    """The Iceberg catalog or the store of the tables' files cannot be reached, or refuses requests right now."""

    code = "catalog_unavailable"


class CommitConflictError(ConflictError):
    """Another writer committed to the table meanwhile. Load the table again and check its ledger first."""

    code = "commit_conflict"


class CommitUnknownError(IcestreamError):
    """The outcome of a commit is unknown. Keep every file, load the table again and check its ledger."""

    code = "commit_unknown"
    retryable = True


class IncompatibleTableError(IcestreamError):
    """The table belongs to another stream, or cannot hold the topic's messages. It was not changed."""

    code = "incompatible_table"


class SnapshotExpiredError(IcestreamError):
    """A snapshot was expired while it was read. Load the table again and continue from the offset."""

    code = "snapshot_expired"
    retryable = True


class LedgerMismatchError(IcestreamError):
    """A commit does not begin where the table ends. Load the table again and plan from its ledger."""

    code = "ledger_mismatch"
    retryable = True


class ClosedError(IcestreamError):
    """A call on a closed object."""

    code = "closed"


class DeadlineError(IcestreamError):
    """Waiting took longer than the caller allowed. The outcome is unknown."""

    code = "deadline"
    retryable = True


def _subclasses(cls: type[IcestreamError]) -> list[type[IcestreamError]]:
    return [cls, *(found for sub in cls.__subclasses__() for found in _subclasses(sub))]


def error_from_dict(fields: dict[str, Any]) -> IcestreamError:
    """Return the error that `to_dict` described. An unknown code becomes the base class."""
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


def is_temporary(error: IcestreamError) -> bool:
    """Tell whether trying again may help. A broker that is stopping says that it is closed; another one starts."""
    return error.retryable or isinstance(error, ClosedError)
