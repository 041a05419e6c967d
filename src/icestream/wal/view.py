"""What others see of a log: its state, and how far they may read."""

from enum import Enum
from typing import NamedTuple

from icestream.wal.segment import ActiveSegment, SealedSegment


class LogState(Enum):
    OPEN = "open"
    FAILED = "failed"
    """A write or sync failed; the next append recovers."""
    DAMAGED = "damaged"
    CLOSED = "closed"


class Visible(NamedTuple):
    """What readers may see; replaced as one, so that they need no lock."""

    start_offset: int
    end_offset: int
    sealed: tuple[SealedSegment, ...]
    active: ActiveSegment
    active_position: int

    @property
    def nbytes(self) -> int:
        return sum(segment.footer.position for segment in self.sealed) + self.active_position
