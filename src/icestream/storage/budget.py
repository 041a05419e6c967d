"""Bytes that were received and not yet answered, bounded over all doors."""

import threading

from icestream.model.errors import OverloadedError


class ByteBudget:
    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._empty = threading.Condition(self._lock)
        self.used_bytes = 0

    def take(self, nbytes: int) -> None:
        with self._lock:
            if self.used_bytes + nbytes > self._max_bytes:
                raise OverloadedError(
                    f"{self.used_bytes} bytes wait for their acknowledgement, {nbytes} more exceed {self._max_bytes}",
                    operation="publish",
                    remedy="wait for acknowledgements and send again, or raise server.max_in_flight_bytes",
                )
            self.used_bytes += nbytes

    def give_back(self, nbytes: int) -> None:
        with self._lock:
            self.used_bytes -= nbytes
            if not self.used_bytes:
                self._empty.notify_all()

    def wait_until_empty(self, timeout_seconds: float) -> bool:
        """Wait until everything received is answered; False when the time was up before."""
        with self._lock:
            return self._empty.wait_for(lambda: not self.used_bytes, timeout_seconds)
