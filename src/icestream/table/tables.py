"""The tables of a catalog: `Tables` finds, creates, opens and drops them; `TopicTable` is a loaded state of one.

A process has one `Tables`, shared by its threads. It keeps the catalog and its connections.

Opening a table adds the columns that the topic has gained, as nullable columns: older files read as null there. Any
other difference (a type, a column that must not be null) makes the table incompatible, and it is refused before
anything is written.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from threading import Lock
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    ResolveError,
    TableAlreadyExistsError,
)
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.manifest import ManifestFile
from pyiceberg.schema import Schema, promote
from pyiceberg.table import Table
from pyiceberg.types import IcebergType, ListType, MapType, StructType

from icestream.config import Settings, TableSettings
from icestream.model.errors import CommitConflictError, IcestreamError, IncompatibleTableError, InvalidRequestError
from icestream.model.filters import Filter
from icestream.model.messages import EnvelopeNames, decode_schema, encode_schema
from icestream.model.names import TopicName, copy_of, is_copy, topic_of_table
from icestream.model.offsets import NO_OFFSETS, OffsetRanges
from icestream.model.quarantine import Quarantined, quarantined_ranges
from icestream.table.catalogs import (
    catalog_errors,
    catalog_properties,
    catalog_url,
    load_library,
    open_catalog,
    warehouse_location,
)
from icestream.table.commit import FORMAT_VERSION, check_plan, commit_files
from icestream.table.deleting_snapshots import missing_rows_error
from icestream.table.dropped_files import remove_table_files
from icestream.table.files import HiddenUntilCompleteFileIO
from icestream.table.history import (
    AddedFile,
    added_files,
    committed_offset_of,
    first_offset,
    offset_at_time,
    snapshot_of_tag,
)
from icestream.table.ledger import (
    LOST_RANGES,
    REMOVED_RANGES,
    STREAM_ID,
    Ledger,
    read_ledger,
    read_quarantine,
    read_ranges,
    read_removals,
)
from icestream.table.parquet_copy.layout import (
    DATA_PATH,
    check_locations,
    copy_partition,
    copy_properties,
    is_copy_layout,
    warn_if_moved,
)
from icestream.table.parquet_copy.orphans import remove_own_files
from icestream.table.partitions import partition_spec, sort_order
from icestream.table.planning import FilePlan, ManifestIndex, PlannedFile
from icestream.table.properties import SORT_BY, STREAM_SCHEMA, new_table_properties
from icestream.table.removed_rows import RemovedRows, accept_deletes
from icestream.table.scan import NO_END, ReadLimits, ordered_scan
from icestream.table.schema import Columns, iceberg_schema
from icestream.table.unused_files import UnusedFileRemover
from icestream.table.writer import TableWriter, WrittenFile


@dataclass(frozen=True)
class TopicTable:
    """A loaded state of a topic's table.

    A state never changes: a commit or a refresh returns a new one. A commit that was planned on an old state is
    refused, by `commit.check_plan` or by the catalog. So no number of stale writers can put a message into the table
    twice.
    """

    name: TopicName
    iceberg: Table
    """The Iceberg library's table; for this package and for tests."""
    settings: TableSettings
    unused_files: UnusedFileRemover
    schema: pa.Schema | None = None
    """The stream schema it was opened with; None for the schema in the table's properties."""
    known_manifests: tuple[ManifestFile, ...] | None = None
    manifest_index: ManifestIndex = field(default_factory=ManifestIndex)

    @cached_property
    def ledger(self) -> Ledger:
        return read_ledger(self.iceberg.metadata, place=str(self.name))

    @cached_property
    def lost_ranges(self) -> OffsetRanges:
        """Offsets below the ledger without a row: their messages were given up or are in quarantine."""
        return read_ranges(self.properties, LOST_RANGES, place=str(self.name))

    @cached_property
    def removed_ranges(self) -> OffsetRanges:
        """Offsets below the ledger without a row: another engine deleted it, and that was accepted."""
        return read_ranges(self.properties, REMOVED_RANGES, place=str(self.name))

    @cached_property
    def absent_ranges(self) -> OffsetRanges:
        """All offsets below the ledger that need not have a row."""
        return self.lost_ranges | self.removed_ranges

    @property
    def removals(self) -> list[dict[str, Any]]:
        """Who deleted the rows of `removed_ranges`, the newest last."""
        return read_removals(self.properties)

    def missing_rows_error(self, what: str) -> IcestreamError:
        """Return the error for rows that should be here: another engine deleted them, or they are damaged."""
        return missing_rows_error(self, what)

    def accept_deletes(self, *, dry_run: bool = False, by_unknown: bool = False) -> RemovedRows:
        """Accept that other engines deleted rows; see `removed_rows`."""
        return accept_deletes(self, dry_run=dry_run, by_unknown=by_unknown)

    @cached_property
    def quarantined(self) -> tuple[Quarantined, ...]:
        """The frames in quarantine, by offset. The other `lost_ranges` were given up."""
        return read_quarantine(self.properties, place=str(self.name))

    @property
    def snapshot_id(self) -> int | None:
        return self.iceberg.metadata.current_snapshot_id

    @property
    def properties(self) -> Mapping[str, str]:
        return self.iceberg.metadata.properties

    @property
    def location(self) -> str:
        return self.iceberg.metadata.location

    @cached_property
    def stream_schema(self) -> pa.Schema:
        """The columns that readers get and that the writer takes."""
        if self.schema is not None:
            return self.schema
        return decode_schema(self.properties[STREAM_SCHEMA])

    @property
    def offset_column(self) -> str:
        return EnvelopeNames.of(self.stream_schema).offset

    @cached_property
    def offset_id(self) -> int:
        """The field id of the offset's column, which manifests use."""
        return self.iceberg.schema().find_field(self.offset_column).field_id

    @cached_property
    def manifests(self) -> tuple[ManifestFile, ...]:
        """The manifests of the current snapshot."""
        if self.known_manifests is not None:
            return self.known_manifests
        snapshot = self.iceberg.metadata.current_snapshot()
        return tuple(snapshot.manifests(self.iceberg.io)) if snapshot else ()

    @property
    def sort_by(self) -> tuple[str, ...]:
        """The columns that row groups are sorted by; empty if rows are in offset order."""
        found = self.properties.get(SORT_BY)
        return tuple(found.split("\n")) if found else ()

    @property
    def is_parquet_copy(self) -> bool:
        """Whether the table is a Parquet copy, whose files are also read by their folders."""
        return is_copy_layout(self.properties)

    def writer(self) -> TableWriter:
        metadata = self.iceberg.metadata
        return TableWriter(
            table_uuid=metadata.table_uuid,
            location=metadata.location,
            properties=dict(metadata.properties),
            io=HiddenUntilCompleteFileIO(self.iceberg.io.properties) if self.is_parquet_copy else self.iceberg.io,
            schema=metadata.schema(),
            spec=metadata.spec(),
            sort_order_id=metadata.default_sort_order_id,
            columns=Columns.of(self.stream_schema),
            sort_by=self.sort_by,
            row_group_bytes=self.settings.row_group_bytes,
        )

    def commit(
        self,
        files: Sequence[WrittenFile],
        *,
        start: int,
        end: int,
        epoch: int,
        lost: OffsetRanges = NO_OFFSETS,
        quarantined: Sequence[Quarantined] = (),
    ) -> "TopicTable":
        """Append the messages from `start` to below `end`, and return the new state. `commit` documents the steps.

        `lost` are messages that a repair of the log gave up. `quarantined` are messages in quarantine, each with a
        durable file of its own. The files hold neither.
        """
        lost |= quarantined_ranges(quarantined)
        check_plan(self, files, start, end, epoch, lost)
        return commit_files(self, files, Ledger(self.ledger.stream_id, epoch, end), lost, quarantined)

    def fence(self) -> "TopicTable":
        """Commit a snapshot of the same rows, so that the catalog refuses every commit planned on an older state."""
        return commit_files(self, (), self.ledger)

    def scan(
        self,
        start: int = 0,
        end: int | None = None,
        columns: Sequence[str] | None = None,
        *,
        where: Filter | None = None,
        limits: ReadLimits | None = None,
    ) -> Generator[pa.RecordBatch, None, None]:
        """Yield the rows with `start <= offset < end`, below the ledger, in offset order, each once.

        Raises `SnapshotExpiredError` if this state is so old that its files were removed meanwhile. A caller that does
        not read to the end closes the iterator, which closes the files.
        """
        below = self.ledger.committed_offset if end is None else min(end, self.ledger.committed_offset)
        return ordered_scan(self, start, below, columns, where=where, limits=limits or ReadLimits())

    def first_offset(self) -> int | None:
        """Return the lowest offset in the table; None if it is empty."""
        return first_offset(self)

    def offset_at_time(self, time_us: int, first: int = 0) -> int:
        """Return the first offset from `first` on published at or after a time; the committed offset if none is."""
        return offset_at_time(self, time_us, first)

    def offset_of_snapshot(self, snapshot_id: int) -> int:
        """Return the offset after the last message of a snapshot.

        Raises `InvalidRequestError` if the table does not have the snapshot, or no longer.
        """
        return self._in_newest(lambda table: committed_offset_of(table, snapshot_id))

    def offset_of_tag(self, name: str) -> int:
        """Return the offset after the last message of the snapshot that a tag names."""
        return self._in_newest(lambda table: committed_offset_of(table, snapshot_of_tag(table, name)))

    def added_files(self, after_snapshot: int | None, to_snapshot: int | None = None) -> list[AddedFile]:
        """Return the data files appended after one snapshot and up to another, or to this state; see `history`."""
        return added_files(self, after_snapshot, to_snapshot)

    def tag(self, name: str, snapshot_id: int | None = None) -> "TopicTable":
        """Tag a snapshot (by default this state's), which keeps it until the tag is dropped; return the new state."""
        chosen = self.snapshot_id if snapshot_id is None else snapshot_id
        if chosen is None:
            raise InvalidRequestError("the table has no snapshot yet", operation="tag", place=str(self.name))
        with catalog_errors("tag", str(self.name)):
            # On a refreshed copy: the library changes the table object in place.
            self.refresh().iceberg.manage_snapshots().create_tag(chosen, name).commit()
        return self.refresh()

    def holds(self, file: PlannedFile) -> bool:
        """Return whether this state still names a data file of an older state."""
        plan = FilePlan(self, max(0, file.first_offset), NO_END if file.last_offset == NO_END else file.last_offset + 1)
        return any(found.path == file.path for found in plan.files())

    def refresh(self) -> "TopicTable":
        """Load the table's present state."""
        with catalog_errors("refresh table", str(self.name)):
            try:
                found = self.iceberg.catalog.load_table(self.iceberg.name())
            except NoSuchTableError:
                found = None
        if found is None or found.metadata.table_uuid != self.iceberg.metadata.table_uuid:
            raise IncompatibleTableError(
                "the table was dropped" + (" and created again" if found else ""),
                operation="refresh table",
                place=str(self.name),
                remedy="open the topic's table again",
            )
        return self.with_table(found)

    def with_table(self, table: Table, manifests: tuple[ManifestFile, ...] | None = None) -> "TopicTable":
        """Return another state of the same table."""
        return replace(self, iceberg=table, known_manifests=manifests)

    def _in_newest(self, find: Callable[["TopicTable"], int]) -> int:
        """Try this state, then the table's present state: the snapshot or tag may be newer."""
        try:
            return find(self)
        except InvalidRequestError:
            return find(self.refresh())


@dataclass(frozen=True)
class TableSpec:
    """What a topic requires of its table."""

    topic: TopicName
    stream_id: str
    epoch: int
    schema: pa.Schema
    """The columns that readers of the topic get: the envelope and the topic's columns."""
    partition_by: tuple[str, ...] = ()
    """Such as `day(publish_time)` or `bucket(16, key)`; see `partitions`."""
    sort_by: tuple[str, ...] = ()
    """Columns that each row group is sorted by; the offset when there are none."""


_TRIES = 4


def add_missing_columns(table: Table, spec: TableSpec) -> Table:
    """Add the columns of `spec` that the table lacks."""
    columns = Columns.of(spec.schema)
    wanted = iceberg_schema(columns)
    for _ in range(_TRIES):
        _check(table, wanted, spec)
        if set(wanted.column_names) <= set(table.schema().column_names):
            return table
        with suppress(CommitFailedException), table.transaction() as change:
            with change.update_schema() as update:
                update.union_by_name(wanted)
            change.set_properties({STREAM_SCHEMA: encode_schema(spec.schema)})
        table = table.refresh()
    raise CommitConflictError(
        "other commits came first each time that a column was to be added",
        operation="open table",
        place=str(spec.topic),
    )


def _check(table: Table, wanted: Schema, spec: TableSpec) -> None:
    problems = []
    if table.metadata.format_version != FORMAT_VERSION:
        problems.append(f"has format version {table.metadata.format_version}, not {FORMAT_VERSION}")
    problems += _differences(wanted.as_struct(), table.schema().as_struct(), "")
    given = {field.name for field in wanted.fields}
    problems += [
        f"needs a value for column {field.name!r}, which the topic does not have"
        for field in table.schema().fields
        if field.required and field.name not in given
    ]
    if problems:
        raise IncompatibleTableError(
            f"the table {'; it '.join(problems)}",
            operation="open table",
            place=str(spec.topic),
            remedy="rename the table, or give the topic another name or schema",
        )


def _differences(wanted: StructType, found: StructType, path: str) -> list[str]:
    by_name = {one.name: one for one in found.fields}
    problems = []
    for column in wanted.fields:
        other = by_name.get(column.name)
        if other is None:
            if column.required:
                problems.append(f"lacks the column {path}{column.name}, which is never null")
        elif other.required and not column.required:
            problems.append(f"takes no null in column {path}{column.name}")
        else:
            problems += _compare(column.field_type, other.field_type, f"{path}{column.name}")
    return problems


def _compare(wanted: IcebergType, found: IcebergType, name: str) -> list[str]:
    match wanted, found:
        case StructType(), StructType():
            return _differences(wanted, found, f"{name}.")
        case ListType(), ListType():
            return _compare(wanted.element_type, found.element_type, f"{name}.element")
        case MapType(), MapType():
            keys = _compare(wanted.key_type, found.key_type, f"{name}.key")
            return keys + _compare(wanted.value_type, found.value_type, f"{name}.value")
    if wanted == found:
        return []
    try:
        promote(wanted, found)  # the column may have been widened: then the topic's values are read as the wider type
    except ResolveError:
        return [f"has {found} in column {name}, the topic {wanted}"]
    return []


class Tables:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = Lock()
        self._manifest_index = ManifestIndex()
        self._unused_files = UnusedFileRemover(settings.table.unused_file_grace_seconds)

    def load(self) -> None:
        """Import what opening the catalog needs. The catalog is not contacted."""
        load_library(self._settings)

    @cached_property
    def _opened(self) -> Catalog:
        return open_catalog(self._settings)

    @property
    def catalog(self) -> Catalog:
        """The catalog, opened at first use: a broker can start and publish while the catalog is down."""
        with self._lock:
            return self._opened

    def open(self, spec: TableSpec) -> TopicTable:
        """Open the topic's table; create it if there is none, and add the columns that the topic has gained.

        Raises `IncompatibleTableError` if the table belongs to another stream or cannot hold this one.
        """
        with catalog_errors("open table", self._where(spec.topic)):
            found = self._load(spec.topic) or self._create(spec)
            if is_copy(spec.topic):
                self._check_copy(spec.topic, found.metadata.properties)
            state = self._state(spec.topic, found)
            if state.ledger.stream_id != spec.stream_id:
                raise IncompatibleTableError(
                    f"the table belongs to the stream {state.ledger.stream_id}, the topic is {spec.stream_id}",
                    operation="open table",
                    place=str(spec.topic),
                    remedy="drop or rename the table, which an earlier topic of this name left behind",
                )
            return self._state(spec.topic, add_missing_columns(found, spec), spec.schema)

    def find(self, topic: TopicName) -> TopicTable | None:
        with catalog_errors("find table", self._where(topic)):
            found = self._load(topic)
            return None if found is None else self._state(topic, found)

    def drop(self, topic: TopicName, stream_id: str) -> bool:
        """Drop the table and remove its files, if it belongs to that stream; return whether it did.

        Files that the store does not delete are logged.
        """
        with catalog_errors("drop table", self._where(topic)):
            found = self._load(topic)
            if found is None or found.metadata.properties.get(STREAM_ID) != stream_id:
                return False
            with suppress(NoSuchTableError):  # another process dropped it first
                self.catalog.drop_table(self.identifier(topic))
        if remove_table_files(found) and is_copy(topic):
            remove_own_files(self._state(topic, found))
        return True

    def default_locations(self, topic: TopicName) -> list[str]:
        """Return the folders in which catalogs put a table: most in the first, Hive's and Glue's in the second."""
        warehouse = warehouse_location(self._settings)
        if warehouse is None or "://" not in warehouse:
            raise InvalidRequestError(
                "the settings do not say where the tables' files are",
                operation="find table files",
                place=str(topic),
                remedy="set catalog.warehouse to a URI, or name the table's folder",
            )
        return [
            f"{warehouse.rstrip('/')}/{folder}/{topic.name}" for folder in (topic.namespace, f"{topic.namespace}.db")
        ]

    def file_io(self, location: str) -> FileIO:
        """Return access to the files of tables. The catalog is not opened."""
        return load_file_io(catalog_properties(self._settings), location)

    def close(self) -> None:
        self._unused_files.close()
        if "_opened" in vars(self):
            self._opened.close()

    def _state(self, topic: TopicName, table: Table, schema: pa.Schema | None = None) -> TopicTable:
        return TopicTable(
            topic, table, self._settings.table, self._unused_files, schema, manifest_index=self._manifest_index
        )

    def _load(self, topic: TopicName) -> Table | None:
        try:
            return self.catalog.load_table(self.identifier(topic))
        except (NoSuchTableError, NoSuchNamespaceError):
            return None

    def _create(self, spec: TableSpec) -> Table:
        columns = Columns.of(spec.schema)
        schema = iceberg_schema(columns)
        identifier = self.identifier(spec.topic)
        makes_copy = is_copy(spec.topic)
        by = copy_partition(columns.envelope.publish_time) if makes_copy else spec.partition_by
        ledger = Ledger(spec.stream_id, spec.epoch, 0)
        properties = new_table_properties(self._settings.table, columns, ledger, spec.sort_by)
        if makes_copy:
            properties |= copy_properties(self._settings, spec.topic)
            self._check_copy(spec.topic, properties)
        self.create_namespace(identifier[:-1])
        try:
            made = self.catalog.create_table(
                identifier,
                schema,
                partition_spec=partition_spec(by, schema),
                sort_order=sort_order(spec.sort_by, columns.offset, schema),
                properties=properties,
            )
        except TableAlreadyExistsError:  # another process created it first
            return self.catalog.load_table(identifier)
        if not makes_copy:
            self._check_new(spec.topic, made)
        return made

    def _check_copy(self, topic: TopicName, properties: Mapping[str, str]) -> None:
        """Check the folders of a copy before anything is written. Only the catalog knows the topic's own folder."""
        if (data_path := properties.get(DATA_PATH)) is None:
            return
        if (own := self._load(topic_of_table(topic))) is not None:
            check_locations(topic, data_path, own.metadata.location)
        warn_if_moved(self._settings, topic, data_path)

    def _check_new(self, topic: TopicName, made: Table) -> None:
        """Drop a new table that the catalog put into the copy's folders: its clean-up would remove the copy."""
        copy = self._load(copy_of(topic))
        if copy is None or (data_path := copy.metadata.properties.get(DATA_PATH)) is None:
            return
        try:
            check_locations(topic, data_path, made.metadata.location)
        except InvalidRequestError:
            with suppress(NoSuchTableError):
                self.catalog.drop_table(self.identifier(topic))
            raise

    def identifier(self, topic: TopicName) -> tuple[str, ...]:
        """Return the table's name as the catalog takes it."""
        if self._settings.catalog.type == "glue" and "." in topic.namespace:
            raise InvalidRequestError(
                "a Glue catalog has no namespaces with a dot",
                operation="table name",
                place=str(topic),
                remedy="give the topic a namespace without dots",
            )
        return tuple(topic)

    def create_namespace(self, namespace: tuple[str, ...]) -> None:
        """Create the namespace. Another process may do so at the same time, which some catalogs report as any error."""
        try:
            self.catalog.create_namespace(namespace)
        except NamespaceAlreadyExistsError:
            return
        except Exception:
            if not self.catalog.namespace_exists(namespace):
                raise

    def _where(self, topic: TopicName) -> str:
        return f"{topic} in {catalog_url(self._settings)}"
