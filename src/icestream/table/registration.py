"""Brings tables back into a catalog that lost them, from the metadata files in the warehouse.

A table's files describe it completely; the catalog only names the newest metadata file. So a lost catalog costs nothing
but that name. The metadata file to register is found by its content: it belongs to the topic's stream, its ledger and
its newest snapshot agree, every file that it names exists, and no other one reaches farther or is newer. Old metadata
files, and those of commits that lost to another commit, lie beside it and are passed over.

The steps, and what a crash after each leaves behind:

1. Choose the metadata file. *Nothing.*
2. Drop the catalog's present entry, if it is of the same stream and ends before that file does: a restored catalog has
   an older state. No file is removed. *The catalog has no table. Register again.*
3. Register the metadata file.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.serializers import FromInputFile
from pyiceberg.table.metadata import TableMetadata

from icestream.model.errors import IcestreamError, IncompatibleTableError, InvalidRequestError
from icestream.model.names import TopicName
from icestream.table.catalogs import catalog_errors, short_reason
from icestream.table.files import DurableFileIO
from icestream.table.ledger import STREAM_ID, read_ledger
from icestream.table.tables import Tables, TopicTable

_SUFFIX = ".metadata.json"
_PARALLEL_LOOKS = 16
_OPERATION = "register table"


@dataclass(frozen=True)
class Registration:
    """The metadata file to register as a table."""

    table: TopicName
    metadata_location: str
    snapshot_id: int | None
    committed_offset: int
    present_offset: int | None
    """The committed offset of the catalog's table of this name; None if the catalog has none."""
    passed_over: tuple[str, ...] = ()
    """Newer metadata files that cannot be used, each with the reason."""

    @property
    def is_needed(self) -> bool:
        """Whether the catalog lacks the table, or has an older state of it."""
        return self.present_offset is None or self.present_offset < self.committed_offset


@dataclass(frozen=True)
class _Candidate:
    location: str
    metadata: TableMetadata
    committed_offset: int

    @property
    def age(self) -> tuple[int, int, str]:
        return self.committed_offset, self.metadata.last_updated_ms, self.location


def find_registration(
    tables: Tables, table: TopicName, stream_id: str, present: TopicTable | None, location: str | None = None
) -> Registration | None:
    """Step 1: return what to register as the table; None if there are no metadata files of this stream.

    `present` is the table that the catalog has, if any. `location` is the table's folder; by default those are searched
    in which the catalog puts the table. The catalog is not opened.
    """
    with catalog_errors(_OPERATION, str(table)):
        present_offset = _present_offset(present, stream_id)
        folders = [location.rstrip("/")] if location is not None else tables.default_locations(table)
        io = _io(tables, folders[0])
        passed_over: list[str] = []
        found = sorted(
            (one for folder in folders for one in _candidates(io, folder, table, stream_id, passed_over)),
            key=lambda one: one.age,
            reverse=True,
        )
        for candidate in found:
            missing = _missing_file(io, candidate.metadata)
            if missing is None:
                return Registration(
                    table,
                    candidate.location,
                    candidate.metadata.current_snapshot_id,
                    candidate.committed_offset,
                    present_offset,
                    tuple(passed_over),
                )
            passed_over.append(f"{candidate.location}: {missing}")
        return None


def register(tables: Tables, registration: Registration) -> None:
    """Steps 2 and 3."""
    identifier = tables.identifier(registration.table)
    with catalog_errors(_OPERATION, str(registration.table)):
        tables.create_namespace(identifier[:-1])
        if registration.present_offset is not None:
            with suppress(NoSuchTableError):
                tables.catalog.drop_table(identifier)
        tables.catalog.register_table(identifier, registration.metadata_location)


def _present_offset(found: TopicTable | None, stream_id: str) -> int | None:
    if found is None:
        return None
    if found.properties.get(STREAM_ID) != stream_id:
        raise IncompatibleTableError(
            "the catalog has a table of this name that is of another stream",
            operation=_OPERATION,
            place=str(found.name),
            remedy="rename or drop that table first",
        )
    return found.ledger.committed_offset


def _io(tables: Tables, location: str) -> DurableFileIO:
    io = tables.file_io(location)
    if not isinstance(io, DurableFileIO):
        raise InvalidRequestError(
            "metadata files can only be listed with icestream's own file access",
            operation=_OPERATION,
            place=location,
            remedy="remove py-io-impl from catalog.properties",
        )
    return io


def _candidates(
    io: DurableFileIO, folder: str, table: TopicName, stream_id: str, passed_over: list[str]
) -> Iterator[_Candidate]:
    """Yield the metadata files of the stream whose ledger is sound; note the others that might have been."""
    for name in io.list_files(f"{folder}/metadata"):
        if not name.endswith(_SUFFIX) or "/" in name:
            continue
        location = f"{folder}/metadata/{name}"
        try:
            metadata = FromInputFile.table_metadata(io.new_input(location))
        except Exception as error:  # noqa: BLE001 - any store, any damage: another file may do
            passed_over.append(f"{location}: {short_reason(error)}")
            continue
        if metadata.properties.get(STREAM_ID) != stream_id:
            continue
        try:
            ledger = read_ledger(metadata, place=str(table))
        except IcestreamError as error:
            passed_over.append(f"{location}: {error.message}")
            continue
        yield _Candidate(location, metadata, ledger.committed_offset)


def _missing_file(io: DurableFileIO, metadata: TableMetadata) -> str | None:
    """Return what is missing of a table's current snapshot; None if all its files are there."""
    snapshot = metadata.current_snapshot()
    if snapshot is None:
        return None
    try:
        paths = [
            entry.data_file.file_path
            for manifest in snapshot.manifests(io)
            for entry in manifest.fetch_manifest_entry(io, discard_deleted=True)
        ]
    except Exception as error:  # noqa: BLE001 - any store, any damage
        return f"a manifest cannot be read: {short_reason(error)}"
    with ThreadPoolExecutor(_PARALLEL_LOOKS, thread_name_prefix="table-register") as threads:
        exists = threads.map(lambda path: io.new_input(path).exists(), paths)
        missing = next((path for path, there in zip(paths, exists, strict=True) if not there), None)
    return None if missing is None else f"the file {missing} is missing"
