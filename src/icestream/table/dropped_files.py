"""Removing the files of a table that the catalog has dropped.

File by file as its metadata names them, never by folder: a table made again under the same name has the same folder.
The order, with what a crash after each step leaves behind:

1. what is in quarantine, then manifest after manifest: its data files, then itself. *The rest is still named by the
   lists.*
2. the manifest lists and statistics, then the older metadata files. *The rest is named by the last metadata file.*
3. the last metadata file.

A file that cannot be removed is told in the log and changes nothing for the caller: the table is dropped. What names it
is then kept, so that it can be found. Tables with `gc.enabled=false` say that their files belong to others as well.
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
"""A store that refuses so many files is left alone."""
_PARALLEL_DELETES = 8
_MAY_DELETE = "gc.enabled"
_log = structlog.get_logger(__name__)


def remove_table_files(table: Table) -> bool:
    """Whether the table's files are icestream's to remove."""
    metadata = table.metadata
    if metadata.properties.get(_MAY_DELETE, "true").lower() == "false":
        return False
    with ThreadPoolExecutor(_PARALLEL_DELETES, thread_name_prefix="table-remove_table_files") as threads:
        work = _Purge(table.io, threads)
        work.remove(quarantine_files(metadata.properties))
        for manifest in _manifests(metadata, work):
            work.remove_manifest(manifest)
        for step in (_lists_and_statistics(metadata), _older_metadata(metadata), [table.metadata_location]):
            if not work.failures:
                work.remove(step)
    if work.failures:
        _log.warning(
            "files of a dropped table are left",
            table=".".join(table.name()),
            metadata=table.metadata_location,
            failures=work.failures,
            error=work.last_error,
        )
    return True


class _Purge:
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
        """Also what it names as deleted: an older snapshot may have had it."""
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
        if not isinstance(error, FileNotFoundError):  # the clean-up of orphans, or a drop cut short, was there before
            self.failures += 1
            self.last_error = str(error)

    def _remove_one(self, path: str) -> None:
        if self.is_hopeless:
            return
        try:
            self.io.delete(path)
        except Exception as error:  # noqa: BLE001 - any store
            self.failed(error)


def _manifests(metadata: TableMetadata, work: _Purge) -> Iterator[ManifestFile]:
    """The manifests of all snapshots, each once. Only their names are kept in memory, never those of data files."""
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
