"""Files in the folders of a Parquet copy that its table does not name, and how they go.

Who reads a copy by its folders sees every file there. So a file that was written and never committed (its pipeline was
killed, a task died and Spark ran it again, the commit was refused) must not stay: its messages are, or will be, in
another file too. Nothing but the name of a file tells it from one that another pipeline is about to commit. Therefore:

1. load the table, list the folders, and take the files that no snapshot of the table names. *If there are none, that
   is all.*
2. *fence*: commit a snapshot without files on the very state that was loaded. Refused, because somebody has committed
   meanwhile: begin again. *Killed here: the table has one more snapshot of the same rows.*
3. delete the files of step 1. *Killed here: the rest goes the next time.*

Why no committed file can be lost, however many pipelines there are: a commit to a copy names the snapshot that its pass
was planned on, and is never repeated on another one with the same files (`icestream.pipeline.commit`). A file that was
listed in step 1 was written by a pass that was planned before, on the loaded snapshot or an older one. If it was
committed between 1 and 2, the fence is refused. If it was not, no commit can name it after the fence. A pass that is
planned after the fence writes its files after the listing.

The pipeline that finds its commit refused deletes what it has written and plans anew. Two that clean at the same time
cost each other a pass, no more. Only the days from the last committed hour on are listed: publish times do not go back,
so what is not committed is not older.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

import structlog
from pyiceberg.manifest import ManifestFile

from icestream.model.errors import CommitConflictError, InvalidRequestError
from icestream.table.catalogs import reporting
from icestream.table.files import DurableFileIO
from icestream.table.parquet_copy.folders import DATA_PATH, date_of, day_of, own_file
from icestream.table.planning import FilePlan
from icestream.table.topic_table import TopicTable
from icestream.table.writer import WrittenFile

_MAX_TRIES = 10
_log = structlog.get_logger(__name__)


def remove_leftovers(table: TopicTable) -> TopicTable:
    """Steps 1 to 3; the state of the table after them."""
    for _ in range(_MAX_TRIES):
        found = find_leftovers(table)
        if not found:
            return table
        try:
            fenced = table.fence()
        except CommitConflictError:
            table = table.refresh()
            continue
        with reporting("remove leftovers", str(table.name)):
            _io(table).remove_listed(table.properties[DATA_PATH], found)
        _log.info("files that were never committed are removed", table=str(table.name), files=len(found))
        return fenced
    raise CommitConflictError(
        f"others were faster {_MAX_TRIES} times", operation="remove leftovers", place=str(table.name)
    )


def find_leftovers(table: TopicTable) -> list[str]:
    """Step 1: the store's paths of files in the copy's folders that no snapshot names."""
    with reporting("list files", str(table.name)):
        last = _last_hour(table)
        first_hour = None if last is None else day_of(last)
        listed = dict(_listed(table, first_hour))
        for manifest in _manifests(table) if listed else ():
            newest = _upper_hour(manifest)
            if first_hour is not None and newest is not None and newest < first_hour:
                continue  # all that it names lies in older folders
            for name in _names(table, manifest):
                listed.pop(name, None)
            if not listed:
                break
        return sorted(listed.values())


def names_files(table: TopicTable, files: Sequence[WrittenFile]) -> bool:
    """Whether all of these are files of the table's state."""
    first, last = min(file.first_offset for file in files), max(file.last_offset for file in files)
    named = {file.path for file in FilePlan(table, first, last + 1).files()}
    return named.issuperset(file.path for file in files)


def remove_written(table: TopicTable, files: Iterable[WrittenFile]) -> None:
    """Remove files of which it is certain that no commit names them; what the store keeps is found as a leftover."""
    for file in files:
        with suppress(Exception):  # any store; see above
            table.iceberg.io.delete(file.path)


def remove_all(table: TopicTable) -> None:
    """What is left of a copy's own files in its folders, after it was dropped."""
    with reporting("remove files", str(table.name)):
        folder, own = table.properties[DATA_PATH], own_file(table.iceberg.metadata.table_uuid)
        found = _io(table).list_files(folder)
        _io(table).remove_listed(folder, (path for below, path in found.items() if own.fullmatch(_name(below))))


def _listed(table: TopicTable, first_hour: int | None) -> Iterator[tuple[str, str]]:
    """The table's own files by name, from the day that begins with an hour on."""
    io, folder = _io(table), table.properties[DATA_PATH]
    own = own_file(table.iceberg.metadata.table_uuid)
    for day in io.list_folders(folder):
        begins = date_of(day)
        if begins is None or (first_hour is not None and begins < first_hour):
            continue
        for below, path in io.list_files(f"{folder}/{day}").items():
            if own.fullmatch(_name(below)):
                yield _name(below), path


def _last_hour(table: TopicTable) -> int | None:
    """The newest partition; None where nothing is committed, or the manifests do not say."""
    hours = [_upper_hour(manifest) for manifest in table.manifests]
    known = [hour for hour in hours if hour is not None]
    return max(known) if known and len(known) == len(hours) else None


def _upper_hour(manifest: ManifestFile) -> int | None:
    """The newest partition of the files that a manifest names; None where it does not say."""
    bound = manifest.partitions[0].upper_bound if manifest.partitions else None
    return None if bound is None else int.from_bytes(bound, "little", signed=True)


def _manifests(table: TopicTable) -> Iterator[ManifestFile]:
    """Those of the current snapshot, the newest first, then what older snapshots have besides."""
    seen = {manifest.manifest_path for manifest in table.manifests}
    yield from sorted(table.manifests, key=lambda one: -(one.sequence_number or 0))
    for snapshot in table.iceberg.metadata.snapshots:
        if snapshot.snapshot_id == table.snapshot_id:
            continue
        others = [one for one in snapshot.manifests(table.iceberg.io) if one.manifest_path not in seen]
        seen.update(one.manifest_path for one in others)
        yield from others


def _names(table: TopicTable, manifest: ManifestFile) -> Iterator[str]:
    for entry in manifest.fetch_manifest_entry(table.iceberg.io, discard_deleted=True):
        yield _name(entry.data_file.file_path)


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _io(table: TopicTable) -> DurableFileIO:
    io = table.iceberg.io
    if not isinstance(io, DurableFileIO):
        raise InvalidRequestError(
            "plain Parquet files need icestream's own access to files",
            operation="list files",
            place=str(table.name),
            remedy="leave py-io-impl out of catalog.properties",
        )
    return io
