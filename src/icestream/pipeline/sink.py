"""One table that a topic's messages go to. A topic has one or two of them, each with a ledger of its own."""

from dataclasses import dataclass

from icestream.model.names import TopicName, is_copy
from icestream.model.offsets import OffsetRanges
from icestream.pipeline.commit import Pending
from icestream.pipeline.quarantine.poison_search import Suspicion
from icestream.table import TopicTable, WrittenFile

CLEAN_SECONDS = 600.0
"""How often the folders of a Parquet copy are looked through, for what pipelines that died elsewhere have left."""


@dataclass
class Sink:
    name: TopicName
    """The table's: that of the topic, or of its Parquet copy."""
    table: TopicTable | None = None
    committed: int | None = None
    """Of the table's ledger as last seen; none before the table was opened."""
    pending: Pending | None = None
    """Written, but not committed because the catalog was away."""
    suspicion: Suspicion | None = None
    """That a frame behind the committed offset cannot be written. Of this table: another one may be far ahead."""
    cleaned_at: float | None = None
    """When the folders of a Parquet copy were last looked through; none: to be done before anything is written."""

    @property
    def is_copy(self) -> bool:
        return is_copy(self.name)

    def needs_opening(self, now: float) -> bool:
        """Whether the table is not loaded, or is a copy whose folders are to be looked through again."""
        if self.pending is not None:
            return False
        return self.table is None or (self.is_copy and self._is_unclean(now))

    def _is_unclean(self, now: float) -> bool:
        return self.cleaned_at is None or now - self.cleaned_at > CLEAN_SECONDS

    def forget(self) -> None:
        """Something went wrong: the next pass looks at what is there first."""
        self.pending = self.table = self.cleaned_at = None

    def take(self, table: TopicTable) -> None:
        """Use a newly loaded state of the table: what is suspected of messages that it has passed is forgotten."""
        self.table, self.committed = table, table.ledger.committed_offset
        if self.suspicion is not None and not self.suspicion.passed(self.committed):
            self.suspicion = None

    def files_of(self, files: tuple[WrittenFile, ...]) -> tuple[WrittenFile, ...]:
        """Those that were written for this table."""
        assert self.table is not None
        own = self.table.iceberg.metadata.table_uuid
        return tuple(file for file in files if file.table_uuid == own)

    def pend(self, files: tuple[WrittenFile, ...], end: int, epoch: int, lost: OffsetRanges) -> None:
        """Note what is to be committed: the messages from the ledger on to before `end`, as far as they are new."""
        assert self.table is not None
        assert self.committed is not None
        start = self.committed
        if end > start:
            within = OffsetRanges.of((max(start, first), last) for first, last in lost.ranges if last > start)
            self.pending = Pending(files, start, end, epoch, within, planned_on=self.table.snapshot_id)
