"""Runs `icestream serve` as a child process: for the demo, measurements and tests."""

import contextlib
import json
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self
from urllib.parse import urlsplit

from icestream.model.errors import UnavailableError

_PREFIX = "ICESTREAM_"
_READY = b"ready "
_SHOWN_LOG_BYTES = 4000
_OTLP_DOORS = ("otlp_grpc", "otlp_http")

_HOST = "127.0.0.1"
_FIRST_PORT = 12_000
_PORTS = 20_000  # up to 32,000: clients get theirs from 32,768 on


def free_port() -> int:
    """Return a free port below the range that the system gives to clients.

    A port of that range may belong to a client when the server asks for it, or asks for it again after a restart.
    """
    while True:
        port = _FIRST_PORT + secrets.randbelow(_PORTS)  # not `random`: tests set its seed
        with contextlib.suppress(OSError), socket.create_server((_HOST, port)):
            return port


class BrokerProcess:
    """A broker on free ports of this machine. It can be stopped, killed and started again on its data and ports.

    The broker ignores the caller's ICESTREAM_* variables. `pipeline` also starts the Spark pipeline, `otlp` opens the
    OpenTelemetry doors. `environ` has settings (`{"ICESTREAM_WAL__SYNC_MODE": "os"}`), `arguments` more flags. The log
    goes to `log_file`, by default `broker.log` in the data directory.
    """

    spawn: ClassVar[Callable[..., Any]] = subprocess.Popen
    """Starts the process. Tests that start many brokers fork them instead."""

    def __init__(
        self,
        data_dir: Path,
        *,
        environ: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
        pipeline: bool = False,
        otlp: bool = False,
        log_file: Path | None = None,
        start_timeout: float = 60.0,
        stop_timeout: float = 60.0,
    ) -> None:
        self.data_dir = data_dir
        self.log_file = log_file or data_dir / "broker.log"
        self.doors: dict[str, str] = {}
        self._environ = {name: value for name, value in os.environ.items() if not name.startswith(_PREFIX)}
        self._environ |= {f"{_PREFIX}PIPELINE__ENABLED": str(pipeline).lower(), **(environ or {})}
        self._environ.setdefault(f"{_PREFIX}SERVER__SOCKET_PORT", str(free_port()))
        self._arguments = list(arguments)
        self._free_doors = ("flight", "http", *(_OTLP_DOORS if otlp else ()))
        self._shut_doors = () if otlp else _OTLP_DOORS
        self._start_timeout = start_timeout
        self._stop_timeout = stop_timeout
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def flight(self) -> str:
        """The Flight address, for clients."""
        return self.doors["flight"]

    @property
    def http(self) -> str:
        return self.doors["http"]

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Start the broker and wait until all doors are open. A restart takes the same ports."""
        assert not self.is_running, "the broker runs already"
        self._close()
        self.data_dir.mkdir(parents=True, exist_ok=True)
        ports = {door: urlsplit(self.doors[door]).port if self.doors else free_port() for door in self._free_doors}
        ports |= dict.fromkeys(self._shut_doors, -1)
        flags = [f"--{door.replace('_', '-')}-port={port}" for door, port in ports.items()]
        with self.log_file.open("ab") as log:
            self._process = self.spawn(
                [sys.executable, "-m", "icestream.cli", "serve", f"--data={self.data_dir}", *flags, *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self._environ,
            )
        try:
            self.doors = json.loads(self._ready_line())
        except BaseException:
            self.kill()
            raise
        return self

    def kill(self) -> None:
        """Kill the broker with SIGKILL: nothing is flushed."""
        process = self._running()
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait()
        self._close()

    def terminate(self) -> int:
        """Stop the broker with SIGTERM and return its exit code. Kill it and raise if it does not stop in time."""
        process = self._running()
        process.send_signal(signal.SIGTERM)
        try:
            return process.wait(self._stop_timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        finally:
            self._close()

    def restart(self) -> Self:
        """Stop the broker if it runs, and start it on the same data and ports."""
        if self.is_running:
            self.terminate()
        return self.start()

    def log(self) -> str:
        """Return the end of the log."""
        return self.log_file.read_bytes()[-_SHOWN_LOG_BYTES:].decode(errors="replace")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.is_running:
            self.terminate()
        self._close()

    def _running(self) -> "subprocess.Popen[bytes]":
        assert self._process is not None, "the broker was not started"
        return self._process

    def _close(self) -> None:
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()

    def _ready_line(self) -> bytes:
        """Wait for the line `ready {…}`; return its JSON."""
        output = self._running().stdout
        assert output is not None
        received = b""
        deadline = time.monotonic() + self._start_timeout
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            while selector.select(max(0.0, deadline - time.monotonic())):
                data = os.read(output.fileno(), 65536)
                received += data
                *lines, _incomplete = received.split(b"\n")
                for line in lines:
                    if line.startswith(_READY):
                        return line.removeprefix(_READY)
                if not data:
                    raise self._not_ready("the process ended")
        raise self._not_ready(f"no ready line after {self._start_timeout} s")

    def _not_ready(self, reason: str) -> UnavailableError:
        last_line = (self.log().strip() or reason).splitlines()[-1]
        return UnavailableError(
            f"the broker did not become ready: {last_line}", operation="start broker", place=str(self.log_file)
        )
