"""Runs `icestream maintain --all` as a child process of the broker, at intervals.

Guarantees: one run at a time, the next an interval after the end of the last; the output of all runs is in one log file
of bounded size; no run outlives the broker, because it stops when its stdin ends. A run can be killed at any moment:
the next removal of orphans deletes what it had not committed.

The child has a low priority, and gets the broker's settings on its stdin.
"""

import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic

import structlog

from icestream.config import Settings
from icestream.pipeline.child_process import BoundedLog, Child, encode_settings

LOG_NAME = "maintenance.log"
_ORPHANS = "--orphans"
_HOUR_SECONDS = 3600.0
_MINUTE_SECONDS = 60.0
_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class ScheduleState:
    pid: int | None
    """The child's process id; None if none runs."""
    runs: int
    """Runs that have ended."""
    failures: int
    """Runs that ended with an exit code other than 0, and not because the schedule was stopped."""
    last_exit: int | None
    last_seconds: float


def maintenance_schedule(settings: Settings) -> "Schedule":
    """Return a schedule that maintains all tables at the intervals of the settings."""
    return Schedule(
        [sys.executable, "-m", "icestream.cli", "maintain", "--all", "--child"],
        settings,
        interval_seconds=settings.maintenance.interval_minutes * _MINUTE_SECONDS,
        orphan_interval_seconds=settings.maintenance.orphan_interval_hours * _HOUR_SECONDS,
    )


class Schedule(threading.Thread):
    def __init__(
        self,
        command: Sequence[str],
        settings: Settings,
        *,
        interval_seconds: float,
        orphan_interval_seconds: float,
    ) -> None:
        super().__init__(name="maintenance-schedule", daemon=True)
        self._command = list(command)
        self._output = BoundedLog(settings.data_dir / LOG_NAME, settings.pipeline.log_max_bytes)
        self._child = Child("maintenance", encode_settings(settings), self._output)
        self._interval_seconds = interval_seconds
        self._orphan_interval_seconds = orphan_interval_seconds
        self._orphans_at: float | None = None
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._runs = 0
        self._failures = 0
        self._last_seconds = 0.0

    @property
    def state(self) -> ScheduleState:
        with self._lock:
            child = self._child.state
            return ScheduleState(child.pid, self._runs, self._failures, child.last_exit, self._last_seconds)

    def run(self) -> None:
        while not self._stopping.wait(self._interval_seconds):
            self._run_once()

    def stop(self, timeout_seconds: float) -> None:
        """End a run that is in progress."""
        self._stopping.set()
        self._child.stop(timeout_seconds)
        if self.is_alive():
            self.join()
        self._output.close()

    def _steps(self, now: float) -> list[str]:
        """Return the steps of this run. The search for orphans lists whole tables, so it runs less often."""
        steps = ["--compact", "--manifests", "--expire"]
        if self._orphans_at is None or now - self._orphans_at >= self._orphan_interval_seconds:
            steps.append(_ORPHANS)
        return steps

    def _run_once(self) -> None:
        began = monotonic()
        steps = self._steps(began)
        exit_code = self._child.run([*self._command, *steps])
        if exit_code is None:
            return
        if _ORPHANS in steps:
            self._orphans_at = began
        has_failed = exit_code != 0 and not self._stopping.is_set()
        with self._lock:
            self._runs += 1
            self._failures += has_failed
            self._last_seconds = monotonic() - began
        if has_failed:
            _log.warning("maintenance_run_failed", exit_code=exit_code, log=LOG_NAME)
