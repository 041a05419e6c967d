"""The report of a migration, file by file, for people and as JSON."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class FileState(StrEnum):
    NEW = "new"
    """None of its rows is in the topic."""
    BEGUN = "begun"
    """Some of its rows are in the topic, from an earlier or a concurrent run."""
    PUBLISHED = "published"
    """All of its rows are in the topic."""
    EMPTY = "empty"
    """It has no rows."""
    DAMAGED = "damaged"
    REFUSED = "refused"
    """Its rows may be in the topic already, or one does not fit the topic. The error says which."""
    DIFFERENT = "different"
    """The rows that were read back from the topic differ from the file's."""


FAILED = frozenset({FileState.DAMAGED, FileState.REFUSED, FileState.DIFFERENT})


@dataclass
class FileReport:
    path: str
    size: int
    state: FileState = FileState.NEW
    rows: int = 0
    row_groups: int = 0
    published: int = 0
    """Rows that this run published."""
    first_offset: int | None = None
    last_offset: int | None = None
    """Other producers' rows may lie between the first and the last."""
    checksum: str | None = None
    """Checksum of the file's rows with the topic's columns."""
    verified: bool = False
    """The same number of rows, with the same checksum, was read back from the topic."""
    error: str | None = None

    def fail(self, state: FileState, error: str) -> None:
        self.state, self.error = state, error

    @property
    def is_done(self) -> bool:
        return self.state in (FileState.PUBLISHED, FileState.EMPTY)

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass
class MigrationReport:
    source: str
    topic: str
    signal: str | None = None
    """The telemetry signal; None for other topics."""
    guessed: str | None = None
    """What the signal was guessed from."""
    created: bool = False
    dry_run: bool = False
    files: list[FileReport] = field(default_factory=list)
    mapping: dict[str, str] = field(default_factory=dict)
    """For each column of the topic, where its values come from."""
    dropped: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    committed: bool = False
    """All rows are in the table."""
    seconds: float = 0.0

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def published(self) -> int:
        return sum(file.published for file in self.files)

    @property
    def failed(self) -> list[FileReport]:
        return [file for file in self.files if file.state in FAILED]

    def to_json(self) -> dict[str, Any]:
        fields = {name: value for name, value in vars(self).items() if value is not None}
        totals = {
            "rows": self.rows,
            "bytes": sum(file.size for file in self.files),
            "published": self.published,
            "failed": len(self.failed),
        }
        return fields | totals | {"files": [file.to_json() for file in self.files]}
