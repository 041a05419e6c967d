"""What a table's snapshots hold and have added, in offsets and in files.

Each snapshot that icestream commits notes the offset after its last message. Compaction and other maintenance change
files, not messages: such a snapshot holds the messages of its newest ancestor that icestream committed. If that
ancestor is expired, the bounds in the manifests tell.
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyiceberg.manifest import DataFileContent, ManifestContent, ManifestEntryStatus
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, ancestors_of

from icestream.model.errors import InvalidRequestError
from icestream.model.filters import Compare, Field, Filter, Instant
from icestream.model.messages import EnvelopeNames
from icestream.table.catalogs import catalog_errors
from icestream.table.ledger import COMMITTED_OFFSET
from icestream.table.planning import FilePlan, planned
from icestream.table.scan import ReadLimits

if TYPE_CHECKING:
    from icestream.table.tables import TopicTable


@dataclass(frozen=True)
class AddedFile:
    path: str
    snapshot_id: int
    """The snapshot that added the file."""
    first_offset: int
    last_offset: int
    """-1 if the manifests do not say."""
    rows: int
    nbytes: int


def committed_offset_of(table: "TopicTable", snapshot_id: int) -> int:
    """Return the offset after the last message of a snapshot."""
    for snapshot in ancestors_of(_snapshot(table, snapshot_id), table.iceberg.metadata):
        if (found := _noted(snapshot)) is not None:
            return found
    with catalog_errors("read table metadata", str(table.name)):
        held = _held(table, _snapshot(table, snapshot_id))
        return max((file.last_offset + 1 for file in held), default=0)


def snapshot_of_tag(table: "TopicTable", name: str) -> int:
    ref = table.iceberg.metadata.refs.get(name)
    if ref is None or ref.snapshot_ref_type is not SnapshotRefType.TAG:
        raise InvalidRequestError(
            f"the table has no tag {name!r}", operation="read position", place=str(table.name), remedy=_KEEPING
        )
    return ref.snapshot_id


def added_files(table: "TopicTable", after_snapshot: int | None, to_snapshot: int | None = None) -> list[AddedFile]:
    """Return the data files that were appended after `after_snapshot` and up to `to_snapshot`, the oldest first.

    Compaction adds no messages, so its files are left out, and files that it has replaced since are included. Without
    `after_snapshot` the result is the files of the oldest snapshot that is kept, and those appended since.
    """
    to_id = table.snapshot_id if to_snapshot is None else to_snapshot
    if to_id is None:
        return []
    with catalog_errors("read table metadata", str(table.name)):
        line: list[Snapshot] = []
        for snapshot in ancestors_of(_snapshot(table, to_id), table.iceberg.metadata):
            if snapshot.snapshot_id == after_snapshot:
                break
            line.append(snapshot)
        else:
            if after_snapshot is not None:
                _snapshot(table, after_snapshot)
                raise InvalidRequestError(
                    f"snapshot {after_snapshot} is not before snapshot {to_id}, or one between them is expired",
                    operation="added files",
                    place=str(table.name),
                    remedy=_KEEPING,
                )
            return [*_held(table, line[-1]), *_appended(table, line[:-1])]
        return list(_appended(table, line))


def _appended(table: "TopicTable", newest_first: list[Snapshot]) -> Iterator[AddedFile]:
    for snapshot in reversed(newest_first):
        if snapshot.summary is not None and snapshot.summary.operation == Operation.APPEND:
            yield from _held(table, snapshot, only_added=True)


def _held(table: "TopicTable", snapshot: Snapshot, *, only_added: bool = False) -> list[AddedFile]:
    """Return the data files of a snapshot, or only those that it added, by their offsets."""
    io, added_by = table.iceberg.io, snapshot.snapshot_id
    found = []
    for manifest in snapshot.manifests(io):
        if manifest.content != ManifestContent.DATA or (only_added and manifest.added_snapshot_id != added_by):
            continue
        for entry in manifest.fetch_manifest_entry(io, discard_deleted=True):
            is_added = entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id == added_by
            if entry.data_file.content is DataFileContent.DATA and (is_added or not only_added):
                file = planned(entry.data_file, table.offset_id)
                number = added_by if entry.snapshot_id is None else entry.snapshot_id
                last = file.known_last_offset
                found.append(AddedFile(file.path, number, file.first_offset, last, file.rows, file.nbytes))
    return sorted(found, key=lambda file: (file.first_offset, file.path))


def _snapshot(table: "TopicTable", snapshot_id: int) -> Snapshot:
    found = table.iceberg.metadata.snapshot_by_id(snapshot_id)
    if found is None:
        raise InvalidRequestError(
            f"the table has no snapshot {snapshot_id}: it is expired, or never existed",
            operation="read position",
            place=str(table.name),
            remedy=_KEEPING,
        )
    return found


def _noted(snapshot: Snapshot) -> int | None:
    found = snapshot.summary.additional_properties.get(COMMITTED_OFFSET) if snapshot.summary else None
    return int(found) if found is not None and found.isdecimal() else None


_KEEPING = "use an offset or a time; to keep a snapshot, tag it before it expires"


_FEW = ReadLimits(max_concurrent_reads=1, prefetch_batches=1)


def first_offset(table: "TopicTable") -> int | None:
    """Return the lowest offset, from the bounds in the manifests, or from the rows if there are none."""
    end = table.ledger.committed_offset
    first = next(FilePlan(table, 0, end, window_files=1).files(), None)
    if first is None:
        return None
    return first.first_offset if first.first_offset >= 0 else _first_row(table, None)


def offset_at_time(table: "TopicTable", time_us: int, first: int = 0) -> int:
    """Return the lowest offset from `first` on published at or after a time; the committed offset if there is none."""
    column = EnvelopeNames.of(table.stream_schema).publish_time
    where = Filter("", Compare(Field(column), ">=", Instant(time_us)))
    found = _first_row(table, where, first)
    return table.ledger.committed_offset if found is None else found


def _first_row(table: "TopicTable", where: Filter | None, start: int = 0) -> int | None:
    with closing(table.scan(start, columns=[table.offset_column], where=where, limits=_FEW)) as batches:
        return next((int(batch.column(table.offset_column)[0].as_py()) for batch in batches), None)
