"""How far a topic's messages have reached its table, as last read from the catalog."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Committed:
    offset: int | None = None
    """All messages below it are in the table. None until the catalog was read for the first time."""
    snapshot_id: int | None = None
    read_us: int | None = None
    """When that was."""
    quarantined: int = 0
    """Frames below it that are not in the table, and were put aside."""

    def covers(self, end: int) -> bool:
        """Whether all messages below `end` are in the table."""
        return self.offset is not None and self.offset >= end
