"""What a writer hands to the commit: a description of one data file that is complete and durable."""

from dataclasses import dataclass
from uuid import UUID

from pyiceberg.manifest import DataFile


@dataclass(frozen=True)
class WrittenFile:
    table_uuid: UUID
    spec_id: int
    """The partition spec it was written for, which the library's description does not carry."""
    data_file: DataFile
    message_count: int
    first_offset: int
    last_offset: int

    @property
    def path(self) -> str:
        return self.data_file.file_path

    @property
    def bytes(self) -> int:
        return self.data_file.file_size_in_bytes
