from dataclasses import replace
from os import urandom
from pathlib import Path
from threading import active_count

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV2,
)
from pyiceberg.table import Table
from pyiceberg.typedef import Record
from tests.unit.table.conftest import OpenTable, append, compact, local, messages

from icestream.model.errors import DamagedError, InvalidRequestError, RowsDeletedError, SnapshotExpiredError
from icestream.table import ReadLimits, TopicTable
from icestream.table.planning import FilePlan, ManifestIndex


def _offsets(state: TopicTable, start: int = 0, end: int | None = None) -> list[int]:
    return [offset for batch in state.scan(start, end) for offset in batch["offset"].to_pylist()]


@pytest.mark.parametrize(
    ("start", "end"), [(0, None), (0, 0), (3, 4), (9, 31), (29, 30), (30, None), (5, 1000), (7, 3)]
)
def test_a_range_comes_in_order_and_whole(open_table: OpenTable, start: int, end: int | None) -> None:
    state = open_table(row_group_bytes=64 * 1024)
    for first in range(0, 30, 10):
        state = append(state, first, first + 10)
    assert _offsets(state, start, end) == list(range(start, min(30 if end is None else end, 30)))


def test_columns_can_be_chosen(open_table: OpenTable) -> None:
    state = append(open_table(), 0, 3)
    (batch,) = state.scan(1, 3, ["payload", "sequence"])
    assert batch.equals(messages(0, 3).select(["payload", "sequence"]).slice(1))
    with pytest.raises(InvalidRequestError, match="no columns colour"):
        state.scan(columns=["colour"])


def test_only_files_of_the_range_are_opened(open_table: OpenTable) -> None:
    state = append(append(open_table(), 0, 10), 10, 20)
    for task in state.iceberg.scan(row_filter="offset < 10").plan_files():
        local(task.file.file_path).unlink()
    assert _offsets(state, 10) == list(range(10, 20))
    with pytest.raises(DamagedError, match="a data file is missing"):
        _offsets(state)


def test_a_column_that_was_renamed_is_still_found(open_table: OpenTable) -> None:
    state = append(open_table(), 0, 3)
    _rename(state.iceberg, "payload", "body")
    assert state.refresh().iceberg.scan().to_arrow()["body"].to_pylist() == [b"payload"] * 3
    (batch,) = state.refresh().scan(columns=["offset", "payload"])
    assert batch["payload"].null_count == 3  # under its old name there is nothing


def _rename(table: Table, old: str, new: str) -> None:
    table.update_schema().rename_column(old, new).commit()


def test_a_list_of_structs_that_is_null_stays_null(open_table: OpenTable) -> None:
    field = pa.field("spans", pa.list_(pa.struct([("id", pa.int64())])))
    table = open_table(messages(0, 1).schema.append(field))
    batch = messages(0, 3).append_column(field, pa.array([None, [], [{"id": 1}]], field.type))
    state = table.commit(table.writer().write([batch], max_memory_bytes=1 << 20), start=0, end=3, epoch=1)
    assert list(state.scan()) == [batch]


def test_a_scan_that_is_closed_early_closes_its_files_and_its_threads(open_table: OpenTable) -> None:
    state = open_table()
    for first in range(0, 100, 10):
        state = append(state, first, first + 10)
    before, threads = _open_data_files(), active_count()
    batches = state.scan()
    next(batches)
    assert _open_data_files() > before
    batches.close()
    assert (_open_data_files(), active_count()) == (before, threads)
    list(state.scan())
    assert (_open_data_files(), active_count()) == (before, threads)
    state.scan()  # never begun


def _open_data_files() -> int:
    links = (link for link in Path("/proc/self/fd").iterdir() if link.is_symlink())
    return sum(str(link.readlink()).endswith(".parquet") for link in links)


@pytest.mark.parametrize("concurrent", [1, 3])
def test_no_more_files_are_open_than_allowed(open_table: OpenTable, concurrent: int) -> None:
    state = open_table()
    for first in range(0, 100, 10):
        state = append(state, first, first + 10)
    limits = ReadLimits(max_concurrent_reads=concurrent, prefetch_batches=20)
    before, most, found = _open_data_files(), 0, []
    for batch in state.scan(limits=limits):
        most = max(most, _open_data_files() - before)
        found += batch["offset"].to_pylist()
    assert found == list(range(100))
    assert most <= concurrent


@pytest.mark.parametrize(("partition_by", "sort_by"), [((), ()), (("bucket(8, key)",), ()), ((), ("key",))])
def test_memory_stays_flat_whatever_the_backlog(
    open_table: OpenTable, partition_by: tuple[str, ...], sort_by: tuple[str, ...]
) -> None:
    state = open_table(partition_by=partition_by, sort_by=sort_by, row_group_bytes=1 << 20)
    limits = ReadLimits(max_bytes=4 << 20, batch_bytes=256 << 10)
    peaks = []
    for _ in range(2):
        for _ in range(4):
            start = state.ledger.committed_offset
            rows = [messages(first, first + 1_000, urandom(2_000)) for first in range(start, start + 10_000, 1_000)]
            files = state.writer().write(rows, max_memory_bytes=8 << 20)
            state = state.commit(files, start=start, end=start + 10_000, epoch=1)
        del rows
        held = pa.total_allocated_bytes()
        peaks.append(0)
        for batch in state.scan(limits=limits):
            peaks[-1] = max(peaks[-1], pa.total_allocated_bytes() - held)
            del batch
    assert peaks[0] < 20 << 20
    assert peaks[1] < peaks[0] * 1.5 + (4 << 20)


def test_a_snapshot_that_was_expired_while_it_was_read_can_be_read_on(open_table: OpenTable) -> None:
    old = append(append(open_table(), 0, 10), 10, 20)
    batches = old.scan(limits=ReadLimits(max_concurrent_reads=1, prefetch_batches=1))
    assert next(batches)["offset"].to_pylist() == list(range(10))
    new = compact(old)
    _expire(old, new)
    with pytest.raises(SnapshotExpiredError) as raised:
        list(old.scan(10))
    assert raised.value.retryable
    assert _offsets(new, 10) == list(range(10, 20))
    batches.close()


def test_a_plan_of_an_expired_snapshot_says_so(open_table: OpenTable) -> None:
    old = append(append(open_table(), 0, 10), 10, 20).refresh()
    new = compact(old)
    _remove_manifest_list(old)
    with pytest.raises(SnapshotExpiredError):
        list(replace(old, manifest_index=ManifestIndex()).scan())
    _remove_manifest_list(new)
    with pytest.raises(DamagedError, match="metadata"):
        list(new.scan())


def test_a_lost_file_is_damage_also_when_the_table_goes_on(open_table: OpenTable) -> None:
    old = append(open_table(), 0, 10)
    for task in old.iceberg.scan().plan_files():
        local(task.file.file_path).unlink()
    new = append(old, 10, 20)
    for state in (old, new):
        with pytest.raises(DamagedError, match="a data file is missing"):
            list(state.scan())


def _remove_manifest_list(state: TopicTable) -> None:
    snapshot = state.iceberg.metadata.current_snapshot()
    assert snapshot is not None
    local(snapshot.manifest_list).unlink()


def _expire(old: TopicTable, new: TopicTable) -> None:
    """What maintenance does with a snapshot that was replaced: its data files go."""
    kept = {task.file.file_path for task in new.iceberg.scan().plan_files()}
    for task in old.iceberg.scan().plan_files():
        if task.file.file_path not in kept:
            local(task.file.file_path).unlink()


def test_a_file_whose_rows_were_deleted_is_refused(open_table: OpenTable) -> None:
    state = append(_with_delete_file(append(open_table(), 0, 10)), 10, 20)
    with pytest.raises(RowsDeletedError, match="delete files name rows"):
        list(state.scan())
    assert _offsets(state, 10) == list(range(10, 20))


class _DeletesWriter(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES


def _with_delete_file(state: TopicTable) -> TopicTable:
    """A state whose next commit takes over a manifest of position deletes for the first file."""
    first = next(FilePlan(state).files())
    path = f"{state.location}/data/deletes.parquet"
    pq.write_table(pa.table({"file_path": [first.path], "pos": pa.array([3], pa.int64())}), local(path))
    bound = {2147483546: first.path.encode()}
    file = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=1,
        file_size_in_bytes=local(path).stat().st_size,
        lower_bounds=bound,
        upper_bounds=bound,
    )
    table = state.iceberg
    with _DeletesWriter(
        table.spec(), table.schema(), table.io.new_output(f"{state.location}/metadata/deletes.avro"), 1, "deflate"
    ) as writer:
        writer.add_entry(
            ManifestEntry.from_args(
                status=ManifestEntryStatus.EXISTING,
                snapshot_id=1,
                sequence_number=1,
                file_sequence_number=1,
                data_file=file,
            )
        )
    manifest = writer.to_manifest_file()
    manifest.sequence_number = manifest.min_sequence_number = 1
    return replace(state, known_manifests=(*state.manifests, manifest))
