"""Regular work on open logs: syncs in mode `interval`, checkpoints, rotation by age, a look at their publish times."""

import threading
from collections.abc import Callable, Sequence
from time import monotonic, perf_counter

import structlog

from icestream.model.errors import IcestreamError
from icestream.storage.repeated_warnings import RepeatedWarnings
from icestream.wal import Log, LogState

_log = structlog.get_logger(__name__)
_MAX_SHARE = 0.05


class Periodic(threading.Thread):
    """A thread that calls `work` at intervals, for at most a share of the time. An error does not end it."""

    def __init__(
        self, name: str, interval_seconds: float, work: Callable[[], object], *, max_share: float = _MAX_SHARE
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._interval_seconds = interval_seconds
        self._work = work
        self._max_share = max_share
        self._rested_seconds = 0.0
        self._stopping = threading.Event()
        self._wake = threading.Event()

    def run(self) -> None:
        pause = self._interval_seconds
        while True:
            self._wake.wait(pause)
            self._wake.clear()
            if self._stopping.is_set():
                return
            started, self._rested_seconds = perf_counter(), 0.0
            try:
                self._work()
            except Exception:  # noqa: BLE001 - it is needed for as long as the process lives
                _log.exception("periodic_work_failed", work=self.name)
            busy = perf_counter() - started - self._rested_seconds
            pause = max(self._interval_seconds, busy / self._max_share - self._rested_seconds)

    def rest(self, busy_seconds: float) -> bool:
        """Pause to keep to the share, for `work` that has many steps. Return False if it has to stop."""
        started = perf_counter()
        ended = self._stopping.wait(busy_seconds / self._max_share - busy_seconds)
        self._rested_seconds += perf_counter() - started
        return not ended

    def hurry(self) -> None:
        """Call `work` now; once more if it is running."""
        self._wake.set()

    def end(self) -> None:
        """Do not call `work` again. A call may still be running."""
        self._stopping.set()
        self._wake.set()


def stop_all(threads: Sequence[Periodic], timeout_seconds: float) -> None:
    """Stop all. A thread that takes longer is abandoned: its work may be interrupted anywhere."""
    for thread in threads:
        thread.end()
    deadline = monotonic() + timeout_seconds
    for thread in threads:
        if thread.is_alive():
            thread.join(max(0.0, deadline - monotonic()))


def sync_logs(logs: list[Log]) -> None:
    """Sync all open logs once."""
    for log in logs:
        _do(Log.sync, log)


def keep_logs(logs: list[Log], rest: Callable[[float], bool]) -> None:
    """Write checkpoints and rotate by age, once for all open logs.

    With thousands of topics this takes seconds, so it pauses in between and does not slow publishers down.
    """
    for log in logs:
        started = perf_counter()
        _do(Log.rotate_if_old, log)
        _do(Log.checkpoint, log)
        if not rest(perf_counter() - started):
            return


MAX_CLOCK_AHEAD_SECONDS = 60.0
"""Publish times that are farther ahead of the clock are reported."""


def seconds_ahead(log: Log) -> float:
    """Return how far publish times are ahead of the clock; 0 if that is little, as two machines' clocks differ."""
    ahead = log.clock_ahead_us / 1e6
    return ahead if ahead > MAX_CLOCK_AHEAD_SECONDS else 0.0


class ClockWatch:
    """Logs which topics' publish times are ahead of the clock: a clock that was wrong once pins them there."""

    def __init__(self) -> None:
        self._warnings = RepeatedWarnings()

    def look(self, logs: list[Log]) -> None:
        for log in logs:
            topic, ahead = log.stream.topic, seconds_ahead(log)
            if not ahead:
                self._warnings.end(topic)
            elif self._warnings.is_due(topic):
                _log.warning(
                    "publish_time_ahead",
                    topic=topic,
                    ahead_seconds=round(ahead),
                    remedy=f"correct the clock, then `icestream topic reset-clock {topic}`",
                )


def _do(chore: Callable[[Log], None], log: Log) -> None:
    """Run a step; log its failure. The log recovers at its next append."""
    if log.state is LogState.OPEN:
        try:
            chore(log)
        except IcestreamError as error:
            _log.warning("log_housekeeping_failed", directory=str(log.directory), error=str(error))
