"""What is known of tenants, as metrics.

The number of series is bounded: the tenants that were seen first have their own, the others are one, `(other)`. No
counter falls, not even when a tenant is gone.
"""

import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from icestream.model.errors import ClosedError
from icestream.server.tenant_figures import OTHER_TENANT, TenantFigures

_RECEIVED = {
    "requests": "Requests of telemetry that were accepted.",
    "rows": "Spans, log records and data points of these that are durable.",
    "bytes": "Bytes of these requests, decompressed.",
    "rejected_rows": "Rows of these requests that were not stored.",
}
_WRITTEN = {
    "messages": "Messages that the pipeline put into the tenant's tables.",
    "bytes": "Arrow bytes of these.",
    "commits": "Commits that it made.",
    "failures": "Ranges that it could not write or commit.",
}


class TenantCollector(Collector):
    def __init__(self, tenants: TenantFigures, max_tenants: int) -> None:
        self._tenants = tenants
        self._max_tenants = max_tenants
        self._named: set[str] = set()
        self._written = _Written()
        self._lock = threading.Lock()
        """For those who ask at the same time."""

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        try:
            figures = self._tenants.all()
        except ClosedError:
            return
        with self._lock:
            by_label = [(self._label(one["tenant"]), one) for one in figures]
            written = self._written.add_up(by_label)
        yield from _received(by_label)
        yield from _written(written)
        yield from _lags(by_label)

    def _label(self, tenant: str) -> str:
        if tenant not in self._named and len(self._named) < self._max_tenants:
            self._named.add(tenant)
        return tenant if tenant in self._named else OTHER_TENANT


Labelled = list[tuple[str, dict[str, Any]]]


def _received(figures: Labelled) -> Iterator[Metric]:
    for name, text in _RECEIVED.items():
        counted: Counter[tuple[str, ...]] = Counter()
        for tenant, one in figures:
            for signal, counts in one["received"].items():
                counted[tenant, signal] += counts[name]
        yield _counter(f"icestream_tenant_received_{name}", text, ["tenant", "signal"], counted)
    refused: Counter[tuple[str, ...]] = Counter()
    for tenant, one in figures:
        for signal, counts in one["received"].items():
            for code, count in counts["refused"].items():
                refused[tenant, signal, code] += count
    text = "Requests of telemetry that were refused, by error code."
    yield _counter("icestream_tenant_refused_requests", text, ["tenant", "signal", "code"], refused)


class _Written:
    """What the pipeline wrote, by label. Its sums of a tenant end with the tenant's topics; here they stay."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[str, Counter[str]]] = {}
        """Of the tenants that there were the last time."""
        self._gone: dict[str, Counter[str]] = {}

    def add_up(self, figures: Labelled) -> dict[str, Counter[str]]:
        now = {
            one["tenant"]: (label, Counter({name: one["pipeline"][name] for name in _WRITTEN}))
            for label, one in figures
        }
        for tenant, (label, before) in self._last.items():
            if tenant not in now or not before <= now[tenant][1]:
                self._gone.setdefault(label, Counter()).update(before)
        self._last = now
        sums = {label: Counter(counts) for label, counts in self._gone.items()}
        for label, counts in now.values():
            sums.setdefault(label, Counter()).update(counts)
        return sums


def _written(sums: dict[str, Counter[str]]) -> Iterator[Metric]:
    for name, text in _WRITTEN.items():
        counted: Counter[tuple[str, ...]] = Counter({(label,): counts[name] for label, counts in sums.items()})
        yield _counter(f"icestream_tenant_table_{name}", text, ["tenant"], counted)


def _lags(figures: Labelled) -> Iterator[Metric]:
    messages: Counter[str] = Counter()
    seconds: dict[str, float] = {}
    for tenant, one in figures:
        messages[tenant] += one["table_lag_messages"]
        seconds[tenant] = max(seconds.get(tenant, 0.0), one["table_lag_seconds"])
    lag = GaugeMetricFamily(
        "icestream_tenant_table_lag_messages", "The tenant's messages that are not in tables yet.", labels=["tenant"]
    )
    age = GaugeMetricFamily("icestream_tenant_table_lag_seconds", "Age of the oldest of these.", labels=["tenant"])
    for tenant, count in messages.items():
        lag.add_metric([tenant], count)
        age.add_metric([tenant], seconds[tenant])
    yield from (lag, age)


def _counter(name: str, text: str, labels: list[str], counted: Counter[tuple[str, ...]]) -> CounterMetricFamily:
    made = CounterMetricFamily(name, text, labels=labels)
    for values, count in counted.items():
        made.add_metric(list(values), count)
    return made
