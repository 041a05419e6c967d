"""What has come in at the doors for OpenTelemetry, by tenant and signal, since the broker started.

Counted once a request, never a row. The number of tenants is bounded: one is counted by name when it is known or has
brought rows; those beyond the bound, and requests that were refused before it was clear whose they are, are counted
together as `OTHER`, which no namespace can be called.
"""

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from icestream.telemetry.signals import Signal

OTHER = "(other)"
_MAX_REASONS = 100
_OTHER_REASON = "other"


@dataclass
class SignalCounts:
    requests: int = 0
    """That were accepted; one with rows of several tenants counts for each of them."""
    rows: int = 0
    """That are durable."""
    bytes: int = 0
    """Of these requests, decompressed; a request's are shared out by rows among its tenants."""
    rejected_rows: int = 0
    """Of requests that were accepted for the rest."""
    refused: Counter[str] = field(default_factory=Counter)
    """Requests that were refused, by the code of the error."""

    def to_json(self) -> dict[str, Any]:
        return {
            "requests": self.requests,
            "rows": self.rows,
            "bytes": self.bytes,
            "rejected_rows": self.rejected_rows,
            "refused": dict(self.refused),
        }


class TenantStatistics:
    """For many threads. `is_known` tells whether a tenant is one that somebody has named, or that has topics."""

    def __init__(self, max_tenants: int, is_known: Callable[[str], bool] = lambda _tenant: False) -> None:
        self._max_tenants = max_tenants
        self._is_known = is_known
        self._lock = threading.Lock()
        self._counts: dict[str, dict[Signal, SignalCounts]] = {}
        self._other: dict[Signal, SignalCounts] = {}

    def accepted(self, tenant: str, signal: Signal, *, rows: int, nbytes: int) -> None:
        with self._lock:
            counts = self._of(tenant, signal, brings_rows=rows > 0)
            counts.requests += 1
            counts.rows += rows
            counts.bytes += nbytes

    def rejected(self, tenant: str | None, signal: Signal, rows: int) -> None:
        """Rows of an accepted request that were not stored; `tenant` is None where they name none that may be."""
        with self._lock:
            self._of(tenant, signal).rejected_rows += rows

    def refused(self, tenant: str | None, signal: Signal, code: str) -> None:
        """A whole request; `tenant` is None where it is not known whose."""
        with self._lock:
            reasons = self._of(tenant, signal).refused
            reasons[code if code in reasons or len(reasons) < _MAX_REASONS else _OTHER_REASON] += 1

    def figures(self) -> dict[str, dict[str, dict[str, Any]]]:
        """By tenant and signal, in the order in which tenants came; what is nobody's own comes last."""
        with self._lock:
            found = [*self._counts.items(), *([(OTHER, self._other)] if self._other else [])]
            return {
                tenant: {str(signal): counts.to_json() for signal, counts in signals.items()}
                for tenant, signals in found
            }

    def _of(self, tenant: str | None, signal: Signal, *, brings_rows: bool = False) -> SignalCounts:
        signals = self._counts.get(tenant) if tenant is not None else None
        if signals is None:
            has_room = len(self._counts) < self._max_tenants
            if tenant is not None and has_room and (brings_rows or self._is_known(tenant)):
                signals = self._counts[tenant] = {}
            else:
                signals = self._other
        return signals.setdefault(signal, SignalCounts())
