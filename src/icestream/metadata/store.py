"""The `MetadataStore` protocol and the values that cross it.

The semantics are those of etcd v3, so that etcd can stand behind the protocol as it is. A *revision* is a number that
grows with every change of the store; all changes of one transaction share one. Prefixes are plain text: `/a` is also a
prefix of `/ab`, so a folder is asked for as `/a/`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Protocol, Self

from icestream.metadata.leases import Lease
from icestream.model.errors import IcestreamError, UnavailableError

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
