"""How often a lasting trouble is logged."""

from collections.abc import Callable
from time import monotonic

FIRST_PAUSE_SECONDS = 60.0
MAX_PAUSE_SECONDS = 3600.0
"""Between two log events about the same trouble."""
_MAX_TROUBLES = 10_000


class RepeatedWarnings:
    """Decides when a lasting trouble is logged again: at first sight, then after a minute, and ever less often."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._due: dict[str, tuple[float, float]] = {}

    def is_due(self, key: str) -> bool:
        """Return whether a trouble is to be logged now; call it each time that it is seen."""
        now = self._clock()
        due, pause = self._due.get(key, (now, FIRST_PAUSE_SECONDS))
        if now < due:
            return False
        if len(self._due) >= _MAX_TROUBLES:  # nobody ends the trouble of a topic that was deleted
            self._due.clear()
        self._due[key] = now + pause, min(2 * pause, MAX_PAUSE_SECONDS)
        return True

    def end(self, key: str) -> None:
        """Note that the trouble is over."""
        self._due.pop(key, None)
