"""What the hardware does without icestream."""

import json
import os
import subprocess
import sys
from pathlib import Path
from time import perf_counter

_BARE_FLIGHT = "icestream_bench.bare_flight"


class SyncFloor:
    """A bare file: write, `fdatasync`, again."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "floor.bin"
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        self._position = 0

    def measure(self, nbytes: int, count: int) -> list[float]:
        data = os.urandom(nbytes)
        seconds = []
        for _ in range(count):
            started = perf_counter()
            os.pwrite(self._descriptor, data, self._position)
            os.fdatasync(self._descriptor)
            seconds.append(perf_counter() - started)
            self._position += nbytes
        return seconds

    def close(self) -> None:
        os.close(self._descriptor)
        self._path.unlink()


class FlightFloor:
    """Bare Flight, client and server in processes of their own."""

    def __init__(self, message_bytes: int) -> None:
        self._server = self._start()
        port = self._server.stdout.readline().strip() if self._server.stdout else ""
        self._client = self._start(port, str(message_bytes))

    def _start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", _BARE_FLIGHT, *arguments]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def measure(self, count: int) -> list[float]:
        assert self._client.stdin is not None
        assert self._client.stdout is not None
        self._client.stdin.write(f"{count}\n")
        self._client.stdin.flush()
        seconds: list[float] = json.loads(self._client.stdout.readline())
        return seconds

    def close(self) -> None:
        for process in (self._client, self._server):
            process.terminate()
            process.communicate()
