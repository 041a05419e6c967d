"""The `MetadataStore` protocol and the values that cross it.

The semantics are those of etcd v3, so that etcd can stand behind the protocol as it is. A *revision* is a number that
grows with every change of the store; all changes of one transaction share one. Prefixes are plain text: `/a` is also a
prefix of `/ab`, so a folder is asked for as `/a/`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Protocol, Self

from icestream.model.errors import ConflictError, IcestreamError, InvalidRequestError, TooLargeError, UnavailableError

# --------------------
# A lease: keys written under it vanish when it is not kept alive.
#
# A lease tells others that its holder is probably gone. It is no lock: a paused holder does not notice that its lease
# ended, so whatever must not happen twice is guarded by a compare-and-swap or an epoch, never by a lease alone.


class LeaseExpiredError(IcestreamError):
    """The lease ended, or was revoked, and its keys with it."""

    code = "lease_expired"


class LeaseKeeper(Protocol):
    """What a store does for its leases."""

    def renew_lease(self, lease_id: int, ttl_seconds: float) -> None: ...

    def revoke_lease(self, lease_id: int) -> None: ...

    def lease_remaining_seconds(self, lease_id: int) -> float: ...


@dataclass(frozen=True, slots=True)
class Lease:
    id: int
    ttl_seconds: float
    keeper: LeaseKeeper = field(repr=False, compare=False)

    @property
    def remaining(self) -> float:
        """Seconds until the lease ends; 0.0 when it has."""
        return self.keeper.lease_remaining_seconds(self.id)

    def keep_alive(self) -> None:
        """Begin the full time anew, or raise LeaseExpiredError: an ended lease never comes back."""
        self.keeper.renew_lease(self.id, self.ttl_seconds)

    def revoke(self) -> None:
        """End the lease and delete its keys now. Does nothing when it has ended already."""
        self.keeper.revoke_lease(self.id)


DEFAULT_PAGE_ENTRIES = 1_000


class CompactedError(IcestreamError):
    """A watch asked for changes that are no longer kept, or fell so far behind that they were dropped."""

    code = "compacted"


class OutcomeUnknownError(UnavailableError):
    """A transaction was sent, and it cannot be found out whether it happened, or still will: read and decide anew."""

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
    """The key was last changed at `mod_revision`; 0 stands for a key that is not there."""

    key: str
    mod_revision: int


@dataclass(frozen=True, slots=True)
class ValueIs:
    key: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Put:
    """Sets value and lease: without `lease`, a key that had one is detached from it."""

    key: str
    value: bytes
    lease: int | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Deletes the key; no change, and no error, when it is not there."""

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
    """The revision of the change; the store's current one when nothing changed."""


class Watch(Protocol):
    """The changes under a prefix, in revision order, each once.

    For one consumer thread; `close` may come from any. A watch holds no buffer of its own that could grow: one that
    falls behind the kept history raises CompactedError.
    """

    @property
    def resume_revision(self) -> int:
        """Where another watch has to start to go on after all that this one handed out.

        Saved between two calls of `wait` it neither loses nor repeats anything. Saved in the middle of a
        transaction that is being iterated, it repeats that transaction.
        """

    def wait(self, timeout_seconds: float | None = None) -> tuple[Event, ...]:
        """All events of the next transaction; empty after the timeout. Raises ClosedError once closed."""

    def close(self) -> None: ...

    def __iter__(self) -> Iterator[Event]: ...

    def __next__(self) -> Event:
        """The next event, however long it takes; the iteration ends when the watch or its store is closed."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class MetadataStore(Protocol):
    """Safe to share between threads. Every call raises ClosedError after `close`."""

    def get(self, key: str) -> Entry | None: ...

    def list(self, prefix: str, *, limit: int = DEFAULT_PAGE_ENTRIES, start_after: str | None = None) -> Entries:
        """A page of entries ordered by key, of at most `limit` entries and 16 MiB of values.

        Only an empty page says that nothing follows. `scan` reads all pages.
        """

    def revision(self) -> int:
        """The newest revision.

        To follow a prefix from its present state: take `revision()`, list, then watch from that revision + 1. The
        watch repeats what changed while listing, and misses nothing.
        """

    def put(self, key: str, value: bytes, lease: int | None = None) -> int:
        """Set the key and return the revision of the change."""

    def create(self, key: str, value: bytes, lease: int | None = None) -> int:
        """Set a key that is not there, or raise ConflictError. Returns the revision."""

    def compare_and_swap(self, key: str, expected_revision: int, value: bytes, lease: int | None = None) -> int:
        """Set the key if its mod_revision is `expected_revision` (0: it is not there), or raise ConflictError."""

    def delete(self, key: str) -> bool:
        """True if the key was there."""

    def transaction(self, conditions: Sequence[Condition], operations: Sequence[Operation]) -> TransactionResult:
        """Do all operations if all conditions hold, else none. A key may stand in one operation only."""

    def lease(self, ttl_seconds: float) -> Lease: ...

    def watch(self, prefix: str, start_revision: int | None = None) -> Watch:
        """Changes from `start_revision` on (it included); without it, those after this call.

        Raises CompactedError when they are no longer kept.
        """

    def close(self) -> None:
        """Ends watches too. May be called again."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def scan(store: MetadataStore, prefix: str, *, page_entries: int = DEFAULT_PAGE_ENTRIES) -> Iterator[Entry]:
    """All entries under a prefix, ordered by key, a page in memory at a time.

    Pages are read one after another: a key that changes meanwhile is seen as it was or as it is.
    """
    after: str | None = None
    while page := store.list(prefix, limit=page_entries, start_after=after):
        yield from page
        after = page[-1].key


# --------------------
# The calls that every store derives from its transaction.


class BaseStore(ABC):
    @abstractmethod
    def transaction(self, conditions: Sequence[Condition], operations: Sequence[Operation]) -> TransactionResult: ...

    @abstractmethod
    def close(self) -> None: ...

    def put(self, key: str, value: bytes, lease: int | None = None) -> int:
        return self.transaction((), (Put(key, value, lease),)).revision

    def create(self, key: str, value: bytes, lease: int | None = None) -> int:
        result = self.transaction((Absent(key),), (Put(key, value, lease),))
        if not result.succeeded:
            raise ConflictError("the key exists already", operation="create", place=key)
        return result.revision

    def compare_and_swap(self, key: str, expected_revision: int, value: bytes, lease: int | None = None) -> int:
        result = self.transaction((RevisionIs(key, expected_revision),), (Put(key, value, lease),))
        if not result.succeeded:
            raise ConflictError(
                f"the key is no longer at revision {expected_revision}",
                operation="compare and swap",
                place=key,
                remedy="read it again and decide anew",
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


# --------------------
# What a store accepts.
#
# The bounds hold for every implementation and stay below etcd's (1.5 MiB a request, 128 operations a transaction), so
# that data which fits one store fits all.


MAX_KEY_BYTES = 1_024
MAX_VALUE_BYTES = 1 << 20
MAX_TRANSACTION_BYTES = MAX_VALUE_BYTES + (256 << 10)
MAX_TRANSACTION_OPERATIONS = 128
MAX_PAGE_ENTRIES = 10_000
MAX_PAGE_BYTES = 16 << 20
MAX_LEASE_SECONDS = 365 * 24 * 3600.0


def check_key(key: str, *, operation: str) -> int:
    """The key's size in bytes, if it is a legal key."""
    if not key.startswith("/"):
        raise InvalidRequestError(f"{key[:80]!r} is not a key", operation=operation, remedy="begin keys with /")
    return _text_bytes(key, operation=operation)


def check_prefix(prefix: str, *, operation: str) -> None:
    """A prefix is the beginning of a key; the empty one matches all."""
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
