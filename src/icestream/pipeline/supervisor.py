"""A pipeline as a child of the broker: started, watched, started again when it dies, and never left behind.

What it guarantees: one child at a time; a child that dies is followed by another, after a pause that grows while they
keep dying young; all that children say is in one log file of bounded size, with the one before beside it; and no child
outlives the broker, however that ends, because it stops when its stdin does, and its JVM and workers with it.

The child gets the broker's settings as the first line of its stdin: all of them, secrets too, in no file and on no
command line.
"""

import base64
import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import IO

import structlog

from icestream.client.backoff import Backoff
from icestream.config import Settings

LOG_NAME = "pipeline.log"
_LIMIT_SECONDS = 60.0
_LONG_LIFE_SECONDS = 60.0
"""A child that lived so long is followed by the next after the shortest pause."""
_LAST_WORDS_SECONDS = 10.0
"""How long what a child has started (the JVM, workers) may outlive it before the next child is started."""
_CHUNK_BYTES = 64 * 1024
_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class SupervisorState:
    pid: int | None
    """Of the child, if one runs."""
    starts: int
    last_exit: int | None


def pipeline_supervisor(settings: Settings, broker: str) -> "Supervisor":
    """Keeps `icestream pipeline` running for the broker at an address, once it is started."""
    return Supervisor(
        [sys.executable, "-m", "icestream.cli", "pipeline", "--child", "--broker", broker],
        encode_settings(settings),
        settings.data_dir / LOG_NAME,
        log_max_bytes=settings.pipeline.log_max_bytes,
        restart_seconds=settings.pipeline.restart_interval_ms / 1000,
    )


def encode_settings(settings: Settings) -> bytes:
    return base64.b64encode(pickle.dumps(settings)) + b"\n"


def read_settings(stdin: IO[bytes]) -> Settings:
    """What `encode_settings` made, in the child."""
    settings = pickle.loads(base64.b64decode(stdin.readline()))  # noqa: S301 - from the process that started this one
    assert isinstance(settings, Settings)
    return settings


class Supervisor(threading.Thread):
    """A command kept running from `start` to `stop`; `greeting` is what each child finds on its stdin."""

    def __init__(
        self,
        command: Sequence[str],
        greeting: bytes,
        log_file: Path,
        *,
        log_max_bytes: int,
        restart_seconds: float,
    ) -> None:
        super().__init__(name="pipeline-supervisor", daemon=True)
        self._command = list(command)
        self._greeting = greeting
        self._output = BoundedLog(log_file, log_max_bytes)
        self._backoff = Backoff(restart_seconds, max(restart_seconds, _LIMIT_SECONDS))
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None
        self._starts = 0
        self._last_exit: int | None = None

    @property
    def state(self) -> SupervisorState:
        with self._lock:
            return SupervisorState(self._child.pid if self._child else None, self._starts, self._last_exit)

    def run(self) -> None:
        while not self._stopping.is_set():
            began = monotonic()
            self._run_child()
            if self._stopping.is_set():
                return
            if monotonic() - began >= _LONG_LIFE_SECONDS:
                self._backoff.reset()
            pause = self._backoff.next()
            _log.warning("the pipeline ended", exit_code=self._last_exit, again_in_seconds=round(pause, 1))
            self._stopping.wait(pause)

    def stop(self, timeout_seconds: float) -> None:
        """Ask the child to finish its pass; one that does not in time is killed."""
        self._stopping.set()
        with self._lock:
            child = self._child
        if child is not None:
            with contextlib.suppress(ProcessLookupError):
                child.send_signal(signal.SIGTERM)
            try:
                child.wait(timeout_seconds)
            except subprocess.TimeoutExpired:
                _log.warning("the pipeline did not stop in time and is killed", pid=child.pid)
                child.kill()
        if self.is_alive():
            self.join()
        self._output.close()

    def _run_child(self) -> None:
        """Start one and stay with it to its end."""
        with self._lock:
            if self._stopping.is_set():
                return
            try:
                child = self._child = subprocess.Popen(
                    self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
                )
            except OSError as error:
                _log.error("the pipeline cannot be started", error=str(error))
                return
            self._starts += 1
        assert child.stdout is not None
        assert child.stdin is not None
        with contextlib.suppress(OSError):  # it died at once; its exit code tells
            child.stdin.write(self._greeting)
            child.stdin.flush()
        copying = threading.Thread(target=self._output.copy, args=(child.stdout,), name="pipeline-log", daemon=True)
        copying.start()
        exit_code = child.wait()
        with contextlib.suppress(OSError):
            child.stdin.close()
        copying.join(_LAST_WORDS_SECONDS)
        with self._lock:
            self._child, self._last_exit = None, exit_code


class BoundedLog:
    """A file that takes all that is written, begun anew at a size; a disk that is full loses text and stops nobody."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._closed = False
        self._file: IO[bytes] | None = None

    def copy(self, source: IO[bytes]) -> None:
        """Write what comes, until it ends."""
        with source:
            while data := os.read(source.fileno(), min(_CHUNK_BYTES, self._max_bytes)):
                with contextlib.suppress(OSError), self._lock:
                    self._write(data)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._close_file()

    def _close_file(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None

    def _write(self, data: bytes) -> None:
        if self._closed:
            return
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("ab", buffering=0)
        if self._file.tell() + len(data) > self._max_bytes:
            self._close_file()
            self._path.replace(self._path.with_name(f"{self._path.name}.1"))
            self._file = self._path.open("ab", buffering=0)
        self._file.write(data)
