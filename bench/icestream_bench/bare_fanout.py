"""The floor of a fan-out: a Flight server whose streams send bursts of messages at a steady pace, from memory.

Runs in a process of its own (`python -m icestream_bench.bare_fanout`).
"""

import sys
from collections.abc import Iterator
from time import monotonic_ns, sleep
from typing import Any

import pyarrow as pa
from pyarrow import flight

from icestream_bench.stamps import stamped

_SCHEMA = pa.schema([pa.field("payload", pa.binary())])


class PacedServer(flight.FlightServerBase):
    def __init__(self, message_bytes: int, burst: int, count: int, tick_ms: int) -> None:
        self._message_bytes = message_bytes
        self._burst = burst
        self._count = count
        self._tick_ms = tick_ms
        super().__init__("grpc://127.0.0.1:0")

    def do_get(self, _context: Any, _ticket: Any) -> flight.FlightDataStream:
        return flight.GeneratorStream(_SCHEMA, self._bursts())

    def _bursts(self) -> Iterator[pa.RecordBatch]:
        began = monotonic_ns()
        for number in range(self._count):
            ahead = number * self._tick_ms / 1000 - (monotonic_ns() - began) / 1e9
            if ahead > 0:
                sleep(ahead)
            yield pa.record_batch([stamped(self._burst, self._message_bytes)], schema=_SCHEMA)


def main() -> None:
    server = PacedServer(*map(int, sys.argv[1:5]))
    sys.stdout.write(f"{server.port}\n")
    sys.stdout.flush()
    server.wait()


if __name__ == "__main__":
    main()
