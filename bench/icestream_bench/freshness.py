"""How long after its acknowledgement a message is visible in the table, and what the pipeline costs publishers.

The pipeline is a process of its own, as with `icestream serve`. A message is visible when `wait_committed` returns: the
broker has read the snapshot from the catalog. Nothing asks for an early commit, so the flush interval decides.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

from icestream.client import Client
from icestream_bench.figures import Latencies

_RATE = 1000
_ACKS = 1500
_TIMEOUT_SECONDS = 120.0
_WARM_UP_SECONDS = 3.0


def measure_freshness(
    broker: str,
    data_dir: Path,
    *,
    flush_interval_ms: int,
    seconds: int,
    message_bytes: int,
    progress: Callable[[float], None],
) -> dict[str, Any]:
    topic = f"bench/fresh-{flush_interval_ms}"
    payload = os.urandom(message_bytes)
    with Client(broker) as client:
        without = _acks(client, payload)
        with _pipeline(broker, data_dir, flush_interval_ms), client.producer(topic) as producer:
            producer.send(payload).wait_committed(_TIMEOUT_SECONDS)  # the session is up
            ages = _Ages(client, topic)
            watching = threading.Thread(target=ages.watch, daemon=True)
            watching.start()
            acknowledging = _Acknowledged(ages)
            began = perf_counter()
            for number in range(seconds * _RATE):
                ahead = began + number / _RATE - perf_counter()
                if ahead > 0:
                    time.sleep(ahead)
                producer.send(payload).add_done_callback(acknowledging)
                if number % _RATE == 0:
                    progress(number / seconds / _RATE * 0.8)
            producer.flush()
            ages.finish(acknowledging.last)
            watching.join(_TIMEOUT_SECONDS)
            with_pipeline = _acks(client, payload)
    halves = ages.halves(_WARM_UP_SECONDS)
    return {
        "flush_interval_ms": flush_interval_ms,
        "messages": len(ages.seconds),
        "visible_after": asdict(Latencies.of(ages.seconds)),
        "first_half_p50_ms": halves[0],
        "second_half_p50_ms": halves[1],
        "ack_p50_ms_without_pipeline": without.p50_ms,
        "ack_p50_ms_with_pipeline": with_pipeline.p50_ms,
        "ack_with_to_without": round(with_pipeline.p50_ms / without.p50_ms, 3),
    }


class _Ages:
    """Records when messages are acknowledged, and how much later the table has them."""

    def __init__(self, client: Client, topic: str) -> None:
        self._client = client
        self._topic = topic
        self._acknowledged: dict[int, float] = {}
        self._next = client.describe_topic(topic).durable_end
        self._last: int | None = None
        self.seconds: list[float] = []

    def acknowledged(self, offset: int) -> None:
        self._acknowledged[offset] = perf_counter()

    def finish(self, last: int) -> None:
        self._last = last

    def watch(self) -> None:
        while self._last is None or self._next <= self._last:
            committed = self._client.wait_committed(self._topic, self._next, _TIMEOUT_SECONDS, hurry=False)
            now = perf_counter()
            for offset in range(self._next, committed.committed_offset):
                self.seconds.append(now - self._acknowledged.pop(offset))
            self._next = committed.committed_offset

    def halves(self, skip_seconds: float) -> tuple[float, float]:
        """Return the medians of the first and the second half: a difference shows that the age grows."""
        kept = self.seconds[int(skip_seconds * _RATE) :] or self.seconds
        middle = max(1, len(kept) // 2)
        return Latencies.of(kept[:middle]).p50_ms, Latencies.of(kept[middle:] or kept).p50_ms


class _Acknowledged:
    """The callback of receipts."""

    def __init__(self, ages: _Ages) -> None:
        self._ages = ages
        self.last = -1

    def __call__(self, receipt: Any) -> None:
        self.last = receipt.offset
        self._ages.acknowledged(self.last)


def _acks(client: Client, payload: bytes) -> Latencies:
    seconds = []
    with client.producer("bench/acks") as producer:
        for number in range(_ACKS):
            began = perf_counter()
            producer.send(payload).result()
            if number >= _ACKS // 10:
                seconds.append(perf_counter() - began)
    return Latencies.of(seconds)


@contextmanager
def _pipeline(broker: str, data_dir: Path, flush_interval_ms: int) -> Iterator[None]:
    with (data_dir / "bench-pipeline.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "icestream.cli", "pipeline", "--broker", broker, "--data", str(data_dir)],
            env={**os.environ, "ICESTREAM_WRITER__FLUSH_INTERVAL_MS": str(flush_interval_ms)},
            stdout=log,
            stderr=log,
        )
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
