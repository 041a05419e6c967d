"""Removes the files of a table after the catalog has dropped it.

Files are removed one by one as the metadata names them, never by folder: a table created again under the same name has
the same folder. The steps, and what a crash after each leaves behind:

1. Remove the quarantined frames; then for each manifest its data files and the manifest. *The manifest lists still name
   the rest.*
2. Remove the manifest lists and statistics, then the older metadata files. *The last metadata file names the rest.*
3. Remove the last metadata file.

If a file cannot be removed, a warning is logged and the files that name it are kept, so that it can be found. The table
is dropped in any case. The files of a table with `gc.enabled=false` are kept: they belong to others as well.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import structlog
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from icestream.table.quarantine import quarantine_files

MAX_FAILURES = 10
"""After so many failures no further file is tried."""
_PARALLEL_DELETES = 8
_MAY_DELETE = "gc.enabled"
_log = structlog.get_logger(__name__)


def remove_table_files(table: Table) -> bool:
    """Remove the files of a dropped table; return False if they must be kept."""
    metadata = table.metadata
    if metadata.properties.get(_MAY_DELETE, "true").lower() == "false":
        return False
    with ThreadPoolExecutor(_PARALLEL_DELETES, thread_name_prefix="table-remove_table_files") as threads:
        work = _Removal(table.io, threads)
        work.remove(quarantine_files(metadata.properties))
        for manifest in _manifests(metadata, work):
            work.remove_manifest(manifest)
        for step in (_lists_and_statistics(metadata), _older_metadata(metadata), [table.metadata_location]):
            if not work.failures:
                work.remove(step)
    if work.failures:
        _log.warning(
            "dropped_table_files_left",
            table=".".join(table.name()),
            metadata=table.metadata_location,
            failures=work.failures,
            error=work.last_error,
        )
    return True


class _Removal:
    def __init__(self, io: FileIO, threads: ThreadPoolExecutor) -> None:
        self.io = io
        self.failures = 0
        self.last_error = ""
        self._threads = threads

    @property
    def is_hopeless(self) -> bool:
        return self.failures >= MAX_FAILURES

    def remove(self, paths: Iterable[str]) -> None:
        list(self._threads.map(self._remove_one, paths))

    def remove_manifest(self, manifest: ManifestFile) -> None:
        """Remove a manifest and its files, also those marked as deleted: an older snapshot may have named them."""
        before = self.failures
        try:
            entries = manifest.fetch_manifest_entry(self.io, discard_deleted=False)
        except Exception as error:  # noqa: BLE001 - any store, any format
            self.failed(error)
            return
        self.remove(entry.data_file.file_path for entry in entries)
        if self.failures == before:
            self.remove([manifest.manifest_path])

    def failed(self, error: Exception) -> None:
        if not isinstance(error, FileNotFoundError):  # orphan clean-up, or an earlier interrupted drop, has removed it
            self.failures += 1
            self.last_error = str(error)

    def _remove_one(self, path: str) -> None:
        if self.is_hopeless:
            return
        try:
            self.io.delete(path)
        except Exception as error:  # noqa: BLE001 - any store
            self.failed(error)


def _manifests(metadata: TableMetadata, work: _Removal) -> Iterator[ManifestFile]:
    """Yield the manifests of all snapshots, each once. Memory holds the paths of manifests, never of data files."""
    seen: set[str] = set()
    for snapshot in reversed(metadata.snapshots):
        if work.is_hopeless:
            return
        try:
            manifests = snapshot.manifests(work.io)
        except Exception as error:  # noqa: BLE001 - any store, any format
            work.failed(error)
            continue
        for manifest in manifests:
            if manifest.manifest_path not in seen:
                seen.add(manifest.manifest_path)
                yield manifest


def _lists_and_statistics(metadata: TableMetadata) -> Iterator[str]:
    yield from {snapshot.manifest_list for snapshot in metadata.snapshots}
    yield from (file.statistics_path for file in (*metadata.statistics, *metadata.partition_statistics))


def _older_metadata(metadata: TableMetadata) -> list[str]:
    return [entry.metadata_file for entry in metadata.metadata_log]
