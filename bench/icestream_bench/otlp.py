"""How many spans and log records a second are acknowledged, durably, through the OTLP door over gRPC.

Beside it two floors on the same machine: the conversion to rows alone, and a gRPC server that does nothing with the
same requests. Rates are told by the clock and by the processor time of the server's process: the first depends on what
else runs, the client itself included; the second says what one core can do. With a pipeline beside the broker the rows
are written to their tables after each run, and that is told in the same way.
"""

import contextlib
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

from icestream.broker_process import BrokerProcess
from icestream.telemetry import Signal
from icestream_bench.figures import Latencies
from icestream_bench.otlp_convert import logs_request, measure, traces_request
from icestream_bench.resources import cpu_seconds

_ROUNDS = 20
_SIGNALS = (Signal.TRACES, Signal.LOGS)


def measure_otlp(
    broker: BrokerProcess,
    *,
    items: int,
    streams: int,
    requests: int,
    progress: Callable[[float], None],
    write: Callable[[], dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """`write` brings what is in the log into the tables, and tells how fast (`icestream_bench.otlp_pipeline`)."""
    figures: dict[str, Any] = {"items_a_request": items, "streams": streams, "requests": requests}
    address = broker.doors["otlp_grpc"].removeprefix("http://")
    if write is not None:  # tables are made, and Spark's workers are warm
        for signal in _SIGNALS:
            _send(address, broker.pid, signal, items, streams, streams)
        write()
    with _bare_server() as (bare_address, bare_pid):
        for number, signal in enumerate(_SIGNALS):
            bare = _send(bare_address, bare_pid, signal, items, streams, requests)
            progress(number / 2 + 0.15)
            durable = _send(address, broker.pid, signal, items, streams, requests)
            progress(number / 2 + 0.4)
            written = write() if write is not None else None
            make = traces_request if signal is Signal.TRACES else logs_request
            conversion = measure(signal, make(random.Random(1), items), _ROUNDS)
            progress(number / 2 + 0.5)
            figures[signal] = {
                "durable": durable,
                "floor_bare_grpc": bare,
                "floor_conversion_per_core_s": conversion.median_per_s,
                "share_of_conversion": round(durable["per_core_s"] / conversion.median_per_s, 3),
            }
            if written is not None:
                share = round(written["per_core_s"] / durable["per_core_s"], 3)
                figures[signal]["pipeline"] = {**written, "share_of_durable": share}
    return figures


def _send(address: str, pid: int, signal: Signal, items: int, streams: int, requests: int) -> dict[str, Any]:
    """What a client's process saw, and what the server's process used meanwhile."""
    command = [
        sys.executable,
        "-m",
        "icestream_bench.otlp_client",
        address,
        signal,
        *map(str, (items, streams, requests)),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        client.stdout.readline()
        before = cpu_seconds(pid)
        seen = json.loads(client.stdout.readline())
        used = cpu_seconds(pid) - before
    count = len(seen["seconds"]) * items
    latencies = Latencies.of(seen["seconds"])
    return {
        "per_s": round(count / seen["took"]),
        "per_core_s": round(count / max(used, 0.01)),
        "mb_per_s": round(len(seen["seconds"]) * seen["request_bytes"] / seen["took"] / 1e6, 1),
        "cores_used": round(used / seen["took"], 2),
        "answer_p50_ms": latencies.p50_ms,
        "answer_p99_ms": latencies.p99_ms,
    }


@contextlib.contextmanager
def _bare_server() -> Iterator[tuple[str, int]]:
    command = [sys.executable, "-m", "icestream_bench.bare_otlp"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            yield f"127.0.0.1:{server.stdout.readline().strip()}", server.pid
        finally:
            server.stdin.close()
