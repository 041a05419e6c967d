"""Threads that commit what nobody waits for inline."""

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol

import structlog

_log = structlog.get_logger(__name__)


class Pool(Protocol):
    def submit(self, work: Callable[[], None], /) -> object:
        """Have it done soon, by another thread."""


class CommitPool:
    """Unlike an executor it makes no futures, which cost more than a small message's commit: nobody looks at them."""

    def __init__(self, threads: int) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._run, name=f"commit-{number}", daemon=True) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, work: Callable[[], None], /) -> None:
        if self._closed:
            raise RuntimeError("the pool is closed")  # rather than never be done
        self._work.put(work)

    def close(self) -> None:
        """Finish what was submitted."""
        self._closed = True
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except Exception:  # noqa: BLE001 - one log's trouble is not the others'
                _log.exception("a commit failed in an unexpected way")
