"""Reading a table in offset order, and its positions, on every catalog and store."""

import pyarrow as pa
import pytest
from tests.conformance.catalogs.conftest import MEMORY_BYTES, append, messages

from icestream.model.errors import DamagedError, SnapshotExpiredError
from icestream.model.filters import Filter
from icestream.table import ReadLimits, Tables, TableSpec, TopicTable
from icestream.table.planning import FilePlan

ONE = ReadLimits(max_concurrent_reads=1, prefetch_batches=1)


def filled(table: TopicTable) -> TopicTable:
    for start in range(0, 40, 10):
        table = append(table, start, start + 10)
    return table


def rewritten(table: TopicTable) -> TopicTable:
    """What compaction and expiry do: the rows are in one new file, the old ones are removed."""
    rows = pa.Table.from_batches(table.scan()).combine_chunks().to_batches()
    made = table.writer().write(rows, max_memory_bytes=MEMORY_BYTES)
    fresh = table.refresh().iceberg
    with fresh.transaction() as change, change.update_snapshot().overwrite() as rewriting:
        for task in table.iceberg.scan().plan_files():
            rewriting.delete_data_file(task.file)
        for file in made:
            rewriting.append_data_file(file.data_file)
    for planned in FilePlan(table).files():
        table.iceberg.io.delete(planned.path)
    return table.refresh()


def test_rows_come_in_order_and_by_range(tables: Tables, spec: TableSpec) -> None:
    state = filled(tables.open(spec))
    found = pa.Table.from_batches(state.scan(7, 33))
    assert found.equals(pa.Table.from_batches([messages(7, 33)]))
    filtered = state.scan(columns=["offset"], where=Filter.parse("key = 'key-1' and attributes['n'] <> '8'"))
    assert [offset for batch in filtered for offset in batch["offset"].to_pylist()] == [1, 15, 22, 29, 36]


def test_positions_are_offsets(tables: Tables, spec: TableSpec) -> None:
    state = filled(tables.open(spec))
    first, newest = state.iceberg.metadata.snapshots[0].snapshot_id, state.snapshot_id
    assert newest is not None
    assert (state.first_offset(), state.offset_at_time(17), state.offset_at_time(99)) == (0, 17, 40)
    assert (state.offset_of_snapshot(first), state.offset_of_snapshot(newest)) == (10, 40)
    assert [file.first_offset for file in state.added_files(first)] == [10, 20, 30]
    tagged = state.tag("checked")
    assert append(tagged, 40, 50).offset_of_tag("checked") == 40


def test_a_snapshot_that_is_removed_while_it_is_read_says_so(tables: Tables, spec: TableSpec) -> None:
    old = filled(tables.open(spec))
    reading = old.scan(limits=ONE)
    read = next(reading).num_rows
    new = rewritten(old)
    further: list[pa.RecordBatch] = []
    with pytest.raises(SnapshotExpiredError):
        further.extend(reading)
    read += sum(batch.num_rows for batch in further)
    rest = pa.Table.from_batches(new.scan(read))
    assert rest.equals(pa.Table.from_batches([messages(read, 40)]))


def test_a_data_file_that_is_lost_is_damage(tables: Tables, spec: TableSpec) -> None:
    state = filled(tables.open(spec))
    lost = list(FilePlan(state).files())[2]
    state.iceberg.io.delete(lost.path)
    with pytest.raises(DamagedError) as raised:
        list(state.scan())
    assert raised.value.place == lost.path
    assert sum(batch.num_rows for batch in state.scan(30)) == 10
