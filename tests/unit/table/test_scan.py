import pyarrow as pa
import pytest
from pyiceberg.table import Table
from tests.unit.table.conftest import OpenTable, append, local, messages

from icestream.model.errors import DamagedError, InvalidRequestError
from icestream.table import TopicTable


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
    with pytest.raises(DamagedError, match="cannot be read"):
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
