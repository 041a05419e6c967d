"""How soon a published message reaches those who follow its topic, and how many can."""

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from time import monotonic_ns, sleep
from typing import Any

from icestream.bench.figures import Latencies
from icestream.client import Client

_TIME = struct.Struct("<q")
_FOLLOWER = "icestream.bench.follower"


def measure_fanout(
    broker: str,
    *,
    messages: int,
    message_bytes: int,
    rate: int,
    subscribers: int,
    progress: Callable[[float], None],
) -> dict[str, Any]:
    tail = _run(broker, "bench/tail", subscribers=1, messages=messages, message_bytes=message_bytes, rate=rate)
    progress(0.5)
    many = _run(
        broker, "bench/fanout", subscribers=subscribers, messages=messages, message_bytes=message_bytes, rate=rate
    )
    progress(1)
    return {
        "message_bytes": message_bytes,
        "rate_msg_per_s": rate,
        "tail": tail,
        "fanout": {"subscribers": subscribers, **many},
    }


def _run(broker: str, topic: str, *, subscribers: int, messages: int, message_bytes: int, rate: int) -> dict[str, Any]:
    """Followers in a process of their own take down when each message came; its payload says when it was sent."""
    with Client(broker) as client:
        client.create_topic(topic)
        follower = subprocess.Popen(
            [sys.executable, "-m", _FOLLOWER, broker, topic, str(subscribers), str(messages)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert follower.stdout is not None
        follower.stdout.readline()
        filler = os.urandom(max(0, message_bytes - _TIME.size))
        with client.producer(topic) as producer:
            started = monotonic_ns()
            for number in range(messages):
                ahead = number / rate - (monotonic_ns() - started) / 1e9
                if ahead > 0:
                    sleep(ahead)
                producer.send(_TIME.pack(monotonic_ns()) + filler)
            producer.flush()
        received = [json.loads(line) for line in follower.stdout]
        follower.wait()
    complete = sum(result["complete"] for result in received)
    latencies = [seconds for result in received for seconds in result["seconds"]]
    return {"complete_streams": complete, "publish_to_consumer": asdict(Latencies.of(latencies))}
