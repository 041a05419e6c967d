"""The one thread that wakes consumers: when messages arrive, and when something is due.

A log that moved only leaves a note, so that publishers never wait for consumers. The more subscriptions a topic has,
the longer each of them pauses between two reads at its end. Each gets a few more messages at a time then, instead of
all of them waking for every message and keeping each other, and the publishers, from running.
"""

import heapq
import threading
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Protocol

import structlog

from icestream.model.clock import Clock
from icestream.model.names import TopicName
from icestream.subscription.cursor import SubscriptionSource

_log = structlog.get_logger(__name__)
_FEW = 8
_PAUSE_SECONDS_EACH = 0.001
_KEPT_STALE = 64
"""How many outdated entries the heap may have."""


class Wakeable(Protocol):
    @property
    def topic(self) -> TopicName: ...

    @property
    def place(self) -> str:
        """For errors."""

    def data_arrived(self) -> None: ...

    def on_time(self, now_ms: int) -> int | None:
        """Do what is due; return when to call again, in milliseconds since 1970."""


@dataclass
class _WatchedTopic:
    listeners: set[Callable[[], None]]
    moved: Callable[[], None]
    count: int = 1


class Hub:
    def __init__(self, clock: Clock, *, max_delay_ms: int) -> None:
        self._clock = clock
        self._max_delay_seconds = max_delay_ms / 1000
        self._changed = threading.Condition()
        self._waiting: dict[TopicName, set[Wakeable]] = {}
        self._moved: set[TopicName] = set()
        self._watched: dict[TopicName, _WatchedTopic] = {}
        self._due: list[tuple[int, int, Wakeable]] = []
        self._planned: dict[Wakeable, int] = {}
        self._numbers = count()
        self._stopping = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="subscriptions", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    # Messages

    def watch(self, source: SubscriptionSource) -> None:
        """Listen to a topic, for one more subscription."""
        name, listeners = source.name, source.listeners

        def moved() -> None:
            with self._changed:
                if name in self._waiting:
                    self._moved.add(name)
                    self._changed.notify()

        with self._changed:
            known = self._watched.get(name)
            if known is not None and known.listeners is listeners:
                known.count += 1
                return
            self._watched[name] = _WatchedTopic(listeners, moved)
            listeners.add(moved)

    def unwatch(self, source: SubscriptionSource) -> None:
        name, listeners = source.name, source.listeners
        with self._changed:
            known = self._watched.get(name)
            if known is None or known.listeners is not listeners:
                return
            known.count -= 1
            if not known.count:
                del self._watched[name]
                listeners.discard(known.moved)

    def expect(self, waiting: Wakeable) -> None:
        """Have the next message of the topic wake a subscription. The caller checks for messages once more after it."""
        with self._changed:
            self._waiting.setdefault(waiting.topic, set()).add(waiting)

    def pause_seconds(self, topic: TopicName) -> float:
        """Return how long a subscription at the end of its topic lets messages collect."""
        watched = self._watched.get(topic)
        others = watched.count - _FEW if watched is not None else 0
        return min(max(0, others) * _PAUSE_SECONDS_EACH, self._max_delay_seconds)

    def forget(self, waiting: Wakeable) -> None:
        """Forget a subscription that has ended."""
        with self._changed:
            self._planned.pop(waiting, None)
            expecting = self._waiting.get(waiting.topic)
            if expecting is not None:
                expecting.discard(waiting)
                if not expecting:
                    del self._waiting[waiting.topic]

    # Time

    def schedule(self, waiting: Wakeable, due_ms: int) -> None:
        """Call a subscription at a time, unless it is called earlier."""
        with self._changed:
            planned = self._planned.get(waiting)
            if planned is not None and planned <= due_ms:
                return
            self._planned[waiting] = due_ms
            heapq.heappush(self._due, (due_ms, next(self._numbers), waiting))
            if len(self._due) > 2 * len(self._planned) + _KEPT_STALE:
                self._due = [(when, next(self._numbers), one) for one, when in self._planned.items()]
                heapq.heapify(self._due)
            if self._due[0][2] is waiting:
                self._changed.notify()

    def tick(self) -> None:
        """Do all that is due now."""
        now_ms = self._clock() // 1000
        while True:
            with self._changed:
                if not self._due or self._due[0][0] > now_ms:
                    return
                due_ms, _, waiting = heapq.heappop(self._due)
                if self._planned.get(waiting) != due_ms:
                    continue  # outdated: it was called earlier
                del self._planned[waiting]
            following = waiting.on_time(now_ms)
            if following is not None:
                self.schedule(waiting, max(following, now_ms + 1))

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait(self._seconds_left())
                if self._stopping:
                    return
            try:
                self.tick()
                self._round()
            except Exception:  # noqa: BLE001 - the thread serves all subscriptions: one of them must not end it
                _log.exception("subscription_wake_failed")

    def _seconds_left(self) -> float | None:
        left: list[float] = []
        if self._stopping:
            left.append(0)
        if self._moved:
            left.append(0)
        if self._due:
            left.append((self._due[0][0] - self._clock() / 1000) / 1000)
        return max(0.0, min(left)) if left else None

    def _round(self) -> None:
        with self._changed:
            woken = [waiting for topic in self._moved for waiting in self._waiting.pop(topic, ())]
            self._moved.clear()
        for waiting in woken:
            waiting.data_arrived()
