"""Tables on the embedded defaults, in a folder of the test's own."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

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


def local(location: str) -> Path:
    assert location.startswith("file://")
    return Path(location.removeprefix("file://"))
