"""A gRPC server that answers OTLP requests and does nothing with them: `python -m icestream_bench.bare_otlp`."""

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from icestream_bench.otlp_client import METHODS


def main() -> None:
    """Print the port and serve until stdin is closed."""
    server = grpc.server(ThreadPoolExecutor(64), options=[("grpc.max_receive_message_length", -1)])
    for method in METHODS.values():
        service, name = method.strip("/").split("/")
        answer: Any = grpc.unary_unary_rpc_method_handler(lambda _request, _context: b"")
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {name: answer}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    sys.stdin.read()
    server.stop(0).wait()


if __name__ == "__main__":
    main()
