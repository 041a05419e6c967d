"""Figures of a pass. The driver counts them and sends them to the broker; `--once` shows them."""

from dataclasses import asdict, dataclass, field
from typing import Any

from icestream.model.names import TopicName

MAX_ERROR_LENGTH = 500


@dataclass
class TopicPassFigures:
    topic: TopicName
    messages: int = 0
    bytes: int = 0
    files: int = 0
    file_bytes: int = 0
    lost: int = 0
    quarantined: int = 0
    """Frames that were put into quarantine."""
    commits: int = 0
    conflicts: int = 0
    failures: int = 0
    translate_seconds: float = 0.0
    commit_seconds: float = 0.0
    committed_offset: int | None = None
    snapshot_id: int | None = None
    durable_end: int = 0
    error: str | None = None
    """Why the topic waits for its next try; None if it does not."""
    retry_ms: int | None = None

    def to_json(self) -> dict[str, Any]:
        error = None if self.error is None else self.error[:MAX_ERROR_LENGTH]
        return {**asdict(self), "topic": str(self.topic), "error": error}

    def add(self, other: "TopicPassFigures") -> None:
        """Add a later pass over the same topic: add its counts, replace the other figures."""
        for name in _COUNTED:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("committed_offset", "snapshot_id", "durable_end", "error", "retry_ms"):
            setattr(self, name, getattr(other, name))


_COUNTED = (
    "messages",
    "bytes",
    "files",
    "file_bytes",
    "lost",
    "quarantined",
    "commits",
    "conflicts",
    "failures",
    "translate_seconds",
    "commit_seconds",
)


@dataclass
class PassFigures:
    seconds: float = 0.0
    job_seconds: float = 0.0
    topics: dict[TopicName, TopicPassFigures] = field(default_factory=dict)

    def of(self, topic: TopicName) -> TopicPassFigures:
        return self.topics.setdefault(topic, TopicPassFigures(topic))

    @property
    def messages(self) -> int:
        return sum(topic.messages for topic in self.topics.values())

    @property
    def failures(self) -> int:
        return sum(topic.failures for topic in self.topics.values())

    def add(self, other: "PassFigures") -> None:
        self.seconds += other.seconds
        self.job_seconds += other.job_seconds
        for name, figures in other.topics.items():
            self.of(name).add(figures)
