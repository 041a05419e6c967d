import pickle
from collections.abc import Iterator
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from tests.unit.table.conftest import MEMORY_BYTES, OpenTable, local, messages

from icestream.model.errors import CatalogUnavailableError, DamagedError, InvalidMessageError
from icestream.model.messages import STREAM_SCHEMA
from icestream.model.offsets import OffsetRanges
from icestream.table import TopicTable, WrittenFile
from icestream.table.writer import RowGroups

MIB = 1024 * 1024


def _data_files(table: TopicTable) -> list[str]:
    folder = local(table.location) / "data"
    return sorted(str(path) for path in folder.rglob("*.parquet"))


def test_a_writer_and_its_files_survive_pickling(open_table: OpenTable) -> None:
    table = open_table()
    writer = pickle.loads(pickle.dumps(table.writer()))
    assert writer.layout.schema == table.writer().layout.schema  # once used, it still pickles
    files = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(writer)).write([messages(0, 9)], max_memory_bytes=MIB)))
    state = table.commit(files, start=0, end=9, epoch=1)
    assert pa.Table.from_batches(state.scan()).equals(pa.Table.from_batches([messages(0, 9)]))


def test_a_pickled_writer_is_small_however_long_the_history(open_table: OpenTable) -> None:
    table = open_table()
    for start in range(20):
        files = table.writer().write([messages(start, start + 1)], max_memory_bytes=MIB)
        table = table.commit(files, start=start, end=start + 1, epoch=1)
    assert len(pickle.dumps(table.writer())) < 10_000
    assert len(pickle.dumps(files)) < 2000


def test_nothing_in_gives_no_files(open_table: OpenTable) -> None:
    writer = open_table().writer()
    assert writer.write([], max_memory_bytes=MIB) == []
    assert writer.write([messages(0, 1).slice(0, 0)], max_memory_bytes=MIB) == []


def test_files_have_field_ids_and_bounds(open_table: OpenTable) -> None:
    table = open_table()
    (file,) = table.writer().write([messages(3, 9, b"z" * 100)], max_memory_bytes=MIB)
    schema = pq.read_schema(local(file.path))
    ids = {field.name: int(field.metadata[b"PARQUET:field_id"]) for field in schema}
    assert ids == {field.name: field.field_id for field in table.iceberg.schema().fields}
    low, high = file.data_file.lower_bounds, file.data_file.upper_bounds
    assert (low[ids["offset"]], high[ids["offset"]]) == ((3).to_bytes(8, "little"), (8).to_bytes(8, "little"))
    assert low[ids["publish_time"]] == (3).to_bytes(8, "little")
    assert (low[ids["key"]], high[ids["key"]]) == (b"key-0", b"key-2")
    assert ids["payload"] not in low
    assert ids["payload"] not in file.data_file.null_value_counts
    assert (file.message_count, file.first_offset, file.last_offset) == (6, 3, 8)
    assert file.bytes == local(file.path).stat().st_size


def test_long_values_do_not_fill_manifests(open_table: OpenTable) -> None:
    schema = pa.schema([*STREAM_SCHEMA, pa.field("text", pa.string())])
    table = open_table(schema)
    batch = messages(0, 2).append_column(schema.field("text"), pa.array(["\U0010ffff" * 1000, "x" * 1000]))
    (file,) = table.writer().write([batch], max_memory_bytes=MIB)
    number = table.iceberg.schema().find_field("text").field_id
    assert len(file.data_file.lower_bounds[number]) == 64
    assert number not in file.data_file.upper_bounds  # nothing short is above the last character there is


def test_a_file_is_closed_when_it_is_large_enough(open_table: OpenTable) -> None:
    table = open_table(target_file_bytes=MIB, row_group_bytes=256 * 1024, compression="none")
    files = table.writer().write(
        (messages(start, start + 1000, b"x" * 1000) for start in range(0, 5000, 1000)), max_memory_bytes=64 * MIB
    )
    assert 3 <= len(files) <= 6
    assert all(file.bytes >= MIB for file in files[:-1])
    assert all(before.last_offset + 1 == after.first_offset for before, after in pairwise(files))
    assert sum(file.message_count for file in files) == 5000


@pytest.mark.parametrize("partition_by", [(), ("bucket(50, offset)",)])
def test_memory_is_bounded_however_long_the_range(open_table: OpenTable, partition_by: tuple[str, ...]) -> None:
    table = open_table(partition_by=partition_by)
    pool = pa.proxy_memory_pool(pa.default_memory_pool())
    before = pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        files = table.writer().write(_many(48 * MIB), max_memory_bytes=8 * MIB)
    finally:
        pa.set_memory_pool(before)
    assert sum(file.message_count for file in files) == 48 * 1024
    assert pool.max_memory() < 16 * MIB


def _many(nbytes: int) -> Iterator[pa.RecordBatch]:
    batch = messages(0, 256, b"x" * 1024)
    offset = pa.scalar(0, pa.int64())
    for start in range(0, nbytes // 1024, 256):
        offset = pa.scalar(start, pa.int64())
        yield batch.set_column(0, batch.schema[0], pc.add(batch.column(0), offset))


def test_a_batch_beyond_the_bound_is_cut(open_table: OpenTable) -> None:
    table = open_table()
    (file,) = table.writer().write([messages(0, 4000, b"x" * 1000)], max_memory_bytes=MIB)
    assert pq.read_metadata(local(file.path)).num_row_groups > 10


def test_single_messages_are_gathered_to_row_groups(open_table: OpenTable) -> None:
    table = open_table()
    (file,) = table.writer().write((messages(at, at + 1) for at in range(500)), max_memory_bytes=MEMORY_BYTES)
    assert pq.read_metadata(local(file.path)).num_row_groups == 1


def test_row_groups_neither_lose_nor_add_rows() -> None:
    batches = [messages(0, 7), messages(7, 7), messages(7, 1000, b"y" * 50), messages(1000, 1001)]
    for size in (1, 100, 10_000, 10**9):
        groups = RowGroups(size)
        gathered = [group for batch in batches for group in groups.add(batch)] + [groups.rest()]
        assert [offset for group in gathered for batch in group for offset in batch["offset"].to_pylist()] == list(
            range(1001)
        )


def test_lost_messages_leave_a_hole(open_table: OpenTable) -> None:
    table = open_table()
    files = table.writer().write([messages(0, 3), messages(7, 9)], max_memory_bytes=MIB)
    state = table.commit(files, start=0, end=10, epoch=1, lost=OffsetRanges.of([(3, 7), (9, 10)]))
    assert [offset for batch in state.scan() for offset in batch["offset"].to_pylist()] == [0, 1, 2, 7, 8]


@pytest.mark.parametrize(
    "batches",
    [
        [messages(0, 3), messages(2, 4)],
        [messages(3, 4), messages(0, 1)],
        [pa.concat_batches([messages(0, 1), messages(0, 1)])],
        [pa.concat_batches([messages(5, 6), messages(2, 4), messages(9, 10)])],
    ],
    ids=["overlap", "backwards", "twice", "mixed"],
)
@pytest.mark.parametrize("row_group_bytes", [64 * 1024, 32 * MIB])
def test_offsets_out_of_order_are_refused_and_leave_no_file(
    open_table: OpenTable, batches: list[pa.RecordBatch], row_group_bytes: int
) -> None:
    table = open_table(row_group_bytes=row_group_bytes)
    with pytest.raises(DamagedError, match="not in order"):
        table.writer().write(batches, max_memory_bytes=MIB)
    assert _data_files(table) == []


def test_a_source_that_fails_leaves_no_file(open_table: OpenTable) -> None:
    table = open_table(row_group_bytes=64 * 1024)

    def failing() -> Iterator[pa.RecordBatch]:
        yield messages(0, 1000, b"x" * 1000)
        assert _data_files(table)  # the first row groups are written already
        raise RuntimeError("the source is gone")

    with pytest.raises(RuntimeError, match="source is gone"):
        table.writer().write(failing(), max_memory_bytes=MIB)
    assert _data_files(table) == []


def test_a_store_that_fails_is_an_error_that_may_pass(open_table: OpenTable, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("503 Slow Down")

    writer = open_table().writer()
    monkeypatch.setattr("icestream.table.files.DurableFileIO.new_output", refuse)
    monkeypatch.setattr(PyArrowFileIO, "delete", refuse)
    with pytest.raises(CatalogUnavailableError, match="503 Slow Down") as caught:
        writer.write([messages(0, 1)], max_memory_bytes=MIB)
    assert caught.value.retryable


def test_batches_with_other_columns_are_refused(open_table: OpenTable) -> None:
    writer = open_table().writer()
    with pytest.raises(InvalidMessageError, match="not the stream's"):
        writer.write([messages(0, 1).drop_columns(["key"])], max_memory_bytes=MIB)


def test_row_groups_are_sorted_by_the_columns_asked_for(open_table: OpenTable) -> None:
    table = open_table(sort_by=["key"], row_group_bytes=64 * 1024)
    files = table.writer().write([messages(0, 1000, b"x" * 200)], max_memory_bytes=MEMORY_BYTES)
    parquet = pq.ParquetFile(local(files[0].path))
    assert parquet.num_row_groups > 2
    end = 0
    for number in range(parquet.num_row_groups):
        rows = parquet.read_row_group(number, columns=["key", "offset"])
        assert rows.equals(rows.sort_by([("key", "ascending"), ("offset", "ascending")]))
        assert sorted(rows["offset"].to_pylist()) == list(range(end, end + rows.num_rows))
        end += rows.num_rows
    state = table.commit(files, start=0, end=1000, epoch=1)
    assert [offset for batch in state.scan(3, 900) for offset in batch["offset"].to_pylist()] == list(range(3, 900))
    order = state.iceberg.sort_order()
    names = [state.iceberg.schema().find_field(field.source_id).name for field in order.fields]
    assert names == ["key", "offset"]


@pytest.mark.parametrize("codec", ["zstd", "snappy", "lz4", "gzip", "none"])
def test_files_are_compressed_as_the_table_says(open_table: OpenTable, codec: str) -> None:
    (file,) = open_table(compression=codec).writer().write([messages(0, 100)], max_memory_bytes=MIB)
    found = pq.read_metadata(local(file.path)).row_group(0).column(0).compression
    assert found == {"none": "UNCOMPRESSED"}.get(codec, codec.upper())


class TestPartitions:
    def test_each_file_is_of_one_partition_and_in_order(self, open_table: OpenTable) -> None:
        table = open_table(partition_by=["key"], row_group_bytes=64 * 1024)
        files = table.writer().write([messages(0, 900, b"x" * 300)], max_memory_bytes=MEMORY_BYTES)
        assert len(files) == 3
        for file in files:
            rows = pq.read_table(local(file.path), columns=["key", "offset"])
            assert len(rows["key"].unique()) == 1
            assert rows.equals(rows.sort_by("offset"))
        assert [file.first_offset for file in files] == [0, 1, 2]
        state = table.commit(files, start=0, end=900, epoch=1)
        assert sorted(task.file.partition[0] for task in state.iceberg.scan().plan_files()) == [
            b"key-0",
            b"key-1",
            b"key-2",
        ]

    def test_more_partitions_than_open_files_make_more_files(self, open_table: OpenTable) -> None:
        table = open_table(partition_by=["truncate(1, offset)"], row_group_bytes=64 * 1024)
        files = table.writer().write([messages(0, 200)], max_memory_bytes=32 * MIB)
        assert len(files) == 200
        assert sum(file.message_count for file in files) == 200

    def test_dates_beyond_those_of_python_have_a_partition(self, open_table: OpenTable) -> None:
        days = [0, None, 4_000_000, -4_000_000, 2**31 - 1]
        schema = pa.schema([*STREAM_SCHEMA, pa.field("day", pa.date32())])
        table = open_table(schema, partition_by=["day"])
        batch = messages(0, 5).append_column(schema.field("day"), pa.array(days, pa.date32()))
        files = table.writer().write([batch], max_memory_bytes=MIB)
        assert [file.data_file.partition[0] for file in files] == days
        state = table.commit(files, start=0, end=5, epoch=1)
        assert pa.Table.from_batches(state.scan()).sort_by("offset").equals(pa.Table.from_batches([batch]))

    def test_a_long_value_makes_no_long_file_name(self, open_table: OpenTable) -> None:
        table = open_table(partition_by=["payload"])
        (file,) = table.writer().write([messages(0, 3, b"x" * 5000)], max_memory_bytes=MIB)
        assert file.data_file.partition[0] == b"x" * 5000
        assert len(local(file.path).parent.name) < 200

    def test_a_nested_field_can_be_partitioned_by(self, open_table: OpenTable) -> None:
        schema = pa.schema([*STREAM_SCHEMA, pa.field("at", pa.struct([("country", pa.string())]))])
        table = open_table(schema, partition_by=["at.country"])
        values = pa.array([{"country": "IT"}, {"country": "PE"}, None], schema.field("at").type)
        batch = messages(0, 3).append_column(schema.field("at"), values)
        files: list[WrittenFile] = table.writer().write([batch], max_memory_bytes=MIB)
        assert [file.data_file.partition[0] for file in files] == ["IT", "PE", None]
