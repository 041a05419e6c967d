"""A child process of the broker. It gets the broker's settings, and does not outlive the broker.

The first line of a child's stdin holds the broker's settings, with secrets: they are in no file and on no command line.
The stdin stays open while the broker lives; the child stops when it ends.
"""

import base64
import contextlib
import os
import pickle
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

import structlog

from icestream.config import Settings

_CHUNK_BYTES = 64 * 1024


class BoundedLog:
    """Keeps the output of child processes in a file of bounded size, and the file before it as `NAME.1`.

    On a full disk output is lost, and nothing stops.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._closed = False
        self._file: IO[bytes] | None = None

    def copy(self, source: IO[bytes]) -> None:
        """Write everything that `source` yields, until it ends."""
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


_LAST_WORDS_SECONDS = 10.0
"""How long a child's own children (the JVM, workers) may outlive it before the next child is started."""
_log = structlog.get_logger(__name__)


def encode_settings(settings: Settings) -> bytes:
    return base64.b64encode(pickle.dumps(settings)) + b"\n"


def read_settings(stdin: IO[bytes]) -> Settings:
    """Read the settings in the child, as `encode_settings` wrote them."""
    settings = pickle.loads(base64.b64decode(stdin.readline()))  # noqa: S301 - from the process that started this one
    assert isinstance(settings, Settings)
    return settings


class ChildState(NamedTuple):
    pid: int | None
    """The child's process id; None if none runs."""
    starts: int
    last_exit: int | None


class Child:
    """Runs at most one process at a time, in one thread. Any thread may stop it for good.

    `name` is for the log. `environ` is added to this process's environment.
    """

    def __init__(
        self, name: str, greeting: bytes, output: BoundedLog, environ: Mapping[str, str] | None = None
    ) -> None:
        self._name = name
        self._environ = dict(environ or {})
        self._greeting = greeting
        self._output = output
        self._lock = threading.Lock()
        self._stopping = False
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0
        self._last_exit: int | None = None

    @property
    def state(self) -> ChildState:
        with self._lock:
            return ChildState(self._process.pid if self._process else None, self._starts, self._last_exit)

    def run(self, command: Sequence[str]) -> int | None:
        """Start a process and wait for its end. Return its exit code; None if it did not start."""
        process = self._start(command)
        if process is None:
            return None
        assert process.stdin is not None
        with contextlib.suppress(OSError):  # it died at once: its exit code says so
            process.stdin.write(self._greeting)
            process.stdin.flush()
        copying = threading.Thread(
            target=self._output.copy, args=(process.stdout,), name=f"{self._name}-log", daemon=True
        )
        copying.start()
        exit_code = process.wait()
        with contextlib.suppress(OSError):
            process.stdin.close()
        copying.join(_LAST_WORDS_SECONDS)
        with self._lock:
            self._process, self._last_exit = None, exit_code
        return exit_code

    def stop(self, timeout_seconds: float) -> None:
        """Ask the process to end, kill it after the time-out, and start no other."""
        with self._lock:
            self._stopping = True
            process = self._process
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            _log.warning("child_killed_after_timeout", child=self._name, pid=process.pid)
            process.kill()

    def _start(self, command: Sequence[str]) -> subprocess.Popen[bytes] | None:
        with self._lock:
            if self._stopping:
                return None
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    env=os.environ | self._environ,
                )
            except OSError as error:
                _log.error("child_start_failed", child=self._name, reason=str(error))
                return None
            self._starts += 1
            return self._process
