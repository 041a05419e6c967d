"""The tables of a catalog: found, made, opened for a topic, dropped.

One `Tables` serves all threads of a process, and keeps the catalog and its connections.
"""

from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from threading import Lock

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.table import Table

from icestream.config import Settings
from icestream.model.errors import IncompatibleTableError, InvalidRequestError
from icestream.model.formats import copied, copy_of, is_copy
from icestream.model.names import TopicName
from icestream.table.catalogs import load_library, open_catalog, place, reporting
from icestream.table.evolution import adapt
from icestream.table.hive import DATA_PATH, check_apart, hive_partition, hive_properties, note_other_place
from icestream.table.ledger import STREAM_ID, Ledger
from icestream.table.leftovers import remove_all
from icestream.table.manifest_index import ManifestIndex
from icestream.table.partitions import partition_spec, sort_order
from icestream.table.properties import new_table_properties
from icestream.table.purge import purge
from icestream.table.schema import Columns, iceberg_schema
from icestream.table.spec import TableSpec
from icestream.table.topic_table import TopicTable
from icestream.table.trash import Trash


class Tables:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = Lock()
        self._manifest_index = ManifestIndex()
        self._trash = Trash(settings.table.unused_file_grace_seconds)

    def load(self) -> None:
        """Load what opening the catalog needs; the catalog itself is left alone."""
        load_library(self._settings)

    @cached_property
    def _opened(self) -> Catalog:
        return open_catalog(self._settings)

    @property
    def catalog(self) -> Catalog:
        """The catalog, opened at first use: a broker can start, and publish, while it is away."""
        with self._lock:
            return self._opened

    def open(self, spec: TableSpec) -> TopicTable:
        """The topic's table; made if there is none, given the columns that the topic has gained.

        Raises `IncompatibleTableError` if the table is another stream's or cannot hold this one.
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
                    remedy="drop or rename the table that an earlier topic of this name has left",
                )
            return self._state(spec.topic, adapt(found, spec), spec.schema)

    def find(self, topic: TopicName) -> TopicTable | None:
        with reporting("find table", self._where(topic)):
            found = self._load(topic)
            return None if found is None else self._state(topic, found)

    def drop(self, topic: TopicName, stream_id: str) -> bool:
        """Drop the table if it is that stream's, and remove its files, as far as the store lets go of them.

        Whether it was that stream's.
        """
        with reporting("drop table", self._where(topic)):
            found = self._load(topic)
            if found is None or found.metadata.properties.get(STREAM_ID) != stream_id:
                return False
            with suppress(NoSuchTableError):  # somebody else was faster
                self.catalog.drop_table(self._identifier(topic))
        if purge(found) and is_copy(topic):
            remove_all(self._state(topic, found))
        return True

    def close(self) -> None:
        self._trash.close()
        if "_opened" in vars(self):
            self._opened.close()

    def _state(self, topic: TopicName, table: Table, schema: pa.Schema | None = None) -> TopicTable:
        return TopicTable(topic, table, self._settings.table, self._trash, schema, manifest_index=self._manifest_index)

    def _load(self, topic: TopicName) -> Table | None:
        try:
            return self.catalog.load_table(self._identifier(topic))
        except (NoSuchTableError, NoSuchNamespaceError):
            return None

    def _create(self, spec: TableSpec) -> Table:
        columns = Columns.of(spec.schema)
        schema = iceberg_schema(columns)
        identifier = self._identifier(spec.topic)
        plain = is_copy(spec.topic)
        by = hive_partition(spec.schema.names) if plain else spec.partition_by
        ledger = Ledger(spec.stream_id, spec.epoch, 0)
        properties = new_table_properties(self._settings.table, columns, ledger, spec.sort_by)
        if plain:
            properties |= hive_properties(self._settings, spec.topic)
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
        except TableAlreadyExistsError:  # two made it at once: the other one's is the table
            return self.catalog.load_table(identifier)
        if not plain:
            self._check_new(spec.topic, made)
        return made

    def _check_copy(self, topic: TopicName, properties: Mapping[str, str]) -> None:
        """Before anything is written to a copy; only the catalog knows where the topic's own table is."""
        if (data_path := properties.get(DATA_PATH)) is None:
            return
        if (own := self._load(copied(topic))) is not None:
            check_apart(topic, data_path, own.metadata.location)
        note_other_place(self._settings, topic, data_path)

    def _check_new(self, topic: TopicName, made: Table) -> None:
        """A table that the catalog has put where the plain files are does not stay: cleaning it would remove them."""
        copy = self._load(copy_of(topic))
        if copy is None or (data_path := copy.metadata.properties.get(DATA_PATH)) is None:
            return
        try:
            check_apart(topic, data_path, made.metadata.location)
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
        """Make the namespace, unless somebody else does at the same moment; not every catalog has a word for that."""
        try:
            self.catalog.create_namespace(namespace)
        except NamespaceAlreadyExistsError:
            return
        except Exception:
            if not self.catalog.namespace_exists(namespace):
                raise

    def _where(self, topic: TopicName) -> str:
        return f"{topic} in {place(self._settings)}"
