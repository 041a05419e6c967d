"""Time in microseconds since 1970 UTC. Tests replace it with their own `Clock`."""

import time
from collections.abc import Callable

Clock = Callable[[], int]


def now_us() -> int:
    return time.time_ns() // 1000
