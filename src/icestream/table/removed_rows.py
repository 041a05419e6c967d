"""Rows that another engine deleted: who did it, and how the table's owner accepts it.

A row below the committed offset that is missing is damage, unless the table says why. Engines other than icestream can
delete rows, which data protection may require. They rewrite files without the rows, or add delete files that name them.
Each such snapshot says in its summary that it removed rows. Until an operator accepts it, readers that reach the rows
get `RowsDeletedError`, which names the snapshot, its operation and its engine.

Accepting notes the offsets in the property `icestream.removed-ranges`, and what happened in `icestream.removals`:
readers pass over the offsets, as over lost ranges. The steps, and what a crash after each leaves behind:

1. Find the offsets: those that no file has, and those that delete files name. *Nothing is written.*
2. Rewrite the data files that delete files concern, without the deleted rows. *Files that no table names. Orphan
   clean-up removes them.*
3. Make one catalog commit that requires the same snapshot: it sets the properties and, after step 2, replaces the files
   and drops the delete files. *After a crash: it happened or it did not. Accept again.*
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFileContent, ManifestContent, ManifestEntry

from icestream.model.clock import now_us
from icestream.model.errors import DamagedError, InvalidRequestError
from icestream.model.offsets import OffsetRanges
from icestream.table.catalogs import catalog_errors
from icestream.table.commit import FileReplacement, commit_properties, commit_replacement
from icestream.table.deleting_snapshots import DeletingSnapshot, deleting_snapshots
from icestream.table.ledger import REMOVALS, REMOVED_RANGES, read_removals
from icestream.table.planning import planned
from icestream.table.pruning import FileColumnNames
from icestream.table.scan import OpenFile, ScanRequest, ordered_scan
from icestream.table.writer import WrittenFile

if TYPE_CHECKING:
    from icestream.table.tables import TopicTable

_OPERATION = "accept deletes"
_MAX_REMOVALS = 100
"""Kept in the table's properties, the newest. The offsets of all are kept."""
_REWRITE_BYTES = 64 << 20
_MAX_RANGES = 100_000
"""Of offsets that are noted in the table's properties, which every reader loads."""


@dataclass(frozen=True)
class RemovedRows:
    """What is to be accepted, or was."""

    offsets: OffsetRanges
    count: int
    snapshots: tuple[DeletingSnapshot, ...]
    delete_files: int
    """Delete files that were, or would be, resolved by rewriting data files."""
    rewritten_files: int


def accept_deletes(table: "TopicTable", *, dry_run: bool = False, by_unknown: bool = False) -> RemovedRows:
    """Accept that other engines removed rows. Raise `InvalidRequestError` if no row is missing.

    If rows are missing and no snapshot that the table still has tells who removed them, that is damage; with
    `by_unknown` it is accepted too.
    """
    with catalog_errors(_OPERATION, str(table.name)):
        deletes = _DeleteFiles(table)
        missing = _missing_offsets(table)
        count = sum(end - first for first, end in missing) + sum(map(len, deletes.offsets.values()))
        snapshots = tuple(deleting_snapshots(table))
        if not count and not deletes.entries:
            raise InvalidRequestError("no row is missing", operation=_OPERATION, place=str(table.name))
        if not snapshots and not by_unknown:
            raise DamagedError(
                f"{count} rows are missing, and no snapshot of the table's history removed rows",
                operation=_OPERATION,
                place=str(table.name),
                remedy="run `icestream verify`; if the rows were deleted on purpose and the snapshot is expired, "
                "accept them with --by-unknown",
            )
        if deletes.entries and table.is_parquet_copy:
            raise InvalidRequestError(
                "delete files of a Parquet copy cannot be resolved here: readers of its folders would see rows twice",
                operation=_OPERATION,
                place=str(table.name),
                remedy="rewrite the data files with the engine that deleted the rows",
            )
        named = [(offset, offset + 1) for offsets in deletes.offsets.values() for offset in offsets]
        removed = OffsetRanges.of([*missing, *named])
        if len((table.removed_ranges | removed).ranges) > _MAX_RANGES:
            raise InvalidRequestError(
                f"the deleted rows lie in more than {_MAX_RANGES} separate ranges of offsets",
                operation=_OPERATION,
                place=str(table.name),
                remedy="nothing was changed; the table can note no more ranges than that",
            )
        result = RemovedRows(removed, count, snapshots, len(deletes.entries), len(deletes.offsets))
        if not dry_run:
            properties = _noted(table, result)
            if deletes.entries:
                commit_replacement(table, deletes.replacement(), properties)
            else:
                commit_properties(table, properties)
        return result


def _noted(table: "TopicTable", result: RemovedRows) -> dict[str, str]:
    ranges = result.offsets.ranges
    about = {
        "messages": result.count,
        "first_offset": ranges[0][0] if ranges else None,
        "end_offset": ranges[-1][1] if ranges else None,
        "accepted_us": now_us(),
    }
    named: list[dict[str, Any]] = [asdict(one) for one in reversed(result.snapshots)]
    new = [{**one, **about} for one in named or [{"snapshot_id": None, "operation": "unknown", "engine": ""}]]
    kept = [*read_removals(table.properties), *new][-_MAX_REMOVALS:]
    return {
        REMOVED_RANGES: (table.removed_ranges | result.offsets).to_text(),
        REMOVALS: json.dumps(kept, separators=(",", ":")),
    }


# Rows that no file has


def _missing_offsets(table: "TopicTable") -> list[tuple[int, int]]:
    """Return the ranges below the committed offset that no data file has and that the table does not explain.

    Files whose bounds and row counts leave no gap are not opened.
    """
    committed = table.ledger.committed_offset
    missing: list[tuple[int, int]] = []
    reached = 0
    for first, end, rows in _clusters(table, committed):
        missing.append((reached, first))
        if rows != end - first:
            missing += _gaps(table, first, end)
        reached = max(reached, end)
    missing.append((reached, committed))
    return [gap for first, end in missing if first < end for gap in table.absent_ranges.gaps(first, end)]


def _clusters(table: "TopicTable", committed: int) -> Iterator[tuple[int, int, int]]:
    """Yield the runs of files that overlap in offsets: first, end, rows."""
    files = sorted(
        planned(entry.data_file, table.offset_id)
        for entry in _entries(table, ManifestContent.DATA)
        if entry.data_file.record_count
    )
    first = end = rows = 0
    for file in files:
        last = committed - 1 if file.known_last_offset < 0 else file.last_offset
        begins = max(0, file.first_offset)
        if begins >= end:
            if rows:
                yield first, end, rows
            first, end, rows = begins, last + 1, 0
        end = max(end, last + 1)
        rows += file.rows
    if rows:
        yield first, end, rows


def _gaps(table: "TopicTable", first: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the offsets of a range that no row has; the delete files are not applied."""
    expected = first
    for batch in ordered_scan(table, first, end, [table.offset_column], with_deleted=True):
        for offset in batch.column(0).to_pylist():
            if offset > expected:
                yield expected, offset
            expected = max(expected, offset + 1)
    if expected < end:
        yield expected, end


def _entries(table: "TopicTable", content: ManifestContent) -> Iterator[ManifestEntry]:
    for manifest in table.manifests:
        if manifest.content == content:
            yield from manifest.fetch_manifest_entry(table.iceberg.io, discard_deleted=True)


# Rows that delete files name


class _DeleteFiles:
    """The delete files of a table's state, resolved to offsets."""

    def __init__(self, table: "TopicTable") -> None:
        self._table = table
        self.entries = list(_entries(table, ManifestContent.DELETES))

    @cached_property
    def offsets(self) -> dict[str, set[int]]:
        """The deleted offsets of each data file that has any."""
        if not self.entries:
            return {}
        positions = self._positions()
        equal = [entry for entry in self.entries if entry.data_file.content is DataFileContent.EQUALITY_DELETES]
        found: dict[str, set[int]] = {}
        for entry in _entries(self._table, ManifestContent.DATA):
            path = entry.data_file.file_path
            applying = [other for other in equal if _applies(other, entry)]
            if path in positions or applying:
                deleted = self._deleted_of(entry, positions.get(path, []), applying)
                if deleted:
                    found[path] = deleted
        return found

    def _positions(self) -> dict[str, list[tuple[int | None, int]]]:
        """Return by data file the deleted row numbers, each with the sequence number of the delete file."""
        found: dict[str, list[tuple[int | None, int]]] = defaultdict(list)
        for entry in self.entries:
            if entry.data_file.content is DataFileContent.POSITION_DELETES:
                rows = self._read(entry.data_file.file_path)
                for path, position in zip(rows["file_path"].to_pylist(), rows["pos"].to_pylist(), strict=True):
                    found[path].append((entry.sequence_number, position))
        return found

    def _read(self, path: str) -> pa.Table:
        with self._table.iceberg.io.new_input(path).open() as stream:
            return pq.ParquetFile(stream).read(use_threads=False)

    def _deleted_of(
        self, entry: ManifestEntry, positions: list[tuple[int | None, int]], equal: Sequence[ManifestEntry]
    ) -> set[int]:
        """Return the offsets of a data file's rows that its delete files delete."""
        schema = self._table.iceberg.schema()
        rows = self._read(entry.data_file.file_path)
        names = FileColumnNames(rows.schema, schema)
        offsets = rows[str(names.in_file(self._table.offset_column))].to_pylist()
        born = entry.sequence_number or 0
        deleted = {offsets[place] for number, place in positions if (number or 0) >= born and place < len(offsets)}
        for other in equal:
            columns = [schema.find_column_name(number) or "" for number in other.data_file.equality_ids or ()]
            keys = self._read(other.data_file.file_path)
            key_names = FileColumnNames(keys.schema, schema)
            wanted = set(zip(*(_values(keys, key_names, name) for name in columns), strict=True))
            values = zip(*(_values(rows, names, name) for name in columns), strict=True)
            deleted |= {offset for offset, value in zip(offsets, values, strict=True) if value in wanted}
        return deleted

    def replacement(self) -> FileReplacement:
        """Step 2: write the data files that have deleted rows again, without these."""
        added: list[WrittenFile] = []
        for entry in _entries(self._table, ManifestContent.DATA):
            if (deleted := self.offsets.get(entry.data_file.file_path)) is not None:
                added += self._table.writer().write(self._kept(entry, deleted), max_memory_bytes=_REWRITE_BYTES)
        return FileReplacement(frozenset(self.offsets), tuple(added))

    def _kept(self, entry: ManifestEntry, deleted: set[int]) -> Iterator[pa.RecordBatch]:
        table = self._table
        end = table.ledger.committed_offset
        request = ScanRequest(table, tuple(table.stream_schema.names), 0, end, with_deleted=True)
        file = OpenFile(request, planned(entry.data_file, table.offset_id))
        gone = pa.array(sorted(deleted), pa.int64())
        try:
            for group in sorted(file.row_groups, key=lambda one: one.first_offset):
                for rows in file.rows(group, _REWRITE_BYTES // 8):
                    kept = rows.filter(pc.invert(pc.is_in(rows[table.offset_column], gone)))
                    if kept.num_rows:
                        yield request.given(kept)
        finally:
            file.close()


def _applies(delete: ManifestEntry, data: ManifestEntry) -> bool:
    """Return whether an equality delete concerns a data file: an older one, of the same partition or of any."""
    if (delete.sequence_number or 0) <= (data.sequence_number or 0):
        return False
    theirs, own = delete.data_file, data.data_file
    return len(theirs.partition) == 0 or (theirs.spec_id == own.spec_id and theirs.partition == own.partition)


def _values(rows: pa.Table, names: FileColumnNames, column: str) -> list[Any]:
    name = names.in_file(column)
    return rows[name].to_pylist() if name is not None else [None] * rows.num_rows
