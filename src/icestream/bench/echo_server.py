"""The floor's bare Flight server, to be run with `python -m`: prints its port and answers until it is ended."""

import sys
from typing import Any

import pyarrow as pa
from pyarrow import flight


class EchoServer(flight.FlightServerBase):
    def do_put(self, _context: Any, _descriptor: Any, reader: Any, writer: Any) -> None:
        for _ in reader:
            writer.write(pa.py_buffer(b'{"id":0,"base_offset":0,"count":1}'))


def main() -> None:
    server = EchoServer("grpc://127.0.0.1:0")
    sys.stdout.write(f"{server.port}\n")
    sys.stdout.flush()
    server.wait()


if __name__ == "__main__":
    main()
