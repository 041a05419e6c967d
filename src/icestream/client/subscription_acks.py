"""What a consumer sends to the broker: acknowledgements, refusals, credit, signs of life.

They are collected for a few milliseconds and sent together by a thread of their own, as ranges of offsets. Taking note
of a single acknowledged message costs an append to a deque: no lock, and no message on the wire. What could not be sent
when the connection broke is sent on the next one. That is harmless: the broker ignores what it did not deliver there.
"""

import threading
import time
from collections import deque
from typing import Any

import pyarrow as pa

from icestream.client.offset_ranges import Ranges, merge, ranges_of
from icestream.client.subscription_stream import SubscriptionStream
from icestream.model.errors import ClosedError, DeadlineError, IcestreamError, UnavailableError, error_from_dict

LINGER_S = 0.02
MAX_COLLECTED = 1_000
"""Acknowledgements of single messages that go at once."""
_MAX_RANGES = 10_000
"""In one message to the broker."""
_IDLE_S = 10.0


class Acks:
    def __init__(self) -> None:
        self._offsets: deque[int] = deque()
        self._ranges: deque[tuple[int, int]] = deque()
        self._refused: deque[tuple[int | None, Ranges]] = deque()
        self._cumulative = -1
        self._granted = (0, 0)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._sending = threading.Lock()
        self._pending = threading.Event()
        self._urgent = threading.Event()
        self._stream: SubscriptionStream | None = None
        self._ping_s = _IDLE_S
        self._sent_acks = False
        self._flushes = 0
        self._flushed = 0
        self._failure: IcestreamError | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="icestream-acks", daemon=True)
        self._thread.start()

    # ---- what the application says

    def ack(self, offset: int) -> None:
        self._offsets.append(offset)
        if not self._pending.is_set():
            self._pending.set()
        elif len(self._offsets) >= MAX_COLLECTED and not self._urgent.is_set():
            self._urgent.set()

    def ack_ranges(self, ranges: Ranges) -> None:
        self._ranges.extend(ranges)
        self._pending.set()

    def ack_cumulative(self, offset: int) -> None:
        with self._lock:
            self._cumulative = max(self._cumulative, offset)
        self._pending.set()

    def nack(self, ranges: Ranges, delay_ms: int | None) -> None:
        self._refused.append((delay_ms, ranges))
        self._pending.set()

    def grant(self, messages: int, nbytes: int, *, urgent: bool) -> None:
        """Give back credit."""
        with self._lock:
            self._granted = (self._granted[0] + messages, self._granted[1] + nbytes)
        self._pending.set()
        if urgent:
            self._urgent.set()

    def flush(self, timeout: float) -> None:
        """Send all that was said so far, and wait until the broker has applied and stored it."""
        deadline = time.monotonic() + timeout
        with self._sending:
            with self._lock:
                stream = self._stream
                self._flushes += 1
                number = self._flushes
            if self._closed or stream is None or not self._send_collected(stream, {"flush": number}):
                raise self._not_flushed()
        with self._lock:
            done = self._changed.wait_for(
                lambda: self._flushed >= number or self._stream is not stream, deadline - time.monotonic()
            )
            if self._flushed >= number:
                if self._failure is not None:
                    raise self._failure
                return
        raise self._not_flushed() if done else DeadlineError(f"not flushed within {timeout} s", operation="flush")

    def _not_flushed(self) -> IcestreamError:
        if self._closed:
            return ClosedError("the subscription is closed", operation="flush")
        return UnavailableError(
            "the connection to the broker is broken",
            operation="flush",
            remedy="what was acknowledged last may be delivered again",
        )

    @property
    def unconfirmed(self) -> bool:
        """Whether acknowledgements were given that no flush has confirmed."""
        return bool(self._sent_acks or self._offsets or self._ranges or self._refused or self._cumulative >= 0)

    # ---- the connection

    def attach(self, stream: SubscriptionStream, ping_s: float) -> None:
        with self._lock:
            self._stream = stream
            self._granted = (0, 0)  # a new stream begins with all of it
            self._ping_s = ping_s
        self._pending.set()

    def detach(self) -> None:
        with self._lock:
            self._stream = None
            self._ping_s = _IDLE_S
            self._changed.notify_all()

    def flushed(self, number: int, failure: dict[str, Any] | None = None) -> None:
        """The broker's answer to a flush, and to all before it."""
        with self._lock:
            self._flushed = max(self._flushed, number)
            self._failure = None if failure is None else error_from_dict(failure)
            self._changed.notify_all()

    def close(self) -> None:
        self._closed = True
        self._pending.set()
        self._urgent.set()
        self._thread.join()

    # ---- the sending thread

    def _run(self) -> None:
        while not self._closed:
            if self._pending.wait(self._ping_s):
                self._urgent.wait(LINGER_S)
            # Cleared before looking, so that what is said after the look is not missed.
            self._urgent.clear()
            self._pending.clear()
            with self._sending:
                stream = self._stream
                if stream is not None:
                    self._send_collected(stream, {})

    def _send_collected(self, stream: SubscriptionStream, last: dict[str, Any]) -> bool:
        """Send what was collected, or at least a sign of life, and `last` behind it."""
        acks = self._take_acks()
        refused = [self._refused.popleft() for _ in range(len(self._refused))]
        with self._lock:
            cumulative, self._cumulative = self._cumulative, -1
            granted = (0, 0)
            if stream is self._stream:  # credit is a stream's own
                granted, self._granted = self._granted, granted
            self._sent_acks = not last and bool(self._sent_acks or acks or refused or cumulative >= 0)
        messages: list[dict[str, Any]] = [
            {"ack": acks[start : start + _MAX_RANGES]} for start in range(0, len(acks), _MAX_RANGES)
        ]
        if cumulative >= 0:
            messages.append({"ack_cumulative": cumulative})
        for delay_ms, ranges in refused:
            messages.append({"nack": ranges} if delay_ms is None else {"nack": ranges, "delay_ms": delay_ms})
        if granted != (0, 0):
            messages.append({"grant": granted})
        if last:
            messages.append(last)
        sent = all(stream.send(message) for message in _joined(messages or [{"ping": 1}]))
        if not sent:
            self._ranges.extend(acks)
            self._refused.extend(refused)
            with self._lock:
                self._cumulative = max(self._cumulative, cumulative)
        return sent

    def _take_acks(self) -> Ranges:
        offsets = [self._offsets.popleft() for _ in range(len(self._offsets))]
        ranges = [self._ranges.popleft() for _ in range(len(self._ranges))]
        if offsets:
            ranges += ranges_of(pa.array(offsets, pa.int64()))
        return merge(ranges)


def _joined(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Neighbours that say different things go as one message."""
    joined: list[dict[str, Any]] = []
    for message in messages:
        if joined and not joined[-1].keys() & message.keys():
            joined[-1] = joined[-1] | message
        else:
            joined.append(message)
    return joined
