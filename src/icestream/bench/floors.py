"""What the hardware does without icestream."""

import os
import subprocess
import sys
from pathlib import Path
from time import perf_counter

import pyarrow as pa
from pyarrow import flight

from icestream.model.messages import MESSAGE_SCHEMA, message_batch

_ECHO_SERVER = "icestream.bench.echo_server"


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
    """A bare Flight server in a process of its own that answers every batch at once."""

    def __init__(self) -> None:
        self._process = subprocess.Popen([sys.executable, "-m", _ECHO_SERVER], stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        port = int(self._process.stdout.readline())
        self._client = flight.connect(f"grpc://127.0.0.1:{port}")
        self._writer, self._reader = self._client.do_put(flight.FlightDescriptor.for_path("echo"), MESSAGE_SCHEMA)

    def measure(self, payload: bytes, count: int) -> list[float]:
        batch, metadata = message_batch([payload]), pa.py_buffer(b'{"topic":"default/bench","sequence":0}')
        seconds = []
        for _ in range(count):
            started = perf_counter()
            self._writer.write_with_metadata(batch, metadata)
            self._reader.read()
            seconds.append(perf_counter() - started)
        return seconds

    def close(self) -> None:
        self._writer.close()
        self._client.close()
        self._process.terminate()
        self._process.wait()
