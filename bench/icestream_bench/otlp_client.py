"""Sends OTLP requests over gRPC as fast as they are acknowledged, in a process with its own interpreter.

`python -m icestream_bench.otlp_client ADDRESS SIGNAL ITEMS STREAMS REQUESTS` prints its figures as JSON. Each stream
has a connection and waits for each response, as exporters do. All requests have the same bytes. A warm-up is not
counted: the server fills its caches.
"""

import json
import random
import sys
import threading
from time import perf_counter
from typing import Any

import grpc

from icestream.telemetry import Signal
from icestream_bench.otlp_convert import logs_request, traces_request

METHODS = {
    Signal.TRACES: "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
    Signal.LOGS: "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
}
_REQUESTS = {Signal.TRACES: traces_request, Signal.LOGS: logs_request}
_WARM_UP_SHARE = 0.25
_TIMEOUT_SECONDS = 120.0


def main() -> None:
    address, signal, items, streams, requests = sys.argv[1:]
    source = random.Random(1)
    body: bytes = _REQUESTS[Signal(signal)](source, int(items)).SerializeToString()
    count = int(requests) // int(streams)
    seconds: list[float] = []
    ready = threading.Barrier(int(streams) + 1)

    def send() -> None:
        with grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            call: Any = channel.unary_unary(METHODS[Signal(signal)])
            for _ in range(int(count * _WARM_UP_SHARE) + 1):
                call(body, timeout=_TIMEOUT_SECONDS)
            ready.wait()
            for _ in range(count):
                started = perf_counter()
                call(body, timeout=_TIMEOUT_SECONDS)
                seconds.append(perf_counter() - started)

    threads = [threading.Thread(target=send) for _ in range(int(streams))]
    for thread in threads:
        thread.start()
    ready.wait()
    sys.stdout.write("started\n")
    sys.stdout.flush()
    started = perf_counter()
    for thread in threads:
        thread.join()
    took = perf_counter() - started
    sys.stdout.write(json.dumps({"took": took, "seconds": seconds, "request_bytes": len(body)}) + "\n")


if __name__ == "__main__":
    main()
