"""The newest durable frames of all topics, in memory, bounded by bytes.

All logs share one budget. When it is used up, the frame that was added first goes first, of whatever log it is. The
frames of one log are ordered and without gaps, so a reader that finds its offset here can continue here.
"""

import threading
from bisect import bisect_right
from collections import deque

from icestream.model.messages import Frame

_FRAME_OVERHEAD_BYTES = 400  # the Python objects around a body
_DROPPED = Frame(-1, 0, 0, 0, "", 0, 0, 0, b"")


class FrameCache:
    def __init__(self, max_bytes: int, max_messages_per_log: int) -> None:
        self._max_bytes = max_bytes
        self._max_messages_per_log = max_messages_per_log
        self._lock = threading.Lock()
        self._arrivals: deque[LogCache] = deque()  # one entry per frame, in order of arrival
        self._stale_arrivals = 0
        self._bytes = 0

    @property
    def nbytes(self) -> int:
        return self._bytes

    def log_cache(self) -> "LogCache":
        return LogCache(self)

    def add(self, log: "LogCache", frames: list[Frame]) -> None:
        with self._lock:
            for frame in frames:
                log.append(frame)
                self._arrivals.append(log)
                self._bytes += frame.nbytes + _FRAME_OVERHEAD_BYTES
            while log.messages > self._max_messages_per_log and len(log) > 1:
                self._drop_out_of_order(log)
            while self._bytes > self._max_bytes and self._arrivals:
                oldest = self._arrivals.popleft()
                if oldest.stale_arrivals:
                    oldest.stale_arrivals -= 1
                    self._stale_arrivals -= 1
                else:
                    self._bytes -= oldest.drop_oldest().nbytes + _FRAME_OVERHEAD_BYTES

    def read(self, log: "LogCache", offset: int, max_bytes: int) -> list[Frame]:
        with self._lock:
            return log.slice(offset, max_bytes)

    def holds(self, log: "LogCache", offset: int) -> bool:
        with self._lock:
            return log.first_offset <= offset < log.end_offset

    def clear(self, log: "LogCache") -> None:
        with self._lock:
            while len(log):
                self._drop_out_of_order(log)

    def _drop_out_of_order(self, log: "LogCache") -> None:
        """Drop a log's oldest frame. Its entry in the order of arrival stays, and is skipped later."""
        self._bytes -= log.drop_oldest().nbytes + _FRAME_OVERHEAD_BYTES
        log.stale_arrivals += 1
        self._stale_arrivals += 1
        if self._stale_arrivals * 2 > len(self._arrivals):
            self._forget_stale_arrivals()

    def _forget_stale_arrivals(self) -> None:
        kept: deque[LogCache] = deque()
        for log in self._arrivals:
            if log.stale_arrivals:
                log.stale_arrivals -= 1
            else:
                kept.append(log)
        self._arrivals = kept
        self._stale_arrivals = 0


class LogCache:
    """One log's frames. Every access goes through the `FrameCache` that made it, which holds the lock."""

    def __init__(self, cache: FrameCache) -> None:
        self._cache = cache
        self._frames: list[Frame] = []
        self._first = 0
        self.stale_arrivals = 0
        self.messages = 0
        self.hits = 0
        self.misses = 0

    def __len__(self) -> int:
        return len(self._frames) - self._first

    def add(self, frames: list[Frame]) -> None:
        self._cache.add(self, frames)

    def read(self, offset: int, max_bytes: int) -> list[Frame]:
        """Return frames from the one with `offset` on; none if it is not in the cache."""
        frames = self._cache.read(self, offset, max_bytes)
        if frames:
            self.hits += 1
        else:
            self.misses += 1
        return frames

    def holds(self, offset: int) -> bool:
        return self._cache.holds(self, offset)

    def clear(self) -> None:
        self._cache.clear(self)

    def append(self, frame: Frame) -> None:
        self._frames.append(frame)
        self.messages += frame.message_count

    def drop_oldest(self) -> Frame:
        frame = self._frames[self._first]
        self._frames[self._first] = _DROPPED
        self._first += 1
        self.messages -= frame.message_count
        if self._first * 2 > len(self._frames):
            del self._frames[: self._first]
            self._first = 0
        return frame

    @property
    def first_offset(self) -> int:
        return self._frames[self._first].base_offset if len(self) else 0

    @property
    def end_offset(self) -> int:
        return self._frames[-1].end_offset if len(self) else 0

    def slice(self, offset: int, max_bytes: int) -> list[Frame]:
        index = bisect_right(self._frames, offset, lo=self._first, key=lambda frame: frame.base_offset) - 1
        if index < self._first or offset >= self._frames[index].end_offset:
            return []
        found = [self._frames[index]]
        room = max_bytes - found[0].nbytes
        for following in range(index + 1, len(self._frames)):
            frame = self._frames[following]
            room -= frame.nbytes
            if room < 0:
                break
            found.append(frame)
        return found
