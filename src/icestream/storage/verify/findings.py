"""What a verification found."""

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from icestream.model.names import TopicName
from icestream.model.quarantine import Quarantined

MAX_FINDINGS = 100
"""Of one topic; more are counted."""

Kind = Literal[
    "stream",
    "ledger",
    "gap",
    "duplicate",
    "content",
    "order",
    "overlap",
    "description",
    "damaged",
    "cloud",
    "unchecked",  # a catalog, store or broker could not be asked
]


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong."""

    kind: Kind
    text: str
    first_offset: int | None = None
    last_offset: int | None = None
    place: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}" + (f" [{self.place}]" if self.place else "")


@dataclass
class Verification:
    topic: TopicName
    stream_id: str | None = None
    log_start: int | None = None
    """None without a log."""
    durable_end: int | None = None
    committed_offset: int | None = None
    """None without a table."""
    files: int = 0
    rows: int = 0
    compared: int = 0
    """Rows that were compared with their messages."""
    lost: int = 0
    """Lost messages of the log; the table may still have them."""
    removed: int = 0
    """Rows that another engine deleted, which was accepted; log and cloud may still have the messages."""
    quarantined: list[Quarantined] = field(default_factory=list)
    """Frames that are in files of their own and not in the table: nothing that is wrong with what is checked here."""
    waiting: int = 0
    """Messages of the log that are not in the table yet."""
    parquet_offset: int | None = None
    """As `committed_offset`, of the topic's Parquet copy; None where it has none."""
    parquet_files: int = 0
    parquet_rows: int = 0
    findings: list[Finding] = field(default_factory=list)
    further_findings: int = 0
    """Beyond the limit."""
    cloud_objects: int = 0
    cloud_bytes: int = 0
    cloud_first: int | None = None
    """None without objects."""
    cloud_end: int | None = None
    cloud_compared: int = 0
    """Messages of the cloud that were compared with the log's."""
    notes: list[str] = field(default_factory=list)
    """Worth knowing, and nothing wrong."""
    seconds: float = 0.0

    @property
    def is_sound(self) -> bool:
        return not self.findings

    def add(self, finding: Finding) -> None:
        """Note a finding. One that goes on where the last one ended becomes a longer one."""
        last = self.findings[-1] if self.findings else None
        if last is not None and _continues(last, finding):
            self.findings[-1] = replace(last, last_offset=max(last.last_offset or 0, finding.last_offset or 0))
        elif len(self.findings) < MAX_FINDINGS:
            self.findings.append(finding)
        else:
            self.further_findings += 1

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "topic": str(self.topic), "sound": self.is_sound}


def _continues(last: Finding, finding: Finding) -> bool:
    return (
        (last.kind, last.text, last.place) == (finding.kind, finding.text, finding.place)
        and last.last_offset is not None
        and finding.first_offset is not None
        and last.last_offset < finding.first_offset <= last.last_offset + 1
    )
