"""The `MetadataStore` protocol and the values that cross it.

The semantics are those of etcd v3. A *revision* is a number that grows with every change of the store; all changes of
one transaction share one. Prefixes are plain text: `/a` is also a prefix of `/ab`, so the prefix of a folder is `/a/`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Protocol, Self

from icestream.model.errors import ConflictError, IcestreamError, InvalidRequestError, TooLargeError, UnavailableError


class LeaseExpiredError(IcestreamError):
    """The lease ended, or was revoked, and its keys with it."""

    code = "lease_expired"


class LeaseKeeper(Protocol):
    """The part of a store that leases use."""

    def renew_lease(self, lease_id: int, ttl_seconds: float) -> None: ...

    def revoke_lease(self, lease_id: int) -> None: ...

    def lease_remaining_seconds(self, lease_id: int) -> float: ...


@dataclass(frozen=True, slots=True)
class Lease:
    """Keys written under a lease are deleted when it is not kept alive.

    The end of a lease tells others that its holder is probably gone. A lease is not a lock: a paused holder does not
    notice that its lease has ended. Guard what must not happen twice by a compare-and-swap or an epoch.
    """

    id: int
    ttl_seconds: float
    keeper: LeaseKeeper = field(repr=False, compare=False)

    @property
    def remaining(self) -> float:
        """Seconds until the lease ends; 0.0 if it has."""
        return self.keeper.lease_remaining_seconds(self.id)

    def keep_alive(self) -> None:
        """Restart the lease's full time. Raise `LeaseExpiredError` if it has ended: it cannot be restarted then."""
        self.keeper.renew_lease(self.id, self.ttl_seconds)

    def revoke(self) -> None:
        """End the lease and delete its keys now. Do nothing if it has ended."""
        self.keeper.revoke_lease(self.id)


DEFAULT_PAGE_ENTRIES = 1_000


class CompactedError(IcestreamError):
    """A watch asked for changes that are no longer kept, or fell so far behind that they were dropped."""

    code = "compacted"


class OutcomeUnknownError(UnavailableError):
    """It is unknown whether a transaction happened or will happen. Read the keys again and decide again."""

    code = "outcome_unknown"


@dataclass(frozen=True, slots=True)
class Entry:
    key: str
    value: bytes
    mod_revision: int
    create_revision: int
    lease: int | None = None


@dataclass(frozen=True, slots=True)
class Event:
    kind: Literal["put", "delete"]
    key: str
    value: bytes | None
    """None for a delete."""
    revision: int


@dataclass(frozen=True, slots=True)
class Exists:
    key: str


@dataclass(frozen=True, slots=True)
class Absent:
    key: str


@dataclass(frozen=True, slots=True)
class RevisionIs:
    """The key was last changed at `mod_revision`; 0 means that it does not exist."""

    key: str
    mod_revision: int


@dataclass(frozen=True, slots=True)
class ValueIs:
    key: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Put:
    """Sets value and lease. Without `lease`, the key is detached from the lease that it had."""

    key: str
    value: bytes
    lease: int | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Deletes the key. If it does not exist, there is no change and no error."""

    key: str


Condition = Exists | Absent | RevisionIs | ValueIs
Operation = Put | Delete
# A store's method `list` hides the builtin inside the class.
Entries = list[Entry]
Events = list[Event]


@dataclass(frozen=True, slots=True)
class TransactionResult:
    succeeded: bool
    revision: int
    """The revision of the change; the store's current one if nothing changed."""


class Watch(Protocol):
    """The changes under a prefix, in revision order, each once.

    One thread reads it; any thread may close it. A watch has no buffer that could grow: one that falls behind the kept
    history raises `CompactedError`.
    """

    @property
    def resume_revision(self) -> int:
        """The start revision for another watch that continues after this one.

        If it is read between two calls of `wait`, no change is lost or repeated. If it is read while a transaction is
        being iterated, that transaction is repeated.
        """

    def wait(self, timeout_seconds: float | None = None) -> tuple[Event, ...]:
        """Return all events of the next transaction, or none after the timeout. Raise `ClosedError` once closed."""

    def close(self) -> None: ...

    def __iter__(self) -> Iterator[Event]: ...

    def __next__(self) -> Event:
        """Return the next event, without a timeout. The iteration ends when the watch or its store is closed."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class MetadataStore(Protocol):
    """Thread-safe. Every call raises `ClosedError` after `close`."""

    def get(self, key: str) -> Entry | None: ...

    def list(self, prefix: str, *, limit: int = DEFAULT_PAGE_ENTRIES, start_after: str | None = None) -> Entries:
        """Return a page of entries ordered by key: at most `limit` entries and 16 MiB of values.

        Only an empty page means that nothing follows. `scan` reads all pages.
        """

    def revision(self) -> int:
        """Return the newest revision.

        To follow a prefix from its present state: call `revision()`, list, then watch from that revision + 1. The watch
        repeats the changes made while listing, and misses none.
        """

    def put(self, key: str, value: bytes, lease: int | None = None) -> int:
        """Set the key and return the revision of the change."""

    def create(self, key: str, value: bytes, lease: int | None = None) -> int:
        """Set a key that does not exist and return the revision, or raise `ConflictError`."""

    def compare_and_swap(self, key: str, expected_revision: int, value: bytes, lease: int | None = None) -> int:
        """Set the key if its mod_revision is `expected_revision` (0: it does not exist), or raise `ConflictError`."""

    def delete(self, key: str) -> bool:
        """Delete the key. Return whether it existed."""

    def transaction(self, conditions: Sequence[Condition], operations: Sequence[Operation]) -> TransactionResult:
        """Do all operations if all conditions hold, else none. Each key may have one operation."""

    def lease(self, ttl_seconds: float) -> Lease: ...

    def watch(self, prefix: str, start_revision: int | None = None) -> Watch:
        """Watch the changes from `start_revision` on, inclusive; without it, those after this call.

        Raise `CompactedError` if they are no longer kept.
        """

    def close(self) -> None:
        """Close the store and its watches. May be called again."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def scan(store: MetadataStore, prefix: str, *, page_entries: int = DEFAULT_PAGE_ENTRIES) -> Iterator[Entry]:
    """Yield all entries under a prefix, ordered by key, with one page in memory at a time.

    Pages are read one after another: a key that changes meanwhile is returned as it was or as it is.
    """
    after: str | None = None
    while page := store.list(prefix, limit=page_entries, start_after=after):
        yield from page
        after = page[-1].key


class BaseStore(ABC):
    """The calls that every store derives from its transaction."""

    @abstractmethod
    def transaction(self, conditions: Sequence[Condition], operations: Sequence[Operation]) -> TransactionResult: ...

    @abstractmethod
    def close(self) -> None: ...

    def put(self, key: str, value: bytes, lease: int | None = None) -> int:
        return self.transaction((), (Put(key, value, lease),)).revision

    def create(self, key: str, value: bytes, lease: int | None = None) -> int:
        result = self.transaction((Absent(key),), (Put(key, value, lease),))
        if not result.succeeded:
            raise ConflictError("the key exists", operation="create", place=key)
        return result.revision

    def compare_and_swap(self, key: str, expected_revision: int, value: bytes, lease: int | None = None) -> int:
        result = self.transaction((RevisionIs(key, expected_revision),), (Put(key, value, lease),))
        if not result.succeeded:
            raise ConflictError(
                f"the key is no longer at revision {expected_revision}",
                operation="compare and swap",
                place=key,
                remedy="read the key again and decide again",
            )
        return result.revision

    def delete(self, key: str) -> bool:
        return self.transaction((Exists(key),), (Delete(key),)).succeeded

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


# The bounds hold for every store and stay below etcd's (1.5 MiB per request, 128 operations per transaction), so that
# data that fits one store fits all.

MAX_KEY_BYTES = 1_024
MAX_VALUE_BYTES = 1 << 20
MAX_TRANSACTION_BYTES = MAX_VALUE_BYTES + (256 << 10)
MAX_TRANSACTION_OPERATIONS = 128
MAX_PAGE_ENTRIES = 10_000
MAX_PAGE_BYTES = 16 << 20
MAX_LEASE_SECONDS = 365 * 24 * 3600.0


def check_key(key: str, *, operation: str) -> int:
    """Return the key's size in bytes. Raise if it is not a valid key."""
    if not key.startswith("/"):
        raise InvalidRequestError(f"{key[:80]!r} is not a key", operation=operation, remedy="begin keys with /")
    return _text_bytes(key, operation=operation)


def check_prefix(prefix: str, *, operation: str) -> None:
    """Check the beginning of a key. The empty prefix matches all keys."""
    if prefix:
        check_key(prefix, operation=operation)


def check_page(limit: int, start_after: str | None, *, operation: str) -> None:
    if not 1 <= limit <= MAX_PAGE_ENTRIES:
        raise InvalidRequestError(f"a page has 1 to {MAX_PAGE_ENTRIES} entries, not {limit}", operation=operation)
    if start_after is not None:
        check_prefix(start_after, operation=operation)


def check_ttl(ttl_seconds: float, *, operation: str) -> None:
    if not 0 < ttl_seconds <= MAX_LEASE_SECONDS:
        raise InvalidRequestError(
            f"a lease lasts more than 0 and at most {MAX_LEASE_SECONDS:.0f} seconds, not {ttl_seconds}",
            operation=operation,
        )


def check_transaction(conditions: Sequence[Condition], operations: Sequence[Operation], *, operation: str) -> None:
    for what, items in (("conditions", conditions), ("operations", operations)):
        if len(items) > MAX_TRANSACTION_OPERATIONS:
            raise TooLargeError(
                f"a transaction has at most {MAX_TRANSACTION_OPERATIONS} {what}, not {len(items)}",
                operation=operation,
                remedy="use several transactions",
            )
    if len({item.key for item in operations}) < len(operations):
        raise InvalidRequestError("a transaction changes a key at most once", operation=operation)
    size = sum(_item_bytes(item, operation=operation) for item in (*conditions, *operations))
    if size > MAX_TRANSACTION_BYTES:
        raise TooLargeError(
            f"a transaction of {size} bytes is beyond the limit of {MAX_TRANSACTION_BYTES}",
            operation=operation,
            remedy="use several transactions",
        )


def _item_bytes(item: Condition | Operation, *, operation: str) -> int:
    size = check_key(item.key, operation=operation)
    if not isinstance(item, Put | ValueIs):
        return size
    if not isinstance(item.value, bytes):
        raise InvalidRequestError(f"a value is bytes, not {type(item.value).__name__}", operation=operation)
    if len(item.value) > MAX_VALUE_BYTES:
        raise TooLargeError(
            f"a value of {len(item.value)} bytes is beyond the limit of {MAX_VALUE_BYTES}",
            operation=operation,
            place=item.key,
        )
    return size + len(item.value)


def _text_bytes(text: str, *, operation: str) -> int:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidRequestError(f"{text[:80]!r} is not valid Unicode", operation=operation) from None
    if size > MAX_KEY_BYTES:
        raise TooLargeError(
            f"a key of {size} bytes is beyond the limit of {MAX_KEY_BYTES}", operation=operation, place=text[:80]
        )
    if "\0" in text:
        raise InvalidRequestError(f"{text[:80]!r} holds a zero byte", operation=operation)
    return size
