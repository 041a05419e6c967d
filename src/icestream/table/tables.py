"""Finds, creates, opens and drops the tables of a catalog.

A process has one `Tables`, shared by its threads. It keeps the catalog and its connections.

Opening a table adds the columns that the topic has gained, as nullable columns: older files read as null there. Any
other difference (a type, a column that must not be null) makes the table incompatible, and it is refused before
anything is written.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from threading import Lock

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
from pyiceberg.schema import Schema, promote
from pyiceberg.table import Table
from pyiceberg.types import IcebergType, ListType, MapType, StructType

from icestream.config import Settings
from icestream.model.errors import CommitConflictError, IncompatibleTableError, InvalidRequestError
from icestream.model.messages import encode_schema
from icestream.model.names import TopicName, copied, copy_of, is_copy
from icestream.table.catalogs import load_library, open_catalog, place, reporting
from icestream.table.commit import FORMAT_VERSION
from icestream.table.dropped_files import remove_table_files
from icestream.table.ledger import STREAM_ID, Ledger
from icestream.table.parquet_copy.layout import (
    DATA_PATH,
    check_locations,
    copy_partition,
    copy_properties,
    warn_if_moved,
)
from icestream.table.parquet_copy.leftovers import remove_own_files
from icestream.table.partitions import partition_spec, sort_order
from icestream.table.planning import ManifestIndex
from icestream.table.properties import STREAM_SCHEMA, new_table_properties
from icestream.table.schema import Columns, iceberg_schema
from icestream.table.topic_table import TopicTable
from icestream.table.unused_files import UnusedFileRemover


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
    by_name = {field.name: field for field in found.fields}
    problems = []
    for field in wanted.fields:
        other = by_name.get(field.name)
        if other is None:
            if field.required:
                problems.append(f"lacks the column {path}{field.name}, which is never null")
        elif other.required and not field.required:
            problems.append(f"takes no null in column {path}{field.name}")
        else:
            problems += _compare(field.field_type, other.field_type, f"{path}{field.name}")
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
        with reporting("open table", self._where(spec.topic)):
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
        with reporting("find table", self._where(topic)):
            found = self._load(topic)
            return None if found is None else self._state(topic, found)

    def drop(self, topic: TopicName, stream_id: str) -> bool:
        """Drop the table and remove its files, if it belongs to that stream; return whether it did.

        Files that the store does not delete are logged.
        """
        with reporting("drop table", self._where(topic)):
            found = self._load(topic)
            if found is None or found.metadata.properties.get(STREAM_ID) != stream_id:
                return False
            with suppress(NoSuchTableError):  # another process dropped it first
                self.catalog.drop_table(self._identifier(topic))
        if remove_table_files(found) and is_copy(topic):
            remove_own_files(self._state(topic, found))
        return True

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
            return self.catalog.load_table(self._identifier(topic))
        except (NoSuchTableError, NoSuchNamespaceError):
            return None

    def _create(self, spec: TableSpec) -> Table:
        columns = Columns.of(spec.schema)
        schema = iceberg_schema(columns)
        identifier = self._identifier(spec.topic)
        makes_copy = is_copy(spec.topic)
        by = copy_partition(columns.envelope.publish_time) if makes_copy else spec.partition_by
        ledger = Ledger(spec.stream_id, spec.epoch, 0)
        properties = new_table_properties(self._settings.table, columns, ledger, spec.sort_by)
        if makes_copy:
            properties |= copy_properties(self._settings, spec.topic)
            self._check_copy(spec.topic, properties)
        self._create_namespace(identifier[:-1])
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
        if (own := self._load(copied(topic))) is not None:
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
                self.catalog.drop_table(self._identifier(topic))
            raise

    def _identifier(self, topic: TopicName) -> tuple[str, ...]:
        if self._settings.catalog.type == "glue" and "." in topic.namespace:
            raise InvalidRequestError(
                "a Glue catalog has no namespaces with a dot",
                operation="table name",
                place=str(topic),
                remedy="give the topic a namespace without dots",
            )
        return tuple(topic)

    def _create_namespace(self, namespace: tuple[str, ...]) -> None:
        """Create the namespace. Another process may do so at the same time, which some catalogs report as any error."""
        try:
            self.catalog.create_namespace(namespace)
        except NamespaceAlreadyExistsError:
            return
        except Exception:
            if not self.catalog.namespace_exists(namespace):
                raise

    def _where(self, topic: TopicName) -> str:
        return f"{topic} in {place(self._settings)}"
