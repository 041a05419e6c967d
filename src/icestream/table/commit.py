"""One commit: files and ledger together, or nothing.

Not through the library's transactions: they retry a conflicting commit by themselves, rebased and with the same
properties, and so would let a stale writer move the ledger back. Here a commit names the state it was planned on, and
the catalog refuses it if that is no longer the table's.

1. check the plan against the loaded ledger. *Nothing is written.*
2. write the manifest of the new files, merged manifests, and the manifest list. *After a crash: files that nothing
   names; orphan clean-up removes them and the data files.*
3. one catalog commit, required to find the same table and the same snapshot: add the snapshot, make it the main
   branch's, set the ledger, drop the oldest snapshots. *After a crash, or when the answer is lost: it happened or it
   did not, and the ledger says which. Nothing is removed before somebody has read it.*
4. hand what no snapshot names any more to be removed after a while. *After a crash: orphan clean-up removes it.*
"""

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, count
from typing import Literal
from uuid import uuid4

from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
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

from icestream.config import TableSettings
from icestream.model.errors import CommitConflictError, CommitUnknownError
from icestream.model.offsets import OffsetRanges
from icestream.model.quarantine import Quarantined
from icestream.table.catalogs import reason
from icestream.table.ledger import Ledger, lost_properties, quarantine_properties
from icestream.table.writer import WrittenFile

# --------------------
# Manifests of a new snapshot: one for the new files, and old small ones merged so that they stay few.
#
# Manifests fall into classes by the number of their files: 1 to n-1, n to n²-1, and so on. When a class has n of
# them the
# next commit merges these into one of the next class. So a table of f files has about n · logₙ(f) manifests, and each
# file's entry is rewritten logₙ(f) times: commits stay as fast as they were, without a rewrite of everything now and
# then. One commit merges one group, of a bounded number of files.


MAX_MERGED_FILES = 1000
"""A merge makes no manifest of more files than this, about 0.3 s of work; larger ones are for maintenance to join."""
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
        """One manifest with the live files of several of the same spec; none if nothing in them lives."""
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
        """`manifests` with one group merged, if one is due."""
        group = merge_group(manifests, merge_count)
        if not group:
            return [*manifests]
        merged = self.merged(group)
        return [*([merged] if merged else []), *(manifest for manifest in manifests if manifest not in set(group))]

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
    """The data manifests that are to be merged now: of one spec and size, the oldest first; or none."""
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


def live_files(manifest: ManifestFile) -> int | None:
    if manifest.added_files_count is None or manifest.existing_files_count is None:
        return None
    return manifest.added_files_count + manifest.existing_files_count


def _size_class(files: int, base: int) -> int:
    found = 0
    while files >= base:
        files //= base
        found += 1
    return found


MAX_EXPIRED_AT_ONCE = 20
"""Most snapshots that one commit drops: a long history shrinks over several commits instead of stopping one."""


@dataclass(frozen=True)
class Committed:
    response: CommitTableResponse
    manifests: tuple[ManifestFile, ...]
    expired: tuple[Snapshot, ...]


def commit_files(
    table: Table,
    manifests: Sequence[ManifestFile],
    files: Sequence[WrittenFile],
    ledger: Ledger,
    lost: OffsetRanges,
    settings: TableSettings,
    quarantined: Sequence[Quarantined] = (),
) -> Committed:
    """Append `files` to the state `table`, whose current snapshot has `manifests`, and set `ledger`: steps 2 and 3.

    `lost` is what the table lacks from now on, `quarantined` what of it is in quarantine, where that has changed.
    """
    metadata = table.metadata
    parent_id = metadata.current_snapshot_id
    snapshot_id = metadata.new_snapshot_id()
    sequence_number = metadata.next_sequence_number()
    writers = ManifestWriters(metadata, table.io, snapshot_id)
    now = [*writers.added(files), *writers.compacted(manifests, settings.manifest_merge_count)]
    snapshot = Snapshot.model_validate(
        {
            "snapshot-id": snapshot_id,
            "parent-snapshot-id": parent_id,
            "sequence-number": sequence_number,
            "timestamp-ms": max(int(time.time() * 1000), metadata.last_updated_ms),
            "manifest-list": writers.write_list(now, parent_id, sequence_number),
            "summary": _summary(metadata, files, ledger),
            "schema-id": metadata.current_schema_id,
        }
    )
    main = {"ref-name": MAIN_BRANCH, "type": SnapshotRefType.BRANCH, "snapshot-id": snapshot_id}
    updates: list[TableUpdate] = [
        AddSnapshotUpdate(snapshot=snapshot),
        SetSnapshotRefUpdate.model_validate(main),
        SetPropertiesUpdate(
            updates={**ledger.to_properties(), **lost_properties(lost), **quarantine_properties(quarantined)}
        ),
    ]
    expired = _expire(table, settings.max_snapshots)
    if expired:
        ids = [old.snapshot_id for old in expired]
        updates.append(RemoveSnapshotsUpdate.model_validate({"snapshot-ids": ids}))
    requirements: list[TableRequirement] = [
        AssertTableUUID(uuid=metadata.table_uuid),
        AssertRefSnapshotId.model_validate({"ref": MAIN_BRANCH, "snapshot-id": parent_id}),
    ]
    response = send(table, tuple(requirements), tuple(updates))
    return Committed(response, tuple(now), tuple(expired))


def send(
    table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
) -> CommitTableResponse:
    """Step 3. Only a refusal is a refusal; after any other error the outcome is not known."""
    place = ".".join(table.name())
    try:
        return table.catalog.commit_table(table, requirements, updates)
    except (CommitFailedException, NoSuchTableError) as error:
        raise CommitConflictError(
            f"the table has changed since it was loaded: {reason(error)}",
            operation="commit",
            place=place,
            remedy="load the table again and plan from its ledger",
        ) from error
    except Exception as error:
        raise CommitUnknownError(
            f"the catalog did not answer as expected, so the commit may have happened: {reason(error)}",
            operation="commit",
            place=place,
            remedy="keep all files, load the table again and look at its ledger",
        ) from error


def expirable(metadata: TableMetadata, max_snapshots: int) -> list[Snapshot]:
    """Of a main branch that is full, a few of the oldest snapshots, without those that a branch or tag names."""
    line = list(ancestors_of(metadata.current_snapshot(), metadata))
    if len(line) < max_snapshots:
        return []
    named = {ref.snapshot_id for ref in metadata.refs.values()}
    count = max(1, min(MAX_EXPIRED_AT_ONCE, max_snapshots // 5)) + len(line) - max_snapshots
    oldest = [snapshot for snapshot in reversed(line[1:]) if snapshot.snapshot_id not in named]
    return oldest[: min(count, MAX_EXPIRED_AT_ONCE)]


def _expire(table: Table, max_snapshots: int) -> list[Snapshot]:
    """The snapshots that this commit drops. A tag that was set since the table was loaded is looked for first."""
    if not (found := expirable(table.metadata, max_snapshots)):
        return []
    refs = table.catalog.load_table(table.name()).metadata.refs
    named = {ref.snapshot_id for ref in refs.values()}
    return [snapshot for snapshot in found if snapshot.snapshot_id not in named]


def _summary(metadata: TableMetadata, files: Sequence[WrittenFile], ledger: Ledger) -> Summary:
    """Counts, totals and the ledger. Partitions are counted and not named: their values can have any length."""
    metrics = UpdateMetrics()
    for file in files:
        metrics.add_file(file.data_file)
    partitions = {(file.spec_id, file.data_file.partition) for file in files if len(file.data_file.partition)}
    changed = {CHANGED_PARTITION_COUNT_PROP: str(len(partitions))} if partitions else {}
    parent = metadata.current_snapshot()
    summary = Summary(Operation.APPEND, **metrics.to_dict(), **changed, **ledger.to_properties())
    return update_snapshot_summaries(summary, parent.summary if parent else None)
