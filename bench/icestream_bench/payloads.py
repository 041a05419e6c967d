"""The messages that measurements publish."""

import os
import struct
from functools import lru_cache
from time import monotonic_ns
from typing import Any

import numpy as np
import pyarrow as pa

from icestream.client import Client

BATCH_MESSAGES = 10_000
_TIME = struct.Struct("<q")


def random_batch(message_bytes: int) -> pa.RecordBatch:
    """Return messages of which one half compresses and the other does not."""
    half = message_bytes // 2
    payloads = [os.urandom(half) + b"x" * (message_bytes - half) for _ in range(BATCH_MESSAGES)]
    return pa.record_batch({"payload": pa.array(payloads, pa.binary())})


def publish(client: Client, topic: str, batch: pa.RecordBatch, messages: int) -> None:
    """Publish the batch again and again, `messages` messages in all."""
    with client.producer(topic) as producer:
        for first in range(0, messages, batch.num_rows):
            producer.send_batch(batch.slice(0, min(batch.num_rows, messages - first)))


# Payloads that carry the time at which they were made


@lru_cache(maxsize=4)
def _filler(message_bytes: int) -> bytes:
    return np.random.default_rng(1).bytes(message_bytes - _TIME.size)


def stamped(count: int, message_bytes: int) -> pa.Array:
    """Return `count` payloads with the current time."""
    return pa.repeat(pa.scalar(_TIME.pack(monotonic_ns()) + _filler(message_bytes), pa.binary()), count)


def ages_seconds(payloads: pa.Array) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """Return how long ago the payloads, all of one size, were made."""
    now = monotonic_ns()
    _, offsets, data = payloads.buffers()
    starts = np.frombuffer(offsets, np.int32, len(payloads) + 1, payloads.offset * 4)
    values = np.frombuffer(data, np.uint8)[starts[0] : starts[-1]].reshape(len(payloads), -1)
    times = np.ascontiguousarray(values[:, : _TIME.size]).view("<i8").ravel()
    return (now - times) / 1e9
