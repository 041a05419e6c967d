"""One commit: files and ledger together, or nothing.

It does not use the library's transactions. They retry a conflicting commit themselves, rebased and with the same
properties, and so would let a stale writer move the ledger back. Here a commit names the state that it was planned on.
The catalog refuses it if the table is in another state.

1. `check_plan`: compare the plan with the loaded ledger. *Nothing is written.*
2. Write the manifest of the new files, merged manifests, and the manifest list. *After a crash: files that nothing
   names. Orphan clean-up removes them and the data files.*
3. Make one catalog commit that requires the same table and the same snapshot. It adds the snapshot, makes it the main
   branch's, sets the ledger and drops the oldest snapshots. *After a crash, or without a response: the commit happened
   or it did not, and the ledger tells which. No file is removed before the ledger was read.*
4. Pass the files that no snapshot names any more to `unused_files`, which removes them later. *After a crash: orphan
   clean-up removes them.*

Manifests stay few. They fall into classes by the number of their files: 1 to n-1, n to n²-1, and so on. When a class
has n manifests, the next commit merges them into one of the next class. So a table of f files has about n · logₙ(f)
manifests, and each file's entry is rewritten logₙ(f) times. One commit merges one group, with a bounded number of
files, so commits stay fast.
"""

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, count
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DataFile,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import (
    CHANGED_PARTITION_COUNT_PROP,
    Operation,
    Snapshot,
    Summary,
    UpdateMetrics,
    ancestors_of,
    update_snapshot_summaries,
)
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotsUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)

from icestream.model.errors import (
    CatalogUnavailableError,
    CommitConflictError,
    CommitUnknownError,
    DamagedError,
    IcestreamError,
    InvalidRequestError,
    LedgerMismatchError,
    StaleEpochError,
)
from icestream.model.offsets import NO_OFFSETS, OffsetRanges
from icestream.model.quarantine import Quarantined
from icestream.table.catalogs import catalog_errors, short_reason
from icestream.table.ledger import Ledger, lost_properties, quarantine_properties
from icestream.table.planning import live_files
from icestream.table.writer import WrittenFile

if TYPE_CHECKING:
    from icestream.table.tables import TopicTable

_PLAN_AGAIN = "load the table again and plan from its ledger"
MAX_MERGED_FILES = 1000
"""A merge makes no manifest of more files than this, about 0.3 s of work. Maintenance merges larger ones."""
FORMAT_VERSION: Literal[2] = 2
_CODEC: Literal["deflate"] = "deflate"


class ManifestWriters:
    """Writes the manifests of one snapshot of one table."""

    def __init__(self, metadata: TableMetadata, io: FileIO, snapshot_id: int) -> None:
        self._metadata = metadata
        self._io = io
        self._snapshot_id = snapshot_id
        self._location = load_location_provider(metadata.location, metadata.properties)
        self._uuid = uuid4()
        self._numbers = count()

    def added(self, files: Sequence[WrittenFile]) -> list[ManifestFile]:
        by_spec: dict[int, list[ManifestEntry]] = defaultdict(list)
        for file in files:
            entry = ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED,
                snapshot_id=self._snapshot_id,
                sequence_number=None,
                file_sequence_number=None,
                data_file=file.data_file,
            )
            by_spec[file.spec_id].append(entry)
        return [self._write(spec_id, entries) for spec_id, entries in by_spec.items()]

    def merged(self, manifests: Sequence[ManifestFile]) -> ManifestFile | None:
        """Write one manifest with the live files of several of the same spec; return None if they have none."""
        entries = [
            ManifestEntry.from_args(
                status=ManifestEntryStatus.EXISTING,
                snapshot_id=entry.snapshot_id,
                sequence_number=entry.sequence_number,
                file_sequence_number=entry.file_sequence_number,
                data_file=entry.data_file,
            )
            for manifest in manifests
            for entry in manifest.fetch_manifest_entry(self._io, discard_deleted=True)
        ]
        return self._write(manifests[0].partition_spec_id, entries) if entries else None

    def compacted(self, manifests: Sequence[ManifestFile], merge_count: int) -> list[ManifestFile]:
        """Return `manifests` with one group merged, if one is due."""
        group = merge_group(manifests, merge_count)
        if not group:
            return [*manifests]
        merged = self.merged(group)
        return [*([merged] if merged else []), *(manifest for manifest in manifests if manifest not in set(group))]

    def without(
        self, manifests: Sequence[ManifestFile], replaced: frozenset[str]
    ) -> tuple[list[ManifestFile], list[DataFile]]:
        """Return the data manifests without some files, and the files that go: those, and all delete files."""
        kept: list[ManifestFile] = []
        gone: list[DataFile] = []
        for manifest in manifests:
            entries = manifest.fetch_manifest_entry(self._io, discard_deleted=True)
            if manifest.content is ManifestContent.DELETES:
                gone += [entry.data_file for entry in entries]
            elif not any(entry.data_file.file_path in replaced for entry in entries):
                kept.append(manifest)
            else:
                gone += [entry.data_file for entry in entries if entry.data_file.file_path in replaced]
                kept.append(self._write(manifest.partition_spec_id, [self._kept(entry, replaced) for entry in entries]))
        return kept, gone

    def _kept(self, entry: ManifestEntry, replaced: frozenset[str]) -> ManifestEntry:
        goes = entry.data_file.file_path in replaced
        return ManifestEntry.from_args(
            status=ManifestEntryStatus.DELETED if goes else ManifestEntryStatus.EXISTING,
            snapshot_id=self._snapshot_id if goes else entry.snapshot_id,
            sequence_number=entry.sequence_number,
            file_sequence_number=entry.file_sequence_number,
            data_file=entry.data_file,
        )

    def write_list(self, manifests: Sequence[ManifestFile], parent_id: int | None, sequence_number: int) -> str:
        """Write the manifest list, and return its location."""
        location = self._location.new_metadata_location(f"snap-{self._snapshot_id}-0-{self._uuid}.avro")
        with write_manifest_list(
            format_version=FORMAT_VERSION,
            output_file=self._io.new_output(location),
            snapshot_id=self._snapshot_id,
            parent_snapshot_id=parent_id,
            sequence_number=sequence_number,
            avro_compression=_CODEC,
        ) as writer:
            writer.add_manifests(list(manifests))
        return location

    def _write(self, spec_id: int, entries: Sequence[ManifestEntry]) -> ManifestFile:
        location = self._location.new_metadata_location(f"{self._uuid}-m{next(self._numbers)}.avro")
        with write_manifest(
            format_version=FORMAT_VERSION,
            spec=self._metadata.specs()[spec_id],
            schema=self._metadata.schema(),
            output_file=self._io.new_output(location),
            snapshot_id=self._snapshot_id,
            avro_compression=_CODEC,
        ) as writer:
            for entry in entries:
                writer.add_entry(entry)
        return writer.to_manifest_file()


def merge_group(manifests: Sequence[ManifestFile], merge_count: int) -> list[ManifestFile]:
    """Return the data manifests to merge now: of one spec and size class, the oldest first; empty if none is due."""
    classes: dict[tuple[int, int], list[ManifestFile]] = defaultdict(list)
    for manifest in sorted(manifests, key=lambda manifest: manifest.sequence_number):
        files = live_files(manifest)
        if manifest.content is ManifestContent.DATA and files is not None:
            classes[_size_class(files, merge_count), manifest.partition_spec_id].append(manifest)
    for _, group in sorted(classes.items()):
        if len(group) >= merge_count:
            totals = accumulate(live_files(manifest) or 0 for manifest in group)
            fitting = [manifest for manifest, total in zip(group, totals, strict=True) if total <= MAX_MERGED_FILES]
            if len(fitting) > 1:
                return fitting
    return []


def _size_class(files: int, base: int) -> int:
    found = 0
    while files >= base:
        files //= base
        found += 1
    return found


MAX_EXPIRED_AT_ONCE = 20
"""Snapshots that one commit drops at most, so that a long history shrinks over several commits."""


def check_plan(
    state: "TopicTable", files: Sequence[WrittenFile], start: int, end: int, epoch: int, lost: OffsetRanges
) -> None:
    """Step 1: raise unless the files hold the messages from the ledger's offset to `end`, except those in `lost`."""
    ledger = state.ledger
    place: dict[str, Any] = {"operation": "commit", "place": str(state.name)}
    if epoch < ledger.epoch:
        raise StaleEpochError(f"epoch {epoch} is over, the table is at epoch {ledger.epoch}", **place)
    if start != ledger.committed_offset:
        raise LedgerMismatchError(
            f"the range begins at offset {start}, the table ends at {ledger.committed_offset}",
            remedy=_PLAN_AGAIN,
            details={"committed_offset": ledger.committed_offset},
            **place,
        )
    if end <= start:
        raise InvalidRequestError(f"the range {start} to {end} is empty", **place)
    if any(file.table_uuid != state.iceberg.metadata.table_uuid for file in files):
        raise InvalidRequestError("a file was written for another table", **place)
    outside = any(file.first_offset < start or file.last_offset >= end for file in files)
    held = sum(file.message_count for file in files)
    if outside or held > end - start or held + lost.count < end - start:
        raise InvalidRequestError(f"the files do not hold exactly the messages {start} to {end}", **place)


def commit_files(
    state: "TopicTable",
    files: Sequence[WrittenFile],
    ledger: Ledger,
    lost: OffsetRanges = NO_OFFSETS,
    quarantined: Sequence[Quarantined] = (),
) -> "TopicTable":
    """Append `files` to the state and set `ledger`: steps 2 to 4. Return the new state.

    `lost` and `quarantined` are added to what the table notes already.
    """
    table, metadata = state.iceberg, state.iceberg.metadata
    with catalog_errors("commit", str(state.name)):
        properties = ledger.to_properties() | lost_properties(state.lost_ranges | lost)
        if quarantined:
            properties |= quarantine_properties((*state.quarantined, *quarantined))
        try:
            snapshot, manifests = _write_metadata(state, files, ledger)
            expired = _without_newly_tagged(table, snapshots_to_expire(metadata, state.settings.max_snapshots))
        except FileNotFoundError as error:
            raise _missing_file(state, error) from error
        updates: list[TableUpdate] = [*_new_head(snapshot), SetPropertiesUpdate(updates=properties)]
        if expired:
            ids = [old.snapshot_id for old in expired]
            updates.append(RemoveSnapshotsUpdate.model_validate({"snapshot-ids": ids}))
        response = _send(table, _same_state(metadata), tuple(updates))
    made = state.with_table(
        Table(table.name(), response.metadata, response.metadata_location, table.io, table.catalog, table.config),
        manifests,
    )
    state.unused_files.after_commit(table, made.iceberg, expired)
    return made


@dataclass(frozen=True)
class FileReplacement:
    """Data files that are written again without the rows that delete files name."""

    replaced: frozenset[str]
    """Paths of the old files."""
    added: tuple[WrittenFile, ...]


def commit_properties(state: "TopicTable", properties: dict[str, str]) -> "TopicTable":
    """Set properties of the table; the snapshot stays. Return the new state."""
    return _commit_updates(state, [SetPropertiesUpdate(updates=properties)])


def commit_replacement(state: "TopicTable", change: FileReplacement, properties: dict[str, str]) -> "TopicTable":
    """Replace data files, drop all delete files, and set properties, in one commit. Return the new state.

    The steps are 2 and 3 of `commit_files`. The ledger stays, and the new snapshot repeats it.
    """
    metadata = state.iceberg.metadata
    snapshot_id, sequence_number = metadata.new_snapshot_id(), metadata.next_sequence_number()
    writers = ManifestWriters(metadata, state.iceberg.io, snapshot_id)
    kept, gone = writers.without(state.manifests, change.replaced)
    manifests = [*writers.added(change.added), *kept]
    parent_id = metadata.current_snapshot_id
    metrics = UpdateMetrics()
    for file in change.added:
        metrics.add_file(file.data_file)
    for old in gone:
        metrics.remove_file(old)
    parent = metadata.current_snapshot()
    summary = Summary(Operation.OVERWRITE, **metrics.to_dict(), **state.ledger.to_properties())
    snapshot = Snapshot.model_validate(
        {
            "snapshot-id": snapshot_id,
            "parent-snapshot-id": parent_id,
            "sequence-number": sequence_number,
            "timestamp-ms": max(int(time.time() * 1000), metadata.last_updated_ms),
            "manifest-list": writers.write_list(manifests, parent_id, sequence_number),
            "summary": update_snapshot_summaries(summary, parent.summary if parent else None),
            "schema-id": metadata.current_schema_id,
        }
    )
    return _commit_updates(state, [*_new_head(snapshot), SetPropertiesUpdate(updates=properties)])


def _commit_updates(state: "TopicTable", updates: list[TableUpdate]) -> "TopicTable":
    table = state.iceberg
    response = _send(table, _same_state(table.metadata), tuple(updates))
    return state.with_table(
        Table(table.name(), response.metadata, response.metadata_location, table.io, table.catalog, table.config)
    )


def _same_state(metadata: TableMetadata) -> tuple[TableRequirement, ...]:
    """Return the requirements that nobody has committed since the table was loaded."""
    return (
        AssertTableUUID(uuid=metadata.table_uuid),
        AssertRefSnapshotId.model_validate({"ref": MAIN_BRANCH, "snapshot-id": metadata.current_snapshot_id}),
    )


def _new_head(snapshot: Snapshot) -> list[TableUpdate]:
    return [
        AddSnapshotUpdate(snapshot=snapshot),
        SetSnapshotRefUpdate.model_validate(
            {"ref-name": MAIN_BRANCH, "type": SnapshotRefType.BRANCH, "snapshot-id": snapshot.snapshot_id}
        ),
    ]


def _write_metadata(
    state: "TopicTable", files: Sequence[WrittenFile], ledger: Ledger
) -> tuple[Snapshot, tuple[ManifestFile, ...]]:
    """Step 2: the new snapshot and its manifests, written."""
    metadata = state.iceberg.metadata
    parent_id, snapshot_id = metadata.current_snapshot_id, metadata.new_snapshot_id()
    sequence_number = metadata.next_sequence_number()
    writers = ManifestWriters(metadata, state.iceberg.io, snapshot_id)
    merged = writers.compacted(state.manifests, state.settings.manifest_merge_count)
    manifests = (*writers.added(files), *merged)
    snapshot = Snapshot.model_validate(
        {
            "snapshot-id": snapshot_id,
            "parent-snapshot-id": parent_id,
            "sequence-number": sequence_number,
            "timestamp-ms": max(int(time.time() * 1000), metadata.last_updated_ms),
            "manifest-list": writers.write_list(manifests, parent_id, sequence_number),
            "summary": _summary(metadata, files, ledger),
            "schema-id": metadata.current_schema_id,
        }
    )
    return snapshot, manifests


def _send(
    table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
) -> CommitTableResponse:
    """Step 3. Only a refusal is a refusal; after any other error the outcome is unknown."""
    place = ".".join(table.name())
    try:
        return table.catalog.commit_table(table, requirements, updates)
    except (CommitFailedException, NoSuchTableError) as error:
        raise CommitConflictError(
            f"the table has changed since it was loaded: {short_reason(error)}",
            operation="commit",
            place=place,
            remedy=_PLAN_AGAIN,
        ) from error
    except CatalogUnavailableError:  # `sql_catalogs` looked for the catalog before the commit: nothing happened
        raise
    except Exception as error:
        raise CommitUnknownError(
            f"the catalog did not respond as expected, so the commit may have happened: {short_reason(error)}",
            operation="commit",
            place=place,
            remedy="keep all files, load the table again and look at its ledger",
        ) from error


def snapshots_to_expire(metadata: TableMetadata, max_snapshots: int) -> list[Snapshot]:
    """Return a few of the oldest snapshots if the main branch is full, except those that a branch or tag names."""
    line = list(ancestors_of(metadata.current_snapshot(), metadata))
    if len(line) < max_snapshots:
        return []
    named = {ref.snapshot_id for ref in metadata.refs.values()}
    count = max(1, min(MAX_EXPIRED_AT_ONCE, max_snapshots // 5)) + len(line) - max_snapshots
    oldest = [snapshot for snapshot in reversed(line[1:]) if snapshot.snapshot_id not in named]
    return oldest[: min(count, MAX_EXPIRED_AT_ONCE)]


def _without_newly_tagged(table: Table, snapshots: list[Snapshot]) -> list[Snapshot]:
    """Return the snapshots that were not tagged since the table was loaded."""
    if not snapshots:
        return []
    refs = table.catalog.load_table(table.name()).metadata.refs
    named = {ref.snapshot_id for ref in refs.values()}
    return [snapshot for snapshot in snapshots if snapshot.snapshot_id not in named]


def _missing_file(state: "TopicTable", error: FileNotFoundError) -> IcestreamError:
    """Return why a manifest of the state is missing: the state is old and was cleaned up, or the table is damaged."""
    if state.refresh().snapshot_id != state.snapshot_id:
        return CommitConflictError(
            "the table has changed since it was loaded, and its old state was cleaned up",
            operation="commit",
            place=str(state.name),
            remedy=_PLAN_AGAIN,
        )
    return DamagedError(f"a file of the table is missing: {error}", operation="commit", place=str(state.name))


def _summary(metadata: TableMetadata, files: Sequence[WrittenFile], ledger: Ledger) -> Summary:
    """Return counts, totals and the ledger. Partitions are counted, not named: a name can have any length."""
    metrics = UpdateMetrics()
    for file in files:
        metrics.add_file(file.data_file)
    partitions = {(file.spec_id, file.data_file.partition) for file in files if len(file.data_file.partition)}
    changed = {CHANGED_PARTITION_COUNT_PROP: str(len(partitions))} if partitions else {}
    parent = metadata.current_snapshot()
    summary = Summary(Operation.APPEND, **metrics.to_dict(), **changed, **ledger.to_properties())
    return update_snapshot_summaries(summary, parent.summary if parent else None)
