"""What the readers of all topics share: settings, the decoded tails, the threads that read objects."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from icestream.cloud import ReadPool
from icestream.config import ReaderSettings
from icestream.model.enums import StorageFormat
from icestream.model.names import TopicName
from icestream.reader.tail import Tails

if TYPE_CHECKING:
    from icestream.table import TopicTable


@dataclass(frozen=True)
class ReadContext:
    settings: ReaderSettings = field(default_factory=ReaderSettings)
    find_table: "Callable[[TopicName], TopicTable | None]" = lambda _: None
    """Returns the table of that name as the catalog has it now; raises if the catalog cannot be reached."""
    format: StorageFormat = StorageFormat.ICEBERG
    """Which tables topics have, and which of them is read first."""
    tails: Tails = field(default_factory=lambda: Tails(ReaderSettings().tail_max_bytes))

    @cached_property
    def cloud_reads(self) -> ReadPool:
        """The threads that read cloud objects; started at first use."""
        return ReadPool(self.settings)

    def close(self) -> None:
        if "cloud_reads" in self.__dict__:
            self.cloud_reads.close()
