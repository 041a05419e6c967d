"""A store in memory, lost when its process ends: for tests and for brokers that keep nothing."""

import itertools
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager

from icestream.metadata.embedded import DEFAULT_HISTORY_BYTES, DEFAULT_HISTORY_EVENTS, EmbeddedStore
from icestream.metadata.store import Entry, Event, Events
from icestream.model.clock import Clock, now_us

# How late a waiting watch may notice the end of a lease. All other changes notify it.
_LEASE_POLL_SECONDS = 0.05


class MemoryMetadataStore(EmbeddedStore):
    def __init__(
        self,
        *,
        history_events: int = DEFAULT_HISTORY_EVENTS,
        history_bytes: int = DEFAULT_HISTORY_BYTES,
        clock: Clock = now_us,
    ) -> None:
        super().__init__("memory", history_events=history_events, history_bytes=history_bytes, clock=clock)
        self._entries: dict[str, Entry] = {}
        self._keys: list[str] = []  # sorted; Python orders text by code point, which is UTF-8's byte order
        self._keys_by_lease: dict[int, set[str]] = {}
        self._deadlines_us: dict[int, int] = {}
        self._lease_ids = itertools.count(1)
        # One item per revision, without a gap: item i is revision `_dropped + 1 + i`.
        self._history: deque[tuple[Event, ...]] = deque()
        self._dropped = 0
        self._history_events = 0
        self._history_bytes = 0

    def poll_seconds(self) -> float | None:
        return _LEASE_POLL_SECONDS if self._deadlines_us else None

    @contextmanager
    def _isolated(self, operation: str, *, write: bool) -> Iterator[None]:  # noqa: ARG002 (the lock is enough here)
        yield

    def _find(self, key: str) -> Entry | None:
        return self._entries.get(key)

    def _select(self, prefix: str, after: str | None, limit: int) -> Generator[Entry, None, None]:
        first = bisect_left(self._keys, prefix)
        if after is not None:
            first = max(first, bisect_right(self._keys, after))
        for key in itertools.islice(self._keys, first, first + limit):
            if not key.startswith(prefix):
                return
            yield self._entries[key]

    def _write(self, entry: Entry) -> None:
        old = self._entries.get(entry.key)
        if old is None:
            insort(self._keys, entry.key)
        else:
            self._detach(old)
        self._entries[entry.key] = entry
        if entry.lease is not None:
            self._keys_by_lease[entry.lease].add(entry.key)

    def _remove(self, key: str) -> None:
        self._detach(self._entries.pop(key))
        del self._keys[bisect_left(self._keys, key)]

    def _detach(self, entry: Entry) -> None:
        if entry.lease is not None:
            self._keys_by_lease[entry.lease].discard(entry.key)

    def _head(self) -> int:
        return self._dropped + len(self._history)

    def _compacted(self) -> int:
        return self._dropped

    def _append(self, revision: int, events: Events) -> None:
        assert revision == self._head() + 1
        self._history.append(tuple(events))
        self._history_events += len(events)
        self._history_bytes += _size(events)
        while self._history_events > self._history_events_limit or self._history_bytes > self._history_bytes_limit:
            oldest = self._history.popleft()
            self._dropped += 1
            self._history_events -= len(oldest)
            self._history_bytes -= _size(oldest)

    def _first_change(self, prefix: str, start_revision: int) -> tuple[Event, ...]:
        for events in itertools.islice(self._history, start_revision - self._dropped - 1, None):
            if matching := tuple(event for event in events if event.key.startswith(prefix)):
                return matching
        return ()

    def _add_lease(self, deadline_us: int) -> int:
        lease_id = next(self._lease_ids)
        self._deadlines_us[lease_id] = deadline_us
        self._keys_by_lease[lease_id] = set()
        return lease_id

    def _set_lease(self, lease_id: int, deadline_us: int) -> None:
        self._deadlines_us[lease_id] = deadline_us

    def _drop_lease(self, lease_id: int) -> None:
        self._deadlines_us.pop(lease_id, None)
        self._keys_by_lease.pop(lease_id, None)

    def _lease_deadline_us(self, lease_id: int) -> int | None:
        return self._deadlines_us.get(lease_id)

    def _due_leases(self, now_us: int) -> Sequence[int]:
        due = [(deadline, lease_id) for lease_id, deadline in self._deadlines_us.items() if deadline <= now_us]
        return [lease_id for _, lease_id in sorted(due)]

    def _keys_of_lease(self, lease_id: int) -> Sequence[str]:
        return sorted(self._keys_by_lease.get(lease_id, ()))

    def _release(self) -> None:
        self._entries.clear()
        self._keys.clear()
        self._keys_by_lease.clear()
        self._deadlines_us.clear()
        self._history.clear()


def _size(events: Sequence[Event]) -> int:
    return sum(len(event.key.encode()) + len(event.value or b"") for event in events)
