"""The tables to verify, and the checks of their files. A missing catalog is not created."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from icestream.config import Settings
from icestream.model.enums import StorageFormat
from icestream.model.errors import DamagedError
from icestream.model.messages import OFFSET, Encoding, Frame, slice_from
from icestream.model.names import TopicName
from icestream.model.offsets import OffsetRanges
from icestream.storage.verify.findings import Finding, Kind, Verification
from icestream.table import RowGroup, StoredFile, TableContents, Tables, TopicTable, read_frame, read_record
from icestream.table.parquet_copy import data_path, find_copy_orphans


class FindTable(Protocol):
    def find(self, topic: TopicName, /) -> TopicTable | None: ...


class NoTables:
    """The tables of a catalog that does not exist yet: none."""

    def find(self, _topic: TopicName) -> TopicTable | None:
        return None


@contextlib.contextmanager
def open_tables(settings: Settings) -> Iterator[FindTable]:
    """Open the tables for reading only: opening a missing catalog file would create it."""
    kind, _, path = (settings.catalog.uri or "").partition("?")[0].partition(":///")
    is_file = settings.catalog.type == "sql" and kind.startswith("sqlite") and path not in ("", ":memory:")
    if is_file and not Path(path).exists():
        yield NoTables()
        return
    with contextlib.closing(Tables(settings)) as tables:
        yield tables


def find_all(topic: TopicName, tables: FindTable) -> list[TopicTable]:
    """Return the existing tables of a topic: its own, and the one of its Parquet copy."""
    found = (tables.find(name) for name in StorageFormat.BOTH.all_tables(topic))
    return [table for table in found if table is not None]


def highest_committed_offset(tables: Sequence[TopicTable]) -> int:
    """Return the committed offset of the table that reaches farthest."""
    return max((table.ledger.committed_offset for table in tables), default=0)


def note_plain_files(tables: Sequence[TopicTable], report: Verification) -> None:
    for table in tables:
        if table.is_parquet_copy:
            report.parquet_offset = table.ledger.committed_offset
            if tables[0] is table:
                report.parquet_files, report.parquet_rows = report.files, report.rows
            if left := len(find_copy_orphans(table)):
                report.notes.append(
                    f"{left} files in {data_path(table.properties)} are in no snapshot: a pipeline is about to commit "
                    "them, or has died; then the next one removes them"
                )


class TableLayoutAudit:
    """Checks that the table's files are in order, and that the manifests describe them correctly.

    It gets the row groups as they are opened, those of a file one after the other.
    """

    def __init__(self, contents: TableContents, report: Verification) -> None:
        self._contents = contents
        self._files = {file.path: file for file in contents.files}
        self._report = report
        self._path = ""
        self._first = self._last = -1
        report.files = len(contents.files)

    def check_overlaps(self) -> None:
        """Files of a table without partitions follow each other, so that readers need one at a time."""
        if self._contents.is_partitioned:
            return
        before: StoredFile | None = None
        for file in self._contents.files:
            if file.last_offset < 0:  # the manifests do not say
                continue
            if before is not None and file.first_offset <= before.last_offset:
                text = f"the file overlaps another one, {before.path}"
                self._add("overlap", text, file.path, file.first_offset, before.last_offset)
            if before is None or file.last_offset > before.last_offset:
                before = file

    def check_delete_files(self) -> None:
        if self._contents.delete_files:
            text = f"rows were deleted from the table: it has {self._contents.delete_files} delete files"
            self._report.add(Finding("damaged", f"{text}; see `icestream table accept-deletes`"))

    def take(self, group: RowGroup) -> None:
        is_new = group.path != self._path
        if not self._contents.sort_by:
            if not group.is_ordered:
                text = f"rows of row group {group.number} are not in offset order"
                self._add("order", text, group.path, group.first_offset, group.last_offset)
            if not is_new and group.first_offset <= self._last:
                text = f"row group {group.number} begins before the end of the one before"
                self._add("order", text, group.path, group.first_offset, self._last)
        self._first = group.first_offset if is_new else min(self._first, group.first_offset)
        self._last = group.last_offset if is_new else max(self._last, group.last_offset)
        self._path = group.path
        if group.is_last:
            self._compare(group)

    def _compare(self, group: RowGroup) -> None:
        file = self._files.get(group.path)
        if file is None:
            return
        if group.rows_in_file != file.rows:
            text = f"the file has {group.rows_in_file} rows, the table counts {file.rows}"
            self._add("description", text, file.path, self._first, self._last)
        if file.last_offset >= 0 and (file.first_offset, file.last_offset) != (self._first, self._last):
            text = (
                f"the file has the offsets {self._first} to {self._last}, "
                f"the table says {file.first_offset} to {file.last_offset}"
            )
            self._add("description", text, file.path, self._first, self._last)

    def _add(self, kind: Kind, text: str, path: str, first: int, last: int) -> None:
        self._report.add(Finding(kind, text, first, last, path))


# Frames in quarantine. Their files are checked; their copies in log and cloud are not decoded.


def check_quarantine(table: TopicTable, report: Verification) -> None:
    """Note what is in quarantine; a file that is missing or not what was written is a finding."""
    for entry in table.quarantined:
        report.quarantined.append(entry)
        try:
            read_frame(table, entry)
            read_record(table, entry)
        except DamagedError as error:
            text = f"in quarantine: {error.message}"
            report.add(Finding("damaged", text, entry.first_offset, entry.end_offset - 1, error.place))


def without_quarantined_frames(frames: Iterable[Frame], aside: OffsetRanges) -> Iterator[Frame]:
    """The frames, with those that are wholly in quarantine as if a repair had given them up."""
    for frame in frames:
        is_aside = bool(aside) and next(aside.gaps(frame.base_offset, frame.end_offset), None) is None
        yield frame._replace(encoding=Encoding.LOST, body=b"") if is_aside else frame


def without_quarantined_rows(batch: pa.RecordBatch, aside: OffsetRanges) -> pa.RecordBatch:
    """Of a batch, what is not in quarantine: a part of its last frame may be, never one in its middle."""
    if not aside or not batch.num_rows:
        return batch
    first, end = batch.column(OFFSET)[0].as_py(), batch.column(OFFSET)[-1].as_py() + 1
    kept = [slice_from(batch, *part) for part in aside.gaps(first, end)]
    return pa.concat_batches(kept) if kept else batch.slice(0, 0)
