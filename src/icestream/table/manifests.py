"""Manifests of a new snapshot: one for the new files, and old small ones merged so that they stay few.

Manifests fall into classes by the number of their files: 1 to n-1, n to n²-1, and so on. When a class has n of them the
next commit merges these into one of the next class. So a table of f files has about n · logₙ(f) manifests, and each
file's entry is rewritten logₙ(f) times: commits stay as fast as they were, without a rewrite of everything now and
then. One commit merges one group, of a bounded number of files.
"""

from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate, count
from typing import Literal
from uuid import uuid4

from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata

from icestream.table.written import WrittenFile

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
