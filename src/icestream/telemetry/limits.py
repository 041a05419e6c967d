"""How much a tenant may send: requests and bytes a second, by a bucket of each that fills up with time.

A bucket may be overdrawn by one request, and is then in debt until time has paid for it. So a request of any size can
pass, long-term rates hold to the byte, and the time to wait is known exactly.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from time import monotonic

from icestream.config import TelemetrySettings
from icestream.telemetry.errors import RateLimitedError

BURST_SECONDS = 2.0
"""A tenant that was silent may send what these seconds allow at once."""


class Bucket:
    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self._level = rate * BURST_SECONDS
        self._filled = now

    def wait_seconds(self, now: float) -> float:
        """How long until something may be taken; 0 when it may now."""
        full = self._rate * BURST_SECONDS
        self._level = min(full, self._level + (now - self._filled) * self._rate)
        self._filled = now
        return 0.0 if self._level > 0 else (1.0 - self._level) / self._rate

    def take(self, amount: float) -> None:
        self._level -= amount


class TenantLimits:
    """The rates of those tenants that sent last; one who comes back after very many others starts anew."""

    def __init__(self, settings: TelemetrySettings, clock: Callable[[], float] = monotonic) -> None:
        self._rates = (settings.max_requests_per_second, settings.max_bytes_per_second)
        self._max_tenants = settings.max_tracked_tenants
        self._clock = clock
        self._lock = threading.Lock()
        self._buckets: OrderedDict[str, tuple[Bucket | None, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, bytes_by_tenant: Mapping[str, int]) -> None:
        """Count a request against all of its tenants, or raise and count nothing."""
        if not any(self._rates):
            return
        now = self._clock()
        with self._lock:
            found = [(tenant, self._of(tenant, now), nbytes) for tenant, nbytes in bytes_by_tenant.items()]
            for tenant, buckets, _ in found:
                wait = max((bucket.wait_seconds(now) for bucket in buckets if bucket is not None), default=0.0)
                if wait > 0:
                    raise _too_much(tenant, wait)
            for _, (requests, volume), nbytes in found:
                if requests is not None:
                    requests.take(1)
                if volume is not None:
                    volume.take(nbytes)

    def _of(self, tenant: str, now: float) -> tuple[Bucket | None, ...]:
        buckets = self._buckets.get(tenant)
        if buckets is None:
            buckets = tuple(Bucket(rate, now) if rate else None for rate in self._rates)
            self._buckets[tenant] = buckets
            if len(self._buckets) > self._max_tenants:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(tenant)
        return buckets


def _too_much(tenant: str, wait_seconds: float) -> RateLimitedError:
    return RateLimitedError(
        "the tenant sends more than it may",
        operation="publish telemetry",
        place=tenant,
        remedy="wait and send again, or raise telemetry.max_requests_per_second and telemetry.max_bytes_per_second",
        details={"retry_after_seconds": round(wait_seconds, 3)},
    )
