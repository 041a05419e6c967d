"""Removes files in the folders of a Parquet copy that its table does not name.

A reader of the folders sees every file there. So a file that was written and never committed must not stay: its
messages are, or will be, in another file too. Such a file is left when a pipeline is killed, when a task dies and Spark
runs it again, and when a commit is refused. It looks just like a file that another pipeline is about to commit.
Therefore:

1. Load the table, list the folders, and find the files that no snapshot of the table names. *If there are none, stop.*
2. *Fence*: commit a snapshot without files on exactly the state that was loaded. If the catalog refuses it, because
   another commit came first, begin again. *Killed here: the table has one more snapshot of the same rows.*
3. Delete the files of step 1. *Killed here: the next run deletes the rest.*

No committed file is lost, however many pipelines run. A commit to a copy names the snapshot that its pass was planned
on, and is never repeated on another snapshot with the same files (`icestream.pipeline.one_pass`). A file listed in
step 1 was written by a pass that was planned on the loaded snapshot or an older one. If that pass commits between steps
1 and 2, the fence is refused. If not, no commit can name the file after the fence. A pass that is planned after the
fence writes its files after the listing.

A pipeline whose commit is refused deletes its files and plans again. Two pipelines that clean at the same time cost
each other one pass. Only the days from the last committed hour on are listed: publish times do not go back, so files
that are not committed are not older.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog
from pyiceberg.manifest import ManifestFile

from icestream.model.errors import CommitConflictError, InvalidRequestError
from icestream.table.catalogs import catalog_errors
from icestream.table.files import DurableFileIO
from icestream.table.parquet_copy.layout import data_path, first_hour_of_day, first_hour_of_folder, own_file_pattern
from icestream.table.planning import FilePlan

if TYPE_CHECKING:
    from icestream.table.tables import TopicTable
    from icestream.table.writer import WrittenFile

_MAX_TRIES = 10
_log = structlog.get_logger(__name__)


def remove_copy_orphans(table: "TopicTable") -> "TopicTable":
    """Run steps 1 to 3 and return the state after them. A table that is no Parquet copy is returned as it is."""
    if not table.is_parquet_copy:
        return table
    for _ in range(_MAX_TRIES):
        found = find_copy_orphans(table)
        if not found:
            return table
        try:
            fenced = table.fence()
        except CommitConflictError:
            table = table.refresh()
            continue
        with catalog_errors("remove orphans", str(table.name)):
            _io(table).remove_listed(data_path(table.properties), found)
        _log.info("uncommitted_parquet_files_removed", table=str(table.name), files=len(found))
        return fenced
    raise CommitConflictError(
        f"another commit came first {_MAX_TRIES} times", operation="remove orphans", place=str(table.name)
    )


def find_copy_orphans(table: "TopicTable") -> list[str]:
    """Return the store's paths of files in the copy's folders that no snapshot names: step 1."""
    with catalog_errors("list files", str(table.name)):
        last = _last_hour(table)
        first_hour = None if last is None else first_hour_of_day(last)
        listed = dict(_listed(table, first_hour))
        for manifest in _manifests(table) if listed else ():
            newest = _upper_hour(manifest)
            if first_hour is not None and newest is not None and newest < first_hour:
                continue  # all its files lie in older folders
            for name in _names(table, manifest):
                listed.pop(name, None)
            if not listed:
                break
        return sorted(listed.values())


def holds_files(table: "TopicTable", files: "Sequence[WrittenFile]") -> bool:
    """Return whether the table's state names all of these files."""
    first, last = min(file.first_offset for file in files), max(file.last_offset for file in files)
    named = {file.path for file in FilePlan(table, first, last + 1).files()}
    return named.issuperset(file.path for file in files)


def discard_files(table: "TopicTable", files: "Iterable[WrittenFile]") -> None:
    """Delete files of a Parquet copy that certainly no commit names or will name.

    A file that the store does not delete is found as an orphan. Files of other tables are left to orphan clean-up.
    """
    for file in files if table.is_parquet_copy else ():
        with suppress(Exception):  # any store raises its own errors
            table.iceberg.io.delete(file.path)


def remove_own_files(table: "TopicTable") -> None:
    """Delete the files of a dropped copy that are still in its folders."""
    with catalog_errors("remove files", str(table.name)):
        folder, own = data_path(table.properties), own_file_pattern(table.iceberg.metadata.table_uuid)
        found = _io(table).list_files(folder)
        _io(table).remove_listed(folder, (path for below, path in found.items() if own.fullmatch(_name(below))))


def _listed(table: "TopicTable", first_hour: int | None) -> Iterator[tuple[str, str]]:
    """Yield name and path of the table's own files, from the day on that begins at `first_hour`."""
    io, folder = _io(table), data_path(table.properties)
    own = own_file_pattern(table.iceberg.metadata.table_uuid)
    for day in io.list_folders(folder):
        begins = first_hour_of_folder(day)
        if begins is None or (first_hour is not None and begins < first_hour):
            continue
        for below, path in io.list_files(f"{folder}/{day}").items():
            if own.fullmatch(_name(below)):
                yield _name(below), path


def _last_hour(table: "TopicTable") -> int | None:
    """Return the newest partition; None if nothing is committed or a manifest does not say."""
    hours = [_upper_hour(manifest) for manifest in table.manifests]
    known = [hour for hour in hours if hour is not None]
    return max(known) if known and len(known) == len(hours) else None


def _upper_hour(manifest: ManifestFile) -> int | None:
    """Return the newest partition of a manifest's files; None if it does not say."""
    bound = manifest.partitions[0].upper_bound if manifest.partitions else None
    return None if bound is None else int.from_bytes(bound, "little", signed=True)


def _manifests(table: "TopicTable") -> Iterator[ManifestFile]:
    """Yield the manifests of the current snapshot, newest first, then those that only older snapshots have."""
    seen = {manifest.manifest_path for manifest in table.manifests}
    yield from sorted(table.manifests, key=lambda one: -(one.sequence_number or 0))
    for snapshot in table.iceberg.metadata.snapshots:
        if snapshot.snapshot_id == table.snapshot_id:
            continue
        others = [one for one in snapshot.manifests(table.iceberg.io) if one.manifest_path not in seen]
        seen.update(one.manifest_path for one in others)
        yield from others


def _names(table: "TopicTable", manifest: ManifestFile) -> Iterator[str]:
    for entry in manifest.fetch_manifest_entry(table.iceberg.io, discard_deleted=True):
        yield _name(entry.data_file.file_path)


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _io(table: "TopicTable") -> DurableFileIO:
    io = table.iceberg.io
    if not isinstance(io, DurableFileIO):
        raise InvalidRequestError(
            "a Parquet copy needs icestream's own file access",
            operation="list files",
            place=str(table.name),
            remedy="remove py-io-impl from catalog.properties",
        )
    return io
