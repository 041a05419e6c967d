"""Tables on the embedded defaults, in a folder of the test's own."""

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.manifest import DataFile

from icestream.config import Settings, TableSettings
from icestream.model.messages import STREAM_SCHEMA
from icestream.model.names import TopicName
from icestream.table import Tables, TableSpec, TopicTable

MEMORY_BYTES = 64 * 1024 * 1024
TOPIC = TopicName("default", "events")

OpenTable = Callable[..., TopicTable]


@pytest.fixture
def open_table(tmp_path: Path) -> Iterator[OpenTable]:
    """Opens the table of a topic, with the settings and the spec that the test asks for."""
    opened: list[Tables] = []

    def make(
        schema: pa.Schema = STREAM_SCHEMA,
        *,
        partition_by: Sequence[str] = (),
        sort_by: Sequence[str] = (),
        stream_id: str = "stream-1",
        topic: TopicName = TOPIC,
        **settings: object,
    ) -> TopicTable:
        tables = Tables(Settings(data_dir=tmp_path, table=TableSettings.model_validate(settings)))
        opened.append(tables)
        return tables.open(TableSpec(topic, stream_id, 1, schema, tuple(partition_by), tuple(sort_by)))

    yield make
    for tables in opened:
        tables.close()


def messages(start: int, end: int, payload: bytes = b"payload") -> pa.RecordBatch:
    offsets = pa.arange(start, end)
    count = end - start
    return pa.RecordBatch.from_arrays(
        [
            offsets,
            pa.array(range(start, end), STREAM_SCHEMA.field("publish_time").type),
            pa.repeat("producer", count),
            offsets,
            pa.array([b"key-%d" % (offset % 3) for offset in range(start, end)], pa.binary()),
            pa.nulls(count, STREAM_SCHEMA.field("attributes").type),
            pa.array([payload] * count, pa.binary()),
        ],
        schema=STREAM_SCHEMA,
    )


def append(table: TopicTable, start: int, end: int) -> TopicTable:
    files = table.writer().write([messages(start, end)], max_memory_bytes=MEMORY_BYTES)
    return table.commit(files, start=start, end=end, epoch=1)


def compact(table: TopicTable) -> TopicTable:
    """What maintenance does: the same rows in other files, in a snapshot that notes no offset and appends nothing."""
    rows = pa.Table.from_batches(table.scan()).combine_chunks().to_batches()
    written = table.writer().write(rows, max_memory_bytes=MEMORY_BYTES)
    old = [task.file for task in table.iceberg.scan().plan_files()]
    with table.refresh().iceberg.transaction() as change, change.update_snapshot().overwrite() as rewriting:
        for file in old:
            rewriting.delete_data_file(file)
        for added in written:
            rewriting.append_data_file(added.data_file)
    return table.refresh()


def many_files(table: TopicTable, count: int, rows: int = 10, commits: int = 1, real: int = 3) -> TopicTable:
    """A table of `count` files with `rows` each, of which only the first `real` exist: the others are descriptions."""
    number = table.iceberg.schema().find_field("offset").field_id
    written = table.writer().write([messages(0, rows)], max_memory_bytes=MEMORY_BYTES)[0]
    described = []
    for place in range(count):
        first = place * rows
        if place < real:
            described += table.writer().write([messages(first, first + rows)], max_memory_bytes=MEMORY_BYTES)
            continue
        like = written.data_file
        file = DataFile.from_args(
            content=like.content,
            file_path=f"{table.location}/data/not-there-{place:08d}.parquet",
            file_format=like.file_format,
            partition=like.partition,
            record_count=rows,
            file_size_in_bytes=like.file_size_in_bytes,
            column_sizes=like.column_sizes,
            value_counts=like.value_counts,
            null_value_counts=like.null_value_counts,
            nan_value_counts={},
            lower_bounds={**like.lower_bounds, number: struct.pack("<q", first)},
            upper_bounds={**like.upper_bounds, number: struct.pack("<q", first + rows - 1)},
            split_offsets=like.split_offsets,
            sort_order_id=like.sort_order_id,
        )
        described.append(replace(written, data_file=file, first_offset=first, last_offset=first + rows - 1))
    step = -(-count // commits)
    for begin in range(0, count, step):
        part = described[begin : begin + step]
        table = table.commit(part, start=begin * rows, end=(begin + len(part)) * rows, epoch=1)
    return table


def local(location: str) -> Path:
    assert location.startswith("file://")
    return Path(location.removeprefix("file://"))
