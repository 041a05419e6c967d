"""Tenants: whose telemetry it is, how much each may send, and counts.

The sender's token names the tenant if the broker uses tokens; else a header does. A tenant is a namespace, and its name
is checked as one before anything is looked up or created.
"""

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from icestream.config import RESERVED_NAMESPACES, TelemetrySettings
from icestream.model.callers import Callers
from icestream.model.errors import IcestreamError, InvalidNameError, OverloadedError
from icestream.model.names import MAX_PART_LENGTH, check_part
from icestream.telemetry.schemas import Signal


class TenantRefusedError(IcestreamError):
    """The tenant is unknown, or the sender may not send for it."""

    code = "tenant_refused"


class RateLimitedError(OverloadedError):
    """A tenant sends more than it may. `retry_after_seconds` says when it may again."""

    code = "rate_limited"

    @property
    def retry_after_seconds(self) -> float:
        return float(self.details.get("retry_after_seconds", 1.0))


_MAX_DATASET_LENGTH = MAX_PART_LENGTH - 1 - max(map(len, Signal))
_OPERATION = "identify tenant"


@dataclass(frozen=True)
class TelemetrySender:
    """Which tenants a request may belong to."""

    tenant: str | None
    """The tenant of rows that name no other; None if rows must name one."""
    dataset: str | None = None
    any_tenant: bool = True
    """Whether it may send for other tenants than `tenant`."""


class Tenants:
    def __init__(self, settings: TelemetrySettings, callers: Callers, exists: Callable[[str], bool]) -> None:
        """`exists` returns whether a tenant has topics."""
        self._settings = settings
        self._callers = callers
        self._exists = exists
        create = settings.auto_create_tenants
        self._creates = callers.has_no_authentication if create is None else create
        given = [settings.default_tenant] if settings.default_tenant is not None else []
        named = {*settings.named_tenants, *given}
        for tenant in named:
            check_tenant(tenant)
        self._known = named | callers.namespaces

    def identify(self, headers: Mapping[str, str]) -> TelemetrySender:
        """Return the sender of a request from its headers, with names in lower case. Raise if it may not send."""
        settings = self._settings
        owner = self._callers.identify(headers.get("authorization"), operation=_OPERATION).namespace
        named = headers.get(settings.tenant_header)
        dataset = headers.get(settings.dataset_header)
        if dataset is not None:
            check_dataset(dataset)
        if owner is not None:
            if named not in (None, owner):
                raise TenantRefusedError(
                    "the token is another tenant's",
                    operation=_OPERATION,
                    remedy=f"leave the header {settings.tenant_header} out",
                )
            return TelemetrySender(check_tenant(owner), dataset, any_tenant=False)
        tenant = named if named is not None else settings.default_tenant
        if tenant is None:
            if settings.tenant_attribute is None:
                raise TenantRefusedError(
                    "the request names no tenant",
                    operation=_OPERATION,
                    remedy=f"send the header {settings.tenant_header}",
                )
        else:
            self.check(tenant)
        return TelemetrySender(tenant, dataset)

    def is_known(self, tenant: str) -> bool:
        """Return whether the settings name it, or it has topics."""
        return tenant in self._known or self._exists(tenant)

    def check(self, tenant: str) -> None:
        """Raise unless this is the valid name of a tenant that is known or may be created."""
        check_tenant(tenant)
        if not (self._creates or self.is_known(tenant)):
            raise TenantRefusedError(
                f"there is no tenant {tenant!r}",
                operation=_OPERATION,
                remedy="name it in telemetry.tenants, or set telemetry.auto_create_tenants",
            )


def check_tenant(name: str) -> str:
    """Return `name` if a tenant can have it; else raise."""
    check_part(name, what="tenant")
    if name.startswith("_") or name.lower() in RESERVED_NAMESPACES:
        raise InvalidNameError(f"{name!r} is a reserved name", operation=_OPERATION, remedy="choose another one")
    return name


def check_dataset(name: str) -> str:
    """Return `name` if a dataset can have it, as part of a topic's name; else raise."""
    check_part(name, what="dataset")
    if len(name) > _MAX_DATASET_LENGTH:
        raise InvalidNameError(
            f"a dataset's name has {len(name)} characters",
            operation=_OPERATION,
            remedy=f"use up to {_MAX_DATASET_LENGTH}",
        )
    return name


BURST_SECONDS = 2.0
"""An idle tenant may send at once what its rate allows in this time."""


class TokenBucket:
    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self._level = rate * BURST_SECONDS
        self._filled = now

    def wait_seconds(self, now: float) -> float:
        """Return the seconds until something may be taken; 0 if it may be taken now."""
        full = self._rate * BURST_SECONDS
        self._level = min(full, self._level + (now - self._filled) * self._rate)
        self._filled = now
        return 0.0 if self._level > 0 else (1.0 - self._level) / self._rate

    def take(self, amount: float) -> None:
        self._level -= amount


class TenantLimits:
    """The rates of the tenants that sent last: requests and bytes a second, by a token bucket of each.

    A bucket may be overdrawn by one request, and is in debt until time has paid for it. So a request of any size can
    pass, long-term rates hold to the byte, and the time to wait is known exactly. The number of buckets is bounded: a
    tenant that comes back after very many others starts with full buckets.
    """

    def __init__(self, settings: TelemetrySettings, clock: Callable[[], float] = monotonic) -> None:
        self._rates = (settings.max_requests_per_second, settings.max_bytes_per_second)
        self._max_tenants = settings.max_tracked_tenants
        self._clock = clock
        self._lock = threading.Lock()
        self._buckets: OrderedDict[str, tuple[TokenBucket | None, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, bytes_by_tenant: Mapping[str, int]) -> None:
        """Count a request against all its tenants, or raise and count nothing."""
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

    def _of(self, tenant: str, now: float) -> tuple[TokenBucket | None, ...]:
        buckets = self._buckets.get(tenant)
        if buckets is None:
            buckets = tuple(TokenBucket(rate, now) if rate else None for rate in self._rates)
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


OTHER = "(other)"
_MAX_REASONS = 100
_OTHER_REASON = "other"


@dataclass
class SignalCounts:
    requests: int = 0
    """Accepted requests. One with rows of several tenants counts for each."""
    rows: int = 0
    """Durable rows."""
    bytes: int = 0
    """Bytes of these requests, decompressed. A request's bytes are divided among its tenants by rows."""
    rejected_rows: int = 0
    """Rejected rows of accepted requests."""
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
    """What came in, by tenant and signal, since the broker started. Thread-safe. Counted by request, not by row.

    The number of tenants is bounded: a tenant is counted by name if `is_known` says so or if it has stored rows.
    Others beyond the bound, and requests that were refused before their tenant was clear, are counted together as
    `OTHER`, a name that no namespace can have.
    """

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
        """Count rows of an accepted request that were not stored; `tenant` is None if they name no valid one."""
        with self._lock:
            self._of(tenant, signal).rejected_rows += rows

    def refused(self, tenant: str | None, signal: Signal, code: str) -> None:
        """Count a refused request; `tenant` is None if it is unknown."""
        with self._lock:
            reasons = self._of(tenant, signal).refused
            reasons[code if code in reasons or len(reasons) < _MAX_REASONS else _OTHER_REASON] += 1

    def figures(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Return the counts by tenant and signal, in the order in which tenants came; `OTHER` is last."""
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
