"""A watch as a cursor on a store's history.

The history is the buffer, shared by all watches and bounded by the store. Reading and waiting happen under the store's
lock, so no change is missed between them.
"""

import threading
import time
from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import Protocol, Self

from icestream.metadata.store import Event
from icestream.model.errors import ClosedError


class ChangeFeed(Protocol):
    """The part of a store that watches use. `changed` guards the store and is notified after every change."""

    @property
    def changed(self) -> threading.Condition: ...

    def next_change(self, prefix: str, start_revision: int) -> tuple[tuple[Event, ...], int]:
        """Return the first change under the prefix from a revision on, and the revision to continue from."""

    def poll_seconds(self) -> float | None:
        """Return how soon to look again without a notification; None if every change notifies."""


class HistoryWatch:
    def __init__(self, feed: ChangeFeed, prefix: str, start_revision: int) -> None:
        self._feed = feed
        self._prefix = prefix
        self._cursor = start_revision
        self._iterated: deque[Event] = deque()
        self._closed = False

    @property
    def resume_revision(self) -> int:
        with self._feed.changed:
            return self._iterated[0].revision if self._iterated else self._cursor

    def wait(self, timeout_seconds: float | None = None) -> tuple[Event, ...]:
        give_up_at = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        with self._feed.changed:
            while True:
                if self._closed:
                    raise ClosedError("the watch is closed", operation="watch", place=self._prefix)
                if events := self._take():
                    return events
                pause = self._feed.poll_seconds()
                if give_up_at is not None:
                    left = give_up_at - time.monotonic()
                    if left <= 0:
                        return ()
                    pause = left if pause is None else min(pause, left)
                self._feed.changed.wait(pause)

    def _take(self) -> tuple[Event, ...]:
        if self._iterated:
            events = tuple(self._iterated)
            self._iterated.clear()
            return events
        events, self._cursor = self._feed.next_change(self._prefix, self._cursor)
        return events

    def close(self) -> None:
        with self._feed.changed:
            self._closed = True
            self._iterated.clear()
            self._feed.changed.notify_all()

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        with self._feed.changed:
            if not self._iterated:
                try:
                    self._iterated.extend(self.wait())
                except ClosedError:
                    raise StopIteration from None
            return self._iterated.popleft()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
