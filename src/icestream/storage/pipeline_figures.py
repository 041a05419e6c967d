"""The pipeline's reports about itself: sums since the broker started, and the last report of each topic.

They are kept for topics that exist, so memory is bounded. They are shown, and decide nothing: the committed offset that
counts is the one that the broker reads from the table.
"""

import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from icestream.model.clock import now_us
from icestream.model.names import TopicName

MAX_ERROR_LENGTH = 1000


@dataclass
class PipelineSums:
    passes: int = 0
    messages: int = 0
    bytes: int = 0
    files: int = 0
    file_bytes: int = 0
    commits: int = 0
    conflicts: int = 0
    failures: int = 0
    lost: int = 0
    quarantined: int = 0
    translate_seconds: float = 0.0
    commit_seconds: float = 0.0
    pass_seconds: float = 0.0

    def add(self, figures: dict[str, Any]) -> None:
        for name in SUMMED & figures.keys():
            setattr(self, name, getattr(self, name) + figures[name])


SUMMED = frozenset(PipelineSums.__dataclass_fields__)
PASS_FIELDS = frozenset({"passes", "pass_seconds"})
TOPIC_FIELDS = (SUMMED - PASS_FIELDS) | {"topic", "committed_offset", "snapshot_id", "durable_end", "error", "retry_ms"}


class PipelineFigures:
    def __init__(self, exists: Callable[[TopicName], bool]) -> None:
        self._exists = exists
        self._lock = threading.Lock()
        self._sums = PipelineSums()
        self._topics: dict[TopicName, dict[str, Any]] = {}
        self._tenants: dict[str, PipelineSums] = {}
        self._reported_us: int | None = None

    def report(self, passed: dict[str, Any], topics: list[dict[str, Any]]) -> None:
        with self._lock:
            self._reported_us = now_us()
            self._sums.add({name: value for name, value in passed.items() if name in PASS_FIELDS})
            for figures in topics:
                counted = {name: value for name, value in figures.items() if name not in PASS_FIELDS}
                self._sums.add(counted)
                name = TopicName.parse(figures["topic"])
                if self._exists(name):
                    self._tenants.setdefault(name.namespace, PipelineSums()).add(counted)
                    error = figures.get("error")
                    self._topics[name] = {
                        **figures,
                        "error": None if error is None else error[:MAX_ERROR_LENGTH],
                        "reported_us": self._reported_us,
                    }
            for name in [name for name in self._topics if not self._exists(name)]:
                del self._topics[name]
            for tenant in self._tenants.keys() - {name.namespace for name in self._topics}:
                del self._tenants[tenant]

    def sums(self) -> dict[str, Any]:
        with self._lock:
            return {**asdict(self._sums), "reported_us": self._reported_us}

    def sums_of(self, tenant: str) -> dict[str, Any]:
        """Return the sums over one tenant's topics."""
        with self._lock:
            sums = asdict(self._tenants.get(tenant, PipelineSums()))
        return {name: value for name, value in sums.items() if name not in PASS_FIELDS}

    def topics(self, name: TopicName | None = None) -> dict[str, dict[str, Any]]:
        """Return the last report of each topic, or of one."""
        with self._lock:
            return {
                str(topic): dict(figures) for topic, figures in self._topics.items() if name is None or topic == name
            }
