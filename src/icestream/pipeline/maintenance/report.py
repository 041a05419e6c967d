"""Figures of maintenance: what it found, what it would do, and what it did."""

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from icestream.model.names import TopicName
from icestream.pipeline.maintenance.plan import CompactionLimits, small_files
from icestream.table import TableContents

MAX_NAMED_FILES = 20


class MaintenanceStep(StrEnum):
    """The steps, in the order in which they run."""

    COMPACT = "compact"
    MANIFESTS = "manifests"
    EXPIRE = "expire"
    ORPHANS = "orphans"


@dataclass(frozen=True)
class MaintenanceFigures:
    """The state of a table at one moment."""

    rows: int
    files: int
    bytes: int
    small_files: int
    small_bytes: int
    snapshots: int
    manifests: int

    @classmethod
    def of(cls, contents: TableContents, limits: CompactionLimits) -> "MaintenanceFigures":
        small = small_files(contents, limits)
        return cls(
            rows=contents.rows,
            files=len(contents.files),
            bytes=contents.nbytes,
            small_files=len(small),
            small_bytes=sum(file.nbytes for file in small),
            snapshots=len(contents.snapshots),
            manifests=contents.manifests,
        )


@dataclass
class StepReport:
    step: MaintenanceStep
    planned: dict[str, int] = field(default_factory=dict)
    """What the step would do, by the metadata at its start."""
    done: dict[str, int] = field(default_factory=dict)
    """What the step did, by Iceberg's result; empty if there was nothing to do."""
    named: list[str] = field(default_factory=list)
    """Some of the files concerned."""
    conflicts: int = 0
    seconds: float = 0.0
    error: str | None = None

    @property
    def is_needed(self) -> bool:
        return any(self.planned.values())


@dataclass
class MaintenanceReport:
    topic: TopicName
    before: MaintenanceFigures | None = None
    after: MaintenanceFigures | None = None
    steps: list[StepReport] = field(default_factory=list)
    error: str | None = None
    """Why no step ran; None if steps ran."""

    @property
    def errors(self) -> list[str]:
        return [said for said in (self.error, *(step.error for step in self.steps)) if said is not None]

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "topic": str(self.topic)}
