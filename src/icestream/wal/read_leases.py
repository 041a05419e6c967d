"""Leases on what is being read: retention leaves it alone, for a bounded time.

A lease's time starts when it first blocks retention. After `timeout_seconds` retention ignores it, whether its reader
moves or not: a slow reader must not fill the disk. Such a reader continues in the table, which has all that retention
may remove.
"""

import threading
from collections.abc import Callable
from time import monotonic
from weakref import WeakSet


class ReadLease:
    """Protects everything from `offset` on. Its reader moves it."""

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.blocking_since: float | None = None


class ReadLeases:
    """The leases on one log. They are weak references: a reader that is garbage-collected loses its lease."""

    def __init__(self, timeout_seconds: float, clock: Callable[[], float] = monotonic) -> None:
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._leases: WeakSet[ReadLease] = WeakSet()
        self.lock = threading.Lock()
        """Held while the log's start offset moves, and while a lease is taken."""

    def __len__(self) -> int:
        return len(self._leases)

    def take(self, offset: int) -> ReadLease:
        """Take a lease. Hold the lock, and check under it that the log has the offset."""
        lease = ReadLease(offset)
        self._leases.add(lease)
        return lease

    def release(self, lease: ReadLease) -> None:
        with self.lock:
            self._leases.discard(lease)

    def floor(self, below_offset: int) -> int:
        """Return the offset below which retention may remove now, at most `below_offset`. Hold the lock."""
        now, floor = self._clock(), below_offset
        for lease in self._leases:
            if lease.offset >= below_offset:
                lease.blocking_since = None
                continue
            if lease.blocking_since is None:
                lease.blocking_since = now
            if now - lease.blocking_since < self._timeout_seconds:
                floor = min(floor, lease.offset)
        return floor
