"""Time: the clock, in microseconds since 1970 UTC, and pauses between tries. Tests replace `Clock` with their own."""

import random
import time
from collections.abc import Callable

Clock = Callable[[], int]


def now_us() -> int:
    return time.time_ns() // 1000


class Backoff:
    """How long to wait before the next try: exponential, with jitter so that clients do not return all at once."""

    def __init__(self, first_s: float = 0.02, limit_s: float = 2.0) -> None:
        self._first_s = first_s
        self._limit_s = limit_s
        self._tries = 0

    def next(self) -> float:
        ceiling = min(self._limit_s, self._first_s * (1 << min(self._tries, 16)))
        self._tries += 1
        jitter: float = random.uniform(0.5, 1.0)  # noqa: S311 - no secret
        return ceiling * jitter

    def reset(self) -> None:
        self._tries = 0
