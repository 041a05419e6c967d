"""Tables are found, created, opened and dropped on every catalog."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pyarrow as pa
import pytest
from pyarrow.fs import FileSelector
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO
from tests.conformance.catalogs.conftest import MEMORY_BYTES, append, messages, offsets_in

from icestream.model.errors import IncompatibleTableError, InvalidRequestError
from icestream.model.messages import STREAM_SCHEMA
from icestream.model.names import TopicName
from icestream.table import Ledger, Tables, TableSpec


def test_a_table_is_made_with_its_namespace_at_first_use(tables: Tables, spec: TableSpec) -> None:
    assert tables.find(spec.topic) is None
    made = tables.open(spec)
    assert made.ledger == Ledger("stream-1", 1, 0)
    assert made.snapshot_id is None
    found = tables.find(spec.topic)
    assert found is not None
    assert found.iceberg.metadata.table_uuid == made.iceberg.metadata.table_uuid
    assert found.stream_schema.equals(STREAM_SCHEMA)


def test_opening_again_gives_the_same_table(tables: Tables, other_tables: Tables, spec: TableSpec) -> None:
    made = append(tables.open(spec), 0, 10)
    found = other_tables.open(spec)
    assert found.ledger == made.ledger == Ledger("stream-1", 1, 10)
    assert found.snapshot_id == made.snapshot_id
    assert found.location == made.location


def test_those_who_make_a_table_at_once_get_the_same_one(tables: Tables, other_tables: Tables, spec: TableSpec) -> None:
    with ThreadPoolExecutor(6) as threads:
        opened = list(threads.map(lambda number: (tables, other_tables)[number % 2].open(spec), range(6)))
    assert len({state.iceberg.metadata.table_uuid for state in opened}) == 1


def test_rows_come_back_as_they_were_written(tables: Tables, spec: TableSpec) -> None:
    state = append(append(tables.open(spec), 0, 100), 100, 150)
    rows = state.iceberg.scan().to_arrow().sort_by("offset").cast(STREAM_SCHEMA)
    assert rows.equals(pa.Table.from_batches([messages(0, 150)]))


def test_partitioned_rows_come_back_too(tables: Tables, spec: TableSpec) -> None:
    state = tables.open(replace(spec, partition_by=("bucket(4, key)", "day(publish_time)")))
    files = state.writer().write([messages(0, 50), messages(50, 60)], max_memory_bytes=MEMORY_BYTES)
    assert len(files) > 1
    state = state.commit(files, start=0, end=60, epoch=1)
    assert offsets_in(state) == list(range(60))
    assert offsets_in(append(state, 60, 61)) == list(range(61))


def test_the_table_of_another_stream_is_refused(tables: Tables, spec: TableSpec) -> None:
    append(tables.open(spec), 0, 10)
    with pytest.raises(IncompatibleTableError, match="belongs to the stream stream-1, the topic is stream-2") as caught:
        tables.open(replace(spec, stream_id="stream-2"))
    assert not caught.value.retryable


def test_a_table_that_is_not_of_icestream_is_refused(tables: Tables, spec: TableSpec) -> None:
    tables.catalog.create_namespace((spec.topic.namespace,))
    tables.catalog.create_table(tuple(spec.topic), pa.schema([("offset", pa.int64())]))
    with pytest.raises(IncompatibleTableError, match="icestream did not create it"):
        tables.open(spec)


def test_a_column_that_the_topic_gained_is_added(tables: Tables, other_tables: Tables, spec: TableSpec) -> None:
    before = append(tables.open(spec), 0, 3)
    wider = STREAM_SCHEMA.append(pa.field("score", pa.float64()))
    state = other_tables.open(replace(spec, schema=wider))
    batch = messages(3, 5).append_column("score", pa.array([0.5, None]))
    files = state.writer().write([batch], max_memory_bytes=MEMORY_BYTES)
    state = state.commit(files, start=3, end=5, epoch=1)
    rows = state.iceberg.scan().to_arrow().sort_by("offset")
    assert rows.column("score").to_pylist() == [None, None, None, 0.5, None]
    assert before.refresh().ledger.committed_offset == 5


def test_a_writer_with_the_older_columns_goes_on(tables: Tables, spec: TableSpec) -> None:
    tables.open(replace(spec, schema=STREAM_SCHEMA.append(pa.field("score", pa.float64()))))
    state = append(tables.open(spec), 0, 3)
    assert state.iceberg.scan().to_arrow().column("score").to_pylist() == [None, None, None]


def test_only_its_own_stream_can_drop_a_table(tables: Tables, spec: TableSpec) -> None:
    state = tables.open(spec)
    assert not tables.drop(spec.topic, "stream-2")
    assert tables.find(spec.topic) is not None
    assert tables.drop(spec.topic, "stream-1")
    assert tables.find(spec.topic) is None
    assert not tables.drop(spec.topic, "stream-1")
    with pytest.raises(IncompatibleTableError, match="was dropped"):
        state.refresh()


def test_the_files_of_a_dropped_table_are_removed(tables: Tables, spec: TableSpec) -> None:
    state = tables.open(spec)
    for start in range(0, 40, 10):
        state = append(state, start, start + 10)
    io, location = state.iceberg.io, state.location
    assert _files_below(io, location)
    tables.drop(spec.topic, "stream-1")
    assert _files_below(io, location) == []


def _files_below(io: FileIO, location: str) -> list[str]:
    assert isinstance(io, PyArrowFileIO)
    scheme, netloc, path = io.parse_location(location, io.properties)
    selector = FileSelector(path, recursive=True, allow_not_found=True)
    return [found.path for found in io.fs_by_scheme(scheme, netloc).get_file_info(selector) if found.is_file]


def test_a_topic_made_again_gets_a_table_of_its_own(tables: Tables, spec: TableSpec) -> None:
    old = append(tables.open(spec), 0, 10)
    tables.drop(spec.topic, "stream-1")
    new = tables.open(replace(spec, stream_id="stream-2"))
    assert new.ledger == Ledger("stream-2", 1, 0)
    assert offsets_in(append(new, 0, 4)) == [0, 1, 2, 3]
    with pytest.raises(IncompatibleTableError, match="created again"):
        old.refresh()


def test_names_with_dots_and_dashes_are_tables_too(tables: Tables, topic: TopicName, spec: TableSpec) -> None:
    name = TopicName(f"{topic.namespace}.a-b", "clicks.v1-x")
    if tables.catalog.properties["type"] == "glue":
        with pytest.raises(InvalidRequestError, match="no namespaces with a dot"):
            tables.open(replace(spec, topic=name))
        name = TopicName(topic.namespace, name.name)
    state = append(tables.open(replace(spec, topic=name)), 0, 3)
    found = tables.find(name)
    assert found is not None
    assert found.ledger == state.ledger
    assert tables.drop(name, "stream-1")
