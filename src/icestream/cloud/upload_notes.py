"""What an uploader notes beside the log: how far it is, and which object it is making.

The metadata store's head is the truth. The notes say what it cannot: that an object was begun which may be there and
has no description yet. So after a crash that object is found again, and not sent again.
"""

from dataclasses import asdict, dataclass
from typing import Any, Protocol, Self

from icestream.cloud.packing import Place


@dataclass(frozen=True)
class Pending:
    """An object that was begun; it may be in the store."""

    key: str
    first_offset: int
    end_offset: int


@dataclass(frozen=True)
class UploadNotes:
    stream_id: str
    epoch: int
    uploaded_end: int
    file_seq: int
    byte_pos: int
    """Where in the log the next object begins."""
    pending: Pending | None = None

    @property
    def place(self) -> Place:
        return Place(self.file_seq, self.byte_pos)

    def to_fields(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Self:
        pending = fields["pending"]
        return cls(**(fields | {"pending": Pending(**pending) if pending is not None else None}))


class NotesFile(Protocol):
    """Where the notes are kept; after any crash there are the old ones or the new ones."""

    @property
    def name(self) -> str: ...

    def load(self) -> UploadNotes | None:
        """None where there are none, or none that can be read."""

    def save(self, notes: UploadNotes, /) -> None: ...
