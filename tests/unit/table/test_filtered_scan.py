"""Filtered reads give the rows that match, and open what can have some of them."""

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.table.conftest import MEMORY_BYTES, TOPIC, OpenTable, append, local, messages

from icestream.config import Settings
from icestream.model.errors import InvalidRequestError
from icestream.model.filters import Filter
from icestream.model.messages import STREAM_SCHEMA, stream_schema
from icestream.table import Tables, TableSpec, TopicTable
from icestream.table.planning import FilePlan
from icestream.table.pruning import Pruning
from icestream.table.scan import RowGroup, ordered_scan
from icestream.table.schema import Columns


def keyed(start: int, keys: list[bytes | None], time_us: int = 0) -> pa.RecordBatch:
    rows = messages(start, start + len(keys))
    times = pa.array([time_us + place for place in range(len(keys))], rows.schema.field("publish_time").type)
    rows = rows.set_column(1, rows.schema.field(1), times)
    return rows.set_column(4, rows.schema.field(4), pa.array(keys, pa.binary()))


def committed(table: TopicTable, batches: list[pa.RecordBatch]) -> TopicTable:
    """One commit each."""
    for batch in batches:
        start = batch.column(0)[0].as_py()
        files = table.writer().write([batch], max_memory_bytes=MEMORY_BYTES)
        table = table.commit(files, start=start, end=start + batch.num_rows, epoch=1)
    return table


def planned(table: TopicTable, text: str) -> list[int]:
    where = Filter.parse(text)
    pruning = Pruning.of(where, Columns.of(table.stream_schema), table.iceberg.metadata)
    return [file.first_offset for file in FilePlan(table, pruning=pruning).files()]


def offsets(table: TopicTable, text: str, start: int = 0, end: int | None = None) -> list[int]:
    batches = table.scan(start, end, ["offset"], where=Filter.parse(text))
    return [offset for batch in batches for offset in batch["offset"].to_pylist()]


@pytest.fixture
def letters(open_table: OpenTable) -> TopicTable:
    keys: list[list[bytes | None]] = [[b"a", b"b"], [b"c", None], [None, None], [b"x" * 100, b"\xff" * 100]]
    batches = [keyed(2 * place, found, 1_000 * place) for place, found in enumerate(keys)]
    return committed(open_table(), batches)


@pytest.mark.parametrize(
    ("text", "files", "rows"),
    [
        ("key = 'a'", [0], [0]),
        ("key >= 'b'", [0, 2, 6], [1, 2, 6, 7]),
        ("key in ('c', 'zz')", [2, 6], [2]),
        ("key is null", [2, 4], [3, 4, 5]),
        ("key is not null", [0, 2, 6], [0, 1, 2, 6, 7]),
        ("not (key is null or key < 'c')", [2, 6], [2, 6, 7]),
        ("key like 'x%'", [6], [6]),
        ("key = 'a' or publish_time >= '1970-01-01T00:00:00.003Z'", [0, 6], [0, 6, 7]),
        ("publish_time between '1970-01-01T00:00:00.001Z' and '1970-01-01T00:00:00.002Z'", [2, 4], [2, 3, 4]),
        ("producer = 'nobody'", [], []),
        ("producer like 'prod%' and offset < 3", [0, 2], [0, 1, 2]),
        ("attributes['a'] is null", [0, 2, 4, 6], list(range(8))),
        ("sequence > 1e30", [], []),
        ("sequence <> 3.5", [0, 2, 4, 6], list(range(8))),
    ],
)
def test_files_that_cannot_match_are_not_opened(
    letters: TopicTable, text: str, files: list[int], rows: list[int]
) -> None:
    assert planned(letters, text) == files
    assert offsets(letters, text) == rows
    for task in letters.iceberg.scan().plan_files():
        if not set(range(8)) & set(rows) & set(_offsets_of(task.file.file_path)):
            local(task.file.file_path).write_bytes(b"nobody may look")
    if set(files) == {row - row % 2 for row in rows}:
        assert offsets(letters, text) == rows


def _offsets_of(path: str) -> list[int]:
    found: list[int] = pa.parquet.read_table(local(path), columns=["offset"])["offset"].to_pylist()
    return found


def test_columns_of_the_filter_need_not_be_asked_for(letters: TopicTable) -> None:
    (batch,) = letters.scan(columns=["payload", "sequence"], where=Filter.parse("key = 'b'"))
    assert batch.equals(keyed(0, [b"a", b"b"]).select(["payload", "sequence"]).slice(1))


def test_a_filter_that_does_not_fit_is_refused_at_once(letters: TopicTable) -> None:
    with pytest.raises(InvalidRequestError, match="no column 'colour'"):
        letters.scan(where=Filter.parse("colour = 'red'"))


def test_the_range_holds_beside_the_filter(letters: TopicTable) -> None:
    assert offsets(letters, "key is not null", start=1, end=7) == [1, 2, 6]


def test_row_groups_that_cannot_match_are_not_read(open_table: OpenTable) -> None:
    table = open_table(row_group_bytes=65_536)
    rows = [keyed(start, [b"%04d" % start] * 100, start) for start in range(0, 2_000, 100)]
    padded = [batch.set_column(6, batch.schema.field(6), pa.array([b"p" * 700] * 100)) for batch in rows]
    files = table.writer().write(padded, max_memory_bytes=MEMORY_BYTES)
    table = table.commit(files, start=0, end=2_000, epoch=1)
    seen: list[RowGroup] = []
    everything = list(ordered_scan(table, on_row_group=seen.append))
    assert len(seen) > 10
    found = list(ordered_scan(table, where=Filter.parse("key = '1500'")))
    assert sum(batch.num_rows for batch in found) == 100
    assert sum(batch.num_rows for batch in everything) == 2_000
    path = local(files[0].path)
    metadata = pa.parquet.ParquetFile(path).metadata
    kept = next(
        number
        for number in range(metadata.num_row_groups)
        if metadata.row_group(number).column(4).statistics.max >= b"1500"
    )
    _damage_payloads(path, metadata, kept)
    assert sum(batch.num_rows for batch in ordered_scan(table, where=Filter.parse("key = '1500'"))) == 100


def _damage_payloads(path: Any, metadata: Any, kept: int) -> None:
    content = bytearray(path.read_bytes())
    for number in range(metadata.num_row_groups):
        if number not in (kept, kept + 1):
            chunk = metadata.row_group(number).column(metadata.num_columns - 1)
            begin = chunk.data_page_offset
            content[begin : begin + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    path.write_bytes(content)


@pytest.mark.parametrize("partition_by", [["bucket(8, key)"], ["key"], ["truncate(1, key)"]])
def test_partitions_that_cannot_match_are_not_opened(open_table: OpenTable, partition_by: list[str]) -> None:
    table = open_table(partition_by=partition_by)
    keys: list[bytes | None] = [b"%d" % (number % 10) for number in range(100)]
    table = committed(table, [keyed(0, keys[:50]), keyed(50, keys[50:])])
    assert len(planned(table, "key = '3'")) == 2
    assert offsets(table, "key = '3'") == list(range(3, 100, 10))
    assert offsets(table, "key <> '3'") == [offset for offset in range(100) if offset % 10 != 3]


def test_a_column_that_came_later_is_null_before(open_table: OpenTable) -> None:
    append(open_table(), 0, 3)
    field = pa.field("colour", pa.string())
    table = open_table(STREAM_SCHEMA.append(field))
    batch = messages(3, 6).append_column(field, pa.array(["red", None, "blue"]))
    table = committed(table, [batch])
    assert offsets(table, "colour is null") == [0, 1, 2, 4]
    assert offsets(table, "colour = 'red'") == [3]
    assert planned(table, "colour = 'yellow'") == [0]  # of the first file nothing is known


# Whatever the filter, reading less gives what reading everything and looking at each row does.

BODY = pa.schema(
    [
        pa.field("name", pa.string()),
        pa.field("code", pa.binary()),
        pa.field("small", pa.uint8()),
        pa.field("wide", pa.uint64()),
        pa.field("price", pa.decimal128(9, 2)),
        pa.field("ratio", pa.float32()),
        pa.field("exact", pa.float64()),
        pa.field("at", pa.timestamp("ms")),
        pa.field("fine", pa.timestamp("ns", tz="UTC")),
        pa.field("day", pa.date32()),
        pa.field("flag", pa.bool_()),
        pa.field("kind", pa.dictionary(pa.int32(), pa.string())),
        pa.field("seen", pa.string_view()),
        pa.field("fixed", pa.binary(2)),
    ]
)
EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - the column has no zone
NAN = float("nan")
VALUES: dict[str, list[Any]] = {
    "name": ["", "a", "ab", "b", "ü", "z" * 80],
    "code": [b"", b"a", b"ab", b"\xff", b"\xff" * 80],
    "small": [0, 1, 200, 255],
    "wide": [0, 1, 2**63, 2**64 - 1],
    "price": [Decimal("-1.50"), Decimal("0.00"), Decimal("9.99")],
    "ratio": [NAN, -1.5, -0.0, 0.0, 0.1, float("inf")],
    "exact": [NAN, -1.5, -0.0, 0.0, 0.1, float("-inf")],
    "at": [EPOCH + timedelta(hours=hours) for hours in (-1, 0, 1)],
    "fine": [(EPOCH + timedelta(hours=hours)).replace(tzinfo=UTC) for hours in (-1, 0, 1)],
    "day": [(EPOCH + timedelta(days=days)).date() for days in (-1, 0, 1)],
    "flag": [True, False],
    "kind": ["a", "b"],
    "seen": ["a", "b"],
    "fixed": [b"aa", b"ab", b"\xff\xff"],
}
LITERALS: dict[str, list[str]] = {
    "name": ["''", "'a'", "'aa'", "'ü'", "'zz'"],
    "code": ["''", "'a'", "x'ff'", "x'ffff'"],
    "small": ["-1", "0", "0.5", "200", "300"],
    "wide": ["-1", "1", "9223372036854775807.5", "18446744073709551615", "1e30"],
    "price": ["-1.5", "0.001", "9.99", "1e20"],
    "ratio": ["-2", "-0.0", "0", "0.1", "1e300"],
    "exact": ["-2", "-0.0", "0", "0.1", "1e300"],
    "at": ["'1970-01-01'", "'1970-01-01T00:30:00'", "'1970-01-01T01:00:00Z'"],
    "fine": ["'1970-01-01'", "'1970-01-01T00:00:00.000000001Z'"],
    "day": ["'1969-12-31'", "'1970-01-01'"],
    "flag": ["true", "false"],
    "kind": ["'a'", "'c'"],
    "seen": ["'a'", "'c'"],
    "fixed": ["'aa'", "'ab'", "'a'", "x'ffff'"],
}


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TopicTable]:
    """Many small files, with few different values in each."""
    chance = random.Random(11)
    schema = stream_schema(BODY)
    tables = Tables(Settings(data_dir=tmp_path_factory.mktemp("mixed")))
    table = tables.open(TableSpec(TOPIC, "stream-1", 1, schema))
    files = []
    for start in range(0, 120, 4):
        columns = [*messages(start, start + 4).columns[:4]]
        for field in BODY:
            choice = chance.sample([None, *VALUES[field.name]], 2)
            columns.append(pa.array([chance.choice(choice) for _ in range(4)], field.type))
        batch = pa.RecordBatch.from_arrays(columns, schema=schema)
        files += table.writer().write([batch], max_memory_bytes=MEMORY_BYTES)
    yield table.commit(files, start=0, end=120, epoch=1)
    tables.close()


@pytest.fixture(scope="module")
def everything(mixed: TopicTable) -> list[pa.RecordBatch]:
    return list(mixed.scan())


@st.composite
def condition(draw: st.DrawFn) -> str:
    column = draw(st.sampled_from(BODY.names))
    literals = st.sampled_from(LITERALS[column])
    kind = draw(st.sampled_from(["compare", "in", "null", "between", "like"]))
    if kind == "null":
        return f"{column} is null"
    if kind == "in":
        return f"{column} in ({', '.join(draw(st.lists(literals, min_size=1, max_size=3)))})"
    if kind == "between":
        return f"{column} between {draw(literals)} and {draw(literals)}"
    if kind == "like" and column in ("name", "code", "kind", "seen"):
        return f"{column} like '{draw(st.sampled_from(['a%', '%', 'ü_%', 'zz%', 'a', '_b%']))}'"
    return f"{column} {draw(st.sampled_from(['=', '<>', '<', '<=', '>', '>=']))} {draw(literals)}"


CONDITIONS = st.recursive(
    condition(),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(lambda parts: f"({' '.join(parts)})"),
        inner.map(lambda text: f"not ({text})"),
    ),
    max_leaves=4,
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(CONDITIONS)
def test_pruning_leaves_out_nothing_that_matches(
    mixed: TopicTable, everything: list[pa.RecordBatch], text: str
) -> None:
    where = Filter.parse(text)
    expected = [
        offset
        for batch in everything
        for offset, is_match in zip(batch.column(0).to_pylist(), where.mask(batch).to_pylist(), strict=True)
        if is_match
    ]
    found = [offset for batch in mixed.scan(columns=["_offset"], where=where) for offset in batch[0].to_pylist()]
    assert found == expected
