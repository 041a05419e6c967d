"""Rows come in the order of their offsets, however the files lie."""

from pathlib import Path
from threading import get_ident

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.table.conftest import MEMORY_BYTES, OpenTable, append, local, messages

from icestream.model.errors import DamagedError, InvalidRequestError
from icestream.model.filters import Filter
from icestream.table import TopicTable
from icestream.table.contents import read_contents
from icestream.table.scan import ReadLimits, RowGroup, ordered_scan

LAYOUTS = [((), ()), (("bucket(4, key)",), ()), ((), ("key",)), (("bucket(4, key)",), ("key",))]


def offsets(table: TopicTable, start: int = 0, end: int = 1 << 40, batch_bytes: int = 2_000) -> list[int]:
    batches = ordered_scan(table, start, end, limits=ReadLimits(batch_bytes=batch_bytes))
    return [offset for batch in batches for offset in batch.column(0).to_pylist()]


def filled(table: TopicTable, commits: int = 4) -> TopicTable:
    for number in range(commits):
        table = append(table, number * 250, number * 250 + 250)
    return table


@pytest.mark.parametrize(("partition_by", "sort_by"), LAYOUTS)
def test_offsets_count_up_in_any_layout(
    open_table: OpenTable, partition_by: tuple[str, ...], sort_by: tuple[str, ...]
) -> None:
    table = filled(open_table(partition_by=partition_by, sort_by=sort_by, row_group_bytes=65_536))
    assert offsets(table) == list(range(1_000))
    assert offsets(table, 333, 777) == list(range(333, 777))
    assert offsets(table, 1_000) == []


def test_all_columns_are_those_that_were_written(open_table: OpenTable) -> None:
    table = filled(open_table())
    read = pa.Table.from_batches(ordered_scan(table))
    assert read.equals(pa.Table.from_batches([messages(start, start + 250) for start in range(0, 1_000, 250)]))


def test_some_columns_are_read_alone(open_table: OpenTable) -> None:
    table = filled(open_table())
    read = pa.Table.from_batches(ordered_scan(table, columns=["payload"]))
    assert read.column_names == ["payload"]
    assert read.num_rows == 1_000
    with pytest.raises(InvalidRequestError, match="nothing"):
        next(ordered_scan(table, columns=["nothing"]))


def test_batches_are_small_when_told(open_table: OpenTable) -> None:
    table = filled(open_table())
    sizes = [batch.num_rows for batch in ordered_scan(table, limits=ReadLimits(batch_bytes=1))]
    assert sizes == [1] * 1_000


def test_a_row_that_stands_there_twice_comes_twice(open_table: OpenTable) -> None:
    table = filled(open_table(), commits=2)
    again = table.writer().write([messages(240, 260)], max_memory_bytes=MEMORY_BYTES)
    with table.iceberg.transaction() as change, change.update_snapshot().fast_append() as adding:
        for file in again:
            adding.append_data_file(file.data_file)
    found = offsets(table.refresh())
    assert found == sorted([*range(500), *range(240, 260)])


def test_rows_that_somebody_has_shuffled_are_put_in_order(open_table: OpenTable) -> None:
    table = filled(open_table(), commits=1)
    path = local(read_contents(table).files[0].path)
    pq.write_table(pq.read_table(path).sort_by([("offset", "descending")]), path)
    groups: list[RowGroup] = []
    found = [offset for batch in ordered_scan(table, on_row_group=groups.append) for offset in batch[0].to_pylist()]
    assert found == list(range(250))
    assert [group.is_ordered for group in groups] == [False]


def test_row_groups_are_told_of(open_table: OpenTable) -> None:
    groups: list[RowGroup] = []
    list(ordered_scan(filled(open_table(), commits=2), on_row_group=groups.append))
    assert [(group.first_offset, group.last_offset, group.rows) for group in groups] == [(0, 249, 250), (250, 499, 250)]
    assert all(group.is_ordered and group.is_last and group.rows_in_file == 250 for group in groups)


def test_a_missing_file_is_damage_that_names_it(open_table: OpenTable) -> None:
    table = filled(open_table(), commits=1)
    path = read_contents(table).files[0].path
    Path(local(path)).unlink()
    with pytest.raises(DamagedError) as raised:
        list(ordered_scan(table))
    assert raised.value.place == path


def test_a_table_without_rows_gives_none(open_table: OpenTable) -> None:
    assert list(ordered_scan(open_table())) == []


def test_row_groups_of_many_files_are_told_of_in_order_and_by_the_one_who_reads(open_table: OpenTable) -> None:
    told: list[tuple[int, int]] = []
    table = filled(open_table(), commits=12)
    for _ in ordered_scan(table, on_row_group=lambda group: told.append((group.first_offset, get_ident()))):
        assert told
    assert told == [(start, get_ident()) for start in range(0, 3_000, 250)]


@pytest.mark.parametrize("compression", ["zstd", "gzip", "snappy"])
def test_bytes_that_cannot_be_decoded_are_damage_that_names_the_file(open_table: OpenTable, compression: str) -> None:
    table = filled(open_table(compression=compression), commits=1)
    place = read_contents(table).files[0].path
    chunk = pq.ParquetFile(local(place)).metadata.row_group(0).column(4)
    begin = chunk.dictionary_page_offset
    content = bytearray(local(place).read_bytes())
    content[begin : begin + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    local(place).write_bytes(content)
    with pytest.raises(DamagedError) as raised:
        list(ordered_scan(table))
    assert raised.value.place == place


@pytest.mark.parametrize("compression", ["zstd", "none"])
def test_a_flipped_bit_in_a_page_is_damage_and_never_another_value(open_table: OpenTable, compression: str) -> None:
    table = filled(open_table(compression=compression), commits=1)
    expected = pa.Table.from_batches(ordered_scan(table))
    place = read_contents(table).files[0].path
    chunk = pq.ParquetFile(local(place)).metadata.row_group(0).column(0)
    content = local(place).read_bytes()
    end = chunk.data_page_offset + chunk.total_compressed_size
    damaged = 0
    for position in range(end - chunk.total_compressed_size // 2, end, 10):
        flipped = bytearray(content)
        flipped[position] ^= 1
        local(place).write_bytes(flipped)
        try:
            assert pa.Table.from_batches(ordered_scan(table)).equals(expected)
        except DamagedError:
            damaged += 1
    assert damaged


@pytest.mark.parametrize("where", [None, "offset >= 0"])
def test_a_flipped_bit_in_a_page_header_is_damage_and_hides_no_row(open_table: OpenTable, where: str | None) -> None:
    table = filled(open_table(), commits=1)
    place = read_contents(table).files[0].path
    chunk = pq.ParquetFile(local(place)).metadata.row_group(0).column(0)
    content = local(place).read_bytes()
    begin = chunk.data_page_offset if chunk.dictionary_page_offset is None else chunk.dictionary_page_offset
    places = []
    for position in range(begin, begin + 24):
        flipped = bytearray(content)
        flipped[position] ^= 1
        local(place).write_bytes(flipped)
        try:
            rows = ordered_scan(table, where=Filter.parse(where) if where else None)
            assert sum(batch.num_rows for batch in rows) == 250
        except DamagedError as error:
            places.append(error.place)
    assert set(places) == {place}
