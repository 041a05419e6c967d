"""Flushes that a consumer asks for, beside its stream: a slow metadata store does not hold up its signs of life."""

import threading
from collections.abc import Callable
from typing import Any

from icestream.model.errors import IcestreamError


class Flushes:
    """One thread at most, and only while a flush is wanted. The answer to one is the answer to all before it."""

    def __init__(self, flush: Callable[[], None], tell: Callable[[dict[str, Any]], None]) -> None:
        self._flush = flush
        self._tell = tell
        self._lock = threading.Lock()
        self._wanted: int | None = None
        self._thread: threading.Thread | None = None

    def want(self, number: int) -> None:
        """Flush what is applied by now, and tell when it is stored, or why it is not."""
        with self._lock:
            self._wanted = number
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="flush", daemon=True)
                self._thread.start()

    def finish(self) -> None:
        """Wait for the one that is under way."""
        with self._lock:
            thread = self._thread
            self._wanted = None
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._lock:
                number, self._wanted = self._wanted, None
                if number is None:
                    self._thread = None
                    return
            try:
                self._flush()
                self._tell({"flushed": number})
            except IcestreamError as error:
                self._tell({"flushed": number, "failure": error.to_dict()})
