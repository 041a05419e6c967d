"""Figures of tenants, for every door: what came in, what the pipeline brought into tables, and how much waits.

A tenant is a namespace, and all of its topics count, telemetry or not. Sums begin when the broker starts. Only logs
that are open are looked at.
"""

from typing import Any, Protocol

from icestream.model.callers import EVERYTHING, Caller
from icestream.model.errors import TopicNotFoundError
from icestream.model.names import check_part
from icestream.server.access import topics_of
from icestream.storage import IcebergStorage, Topic
from icestream.storage.pipeline_figures import PipelineFigures
from icestream.storage.stats import table_figures

MAX_TENANTS = 1_000
"""In one answer."""
OTHER_TENANT = "(other)"
"""What is nobody's own; no namespace can be called so."""


Counts = dict[str, dict[str, Any]]
"""By signal."""


class Received(Protocol):
    """What the doors for OpenTelemetry have counted."""

    def figures(self) -> dict[str, Counts]:
        """By tenant and signal."""


class TenantFigures:
    def __init__(self, storage: IcebergStorage, pipeline: PipelineFigures) -> None:
        self._storage = storage
        self._pipeline = pipeline
        self.received: Received | None = None
        """None while there is no door for OpenTelemetry."""

    def page(self, caller: Caller, after: str, limit: int) -> dict[str, Any]:
        """The tenants that a caller may see, by name, and what the next page is to go on after."""
        found = self._find(caller)
        names = sorted(name for name in found if name > after)
        shown = names[:limit]
        failing = self._failing()
        return {
            "tenants": [self._of(name, *found[name], failing) for name in shown],
            "next_after": shown[-1] if len(names) > len(shown) else None,
        }

    def all(self) -> list[dict[str, Any]]:
        """Every tenant, those first that came first."""
        failing = self._failing()
        return [self._of(name, *found, failing) for name, found in self._find(EVERYTHING).items()]

    def one(self, caller: Caller, tenant: str, *, operation: str) -> dict[str, Any]:
        caller.check(tenant, operation=operation)
        received = self.received.figures().get(tenant) if self.received is not None else None
        topics = topics_of(self._storage, caller, f"{tenant}/")
        if received is None and not topics:
            check_part(tenant, what="tenant")
            raise TopicNotFoundError("there is no such tenant", operation=operation, place=tenant)
        return self._of(tenant, topics, received or {}, self._failing())

    def _find(self, caller: Caller) -> dict[str, tuple[list[Topic], Counts]]:
        """The topics of each tenant, and what was received for it."""
        received = self.received.figures() if self.received is not None else {}
        found: dict[str, tuple[list[Topic], Counts]] = {
            name: ([], counts) for name, counts in received.items() if caller.may(name)
        }
        for topic in topics_of(self._storage, caller):
            found.setdefault(topic.name.namespace, ([], {}))[0].append(topic)
        return found

    def _failing(self) -> set[str]:
        return {topic for topic, told in self._pipeline.topics().items() if told["error"] is not None}

    def _of(self, tenant: str, topics: list[Topic], received: Counts, failing: set[str]) -> dict[str, Any]:
        lags = [table_figures(topic, log) for topic in topics if (log := topic.opened_log) is not None]
        return {
            "tenant": tenant,
            "topics": len(topics),
            "received": received,
            "pipeline": self._pipeline.sums_of(tenant),
            "failing_topics": sum(str(topic.name) in failing for topic in topics),
            "quarantined": sum(topic.committed.quarantined for topic in topics),
            "table_lag_messages": sum(lag.table_lag_messages or 0 for lag in lags),
            "table_lag_bytes": sum(lag.table_lag_bytes or 0 for lag in lags),
            "table_lag_seconds": max((lag.table_lag_seconds or 0.0 for lag in lags), default=0.0),
        }
