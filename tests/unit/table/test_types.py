from decimal import Decimal

import pyarrow as pa
import pytest
from tests.unit.table.conftest import MEMORY_BYTES, OpenTable

from icestream.model.errors import InvalidMessageError, InvalidRequestError
from icestream.model.messages import stream_schema
from icestream.table import check_table_schema
from icestream.table.schema import Columns, iceberg_schema

STORED = [
    (pa.bool_(), "boolean"),
    (pa.int8(), "int"),
    (pa.uint8(), "int"),
    (pa.int16(), "int"),
    (pa.uint16(), "int"),
    (pa.int32(), "int"),
    (pa.uint32(), "long"),
    (pa.int64(), "long"),
    (pa.uint64(), "decimal(20, 0)"),
    (pa.float16(), "float"),
    (pa.float32(), "float"),
    (pa.float64(), "double"),
    (pa.decimal32(9, 2), "decimal(9, 2)"),
    (pa.decimal64(18, 0), "decimal(18, 0)"),
    (pa.decimal128(38, 38), "decimal(38, 38)"),
    (pa.decimal256(38, 10), "decimal(38, 10)"),
    (pa.date32(), "date"),
    (pa.date64(), "date"),
    (pa.time32("s"), "int"),
    (pa.time32("ms"), "int"),
    (pa.time64("us"), "long"),
    (pa.time64("ns"), "long"),
    (pa.timestamp("s"), "timestamp"),
    (pa.timestamp("ms", "Europe/Rome"), "timestamptz"),
    (pa.timestamp("us"), "timestamp"),
    (pa.timestamp("us", "UTC"), "timestamptz"),
    (pa.duration("s"), "long"),
    (pa.duration("ns"), "long"),
    (pa.string(), "string"),
    (pa.large_string(), "string"),
    (pa.string_view(), "string"),
    (pa.binary(), "binary"),
    (pa.large_binary(), "binary"),
    (pa.binary_view(), "binary"),
    (pa.binary(16), "fixed[16]"),
    (pa.uuid(), "fixed[16]"),
    (pa.json_(), "string"),
    (pa.dictionary(pa.int8(), pa.string()), "string"),
    (pa.list_(pa.int8()), "list<int>"),
    (pa.large_list(pa.string()), "list<string>"),
    (pa.list_(pa.float32(), 3), "list<float>"),
    (pa.list_(pa.timestamp("ns", "UTC")), "list<long>"),
    (pa.map_(pa.string(), pa.uint32()), "map<string, long>"),
]

REFUSED = [
    pa.null(),
    pa.binary(0),
    pa.decimal256(39, 0),
    pa.decimal128(5, -2),
    pa.decimal128(5, 6),
    pa.struct([]),
    pa.struct([("a", pa.int8()), ("A", pa.int8())]),
    pa.list_(pa.null()),
    pa.list_view(pa.int8()),
    pa.list_(pa.struct([("a", pa.string_view())]), 2),
    pa.run_end_encoded(pa.int32(), pa.string()),
    pa.month_day_nano_interval(),
    pa.sparse_union([pa.field("a", pa.int8())]),
    pa.dense_union([pa.field("a", pa.int8())]),
]


@pytest.mark.parametrize(("kind", "stored"), STORED, ids=str)
def test_a_type_is_stored_as(kind: pa.DataType, stored: str) -> None:
    columns = Columns.of(stream_schema(pa.schema([("value", kind)])))
    assert str(iceberg_schema(columns).find_field("value").field_type) == stored


@pytest.mark.parametrize("kind", REFUSED, ids=str)
def test_a_type_that_a_table_cannot_hold_is_refused_by_name(kind: pa.DataType) -> None:
    with pytest.raises(InvalidRequestError, match="value"):
        check_table_schema(stream_schema(pa.schema([("value", kind)])))


@pytest.mark.parametrize(
    "names", [["a", "A"], [""], ["a\nb"], ["_file"], ["_pos"], ["t", "t_nanos"], ["s.x", "s"]], ids=str
)
def test_names_that_engines_cannot_tell_apart_are_refused(names: list[str]) -> None:
    kinds = {"t": pa.timestamp("ns"), "s": pa.struct([("x", pa.int8())])}
    schema = pa.schema([(name, kinds.get(name, pa.int8())) for name in names])
    with pytest.raises(InvalidRequestError):
        check_table_schema(stream_schema(schema))


def test_names_that_differ_in_case_are_told_with_the_place_where_they_are() -> None:
    pair = [("a", pa.int8()), ("A", pa.int8())]
    with pytest.raises(
        InvalidRequestError, match="the table has two names that are equal or differ only in case"
    ) as caught:
        check_table_schema(stream_schema(pa.schema(pair)))
    assert "column 'the table'" not in str(caught.value)
    with pytest.raises(
        InvalidRequestError, match="column 's' has two names that are equal or differ only in case, 'a' and 'A'"
    ):
        check_table_schema(stream_schema(pa.schema([("s", pa.struct(pair))])))


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["Price", "price"], "the table has two names that are equal or differ only in case, 'Price' and 'price'"),
        (["t", "T_nanos"], "column 't' .* adds a column 't_nanos', and the topic has a column 'T_nanos'"),
        (["t_nanos", "t"], "column 't' .* adds a column 't_nanos', and the topic has a column 't_nanos'"),
    ],
)
def test_of_names_that_collide_both_are_told(names: list[str], said: str) -> None:
    schema = pa.schema([(name, pa.timestamp("ns") if name == "t" else pa.int8()) for name in names])
    with pytest.raises(InvalidRequestError, match=said):
        check_table_schema(stream_schema(schema))


def test_deep_nesting_is_refused() -> None:
    kind = pa.int8()
    for _ in range(100):
        kind = pa.list_(kind)
    with pytest.raises(InvalidRequestError, match="nested deeper"):
        check_table_schema(stream_schema(pa.schema([("value", kind)])))


def test_nanoseconds_become_microseconds_and_the_rest(open_table: OpenTable) -> None:
    values = [0, 1, 999, 1000, -1, -999, -1000, -1001, 2**63 - 1, -(2**63) + 1, None]
    schema = stream_schema(pa.schema([("at", pa.timestamp("ns", "UTC"))]))
    batch = _stream(schema, [pa.array(values, pa.timestamp("ns", "UTC"))])
    table = open_table(schema)
    files = table.writer().write([batch], max_memory_bytes=MEMORY_BYTES)
    state = table.commit(files, start=0, end=len(values), epoch=1)
    rows = state.iceberg.scan().to_arrow().sort_by("_offset")
    assert rows.column("at").cast(pa.int64()).to_pylist() == [v if v is None else v // 1000 for v in values]
    assert rows.column("at_nanos").to_pylist() == [v if v is None else v % 1000 for v in values]
    assert list(state.scan()) == [batch]


@pytest.mark.parametrize(
    ("kind", "value"), [(pa.timestamp("s"), 2**60), (pa.timestamp("ms", "UTC"), -(2**62)), (pa.date64(), 1)], ids=str
)
def test_a_value_beyond_the_tables_type_is_an_error_and_never_another_value(
    open_table: OpenTable, kind: pa.DataType, value: int
) -> None:
    schema = stream_schema(pa.schema([("at", kind)]))
    with pytest.raises(InvalidMessageError, match="column 'at'"):
        open_table(schema).writer().write(
            [_stream(schema, [pa.array([value], pa.int64()).view(kind)])], max_memory_bytes=MEMORY_BYTES
        )


def test_the_largest_unsigned_number_keeps_its_value(open_table: OpenTable) -> None:
    schema = stream_schema(pa.schema([("n", pa.uint64())]))
    table = open_table(schema)
    batch = _stream(schema, [pa.array([2**64 - 1, 0, None], pa.uint64())])
    files = table.writer().write([batch], max_memory_bytes=MEMORY_BYTES)
    rows = table.commit(files, start=0, end=3, epoch=1).iceberg.scan().to_arrow().sort_by("_offset")
    assert rows.column("n").to_pylist() == [Decimal(2**64 - 1), Decimal(0), None]


def _stream(schema: pa.Schema, columns: list[pa.Array]) -> pa.RecordBatch:
    offsets = pa.arange(0, len(columns[0]))
    envelope = [offsets, offsets.cast(schema[1].type), pa.repeat("p", len(offsets)), offsets]
    return pa.RecordBatch.from_arrays([*envelope, *columns], schema=schema)
