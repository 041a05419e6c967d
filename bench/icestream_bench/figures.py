"""Figures of a measurement."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Latencies:
    """Percentiles in milliseconds."""

    count: int
    p50_ms: float
    p90_ms: float
    p99_ms: float
    max_ms: float

    @classmethod
    def of(cls, seconds: Iterable[float]) -> "Latencies":
        ordered = sorted(seconds)
        if not ordered:
            raise ValueError("no measurement was taken")

        def at(share: float) -> float:
            return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000, 4)

        return cls(len(ordered), at(0.5), at(0.9), at(0.99), round(ordered[-1] * 1000, 4))
