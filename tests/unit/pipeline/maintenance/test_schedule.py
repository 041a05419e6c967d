"""Runs at intervals, one at a time, with their output kept."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

from icestream.config import Settings
from icestream.pipeline.maintenance.schedule import LOG_NAME, Schedule, maintenance_schedule

SAY_ARGUMENTS = "import sys; sys.stdin.readline(); print(*sys.argv[1:], flush=True)"
WAIT_FOR_THE_END = "import sys; print('began', flush=True); sys.stdin.read()"
_LIMIT_SECONDS = 30.0


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def schedule(folder: Path, program: str, interval_seconds: float = 0.01) -> Schedule:
    return Schedule(
        [sys.executable, "-c", program],
        Settings(data_dir=folder),
        interval_seconds=interval_seconds,
        orphan_interval_seconds=3600,
    )


def test_runs_follow_each_other_and_look_for_orphans_less_often(tmp_path: Path) -> None:
    made = schedule(tmp_path, SAY_ARGUMENTS)
    made.start()
    until(lambda: made.state.runs >= 2)
    made.stop(_LIMIT_SECONDS)
    first, second, *_ = (tmp_path / LOG_NAME).read_text().splitlines()
    assert first == "--compact --manifests --expire --orphans"
    assert second == "--compact --manifests --expire"
    assert made.state.failures == 0


def test_a_failed_run_is_counted_and_followed_by_another(tmp_path: Path) -> None:
    made = schedule(tmp_path, "raise SystemExit(3)")
    made.start()
    until(lambda: made.state.failures >= 2)
    made.stop(_LIMIT_SECONDS)
    assert made.state.last_exit in (3, -15)


def test_a_run_that_is_under_way_ends_with_the_schedule(tmp_path: Path) -> None:
    made = schedule(tmp_path, WAIT_FOR_THE_END)
    made.start()
    until(lambda: made.state.pid is not None and "began" in _log(tmp_path))
    made.stop(_LIMIT_SECONDS)
    assert made.state.pid is None
    assert not made.is_alive()


def test_nothing_runs_before_the_first_interval_is_over(tmp_path: Path) -> None:
    made = schedule(tmp_path, SAY_ARGUMENTS, interval_seconds=3600)
    made.start()
    made.stop(_LIMIT_SECONDS)
    assert made.state.runs == 0


def test_the_settings_say_how_often(tmp_path: Path) -> None:
    made = maintenance_schedule(Settings(data_dir=tmp_path))
    assert made.state.runs == 0
    made.stop(_LIMIT_SECONDS)


def _log(folder: Path) -> str:
    path = folder / LOG_NAME
    return path.read_text() if path.exists() else ""
