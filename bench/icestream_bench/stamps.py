"""Payloads that say when they were made, written and read by the column."""

import struct
from functools import lru_cache
from time import monotonic_ns
from typing import Any

import numpy as np
import pyarrow as pa

_TIME = struct.Struct("<q")


@lru_cache(maxsize=4)
def _filler(message_bytes: int) -> bytes:
    return np.random.default_rng(1).bytes(message_bytes - _TIME.size)


def stamped(count: int, message_bytes: int) -> pa.Array:
    """As many payloads as said, all of this moment."""
    return pa.repeat(pa.scalar(_TIME.pack(monotonic_ns()) + _filler(message_bytes), pa.binary()), count)


def ages_seconds(payloads: pa.Array) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """How long ago payloads of one size were made."""
    now = monotonic_ns()
    _, offsets, data = payloads.buffers()
    starts = np.frombuffer(offsets, np.int32, len(payloads) + 1, payloads.offset * 4)
    values = np.frombuffer(data, np.uint8)[starts[0] : starts[-1]].reshape(len(payloads), -1)
    times = np.ascontiguousarray(values[:, : _TIME.size]).view("<i8").ravel()
    return (now - times) / 1e9
