"""A real broker in a process of its own, to be stopped, killed and started again on the same data and ports."""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from icestream.model.errors import UnavailableError

_PREFIX = "ICESTREAM_"
_READY = b"ready "
_SHOWN_LOG_BYTES = 4000
_OTLP_DOORS = ("otlp_grpc", "otlp_http")


class BrokerProcess:
    """`icestream serve` on free ports of this machine, with nothing of the caller's own settings.

    With `pipeline` the Spark pipeline runs beside it, with `otlp` the doors for OpenTelemetry are open. `environ` gives
    settings (`{"ICESTREAM_WAL__SYNC_MODE": "os"}`), `arguments` more flags. What the broker logs is in `log_file`, by
    default `broker.log` in the data directory.
    """

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
        self._arguments = list(arguments)
        self._free_doors = ("flight", "http", *(_OTLP_DOORS if otlp else ()))
        self._shut_doors = () if otlp else _OTLP_DOORS
        self._start_timeout = start_timeout
        self._stop_timeout = stop_timeout
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def flight(self) -> str:
        """The address for clients."""
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
        """Start it and wait until all doors are open: on free ports the first time, afterwards on the same ones."""
        assert not self.is_running, "the broker runs already"
        self._close()
        self.data_dir.mkdir(parents=True, exist_ok=True)
        ports = {door: urlsplit(self.doors[door]).port if self.doors else 0 for door in self._free_doors}
        ports |= dict.fromkeys(self._shut_doors, -1)
        flags = [f"--{door.replace('_', '-')}-port={port}" for door, port in ports.items()]
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
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
        """`kill -9`, as the system does it when memory runs out: nothing is flushed, nobody is told."""
        process = self._running()
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait()
        self._close()

    def terminate(self) -> int:
        """Ask it to stop, and wait for its exit code; one that does not stop in time is killed."""
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
        """Stop it if it runs, and start it again on the same data and ports."""
        if self.is_running:
            self.terminate()
        return self.start()

    def log(self) -> str:
        """The last of what it logged."""
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
        """The JSON behind `ready`."""
        output = self._running().stdout
        assert output is not None
        received = b""
        deadline = time.monotonic() + self._start_timeout
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            while selector.select(max(0.0, deadline - time.monotonic())):
                data = os.read(output.fileno(), 65536)
                received += data
                *lines, _begun = received.split(b"\n")
                for line in lines:
                    if line.startswith(_READY):
                        return line.removeprefix(_READY)
                if not data:
                    raise self._not_ready("it ended")
        raise self._not_ready(f"waited {self._start_timeout} s")

    def _not_ready(self, reason: str) -> UnavailableError:
        said = (self.log().strip() or reason).splitlines()[-1]
        return UnavailableError(
            f"the broker did not become ready: {said}", operation="start broker", place=str(self.log_file)
        )
