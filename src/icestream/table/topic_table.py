"""A loaded state of a topic's table.

A state never changes: a commit or a refresh returns a new one. A commit that was planned on an old state is refused, by
`commit.check_plan` or by the catalog. So no number of stale writers can put a message into the table twice.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import pyarrow as pa
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table

from icestream.config import TableSettings
from icestream.model.errors import IncompatibleTableError, InvalidRequestError
from icestream.model.filters import Filter
from icestream.model.messages import EnvelopeNames, decode_schema
from icestream.model.names import TopicName
from icestream.model.offsets import NO_OFFSETS, OffsetRanges
from icestream.model.quarantine import Quarantined, quarantined_ranges
from icestream.table.catalogs import reporting
from icestream.table.commit import check_plan, commit_files
from icestream.table.files import HiddenUntilCompleteFileIO
from icestream.table.history import (
    AddedFile,
    added_files,
    committed_offset_of,
    first_offset,
    offset_at_time,
    snapshot_of_tag,
)
from icestream.table.ledger import Ledger, read_ledger, read_lost_ranges, read_quarantine
from icestream.table.parquet_copy.layout import is_copy_layout
from icestream.table.planning import FilePlan, ManifestIndex, PlannedFile
from icestream.table.properties import SORT_BY, STREAM_SCHEMA
from icestream.table.scan import NO_END, ReadLimits, ordered_scan
from icestream.table.schema import Columns
from icestream.table.unused_files import UnusedFileRemover
from icestream.table.writer import TableWriter, WrittenFile


@dataclass(frozen=True)
class TopicTable:
    name: TopicName
    iceberg: Table
    """The Iceberg library's table; for this package and for tests."""
    settings: TableSettings
    unused_files: UnusedFileRemover
    schema: pa.Schema | None = None
    """The stream schema it was opened with; None for the schema in the table's properties."""
    known_manifests: tuple[ManifestFile, ...] | None = None
    manifest_index: ManifestIndex = field(default_factory=ManifestIndex)

    @cached_property
    def ledger(self) -> Ledger:
        return read_ledger(self.iceberg.metadata, place=str(self.name))

    @cached_property
    def lost_ranges(self) -> OffsetRanges:
        """Offsets below the ledger without a row: their messages were given up or are in quarantine."""
        return read_lost_ranges(self.properties, place=str(self.name))

    @cached_property
    def quarantined(self) -> tuple[Quarantined, ...]:
        """The frames in quarantine, by offset. The other `lost_ranges` were given up."""
        return read_quarantine(self.properties, place=str(self.name))

    @property
    def snapshot_id(self) -> int | None:
        return self.iceberg.metadata.current_snapshot_id

    @property
    def properties(self) -> Mapping[str, str]:
        return self.iceberg.metadata.properties

    @property
    def location(self) -> str:
        return self.iceberg.metadata.location

    @cached_property
    def stream_schema(self) -> pa.Schema:
        """The columns that readers get and that the writer takes."""
        if self.schema is not None:
            return self.schema
        return decode_schema(self.properties[STREAM_SCHEMA])

    @property
    def offset_column(self) -> str:
        return EnvelopeNames.of(self.stream_schema).offset

    @cached_property
    def offset_id(self) -> int:
        """The field id of the offset's column, which manifests use."""
        return self.iceberg.schema().find_field(self.offset_column).field_id

    @cached_property
    def manifests(self) -> tuple[ManifestFile, ...]:
        """The manifests of the current snapshot."""
        if self.known_manifests is not None:
            return self.known_manifests
        snapshot = self.iceberg.metadata.current_snapshot()
        return tuple(snapshot.manifests(self.iceberg.io)) if snapshot else ()

    @property
    def sort_by(self) -> tuple[str, ...]:
        """The columns that row groups are sorted by; empty if rows are in offset order."""
        found = self.properties.get(SORT_BY)
        return tuple(found.split("\n")) if found else ()

    @property
    def is_parquet_copy(self) -> bool:
        """Whether the table is a Parquet copy, whose files are also read by their folders."""
        return is_copy_layout(self.properties)

    def writer(self) -> TableWriter:
        metadata = self.iceberg.metadata
        return TableWriter(
            table_uuid=metadata.table_uuid,
            location=metadata.location,
            properties=dict(metadata.properties),
            io=HiddenUntilCompleteFileIO(self.iceberg.io.properties) if self.is_parquet_copy else self.iceberg.io,
            schema=metadata.schema(),
            spec=metadata.spec(),
            sort_order_id=metadata.default_sort_order_id,
            columns=Columns.of(self.stream_schema),
            sort_by=self.sort_by,
            row_group_bytes=self.settings.row_group_bytes,
        )

    def commit(
        self,
        files: Sequence[WrittenFile],
        *,
        start: int,
        end: int,
        epoch: int,
        lost: OffsetRanges = NO_OFFSETS,
        quarantined: Sequence[Quarantined] = (),
    ) -> "TopicTable":
        """Append the messages from `start` to below `end`, and return the new state. `commit` documents the steps.

        `lost` are messages that a repair of the log gave up. `quarantined` are messages in quarantine, each with a
        durable file of its own. The files hold neither.
        """
        lost |= quarantined_ranges(quarantined)
        check_plan(self, files, start, end, epoch, lost)
        return commit_files(self, files, Ledger(self.ledger.stream_id, epoch, end), lost, quarantined)

    def fence(self) -> "TopicTable":
        """Commit a snapshot of the same rows, so that the catalog refuses every commit planned on an older state."""
        return commit_files(self, (), self.ledger)

    def scan(
        self,
        start: int = 0,
        end: int | None = None,
        columns: Sequence[str] | None = None,
        *,
        where: Filter | None = None,
        limits: ReadLimits | None = None,
    ) -> Generator[pa.RecordBatch, None, None]:
        """Yield the rows with `start <= offset < end`, below the ledger, in offset order, each once.

        Raises `SnapshotExpiredError` if this state is so old that its files were removed meanwhile. A caller that does
        not read to the end closes the iterator, which closes the files.
        """
        below = self.ledger.committed_offset if end is None else min(end, self.ledger.committed_offset)
        return ordered_scan(self, start, below, columns, where=where, limits=limits or ReadLimits())

    def first_offset(self) -> int | None:
        """Return the lowest offset in the table; None if it is empty."""
        return first_offset(self)

    def offset_at_time(self, time_us: int) -> int:
        """Return the first offset published at or after a time; the committed offset if there is none."""
        return offset_at_time(self, time_us)

    def offset_of_snapshot(self, snapshot_id: int) -> int:
        """Return the offset after the last message of a snapshot.

        Raises `InvalidRequestError` if the table does not have the snapshot, or no longer.
        """
        return self._in_newest(lambda table: committed_offset_of(table, snapshot_id))

    def offset_of_tag(self, name: str) -> int:
        """Return the offset after the last message of the snapshot that a tag names."""
        return self._in_newest(lambda table: committed_offset_of(table, snapshot_of_tag(table, name)))

    def added_files(self, after_snapshot: int | None, to_snapshot: int | None = None) -> list[AddedFile]:
        """Return the data files appended after one snapshot and up to another, or to this state; see `history`."""
        return added_files(self, after_snapshot, to_snapshot)

    def tag(self, name: str, snapshot_id: int | None = None) -> "TopicTable":
        """Tag a snapshot (by default this state's), which keeps it until the tag is dropped; return the new state."""
        chosen = self.snapshot_id if snapshot_id is None else snapshot_id
        if chosen is None:
            raise InvalidRequestError("the table has no snapshot yet", operation="tag", place=str(self.name))
        with reporting("tag", str(self.name)):
            # On a refreshed copy: the library changes the table object in place.
            self.refresh().iceberg.manage_snapshots().create_tag(chosen, name).commit()
        return self.refresh()

    def holds(self, file: PlannedFile) -> bool:
        """Return whether this state still names a data file of an older state."""
        plan = FilePlan(self, max(0, file.first_offset), NO_END if file.last_offset == NO_END else file.last_offset + 1)
        return any(found.path == file.path for found in plan.files())

    def refresh(self) -> "TopicTable":
        """Load the table's present state."""
        with reporting("refresh table", str(self.name)):
            try:
                found = self.iceberg.catalog.load_table(self.iceberg.name())
            except NoSuchTableError:
                found = None
        if found is None or found.metadata.table_uuid != self.iceberg.metadata.table_uuid:
            raise IncompatibleTableError(
                "the table was dropped" + (" and created again" if found else ""),
                operation="refresh table",
                place=str(self.name),
                remedy="open the topic's table again",
            )
        return self.with_table(found)

    def with_table(self, table: Table, manifests: tuple[ManifestFile, ...] | None = None) -> "TopicTable":
        """Return another state of the same table."""
        return replace(self, iceberg=table, known_manifests=manifests)

    def _in_newest(self, find: Callable[["TopicTable"], int]) -> int:
        """Try this state, then the table's present state: the snapshot or tag may be newer."""
        try:
            return find(self)
        except InvalidRequestError:
            return find(self.refresh())
