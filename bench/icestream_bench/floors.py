"""Floors: what the same hardware does without icestream.

`SyncFloor`, `EchoFloor` and `FlightFloor` measure in this process. The servers behind the floors are processes, each
with its own interpreter: `python -m icestream_bench.floors NAME ARGUMENTS…`. A server prints its port and serves until
it is terminated.

| name | arguments | serves |
|---|---|---|
| `echo` | | a Flight server that acknowledges every batch at once |
| `tcp-echo` | MESSAGE_BYTES | a TCP server that responds to every message with a few bytes |
| `round-trips` | PORT MESSAGE_BYTES | no server: measures round trips to `echo`, see `FlightFloor` |
| `memory` | MESSAGE_BYTES MESSAGES | a Flight server that sends batches from memory |
| `paced` | MESSAGE_BYTES BURST COUNT TICK_MS | a Flight server whose streams send bursts at a steady pace |
| `otlp` | | a gRPC server that acknowledges OTLP requests and drops them |
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import repeat
from pathlib import Path
from time import monotonic_ns, perf_counter, sleep
from typing import Any

import pyarrow as pa
from pyarrow import flight

from icestream.model.messages import MESSAGE_SCHEMA, STREAM_SCHEMA, message_batch
from icestream_bench.payloads import random_batch, stamped

_ANY_PORT = "grpc://127.0.0.1:0"
_BATCH_ROWS = 4_000
_ACK_BYTES = 80
_PAYLOAD_SCHEMA = pa.schema([pa.field("payload", pa.binary())])


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


class EchoFloor:
    """Bare TCP on the loopback: round trips of one message between two processes, a thread on each side."""

    def __init__(self, message_bytes: int) -> None:
        self._server = _start("tcp-echo", message_bytes)
        port = self._server.stdout.readline().strip() if self._server.stdout else ""
        self._socket = socket.create_connection(("127.0.0.1", int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._message = os.urandom(message_bytes)

    def measure(self, count: int) -> list[float]:
        seconds = []
        for _ in range(count):
            started = perf_counter()
            self._socket.sendall(self._message)
            self._socket.recv(_ACK_BYTES, socket.MSG_WAITALL)
            seconds.append(perf_counter() - started)
        return seconds

    def close(self) -> None:
        self._socket.close()
        self._server.terminate()
        self._server.communicate()


class FlightFloor:
    """Bare Flight: round trips of one message between two processes."""

    def __init__(self, message_bytes: int) -> None:
        self._server = _start("echo")
        port = self._server.stdout.readline().strip() if self._server.stdout else ""
        self._client = _start("round-trips", port, str(message_bytes))

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


def _start(name: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "icestream_bench.floors", name, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@contextlib.contextmanager
def floor_server(name: str, *arguments: object) -> Iterator[tuple[int, int]]:
    """Run a server of this module; yield its port and its process id."""
    with _start(name, *arguments) as server:
        assert server.stdout is not None
        try:
            yield int(server.stdout.readline()), server.pid
        finally:
            server.terminate()


# The servers


class EchoServer(flight.FlightServerBase):
    def do_put(self, _context: Any, _descriptor: Any, reader: Any, writer: Any) -> None:
        for _ in reader:
            writer.write(pa.py_buffer(b'{"id":0,"base_offset":0,"count":1}'))


class MemoryServer(flight.FlightServerBase):
    def __init__(self, message_bytes: int, messages: int) -> None:
        self._batch = _stream_batch(message_bytes)
        self._count = max(1, messages // _BATCH_ROWS)
        super().__init__(_ANY_PORT)

    def do_get(self, _context: Any, _ticket: Any) -> flight.FlightDataStream:
        return flight.GeneratorStream(self._batch.schema, repeat(self._batch, self._count))


def _stream_batch(message_bytes: int) -> pa.RecordBatch:
    """Return messages as readers get them."""
    payloads = random_batch(message_bytes).column("payload").slice(0, _BATCH_ROWS)
    rows = len(payloads)
    columns = {
        "offset": pa.array(range(rows), pa.int64()),
        "publish_time": pa.repeat(pa.scalar(0, STREAM_SCHEMA.field("publish_time").type), rows),
        "producer": pa.repeat(pa.scalar("bench"), rows),
        "sequence": pa.array(range(rows), pa.int64()),
        "payload": payloads,
    }
    empty = {field.name: pa.nulls(rows, field.type) for field in STREAM_SCHEMA}
    return pa.RecordBatch.from_pydict(empty | columns, schema=STREAM_SCHEMA)


class PacedServer(flight.FlightServerBase):
    def __init__(self, message_bytes: int, burst: int, count: int, tick_ms: int) -> None:
        self._message_bytes = message_bytes
        self._burst = burst
        self._count = count
        self._tick_ms = tick_ms
        super().__init__(_ANY_PORT)

    def do_get(self, _context: Any, _ticket: Any) -> flight.FlightDataStream:
        return flight.GeneratorStream(_PAYLOAD_SCHEMA, self._bursts())

    def _bursts(self) -> Iterator[pa.RecordBatch]:
        began = monotonic_ns()
        for number in range(self._count):
            ahead = number * self._tick_ms / 1000 - (monotonic_ns() - began) / 1e9
            if ahead > 0:
                sleep(ahead)
            yield pa.record_batch([stamped(self._burst, self._message_bytes)], schema=_PAYLOAD_SCHEMA)


def _serve_tcp_echo(message_bytes: int) -> None:
    """Respond to every message of one connection with as many bytes as an acknowledgement has."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        _print_line(server.getsockname()[1])
        peer, _ = server.accept()
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while len(peer.recv(message_bytes, socket.MSG_WAITALL)) == message_bytes:
            peer.sendall(bytes(_ACK_BYTES))


def _serve(server: flight.FlightServerBase) -> None:
    _print_line(server.port)
    server.wait()


def _measure_round_trips(port: int, message_bytes: int) -> None:
    """For every number on stdin: make as many round trips, and print their seconds as a line of JSON."""
    with flight.connect(f"grpc://127.0.0.1:{port}") as client:
        writer, reader = client.do_put(flight.FlightDescriptor.for_path("echo"), MESSAGE_SCHEMA)
        batch, metadata = message_batch([os.urandom(message_bytes)]), pa.py_buffer(b'{"topic":"default/bench"}')
        for line in sys.stdin:
            seconds = []
            for _ in range(int(line)):
                started = perf_counter()
                writer.write_with_metadata(batch, metadata)
                reader.read()
                seconds.append(perf_counter() - started)
            _print_line(json.dumps(seconds))
        writer.close()


def _serve_otlp() -> None:
    # Imported here: the other floors work without the telemetry extra.
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

    import grpc  # noqa: PLC0415

    from icestream_bench.otlp_client import METHODS  # noqa: PLC0415

    server = grpc.server(ThreadPoolExecutor(64), options=[("grpc.max_receive_message_length", -1)])
    for method in METHODS.values():
        service, name = method.strip("/").split("/")
        handler: Any = grpc.unary_unary_rpc_method_handler(lambda _request, _context: b"")
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {name: handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    _print_line(port)
    server.wait_for_termination()


def _print_line(value: object) -> None:
    sys.stdout.write(f"{value}\n")
    sys.stdout.flush()


_PROGRAMS: dict[str, Callable[..., None]] = {
    "echo": lambda: _serve(EchoServer(_ANY_PORT)),
    "tcp-echo": _serve_tcp_echo,
    "round-trips": _measure_round_trips,
    "memory": lambda *sizes: _serve(MemoryServer(*sizes)),
    "paced": lambda *sizes: _serve(PacedServer(*sizes)),
    "otlp": _serve_otlp,
}

if __name__ == "__main__":
    _PROGRAMS[sys.argv[1]](*map(int, sys.argv[2:]))
