"""What became of a topic that was brought back."""

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class RecoveryReport:
    topic: str
    stream_id: str
    epoch: int
    start_offset: int
    """Where the new log begins."""
    next_offset: int
    """The next message's."""
    cloud_first_offset: int | None
    cloud_end: int
    committed_offset: int | None
    """Of the table; None where there is none."""
    lost_first: int | None
    lost_end: int | None
    """Messages from `lost_first` to before it may have been acknowledged and are lost; None where none are."""
    objects: int
    bytes: int
    unreadable: list[tuple[int, int]] = field(default_factory=list)
    """Offsets, each time with the one behind them, that were uploaded: their objects are gone or damaged, and no table
    has them."""
    sources: list[str] = field(default_factory=list)
    """What was found where, and what was not as it should be."""

    @property
    def message(self) -> str:
        said = []
        if self.unreadable:
            ranges = ", ".join(f"{first} to {end - 1}" for first, end in self.unreadable)
            said.append(f"offsets {ranges} cannot be read: their objects are gone or damaged, and no table has them")
        if self.lost_first is not None and self.lost_end is not None:
            said.append(
                f"offsets {self.lost_first} to {self.lost_end - 1} at most may have been acknowledged after the last "
                "upload and are lost"
            )
        return "; ".join(said) or "nothing is lost"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "message": self.message}
