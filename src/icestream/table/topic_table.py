"""A loaded state of a topic's table.

A state never changes: a commit or a refresh gives a new one. A commit that was planned on an old state is refused, by
the checks here or by the catalog; so any number of writers, however stale, cannot put a message into the table twice.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table

from icestream.config import TableSettings
from icestream.model.errors import (
    CommitConflictError,
    DamagedError,
    IcestreamError,
    IncompatibleTableError,
    InvalidRequestError,
    LedgerMismatchError,
    StaleEpochError,
)
from icestream.model.names import TopicName
from icestream.model.schema_text import decode_schema
from icestream.table.catalogs import reporting
from icestream.table.commit import commit_files
from icestream.table.ledger import Ledger, read_ledger
from icestream.table.properties import SORT_BY, STREAM_SCHEMA
from icestream.table.schema import Columns
from icestream.table.trash import Trash
from icestream.table.writer import TableWriter
from icestream.table.written import WrittenFile


@dataclass(frozen=True)
class TopicTable:
    name: TopicName
    iceberg: Table
    """The table as the Iceberg library sees it; for this package and for tests."""
    settings: TableSettings
    trash: Trash
    schema: pa.Schema | None = None
    """The stream schema it was opened with; without one, that of the table's newest columns."""
    known_manifests: tuple[ManifestFile, ...] | None = None

    @cached_property
    def ledger(self) -> Ledger:
        return read_ledger(self.iceberg.metadata, place=str(self.name))

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
        """What readers of the topic get, and what the writer takes."""
        if self.schema is not None:
            return self.schema
        return decode_schema(self.properties[STREAM_SCHEMA])

    def writer(self) -> TableWriter:
        metadata = self.iceberg.metadata
        return TableWriter(
            table_uuid=metadata.table_uuid,
            location=metadata.location,
            properties=dict(metadata.properties),
            io=self.iceberg.io,
            schema=metadata.schema(),
            spec=metadata.spec(),
            sort_order_id=metadata.default_sort_order_id,
            columns=Columns.of(self.stream_schema),
            sort_by=self._sort_by,
            row_group_bytes=self.settings.row_group_bytes,
        )

    def commit(self, files: Sequence[WrittenFile], *, start: int, end: int, epoch: int) -> "TopicTable":
        """Append the messages from `start` to below `end`, and return the new state; see `commit` for the steps."""
        self._check(files, start, end, epoch)
        ledger = Ledger(self.ledger.stream_id, epoch, end)
        with reporting("commit", str(self.name)):
            try:
                done = commit_files(self.iceberg, self._manifests(), files, ledger, self.settings)
            except FileNotFoundError as error:
                raise self._lost(error) from error
        old = self.iceberg
        metadata, location = done.response.metadata, done.response.metadata_location
        made = self._with(Table(old.name(), metadata, location, old.io, old.catalog, old.config), done.manifests)
        self.trash.after_commit(old, made.iceberg, done.expired)
        return made

    def scan(
        self, start: int = 0, end: int | None = None, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows with `start <= offset < end`, below the ledger, in offset order; see `ordered_scan`."""
        from icestream.table.ordered import ordered_scan  # noqa: PLC0415 - it reads what is defined here

        below = self.ledger.committed_offset if end is None else min(end, self.ledger.committed_offset)
        return ordered_scan(self, start, below, columns)

    def refresh(self) -> "TopicTable":
        """The table as it is now."""
        with reporting("refresh table", str(self.name)):
            try:
                found = self.iceberg.catalog.load_table(self.iceberg.name())
            except NoSuchTableError:
                found = None
        if found is None or found.metadata.table_uuid != self.iceberg.metadata.table_uuid:
            raise IncompatibleTableError(
                "the table was dropped" + (" and made again" if found else ""),
                operation="refresh table",
                place=str(self.name),
                remedy="open the topic's table anew",
            )
        return self._with(found)

    @property
    def _sort_by(self) -> tuple[str, ...]:
        found = self.properties.get(SORT_BY)
        return tuple(found.split("\n")) if found else ()

    def _with(self, table: Table, manifests: tuple[ManifestFile, ...] | None = None) -> "TopicTable":
        return replace(self, iceberg=table, known_manifests=manifests)

    def _manifests(self) -> tuple[ManifestFile, ...]:
        if self.known_manifests is not None:
            return self.known_manifests
        snapshot = self.iceberg.metadata.current_snapshot()
        return tuple(snapshot.manifests(self.iceberg.io)) if snapshot else ()

    def _lost(self, error: FileNotFoundError) -> IcestreamError:
        """Why a manifest of this state is not there: the state is so old that it was removed, or it is damage."""
        if self.refresh().snapshot_id != self.snapshot_id:
            return CommitConflictError(
                "the table has changed since it was loaded, and its old state was cleaned up",
                operation="commit",
                place=str(self.name),
                remedy="load the table again and plan from its ledger",
            )
        return DamagedError(f"a file of the table is missing: {error}", operation="commit", place=str(self.name))

    def _check(self, files: Sequence[WrittenFile], start: int, end: int, epoch: int) -> None:
        """Step 1 of a commit."""
        ledger = self.ledger
        place: dict[str, Any] = {"operation": "commit", "place": str(self.name)}
        if epoch < ledger.epoch:
            raise StaleEpochError(f"epoch {epoch} is over, the table is at {ledger.epoch}", **place)
        if start != ledger.committed_offset:
            raise LedgerMismatchError(
                f"the range begins at {start}, the table ends at {ledger.committed_offset}",
                remedy="load the table again and plan from its ledger",
                details={"committed_offset": ledger.committed_offset},
                **place,
            )
        if end <= start:
            raise InvalidRequestError(f"the range {start} to {end} is empty", **place)
        if any(file.table_uuid != self.iceberg.metadata.table_uuid for file in files):
            raise InvalidRequestError("a file was written for another table", **place)
        outside = any(file.first_offset < start or file.last_offset >= end for file in files)
        if outside or sum(file.message_count for file in files) > end - start:
            raise InvalidRequestError(f"the files hold other messages than {start} to {end}", **place)
