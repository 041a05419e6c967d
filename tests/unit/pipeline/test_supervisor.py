import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from icestream.config import ObjectStoreSettings, Settings
from icestream.pipeline.child_process import BoundedLog, encode_settings, read_settings
from icestream.pipeline.supervisor import Supervisor


@pytest.fixture
def log_file(tmp_path: Path) -> Path:
    return tmp_path / "logs" / "pipeline.log"


def supervise(script: str, log_file: Path, *, log_max_bytes: int = 1 << 20) -> Supervisor:
    command = [sys.executable, "-u", "-c", script]
    return Supervisor(command, b"hello\n", log_file, log_max_bytes=log_max_bytes, restart_seconds=0.001)


def wait_for(path: Path, text: str) -> None:
    for _ in range(600):
        if path.exists() and text in path.read_text():
            return
        threading.Event().wait(0.05)
    raise AssertionError(f"{text!r} did not come: {path.read_text() if path.exists() else 'no file'}")


@pytest.fixture
def stopping() -> Iterator[list[Supervisor]]:
    started: list[Supervisor] = []
    yield started
    for supervisor in started:
        supervisor.stop(10)


def test_a_child_that_dies_is_followed_by_another(log_file: Path, stopping: list[Supervisor]) -> None:
    supervisor = supervise("import os; print('pid', os.getpid()); os.abort()", log_file)
    stopping.append(supervisor)
    supervisor.start()
    for _ in range(600):
        if supervisor.state.starts >= 3:
            break
        threading.Event().wait(0.05)
    assert supervisor.state.starts >= 3
    assert supervisor.state.last_exit == -signal.SIGABRT
    assert len(set(log_file.read_text().split("\n"))) >= 3


def test_a_child_finds_the_greeting_on_its_stdin_and_is_asked_to_stop(log_file: Path) -> None:
    script = (
        "import signal, sys, threading\n"
        "done = threading.Event()\n"
        "signal.signal(signal.SIGTERM, lambda *_: done.set())\n"
        "print('got', input())\n"
        "done.wait()\n"
        "print('graceful')\n"
    )
    supervisor = supervise(script, log_file)
    supervisor.start()
    wait_for(log_file, "got hello")
    supervisor.stop(30)
    assert supervisor.state.last_exit == 0
    assert supervisor.state.pid is None
    assert "graceful" in log_file.read_text()


def test_a_child_that_does_not_stop_in_time_is_killed(log_file: Path) -> None:
    script = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up'); time.sleep(600)"
    supervisor = supervise(script, log_file)
    supervisor.start()
    wait_for(log_file, "up")
    supervisor.stop(0.1)
    assert supervisor.state.last_exit == -signal.SIGKILL


def test_a_command_that_cannot_be_started_is_tried_again(tmp_path: Path, log_file: Path) -> None:
    program = tmp_path / "program"
    supervisor = Supervisor([str(program)], b"", log_file, log_max_bytes=1 << 20, restart_seconds=0.001)
    supervisor.start()
    program.write_text("#!/bin/sh\necho here\nexec sleep 600\n")
    program.chmod(0o755)
    wait_for(log_file, "here")
    supervisor.stop(10)


def test_the_log_is_bounded_and_the_one_before_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.log"
    reading, writing = os.pipe()
    log = BoundedLog(path, 1000)
    with os.fdopen(reading, "rb") as source, os.fdopen(writing, "wb", buffering=0) as sink:
        copying = threading.Thread(target=log.copy, args=(source,))
        copying.start()
        for number in range(100):
            sink.write(f"{number:099d}\n".encode())
        sink.close()
        copying.join()
    log.close()
    kept = path.with_name("pipeline.log.1").read_bytes() + path.read_bytes()
    assert path.stat().st_size <= 1000
    assert len(kept) <= 2000
    assert kept.endswith(f"{99:099d}\n".encode())


def test_settings_reach_the_child_with_their_secrets(tmp_path: Path) -> None:
    settings = Settings(
        data_dir=tmp_path,
        object_store=ObjectStoreSettings(access_key="open", secret_key="sesame"),  # type: ignore[arg-type]
    )
    path = tmp_path / "stdin"
    path.write_bytes(encode_settings(settings))
    with path.open("rb") as stdin:
        assert read_settings(stdin) == settings
