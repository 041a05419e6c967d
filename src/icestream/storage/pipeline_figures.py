"""The pipeline's reports about itself: sums since the broker started, and the last report of each topic.

They are kept for topics that exist, so memory is bounded. They are shown, and decide nothing: the committed offset that
counts is the one that the broker reads from the table.
"""

import threading
from collections.abc import Callable
from typing import Any

import msgspec

from icestream.model.clock import now_us
from icestream.model.names import TopicName
from icestream.protocol.pipeline import PassReport, TopicReport, WriteFigures

MAX_ERROR_LENGTH = 1000
_NO_FIGURES = WriteFigures()
_NO_PASSES = PassReport()


def _add(sums: dict[str, Any], figures: msgspec.Struct) -> None:
    for name in sums:
        sums[name] += getattr(figures, name)


class PipelineFigures:
    def __init__(self, exists: Callable[[TopicName], bool]) -> None:
        self._exists = exists
        self._lock = threading.Lock()
        self._passes = msgspec.to_builtins(_NO_PASSES)
        self._writes = msgspec.to_builtins(_NO_FIGURES)
        self._topics: dict[TopicName, dict[str, Any]] = {}
        self._tenants: dict[str, dict[str, Any]] = {}
        self._reported_us: int | None = None

    def report(self, passed: PassReport, topics: list[TopicReport]) -> None:
        with self._lock:
            self._reported_us = now_us()
            _add(self._passes, passed)
            for figures in topics:
                _add(self._writes, figures)
                name = TopicName.parse(figures.topic)
                if self._exists(name):
                    _add(self._tenants.setdefault(name.namespace, msgspec.to_builtins(_NO_FIGURES)), figures)
                    self._topics[name] = {
                        **msgspec.to_builtins(figures),
                        "error": None if figures.error is None else figures.error[:MAX_ERROR_LENGTH],
                        "reported_us": self._reported_us,
                    }
            for name in [name for name in self._topics if not self._exists(name)]:
                del self._topics[name]
            for tenant in self._tenants.keys() - {name.namespace for name in self._topics}:
                del self._tenants[tenant]

    def sums(self) -> dict[str, Any]:
        with self._lock:
            return {**self._passes, **self._writes, "reported_us": self._reported_us}

    def sums_of(self, tenant: str) -> WriteFigures:
        """Return the sums over one tenant's topics."""
        with self._lock:
            return msgspec.convert(self._tenants.get(tenant, {}), WriteFigures)

    def topics(self, name: TopicName | None = None) -> dict[str, dict[str, Any]]:
        """Return the last report of each topic, or of one."""
        with self._lock:
            return {
                str(topic): dict(figures) for topic, figures in self._topics.items() if name is None or topic == name
            }
