"""Calls that are not waited for long, of what may take long where a server is away."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from time import monotonic

from icestream.model.errors import DeadlineError

_MAX_UNDER_WAY = 8


class BriefCalls:
    """Each call has a thread of its own; one that is given up goes on there to its end, and few do at a time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._free = threading.Semaphore(_MAX_UNDER_WAY)

    def run(self, call: Callable[[], bool]) -> bool:
        """What the call gives or raises; `DeadlineError` when the time is up before."""
        deadline = monotonic() + self._seconds
        if not self._free.acquire(timeout=self._seconds):
            raise self._late()
        outcome: Future[bool] = Future()

        def work() -> None:
            try:
                outcome.set_result(call())
            except BaseException as error:  # noqa: BLE001 - it belongs to who waits
                outcome.set_exception(error)
            finally:
                self._free.release()

        threading.Thread(target=work, name="brief-call", daemon=True).start()
        try:
            return outcome.result(max(0.0, deadline - monotonic()))
        except FutureTimeoutError:
            raise self._late() from None

    def _late(self) -> DeadlineError:
        return DeadlineError(f"no answer within {self._seconds:g} seconds", operation="look")
