"""Which processes a broker runs beside itself."""

from pathlib import Path

import pytest

from icestream import app
from icestream.app import Broker, child_processes
from icestream.config import load_settings


class Recorder:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def start(self) -> None:
        self.calls.append("start")

    def stop(self, _timeout_seconds: float) -> None:
        self.calls.append("stop")


@pytest.mark.parametrize("enabled", [True, False])
def test_maintenance_runs_without_a_pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, enabled: bool) -> None:
    recorder = Recorder()
    monkeypatch.setattr(app, "maintenance_schedule", lambda _: recorder)
    flags = {"data_dir": str(tmp_path), "pipeline.enabled": False, "maintenance.enabled": enabled}
    with child_processes(Broker(load_settings(overrides=flags))):
        assert recorder.calls == (["start"] if enabled else [])
    assert recorder.calls == (["start", "stop"] if enabled else [])
