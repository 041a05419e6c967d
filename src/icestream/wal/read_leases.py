"""ReadLeases on what is being read: retention leaves it alone, for a bounded time.

A lease counts from the moment it first stands in the way of retention. After `timeout_seconds` in the way it is passed
over, whether its reader moves or not: a reader that cannot keep up with retention does not fill the disk. Such a reader
finds what it wants in the table, which has all that retention may take.
"""

import threading
from collections.abc import Callable
from time import monotonic
from weakref import WeakSet


class ReadLease:
    """On everything from `offset` on; its reader moves it."""

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.in_the_way_since: float | None = None


class ReadLeases:
    """Those on one log. A reader that was forgotten has none: nobody else holds its lease."""

    def __init__(self, timeout_seconds: float, clock: Callable[[], float] = monotonic) -> None:
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._leases: WeakSet[ReadLease] = WeakSet()
        self.lock = threading.Lock()
        """Held while what the log has is cut down, and while a lease is taken on what it has."""

    def __len__(self) -> int:
        return len(self._leases)

    def take(self, offset: int) -> ReadLease:
        """Under the lock, with what the log has checked under it too."""
        lease = ReadLease(offset)
        self._leases.add(lease)
        return lease

    def release(self, lease: ReadLease) -> None:
        with self.lock:
            self._leases.discard(lease)

    def floor(self, below_offset: int) -> int:
        """How much of what retention wants to take below an offset it may take now. Under the lock."""
        now, floor = self._clock(), below_offset
        for lease in self._leases:
            if lease.offset >= below_offset:
                lease.in_the_way_since = None
                continue
            if lease.in_the_way_since is None:
                lease.in_the_way_since = now
            if now - lease.in_the_way_since < self._timeout_seconds:
                floor = min(floor, lease.offset)
        return floor
