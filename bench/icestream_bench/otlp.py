"""`bench otlp`: how many spans and log records a second the OTLP door over gRPC acknowledges as durable.

There are two floors: the conversion to rows alone, and a gRPC server that drops the same requests. Each rate is given
by the clock and by the processor time of the server's process. The first depends on what else runs, including the
client; the second shows what one core can do. With a pipeline the rows are written to their tables after each run, and
that rate is given in the same way: it shows whether one core can write what another one receives.
"""

import contextlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

from icestream.broker_process import BrokerProcess
from icestream.client import Client
from icestream.config import Settings
from icestream.telemetry import Signal
from icestream_bench.figures import Latencies, cpu_seconds, tree_cpu_seconds
from icestream_bench.floors import floor_server
from icestream_bench.otlp_convert import logs_request, measure, traces_request

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
    """Measure both signals. `write` writes the log to the tables and returns its rates: see `pipeline_writer`."""
    figures: dict[str, Any] = {"items_a_request": items, "streams": streams, "requests": requests}
    address = broker.doors["otlp_grpc"].removeprefix("http://")
    if write is not None:  # creates the tables, and starts Spark's workers
        for signal in _SIGNALS:
            _send(address, broker.pid, signal, items, streams, streams)
        write()
    with floor_server("otlp") as (bare_port, bare_pid):
        for number, signal in enumerate(_SIGNALS):
            bare = _send(f"127.0.0.1:{bare_port}", bare_pid, signal, items, streams, requests)
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
    """Send requests from a process of its own; return its rates, and the server's processor time."""
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
def pipeline_writer(broker: BrokerProcess) -> Iterator[Callable[[], dict[str, Any]]]:
    """Start a Spark session; yield a function that writes all durable rows to their tables and returns the rates."""
    # Imported here: loading Spark takes a second, and the measurement also works without it.
    from icestream_bench.pipeline import session, write_all  # noqa: PLC0415

    with Client(broker.flight) as client, session(Settings(data_dir=broker.data_dir), client) as (runner, _):

        def write() -> dict[str, Any]:
            began, used = perf_counter(), -_cpu_seconds(broker)
            rows = write_all(runner)
            seconds, used = perf_counter() - began, used + _cpu_seconds(broker)
            return {
                "rows": rows,
                "per_s": round(rows / seconds),
                "per_core_s": round(rows / max(used, 0.01)),
                "cores_used": round(used / seconds, 2),
            }

        yield write


def _cpu_seconds(broker: BrokerProcess) -> float:
    """Return the processor time of this process, which is Spark's driver, and its children without the broker."""
    return tree_cpu_seconds(os.getpid()) - tree_cpu_seconds(broker.pid)
