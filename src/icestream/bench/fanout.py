"""How soon a published message reaches the subscriptions of its topic, and what each of them costs.

The floor is a bare Flight server with as many streams, each of which sends the same amount of messages at the same
pace from memory to the same followers.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic_ns, sleep
from typing import Any

import numpy as np
import pyarrow as pa

from icestream.bench.resources import cpu_seconds
from icestream.bench.stamps import stamped
from icestream.client import Client
from icestream.testing.broker_process import BrokerProcess

TICK_MS = 5
"""Messages are published in bursts, this long apart: a client cannot sleep for much less."""
TAIL_RATE = 1_000
"""Messages a second, each sent by itself, to one plain consumer."""
_FOLLOWER = "icestream.bench.follower"
_BARE = "icestream.bench.bare_fanout"


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
            result: dict[str, Any] = json.loads(followers())
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
            result = json.loads(followers())
    return {**result, "broker_cpu_share": round(cpu / elapsed, 3), "published_per_s": round(burst * count / elapsed)}


def _floor(*, subscribers: int, seconds: int, message_bytes: int, rate: int) -> dict[str, Any]:
    burst, count = rate * TICK_MS // 1000, seconds * 1000 // TICK_MS
    arguments = [str(message_bytes), str(burst), str(count), str(TICK_MS)]
    with subprocess.Popen([sys.executable, "-m", _BARE, *arguments], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = f"grpc://127.0.0.1:{server.stdout.readline().strip()}"
        with _followers("bare", address, "", subscribers, 0, burst * count) as followers:
            cpu = cpu_seconds(server.pid)
            result: dict[str, Any] = json.loads(followers())
            used = cpu_seconds(server.pid) - cpu
        server.terminate()
    return {**result, "server_cpu_share": round(used / seconds, 3)}


@contextmanager
def _followers(
    mode: str, address: str, topic: str, subscribers: int, stopped: int, messages: int
) -> Iterator[Callable[[], str]]:
    """Followers in a process of their own, connected; call for their figures once they have everything."""
    arguments = [mode, address, topic, str(subscribers), str(stopped), str(messages)]
    with subprocess.Popen([sys.executable, "-m", _FOLLOWER, *arguments], stdout=subprocess.PIPE, text=True) as process:
        output = process.stdout
        assert output is not None
        if output.readline().strip() != "ready":
            raise RuntimeError("the followers did not start")
        yield output.readline


def percentiles(seconds: "np.ndarray[Any, np.dtype[np.float64]]") -> dict[str, Any]:
    p50, p90, p99, most = (round(float(value) * 1000, 3) for value in np.percentile(seconds, [50, 90, 99, 100]))
    return {"count": len(seconds), "p50_ms": p50, "p90_ms": p90, "p99_ms": p99, "max_ms": most}
