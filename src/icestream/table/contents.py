"""What a table consists of: data files with their offsets, snapshots, manifests. Read from metadata alone."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.table import Table
from pyiceberg.table.snapshots import ancestors_of

from icestream.model.errors import InvalidNameError
from icestream.model.names import TopicName
from icestream.table.catalogs import catalog_errors
from icestream.table.ledger import QUARANTINE
from icestream.table.planning import planned
from icestream.table.tables import Tables, TopicTable

_TARGET = "write.target-file-size-bytes"
_DEFAULT_TARGET_BYTES = 512 * 1024 * 1024


@dataclass(frozen=True)
class StoredFile:
    """A data file as the table's manifests describe it."""

    path: str
    partition: tuple[object, ...]
    """Spec id and values, which are equal for files of the same partition."""
    nbytes: int
    rows: int
    first_offset: int
    last_offset: int
    """-1 if the manifest does not say."""


@dataclass(frozen=True)
class StoredSnapshot:
    snapshot_id: int
    time_ms: int
    age_rank: int | None
    """Its age along the main branch, 0 for the newest; None if it is not on the main branch."""
    is_named: bool
    """Whether a branch (main included) or a tag points to it."""


@dataclass(frozen=True)
class TableContents:
    files: tuple[StoredFile, ...]
    """In the order of their first offsets."""
    delete_files: int
    snapshots: tuple[StoredSnapshot, ...]
    manifests: int
    target_file_bytes: int
    is_partitioned: bool
    sort_by: tuple[str, ...]
    offset_column: str

    @property
    def nbytes(self) -> int:
        return sum(file.nbytes for file in self.files)

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    def snapshots_to_expire(self, older_than_ms: int, keep: int) -> list[StoredSnapshot]:
        """Return the old snapshots that no branch or tag names, except the newest `keep` of the main branch."""
        return [
            snapshot
            for snapshot in self.snapshots
            if not snapshot.is_named
            and snapshot.time_ms < older_than_ms
            and (snapshot.age_rank is None or snapshot.age_rank >= keep)
        ]


def read_contents(table: TopicTable) -> TableContents:
    """Read the contents of a loaded state."""
    with catalog_errors("read table metadata", str(table.name)):
        return _read(table)


def _read(topic_table: TopicTable) -> TableContents:
    table, metadata = topic_table.iceberg, topic_table.iceberg.metadata
    files: list[StoredFile] = []
    deletes = 0
    for manifest in topic_table.manifests:
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            if entry.data_file.content is DataFileContent.DATA:
                files.append(_file(entry.data_file, topic_table.offset_id))
            else:
                deletes += 1
    return TableContents(
        files=tuple(sorted(files, key=lambda file: (file.first_offset, file.last_offset))),
        delete_files=deletes,
        snapshots=tuple(_snapshots(table)),
        manifests=len(topic_table.manifests),
        target_file_bytes=int(metadata.properties.get(_TARGET, _DEFAULT_TARGET_BYTES)),
        is_partitioned=not metadata.spec().is_unpartitioned(),
        sort_by=topic_table.sort_by,
        offset_column=topic_table.offset_column,
    )


def _file(file: DataFile, offset_id: int) -> StoredFile:
    offsets = planned(file, offset_id)
    return StoredFile(
        path=file.file_path,
        partition=(file.spec_id, *(file.partition[index] for index in range(len(file.partition)))),
        nbytes=file.file_size_in_bytes,
        rows=file.record_count,
        first_offset=offsets.first_offset,
        last_offset=offsets.known_last_offset,
    )


def _snapshots(table: Table) -> Iterator[StoredSnapshot]:
    metadata = table.metadata
    line = ancestors_of(metadata.current_snapshot(), metadata)
    ranks = {snapshot.snapshot_id: rank for rank, snapshot in enumerate(line)}
    named = {ref.snapshot_id for ref in metadata.refs.values()}
    for snapshot in metadata.snapshots:
        id_ = snapshot.snapshot_id
        yield StoredSnapshot(id_, snapshot.timestamp_ms, ranks.get(id_), id_ in named)


def topics_with_tables(tables: Tables) -> list[TopicName]:
    """Return the tables whose names a topic can have. Their ledger tells whether they belong to a topic."""
    with catalog_errors("list tables", "the catalog"):
        return sorted(_names(tables.catalog))


def quarantining_topics(tables: Tables) -> list[TopicName]:
    """Return the tables with quarantined frames. Loads every table of the catalog."""
    found: list[TopicName] = []
    for name in topics_with_tables(tables):
        with catalog_errors("list tables", "the catalog"), suppress(NoSuchTableError):  # dropped meanwhile
            if QUARANTINE in tables.catalog.load_table(tuple(name)).metadata.properties:
                found.append(name)
    return found


def _names(catalog: Catalog, parent: tuple[str, ...] = ()) -> Iterator[TopicName]:
    """Yield the names, with nested namespaces: some catalogs split a namespace at a dot."""
    for namespace in catalog.list_namespaces(parent):
        try:
            found = catalog.list_tables(namespace)
            yield from _names(catalog, namespace)
        except NoSuchNamespaceError:  # dropped meanwhile
            continue
        for identifier in found:
            try:
                yield TopicName.parse(f"{'.'.join(identifier[:-1])}/{identifier[-1]}")
            except InvalidNameError:
                continue
