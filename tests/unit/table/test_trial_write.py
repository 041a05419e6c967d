"""A made-up row goes through everything that rows go through, and leaves nothing behind."""

import pickle

import pyarrow as pa
import pytest
from tests.unit.table.conftest import MEMORY_BYTES, OpenTable, local

from icestream.model.messages import STREAM_SCHEMA, stream_schema
from icestream.table.trial_write import sample_row, trial_writer

KINDS = [
    pa.bool_(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.decimal128(9, 2),
    pa.string(),
    pa.binary(),
    pa.binary(4),
    pa.date32(),
    pa.time64("us"),
    pa.duration("ns"),
    pa.timestamp("s"),
    pa.timestamp("ns", tz="UTC"),
    pa.list_(pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))])),
    pa.map_(pa.string(), pa.float64()),
    pa.uuid(),
]
EVERY_KIND = stream_schema(pa.schema([pa.field(f"c{number}", kind, False) for number, kind in enumerate(KINDS)]))


@pytest.mark.parametrize("schema", [STREAM_SCHEMA, EVERY_KIND])
def test_a_row_of_any_columns_is_written_and_no_file_is_there(open_table: OpenTable, schema: pa.Schema) -> None:
    table = open_table(schema=schema)
    before = sorted(local(table.location).rglob("*"))
    row = sample_row(schema, 7)
    row.validate(full=True)
    assert all(column.null_count == 0 for column in row.columns)
    writer = pickle.loads(pickle.dumps(trial_writer(table.writer())))
    (file,) = writer.write([row], max_memory_bytes=MEMORY_BYTES)
    assert (file.first_offset, file.message_count) == (7, 1)
    assert sorted(local(table.location).rglob("*")) == before
