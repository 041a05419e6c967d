"""Regular work on open logs: syncs in mode `interval`, checkpoints, rotation by age."""

import threading
from collections.abc import Callable
from time import perf_counter

import structlog

from icestream.model.errors import IcestreamError
from icestream.wal import Log, LogState, SyncMode

_log = structlog.get_logger(__name__)
_MAX_SHARE = 0.1


class Periodic(threading.Thread):
    """Calls `work` at intervals, but never for more than a share of the time."""

    def __init__(
        self, name: str, interval_seconds: float, work: Callable[[], object], *, max_share: float = _MAX_SHARE
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._interval_seconds = interval_seconds
        self._work = work
        self._max_share = max_share
        self._stopping = threading.Event()

    def run(self) -> None:
        pause = self._interval_seconds
        while not self._stopping.wait(pause):
            started = perf_counter()
            self._work()
            pause = max(self._interval_seconds, (perf_counter() - started) / self._max_share)

    def stop(self) -> None:
        self._stopping.set()
        if self.is_alive():
            self.join()


def keep_logs(logs: list[Log]) -> None:
    """One round over the open logs; a log that fails says so itself and is left for its next append to recover."""
    for log in logs:
        if log.state is not LogState.OPEN:
            continue
        try:
            if log.context.options.sync_mode is SyncMode.INTERVAL:
                log.sync()
            log.rotate_if_old()
            log.checkpoint()
        except IcestreamError as error:
            _log.warning("housekeeping failed", directory=str(log.directory), error=str(error))
