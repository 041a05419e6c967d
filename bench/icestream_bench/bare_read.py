"""The floor of a replay: a Flight server that sends batches from memory (`python -m icestream_bench.bare_read`)."""

import sys
from itertools import repeat
from typing import Any

import pyarrow as pa
from pyarrow import flight

from icestream.model.messages import STREAM_SCHEMA
from icestream_bench.payloads import random_batch

_BATCH_ROWS = 4_000


class MemoryServer(flight.FlightServerBase):
    def __init__(self, batch: pa.RecordBatch, count: int) -> None:
        self._batch = batch
        self._count = count
        super().__init__("grpc://127.0.0.1:0")

    def do_get(self, _context: Any, _ticket: Any) -> flight.FlightDataStream:
        return flight.GeneratorStream(self._batch.schema, repeat(self._batch, self._count))


def stream_batch(message_bytes: int) -> pa.RecordBatch:
    """Messages as readers get them."""
    payloads = random_batch(message_bytes).column("payload").slice(0, _BATCH_ROWS)
    rows = len(payloads)
    columns = [
        pa.array(range(rows), pa.int64()),
        pa.repeat(pa.scalar(0, STREAM_SCHEMA.field("publish_time").type), rows),
        pa.repeat(pa.scalar("bench"), rows),
        pa.array(range(rows), pa.int64()),
        pa.nulls(rows, STREAM_SCHEMA.field("key").type),
        pa.nulls(rows, STREAM_SCHEMA.field("attributes").type),
        payloads,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=STREAM_SCHEMA)


def main() -> None:
    message_bytes, messages = int(sys.argv[1]), int(sys.argv[2])
    server = MemoryServer(stream_batch(message_bytes), max(1, messages // _BATCH_ROWS))
    sys.stdout.write(f"{server.port}\n")
    sys.stdout.flush()
    server.wait()


if __name__ == "__main__":
    main()
