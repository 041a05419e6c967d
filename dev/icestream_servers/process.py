"""A server in a process of its own, on a free port of 127.0.0.1.

It is started again on the same port and files, its output is kept in a log file, and it is ended by its process group:
nothing that it started stays behind.
"""

import abc
import contextlib
import http.client
import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from icestream.broker_process import free_port
from icestream.model.errors import UnavailableError

HOST = "127.0.0.1"
_SHOWN_LOG_BYTES = 4000
_POLL_SECONDS = 0.05


class ServerProcess(abc.ABC):
    """`directory` holds all its files, the log `{name}.log` among them."""

    name: ClassVar[str]
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(
        self,
        directory: Path,
        *,
        port: int | None = None,
        start_timeout_seconds: float = 60.0,
        stop_timeout_seconds: float = 30.0,
    ) -> None:
        self.directory = directory
        self.port = port or free_port()
        self._start_timeout_seconds = start_timeout_seconds
        self._stop_timeout_seconds = stop_timeout_seconds
        self._process: subprocess.Popen[bytes] | None = None

    @abc.abstractmethod
    def command(self) -> Sequence[str]:
        """Return the command line. Raise `NotInstalledError` if the program is not on this machine."""

    def environ(self) -> dict[str, str]:
        return dict(os.environ)

    def prepare(self) -> None:  # noqa: B027  # most servers make their files themselves
        """Write the server's files into its directory; called before each start."""

    def is_ready(self) -> bool:
        """Return whether the server accepts connections."""
        with contextlib.suppress(OSError), socket.create_connection((HOST, self.port), timeout=1):
            return True
        return False

    def get(self, path: str) -> bytes | None:
        """Return the body of an HTTP response, or None for an error. Proxies of the environment are not used."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=10)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.read() if answer.status == http.HTTPStatus.OK else None
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    @property
    def log_file(self) -> Path:
        return self.directory / f"{self.name}.log"

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was not started"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Start the server and wait until it is ready."""
        assert not self.is_running, f"{self.name} runs already"
        self.directory.mkdir(parents=True, exist_ok=True)
        self.prepare()
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environ(),
                cwd=self.directory,
                start_new_session=True,
            )
        try:
            self._wait_until_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def stop(self) -> None:
        """Ask the server to stop; kill it if it does not stop in time."""
        if self.is_running:
            self._signal(signal.SIGCONT)
            os.kill(self.pid, self.stop_signal)
            with contextlib.suppress(subprocess.TimeoutExpired):
                assert self._process is not None
                self._process.wait(self._stop_timeout_seconds)
        self.kill()

    def kill(self) -> None:
        """Kill the server and all its child processes with SIGKILL."""
        if self._process is not None:
            self._signal(signal.SIGKILL)
            self._process.wait()

    def restart(self) -> Self:
        self.stop()
        return self.start()

    def pause(self) -> None:
        """Stop the process with SIGSTOP: the system still accepts connections, but nothing responds."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def log(self) -> str:
        """Return the end of the server's log."""
        return self.log_file.read_bytes()[-_SHOWN_LOG_BYTES:].decode(errors="replace")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)  # it leads a session, so its pid is the group's

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + self._start_timeout_seconds
        while not self.is_ready():
            if not self.is_running:
                raise self._not_ready("it ended")
            if time.monotonic() > deadline:
                raise self._not_ready(f"waited {self._start_timeout_seconds} s")
            time.sleep(_POLL_SECONDS)

    def _not_ready(self, reason: str) -> UnavailableError:
        said = (self.log().strip().splitlines() or [""])[-1]
        return UnavailableError(
            f"{self.name} did not become ready: {reason}{f', {said}' if said else ''}",
            operation=f"start {self.name}",
            place=str(self.log_file),
        )
