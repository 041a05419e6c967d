import pyarrow as pa
import pytest
from pyiceberg.types import LongType, StringType
from tests.unit.table.conftest import MEMORY_BYTES, OpenTable, messages

from icestream.model.errors import IncompatibleTableError
from icestream.model.messages import STREAM_SCHEMA
from icestream.table import TopicTable

OLD = pa.schema([*STREAM_SCHEMA, pa.field("n", pa.int32()), pa.field("at", pa.struct([("x", pa.int32())]))])


def _old_rows(open_table: OpenTable) -> TopicTable:
    table = open_table(OLD)
    batch = messages(0, 2).append_column(OLD.field("n"), pa.array([1, 2], pa.int32()))
    batch = batch.append_column(OLD.field("at"), pa.array([{"x": 1}, None], OLD.field("at").type))
    files = table.writer().write([batch], max_memory_bytes=MEMORY_BYTES)
    return table.commit(files, start=0, end=2, epoch=1)


def test_old_files_read_as_null_in_new_columns(open_table: OpenTable) -> None:
    _old_rows(open_table)
    wider = OLD.append(pa.field("when", pa.timestamp("ns"))).append(pa.field("tags", pa.list_(pa.string())))
    state = open_table(wider)
    rows = pa.Table.from_batches(state.scan())
    assert rows.schema.equals(wider)
    assert rows.select(["n", "when", "tags"]).to_pylist() == [
        {"n": 1, "when": None, "tags": None},
        {"n": 2, "when": None, "tags": None},
    ]


def test_a_field_can_be_added_inside_a_struct(open_table: OpenTable) -> None:
    _old_rows(open_table)
    wider = OLD.set(OLD.get_field_index("at"), pa.field("at", pa.struct([("x", pa.int32()), ("y", pa.string())])))
    state = open_table(wider)
    assert pa.Table.from_batches(state.scan())["at"].to_pylist() == [{"x": 1, "y": None}, None]


def test_opening_with_the_same_schema_commits_nothing(open_table: OpenTable) -> None:
    before = _old_rows(open_table)
    assert open_table(OLD).iceberg.metadata_location == before.iceberg.metadata_location


@pytest.mark.parametrize(
    ("field", "problem"),
    [
        (pa.field("n", pa.int64()), "has int in column n, the topic long"),
        (pa.field("n", pa.string()), "has int in column n, the topic string"),
        (pa.field("at", pa.struct([("x", pa.string())])), "has int in column at.x, the topic string"),
        (pa.field("new", pa.int32(), nullable=False), "lacks the column new, which is never null"),
        (pa.field("payload", pa.binary()), "takes no null in column payload"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_schema_that_does_not_fit_is_refused_and_changes_nothing(
    open_table: OpenTable, field: pa.Field, problem: str
) -> None:
    before = _old_rows(open_table)
    index = OLD.get_field_index(field.name)
    schema = OLD.append(field) if index < 0 else OLD.set(index, field)
    with pytest.raises(IncompatibleTableError, match=problem) as caught:
        open_table(schema)
    assert not caught.value.retryable
    assert before.refresh().iceberg.metadata_location == before.iceberg.metadata_location


def test_a_column_that_somebody_widened_is_still_written(open_table: OpenTable) -> None:
    state = _old_rows(open_table)
    state.iceberg.update_schema().update_column("n", LongType()).commit()
    state = _append(open_table(OLD), 2)
    assert sorted(state.iceberg.scan().to_arrow()["n"].to_pylist()) == [1, 2, 2]
    assert [value for batch in state.scan() for value in batch["n"].to_pylist()] == [1, 2, 2]


def test_a_column_that_somebody_added_is_left_null(open_table: OpenTable) -> None:
    state = _old_rows(open_table)
    state.iceberg.update_schema().add_column("note", StringType()).commit()
    state = _append(open_table(OLD), 2)
    assert state.iceberg.scan().to_arrow()["note"].null_count == 3


def _append(state: TopicTable, start: int) -> TopicTable:
    batch = messages(start, start + 1).append_column(OLD.field("n"), pa.array([start], pa.int32()))
    batch = batch.append_column(OLD.field("at"), pa.nulls(1, OLD.field("at").type))
    files = state.writer().write([batch], max_memory_bytes=MEMORY_BYTES)
    return state.commit(files, start=start, end=start + 1, epoch=1)
