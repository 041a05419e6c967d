"""Figures of tenants: what arrived, what the pipeline wrote into tables, and how much waits.

A tenant is a namespace. All of its topics count, with telemetry or without. Sums begin when the broker starts. Only
open logs are looked at.
"""

from typing import Any, Protocol

import msgspec

from icestream.model.callers import FULL_ACCESS, Caller
from icestream.model.errors import TopicNotFoundError
from icestream.model.names import check_part
from icestream.protocol.admin import ReceivedTelemetry, TenantPage, TenantStats
from icestream.storage.facade import IcebergStorage
from icestream.storage.pipeline_figures import PipelineFigures
from icestream.storage.stats import table_figures
from icestream.storage.topic import Topic

OTHER_TENANT = "(other)"
"""What belongs to no tenant; no namespace can have this name."""


Counts = dict[str, dict[str, Any]]
"""By signal."""


class TelemetryCounts(Protocol):
    """What the OpenTelemetry doors have counted."""

    def figures(self) -> dict[str, Counts]:
        """Return the counts by tenant and signal."""


class TenantFigures:
    def __init__(self, storage: IcebergStorage, pipeline: PipelineFigures) -> None:
        self._storage = storage
        self._pipeline = pipeline
        self.received: TelemetryCounts | None = None
        """None while there is no OpenTelemetry door."""

    def page(self, caller: Caller, after: str, limit: int) -> TenantPage:
        """Return the tenants that a caller may see, by name."""
        found = self._find(caller)
        names = sorted(name for name in found if name > after)
        shown = names[:limit]
        failing = self._failing()
        return TenantPage(
            tenants=[self._of(name, *found[name], failing) for name in shown],
            next_after=shown[-1] if len(names) > len(shown) else None,
        )

    def all(self) -> list[TenantStats]:
        """Return every tenant, in the order in which they came."""
        failing = self._failing()
        return [self._of(name, *found, failing) for name, found in self._find(FULL_ACCESS).items()]

    def one(self, caller: Caller, tenant: str, *, operation: str) -> TenantStats:
        """Return one tenant; raise if it has no topics and nothing arrived for it."""
        caller.check(tenant, operation=operation)
        received = self.received.figures().get(tenant) if self.received is not None else None
        topics = self._storage.topics.find(f"{tenant}/")
        if received is None and not topics:
            check_part(tenant, what="tenant")
            raise TopicNotFoundError("there is no such tenant", operation=operation, place=tenant)
        return self._of(tenant, topics, received or {}, self._failing())

    def _find(self, caller: Caller) -> dict[str, tuple[list[Topic], Counts]]:
        """Return the topics of each tenant, and what arrived for it."""
        received = self.received.figures() if self.received is not None else {}
        found: dict[str, tuple[list[Topic], Counts]] = {
            name: ([], counts) for name, counts in received.items() if caller.may(name)
        }
        for topic in self._storage.topics.find():
            if caller.may(topic.name.namespace):
                found.setdefault(topic.name.namespace, ([], {}))[0].append(topic)
        return found

    def _failing(self) -> set[str]:
        return {topic for topic, report in self._pipeline.topics().items() if report["error"] is not None}

    def _of(self, tenant: str, topics: list[Topic], received: Counts, failing: set[str]) -> TenantStats:
        lags = [table_figures(topic, log) for topic in topics if (log := topic.opened_log) is not None]
        return TenantStats(
            tenant=tenant,
            topics=len(topics),
            received=msgspec.convert(received, dict[str, ReceivedTelemetry]),
            pipeline=self._pipeline.sums_of(tenant),
            failing_topics=sum(str(topic.name) in failing for topic in topics),
            quarantined=sum(topic.committed.quarantined for topic in topics),
            table_lag_messages=sum(lag.table_lag_messages or 0 for lag in lags),
            table_lag_bytes=sum(lag.table_lag_bytes or 0 for lag in lags),
            table_lag_seconds=max((lag.table_lag_seconds or 0.0 for lag in lags), default=0.0),
        )
