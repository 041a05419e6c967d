"""What is done to a file system, as records that hooks and fault plans look at and failure reports print."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class Kind(StrEnum):
    OPEN = "open"
    CREATE = "create"
    READ = "read"
    WRITE = "write"
    DATASYNC = "datasync"
    ALLOCATE = "allocate"
    TRUNCATE = "truncate"
    NAMES = "names"
    MAKE_DIRECTORY = "make_directory"
    REPLACE = "replace"
    REMOVE = "remove"
    REMOVE_TREE = "remove_tree"
    SYNC_DIRECTORY = "sync_directory"


MUTATING = frozenset(Kind) - {Kind.OPEN, Kind.READ, Kind.NAMES}


@dataclass(frozen=True, slots=True)
class Operation:
    """One call. `position` and `length` are bytes; `length` is the new size for allocate and truncate."""

    kind: Kind
    path: Path
    position: int = 0
    length: int = 0
    target: Path | None = None

    def __str__(self) -> str:
        text = f"{self.kind} {self.path}"
        if self.target is not None:
            return f"{text} -> {self.target}"
        if self.kind in (Kind.WRITE, Kind.READ):
            return f"{text} [{self.position}, {self.position + self.length})"
        if self.kind in (Kind.ALLOCATE, Kind.TRUNCATE):
            return f"{text} to {self.length}"
        return text
