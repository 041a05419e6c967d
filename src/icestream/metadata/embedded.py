"""The semantics of the stores without a server, on top of a few primitives.

A subclass keeps entries, leases and history. This class decides what happens to them, always under one lock. A lease
ends at its deadline, without a thread that waits for it: every call first ends the leases that are due. So no caller
sees an expired key. The removal of its keys is a change with a revision and events.
"""

import threading
from abc import abstractmethod
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from typing import assert_never

from icestream.metadata.store import (
    DEFAULT_PAGE_ENTRIES,
    MAX_PAGE_BYTES,
    MAX_TRANSACTION_BYTES,
    MAX_TRANSACTION_OPERATIONS,
    Absent,
    BaseStore,
    CompactedError,
    Condition,
    Delete,
    Entries,
    Entry,
    Event,
    Events,
    Exists,
    Lease,
    LeaseExpiredError,
    Operation,
    Put,
    RevisionIs,
    TransactionResult,
    ValueIs,
    check_key,
    check_page,
    check_prefix,
    check_transaction,
    check_ttl,
)
from icestream.metadata.watch import HistoryWatch
from icestream.model.clock import Clock
from icestream.model.errors import ClosedError, InvalidRequestError

DEFAULT_HISTORY_EVENTS = 10_000
DEFAULT_HISTORY_BYTES = 64 << 20
_US_PER_SECOND = 1_000_000


class EmbeddedStore(BaseStore):
    def __init__(self, place: str, *, history_events: int, history_bytes: int, clock: Clock) -> None:
        if history_events < MAX_TRANSACTION_OPERATIONS or history_bytes < MAX_TRANSACTION_BYTES:
            raise InvalidRequestError(
                f"a history of {history_events} events and {history_bytes} bytes cannot hold one whole transaction",
                operation="open metadata store",
                remedy=f"keep at least {MAX_TRANSACTION_OPERATIONS} events and {MAX_TRANSACTION_BYTES} bytes",
            )
        self._place = place
        self._history_events_limit = history_events
        self._history_bytes_limit = history_bytes
        self._clock = clock
        self._closed = False
        self._changed = threading.Condition(threading.RLock())

    # Reading

    def get(self, key: str) -> Entry | None:
        check_key(key, operation="get")
        with self._reading("get"):
            return self._find(key)

    def list(self, prefix: str, *, limit: int = DEFAULT_PAGE_ENTRIES, start_after: str | None = None) -> Entries:
        check_prefix(prefix, operation="list")
        check_page(limit, start_after, operation="list")
        page: Entries = []
        size = 0
        with self._reading("list"), closing(self._select(prefix, start_after, limit)) as found:
            for entry in found:
                size += len(entry.value)
                if page and size > MAX_PAGE_BYTES:
                    break
                page.append(entry)
        return page

    def revision(self) -> int:
        with self._reading("revision"):
            return self._head()

    def watch(self, prefix: str, start_revision: int | None = None) -> HistoryWatch:
        check_prefix(prefix, operation="watch")
        if start_revision is not None and start_revision < 1:
            raise InvalidRequestError(f"revisions begin at 1, not {start_revision}", operation="watch", place=prefix)
        with self._reading("watch"):
            start = self._head() + 1 if start_revision is None else start_revision
            self._check_kept(start, prefix)
            return HistoryWatch(self, prefix, start)

    # Changing

    def transaction(self, conditions: Sequence[Condition], operations: Sequence[Operation]) -> TransactionResult:
        check_transaction(conditions, operations, operation="transaction")
        with self._writing("transaction"):
            if not all(_holds(condition, self._find(condition.key)) for condition in conditions):
                return TransactionResult(succeeded=False, revision=self._head())
            # Leases are checked before the first change: memory has no rollback.
            for lease_id in {item.lease for item in operations if isinstance(item, Put) and item.lease is not None}:
                self._check_lease(lease_id, "transaction")
            return TransactionResult(succeeded=True, revision=self._apply(operations))

    def _apply(self, operations: Sequence[Operation]) -> int:
        revision = self._head() + 1
        events: Events = []
        for item in operations:
            old = self._find(item.key)
            if isinstance(item, Put):
                created = old.create_revision if old else revision
                self._write(Entry(item.key, item.value, revision, created, item.lease))
                events.append(Event("put", item.key, item.value, revision))
            elif old:
                self._remove(item.key)
                events.append(Event("delete", item.key, None, revision))
        if not events:
            return revision - 1
        self._append(revision, events)
        return revision

    def close(self) -> None:
        with self._changed:
            if not self._closed:
                self._closed = True
                self._release()
                self._changed.notify_all()

    # Leases

    def lease(self, ttl_seconds: float) -> Lease:
        check_ttl(ttl_seconds, operation="lease")
        with self._writing("lease"):
            return Lease(self._add_lease(self._deadline_us(ttl_seconds)), ttl_seconds, self)

    def renew_lease(self, lease_id: int, ttl_seconds: float) -> None:
        with self._writing("keep lease alive"):
            self._check_lease(lease_id, "keep lease alive")
            self._set_lease(lease_id, self._deadline_us(ttl_seconds))

    def revoke_lease(self, lease_id: int) -> None:
        with self._writing("revoke lease"):
            self._end_lease(lease_id)

    def lease_remaining_seconds(self, lease_id: int) -> float:
        with self._reading("lease"):
            deadline_us = self._lease_deadline_us(lease_id)
            return 0.0 if deadline_us is None else max(0.0, (deadline_us - self._clock()) / _US_PER_SECOND)

    def _deadline_us(self, ttl_seconds: float) -> int:
        return self._clock() + round(ttl_seconds * _US_PER_SECOND)

    def _check_lease(self, lease_id: int, operation: str) -> None:
        if self._lease_deadline_us(lease_id) is None:
            raise LeaseExpiredError(
                f"lease {lease_id} has ended", operation=operation, place=self._place, remedy="take a new lease"
            )

    def _end_lease(self, lease_id: int) -> None:
        # A lease may have any number of keys, but no revision has more events than a transaction can.
        keys = self._keys_of_lease(lease_id)
        for first in range(0, len(keys), MAX_TRANSACTION_OPERATIONS):
            self._apply([Delete(key) for key in keys[first : first + MAX_TRANSACTION_OPERATIONS]])
        self._drop_lease(lease_id)

    # For watches (`ChangeFeed`)

    @property
    def changed(self) -> threading.Condition:
        return self._changed

    def next_change(self, prefix: str, start_revision: int) -> tuple[tuple[Event, ...], int]:
        with self._reading("watch"):
            self._check_kept(start_revision, prefix)
            if events := self._first_change(prefix, start_revision):
                return events, events[0].revision + 1
            return (), max(start_revision, self._head() + 1)

    @abstractmethod
    def poll_seconds(self) -> float | None: ...

    def _check_kept(self, start_revision: int, prefix: str) -> None:
        if start_revision <= self._compacted():
            raise CompactedError(
                f"changes from revision {start_revision} on are no longer kept, only those after {self._compacted()}",
                operation="watch",
                place=prefix,
                remedy="list the prefix again, then watch from the revision taken before listing",
            )

    # Isolation

    @contextmanager
    def _reading(self, operation: str) -> Iterator[None]:
        with self._changed:
            self._check_open(operation)
            while self._anything_due(operation):
                with self._writing(operation):
                    pass  # entering it ends the leases that are due
            with self._isolated(operation, write=False):
                yield

    @contextmanager
    def _writing(self, operation: str) -> Iterator[None]:
        with self._changed:
            self._check_open(operation)
            with self._isolated(operation, write=True):
                for lease_id in self._due_leases(self._clock()):
                    self._end_lease(lease_id)
                yield
            self._changed.notify_all()

    def _anything_due(self, operation: str) -> bool:
        with self._isolated(operation, write=False):
            return bool(self._due_leases(self._clock()))

    def _check_open(self, operation: str) -> None:
        if self._closed:
            raise ClosedError("the metadata store is closed", operation=operation, place=self._place)

    # Primitives. All except `_release` are called inside `_isolated`

    @abstractmethod
    def _isolated(self, operation: str, *, write: bool) -> AbstractContextManager[None]:
        """Give a consistent view. With `write`, all changes inside become durable together, or none."""

    @abstractmethod
    def _find(self, key: str) -> Entry | None: ...

    @abstractmethod
    def _select(self, prefix: str, after: str | None, limit: int) -> Generator[Entry, None, None]: ...

    @abstractmethod
    def _write(self, entry: Entry) -> None: ...

    @abstractmethod
    def _remove(self, key: str) -> None: ...

    @abstractmethod
    def _head(self) -> int: ...

    @abstractmethod
    def _compacted(self) -> int:
        """Return the newest revision that the history has dropped."""

    @abstractmethod
    def _append(self, revision: int, events: Events) -> None:
        """Make `revision` the newest, with these events, and drop the oldest ones beyond the history's limits."""

    @abstractmethod
    def _first_change(self, prefix: str, start_revision: int) -> tuple[Event, ...]:
        """Return the events under the prefix of the first revision from `start_revision` on that has any."""

    @abstractmethod
    def _add_lease(self, deadline_us: int) -> int: ...

    @abstractmethod
    def _set_lease(self, lease_id: int, deadline_us: int) -> None: ...

    @abstractmethod
    def _drop_lease(self, lease_id: int) -> None: ...

    @abstractmethod
    def _lease_deadline_us(self, lease_id: int) -> int | None: ...

    @abstractmethod
    def _due_leases(self, now_us: int) -> Sequence[int]:
        """Return the leases whose deadline has passed, the earliest first."""

    @abstractmethod
    def _keys_of_lease(self, lease_id: int) -> Sequence[str]: ...

    @abstractmethod
    def _release(self) -> None: ...


def _holds(condition: Condition, entry: Entry | None) -> bool:
    match condition:
        case Exists():
            return entry is not None
        case Absent():
            return entry is None
        case RevisionIs(mod_revision=expected):
            return (entry.mod_revision if entry else 0) == expected
        case ValueIs(value=expected_value):
            return entry is not None and entry.value == expected_value
        case _:
            assert_never(condition)
