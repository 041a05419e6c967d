"""The floor's bare Flight: a server that answers every batch at once, and a client that measures round trips to it.

Each runs in a process of its own (`python -m icestream_bench.bare_flight`).
"""

import json
import os
import sys
from time import perf_counter
from typing import Any

import pyarrow as pa
from pyarrow import flight

from icestream.model.messages import MESSAGE_SCHEMA, message_batch


class EchoServer(flight.FlightServerBase):
    def do_put(self, _context: Any, _descriptor: Any, reader: Any, writer: Any) -> None:
        for _ in reader:
            writer.write(pa.py_buffer(b'{"id":0,"base_offset":0,"count":1}'))


def serve() -> None:
    server = EchoServer("grpc://127.0.0.1:0")
    sys.stdout.write(f"{server.port}\n")
    sys.stdout.flush()
    server.wait()


def measure(port: int, message_bytes: int) -> None:
    """For every number on standard input: as many round trips, their seconds as a line of JSON."""
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
            sys.stdout.write(json.dumps(seconds) + "\n")
            sys.stdout.flush()
        writer.close()


if __name__ == "__main__":
    if len(sys.argv) == 1:
        serve()
    else:
        measure(int(sys.argv[1]), int(sys.argv[2]))
