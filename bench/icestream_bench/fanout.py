"""`bench fanout`: how soon a published message reaches the subscriptions of its topic, and what each of them costs.

The floor is a bare Flight server with as many streams. Each sends the same number of messages at the same pace, from
memory, to the same followers.
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic_ns, sleep
from typing import Any

import numpy as np
import pyarrow as pa

from icestream.broker_process import BrokerProcess
from icestream.client import Client
from icestream_bench.figures import cpu_seconds
from icestream_bench.floors import floor_server
from icestream_bench.payloads import stamped

TICK_MS = 5
"""Time between bursts of messages. A client cannot sleep for much less."""
TAIL_RATE = 1_000
"""Single messages a second, for one plain consumer."""
FOLLOWERS_A_PROCESS = 25


def measure_fanout(
    broker: BrokerProcess,
    *,
    seconds: int,
    message_bytes: int,
    rate: int,
    subscribers: int,
    progress: Callable[[float], None],
) -> dict[str, Any]:
    load = {"seconds": seconds, "message_bytes": message_bytes, "rate": rate}
    _warm_up(broker)
    tail = _tail(broker, message_bytes, seconds * TAIL_RATE)
    progress(0.1)
    one = _run(broker, "bench/one", subscribers=1, stopped=0, **load)
    progress(0.25)
    many = _run(broker, "bench/many", subscribers=subscribers, stopped=0, **load)
    progress(0.5)
    one_stopped = _run(broker, "bench/stopped", subscribers=subscribers - 1, stopped=1, **load)
    progress(0.75)
    floor = _floor(subscribers=subscribers, **load)
    progress(1)
    extra_cpu = (many["broker_cpu_share"] - one["broker_cpu_share"]) / (subscribers - 1)
    return {
        "message_bytes": message_bytes,
        "rate_msg_per_s": rate,
        "tail": tail,
        "one": one,
        "many": {"subscriptions": subscribers, **many},
        "one_stopped": {"subscriptions": subscribers, **one_stopped},
        "p99_with_one_stopped_to_without": round(one_stopped["latency"]["p99_ms"] / many["latency"]["p99_ms"], 3),
        "broker_cpu_share_of_a_core_per_extra_subscription": round(extra_cpu, 5),
        "floor_bare_flight": floor,
    }


def _warm_up(broker: BrokerProcess) -> None:
    """Wait until the broker has opened the catalog, which blocks its interpreter for a second, once."""
    with Client(broker.flight) as client:
        with client.producer("bench/warm") as producer:
            producer.send(b"").result()
        while client.describe_topic("bench/warm").committed_offset is None:
            sleep(0.1)


def _tail(broker: BrokerProcess, message_bytes: int, messages: int) -> dict[str, Any]:
    with Client(broker.flight) as client:
        client.create_topic("bench/tail")
        with _followers("consume", broker.flight, "bench/tail", 1, 0, messages) as followers:
            with client.producer("bench/tail") as producer:
                began = monotonic_ns()
                for number in range(messages):
                    _keep_pace(began, number / TAIL_RATE)
                    producer.send(stamped(1, message_bytes)[0].as_py())
                producer.flush()
            result = followers()
    return {"rate_msg_per_s": TAIL_RATE, **result}


def _keep_pace(began_ns: int, due_seconds: float) -> None:
    ahead = due_seconds - (monotonic_ns() - began_ns) / 1e9
    if ahead > 0:
        sleep(ahead)


def _run(
    broker: BrokerProcess,
    topic: str,
    *,
    subscribers: int,
    stopped: int,
    seconds: int,
    message_bytes: int,
    rate: int,
) -> dict[str, Any]:
    burst = rate * TICK_MS // 1000
    count = seconds * 1000 // TICK_MS
    with Client(broker.flight) as client:
        client.create_topic(topic)
        with _followers("subscribe", broker.flight, topic, subscribers, stopped, burst * count) as followers:
            began_cpu, began = cpu_seconds(broker.pid), monotonic_ns()
            with client.producer(topic) as producer:
                for number in range(count):
                    _keep_pace(began, number * TICK_MS / 1000)
                    producer.send_batch(pa.record_batch({"payload": stamped(burst, message_bytes)}))
                producer.flush()
            cpu, elapsed = cpu_seconds(broker.pid) - began_cpu, (monotonic_ns() - began) / 1e9
            result = followers()
    return {**result, "broker_cpu_share": round(cpu / elapsed, 3), "published_per_s": round(burst * count / elapsed)}


def _floor(*, subscribers: int, seconds: int, message_bytes: int, rate: int) -> dict[str, Any]:
    burst, count = rate * TICK_MS // 1000, seconds * 1000 // TICK_MS
    with floor_server("paced", message_bytes, burst, count, TICK_MS) as (port, pid):
        address = f"grpc://127.0.0.1:{port}"
        with _followers("bare", address, "", subscribers, 0, burst * count) as followers:
            cpu, began = cpu_seconds(pid), monotonic_ns()
            result = followers()
            used, elapsed = cpu_seconds(pid) - cpu, (monotonic_ns() - began) / 1e9
    return {**result, "server_cpu_share": round(used / elapsed, 3), "sent_per_s": round(burst * count / elapsed)}


@contextmanager
def _followers(
    mode: str, address: str, topic: str, subscribers: int, stopped: int, messages: int
) -> Iterator[Callable[[], dict[str, Any]]]:
    """Start and connect followers in processes of their own. The yielded function waits for their figures.

    There are several processes, because otherwise the interpreter of a single one would be measured.
    """
    with tempfile.TemporaryDirectory(prefix="icestream-bench-") as folder, ExitStack() as processes:
        running = []
        for first in range(0, subscribers, FOLLOWERS_A_PROCESS):
            count = min(FOLLOWERS_A_PROCESS, subscribers - first)
            path = Path(folder) / f"{first}.npy"
            arguments = [mode, address, topic, first, count, 0 if first else stopped, messages, path]
            command = [sys.executable, "-m", "icestream_bench.follower", *map(str, arguments)]
            process = processes.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            running.append((process, path))
        for process, _ in running:
            if process.stdout is None or process.stdout.readline().strip() != "ready":
                raise RuntimeError("the followers did not start")

        def figures() -> dict[str, Any]:
            complete = sum(int(process.stdout.readline()) for process, _ in running if process.stdout is not None)
            for process, _ in running:
                process.wait()
            ages = np.concatenate([np.load(path) for _, path in running])
            return {"complete_streams": complete, "latency": percentiles(ages)}

        yield figures


def percentiles(seconds: "np.ndarray[Any, np.dtype[np.float64]]") -> dict[str, Any]:
    p50, p90, p99, most = (round(float(value) * 1000, 3) for value in np.percentile(seconds, [50, 90, 99, 100]))
    return {"count": len(seconds), "p50_ms": p50, "p90_ms": p90, "p99_ms": p99, "max_ms": most}
