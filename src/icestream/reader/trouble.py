"""Objects that could not be read, remembered for a while, so that not every reader tries them at once."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from copy import copy
from time import monotonic
from typing import NamedTuple

import structlog

from icestream.model.errors import IcestreamError

_DAMAGED_SECONDS = 5.0
_AWAY_SECONDS = 2.0
_MAX_PLACES = 1_024
_log = structlog.get_logger(__name__)


class _Known(NamedTuple):
    error: IcestreamError
    until: float


class Troubles:
    """Thread-safe. What is wrong with places of a topic, by the first offset of each.

    After a while one reader, the first to ask, is let through to try again; the others go on to be told the error.
    """

    def __init__(self, topic: str, clock: Callable[[], float] = monotonic) -> None:
        self._topic = topic
        self._clock = clock
        self._lock = threading.Lock()
        self._known: OrderedDict[int, _Known] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._known)

    def note(self, place: int, error: IcestreamError) -> None:
        """A place could not be read. It is told once, as long as it is known."""
        with self._lock:
            is_new = self._known.pop(place, None) is None
            self._known[place] = _Known(copy(error), self._clock() + _pause(error))
            if len(self._known) > _MAX_PLACES:
                self._known.popitem(last=False)
        if is_new:
            _log.warning("cloud messages cannot be read", topic=self._topic, offset=place, error=str(error))

    def at(self, place: int) -> IcestreamError | None:
        """What is wrong with a place; None where nothing is known, and for who is to try again."""
        with self._lock:
            known = self._known.get(place)
            if known is None:
                return None
            now = self._clock()
            if now < known.until:
                return copy(known.error)  # one each: an error that is raised keeps the frames that it passes
            self._known[place] = _Known(known.error, now + _pause(known.error))
            return None

    def clear(self, place: int) -> None:
        """It can be read, again."""
        with self._lock:
            self._known.pop(place, None)


def _pause(error: IcestreamError) -> float:
    return _AWAY_SECONDS if error.retryable else _DAMAGED_SECONDS
