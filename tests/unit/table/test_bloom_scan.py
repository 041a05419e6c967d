"""Bloom filters in tables: written where properties say, believed where a checksum says, and never a row less."""

import random
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path
from typing import Any
from zlib import crc32

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.table.conftest import MEMORY_BYTES, OpenTable, local, messages

from icestream.model.errors import DamagedError
from icestream.model.filters import Filter
from icestream.model.messages import stream_schema
from icestream.model.names import TopicName
from icestream.table import TopicTable
from icestream.table.bloom import NOTES, BloomFilter, FilterNote, filter_notes
from icestream.table.planning import FilePlan
from icestream.table.scan import OpenFile, ScanRequest

BODY = pa.schema(
    [
        pa.field("trace_id", pa.binary()),
        pa.field("number", pa.int64()),
        pa.field("at", pa.timestamp("ms", tz="UTC")),
        pa.field("name", pa.string()),
        pa.field("is_new", pa.bool_()),
        pa.field("text", pa.string()),
    ]
)
SCHEMA = stream_schema(BODY)
GROUP_ROWS = 100
FILTERED = "trace_id, number, at, name, is_new, nobody"


def rows(start: int, trace_ids: list[bytes | None], seed: int = 5) -> pa.RecordBatch:
    """Each with the number of its trace, and some text that takes room."""
    chance, count = random.Random(seed + start), len(trace_ids)
    numbers = [None if trace_id is None else int.from_bytes(trace_id[:4], "big") for trace_id in trace_ids]
    body = [
        pa.array(trace_ids, pa.binary()),
        pa.array(numbers, pa.int64()),
        pa.array(numbers, BODY.field("at").type),
        pa.array([None if number is None else f"name {number}" for number in numbers]),
        pa.array([True] * count),
        pa.array([chance.randbytes(400).hex() for _ in range(count)]),
    ]
    return pa.RecordBatch.from_arrays([*messages(start, start + count).columns[:4], *body], schema=SCHEMA)


def filled(table: TopicTable, batches: list[pa.RecordBatch]) -> TopicTable:
    """One file."""
    end = sum(batch.num_rows for batch in batches)
    files = table.writer().write(batches, max_memory_bytes=MEMORY_BYTES)
    return table.commit(files, start=0, end=end, epoch=1)


def found(table: TopicTable, text: str) -> list[int]:
    return [
        offset
        for batch in table.scan(columns=["_offset", "text"], where=Filter.parse(text))
        for offset in batch["_offset"].to_pylist()
    ]


def opened(table: TopicTable, text: str) -> list[int]:
    """The row groups that a read of the one file takes up, if it opens that."""
    request = ScanRequest(table, tuple(SCHEMA.names), 0, table.ledger.committed_offset, Filter.parse(text))
    found: list[int] = []
    for planned in FilePlan(table, pruning=request.pruning).files():
        file = OpenFile(request, planned)
        file.close()
        found += [group.number for group in file.row_groups]
    return found


def path_of(table: TopicTable) -> Path:
    (planned,) = FilePlan(table).files()
    return local(planned.path)


def chunks(path: Path, column: str) -> list[Any]:
    metadata = pq.read_metadata(path)
    number = metadata.schema.to_arrow_schema().get_field_index(column)
    return [metadata.row_group(group).column(number) for group in range(metadata.num_row_groups)]


@pytest.fixture
def traces() -> list[list[bytes | None]]:
    """For each row group its traces; bounds tell none of them apart."""
    chance = random.Random(9)
    ids: list[bytes | None] = [chance.randbytes(16) for _ in range(12 * GROUP_ROWS // 4)]
    return [ids[first : first + GROUP_ROWS // 4] * 4 for first in range(0, len(ids), GROUP_ROWS // 4)]


@pytest.fixture
def make_table(open_table: OpenTable, traces: list[list[bytes | None]]) -> Callable[..., TopicTable]:
    def make(name: str = "default/traces", **settings: Any) -> TopicTable:
        options = {"sort_by": ["trace_id"], "row_group_bytes": 100_000, "topic": TopicName.parse(name), **settings}
        batches = [rows(place * GROUP_ROWS, ids) for place, ids in enumerate(traces)]
        table = filled(open_table(SCHEMA, **options), batches)
        assert pq.read_metadata(path_of(table)).num_row_groups == len(traces)
        return table

    return make


MakeTable = Callable[..., TopicTable]


def equal_to(trace_id: bytes | None) -> str:
    assert trace_id is not None
    return f"trace_id = x'{trace_id.hex()}'"


def any_of(trace_ids: Iterable[bytes | None]) -> str:
    return " or ".join(equal_to(trace_id) for trace_id in trace_ids)


def test_a_trace_is_looked_for_where_it_can_be(make_table: MakeTable, traces: list[list[bytes | None]]) -> None:
    table = make_table()
    wanted = traces[7][3]
    assert opened(table, equal_to(wanted)) == [7]
    expected = [700 + 3 + place for place in range(0, GROUP_ROWS, GROUP_ROWS // 4)]
    assert found(table, equal_to(wanted)) == expected
    content = bytearray(path_of(table).read_bytes())
    for group in range(len(traces)):
        if group != 7:
            for column in SCHEMA.names:
                chunk = chunks(path_of(table), column)[group]
                content[chunk.data_page_offset : chunk.data_page_offset + 20] = b"\xff" * 20
    path_of(table).write_bytes(content)
    assert found(table, equal_to(wanted)) == expected
    with pytest.raises(DamagedError):
        found(table, equal_to(traces[6][3]))


def test_without_filters_everything_has_to_be_looked_through(
    make_table: MakeTable, traces: list[list[bytes | None]]
) -> None:
    table = make_table(bloom_filter_columns="")
    assert opened(table, equal_to(traces[7][3])) == list(range(12))
    assert NOTES.encode() not in (pq.read_metadata(path_of(table)).metadata or {})


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("{0} and {1}", []),
        ("{0} or {1}", [2, 9]),
        ("trace_id in ({2}, {3}) and name is not null", [2, 9]),
        ("not ({0})", list(range(12))),
        ("{0} or is_new", list(range(12))),
        ("{0} and is_new = true", [2]),
        ("{0} or text = 'x'", list(range(12))),
        ("trace_id = 'short'", []),
        ("number = {4}", [2]),
        ("number = {4}.5", []),
        ("at = '{5}'", [2]),
        ("name = 'name {4}'", [2]),
    ],
)
def test_filters_of_several_columns_and_parts(
    make_table: MakeTable, traces: list[list[bytes | None]], text: str, groups: list[int]
) -> None:
    table = make_table(bloom_filter_columns=FILTERED)
    one, other = traces[2][0], traces[9][0]
    assert one is not None
    assert other is not None
    number = int.from_bytes(one[:4], "big")
    at = pa.scalar(number, BODY.field("at").type).as_py().isoformat()
    where = text.format(equal_to(one), equal_to(other), f"x'{one.hex()}'", f"x'{other.hex()}'", number, at)
    read = opened(table, where)
    assert set(read) >= set(groups)
    assert len(read) <= len(groups) + 2  # a filter may be wrong that way, if seldom
    everything = pa.Table.from_batches(table.scan())
    mask = [Filter.parse(where).mask(batch).to_pylist() for batch in everything.to_batches()]
    matching = [offset for offset, is_match in enumerate(bit for part in mask for bit in part) if is_match]
    assert found(table, where) == matching


def test_columns_that_cannot_have_a_filter_have_none(make_table: MakeTable) -> None:
    path = path_of(make_table(bloom_filter_columns=FILTERED))
    assert sorted(filter_notes(pq.read_metadata(path))) == ["at", "name", "number", "trace_id"]


def sizes(table: TopicTable, **properties: str) -> tuple[int, int]:
    """Of our filter and of Parquet's in a file that is written with other properties, of 4,000 traces."""
    chance = random.Random(4)
    table.iceberg.transaction().set_properties(properties).commit_transaction()
    batch = rows(0, [chance.randbytes(16) for _ in range(4_000)])
    (file,) = table.refresh().writer().write([batch], max_memory_bytes=MEMORY_BYTES)
    (note,) = filter_notes(pq.read_metadata(local(file.path)))["trace_id"]
    (chunk,) = chunks(local(file.path), "trace_id")
    return note.nbytes, chunk.bloom_filter_length or 0


def test_writers_obey_the_properties(open_table: OpenTable) -> None:
    table = open_table(SCHEMA)
    usual, nothing = sizes(table)
    assert 4_096 < usual < 10_000
    assert nothing == 0
    enabled, fpp = (f"write.parquet.bloom-filter-{word}.column.trace_id" for word in ("enabled", "fpp"))
    most = "write.parquet.bloom-filter-max-bytes"
    assert sizes(table, **{enabled: "true"}) == (usual, usual)
    assert min(sizes(table, **{fpp: "0.0001"})) > usual
    assert max(sizes(table, **{fpp: "0.5"})) < usual
    assert sizes(table, **{fpp: "often"}) == (usual, usual)
    assert sizes(table, **{fpp: "7"}) == (usual, usual)
    assert max(sizes(table, **{fpp: "0.01", most: "1024"})) < 1_100
    assert sizes(table, **{most: "-1"}) == (usual, usual)
    assert sizes(table, **{enabled: "false"}) == (usual, 0)


def test_row_groups_of_compaction_are_small_where_values_are_looked_up(open_table: OpenTable) -> None:
    name = "write.parquet.row-group-size-bytes"
    assert int(open_table(SCHEMA).properties[name]) == 8 << 20
    assert name not in open_table(topic=TopicName("default", "plain")).properties


def damaged(path: Path, places: list[int]) -> None:
    content = bytearray(path.read_bytes())
    for place in places:
        content[place // 8] ^= 1 << place % 8
    path.write_bytes(content)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_flipped_bits_in_filters_and_checksums_hide_no_row(
    data: st.DataObject, damage_table: TopicTable, traces: list[list[bytes | None]]
) -> None:
    path = path_of(damage_table)
    whole = path.read_bytes()
    notes = filter_notes(pq.read_metadata(path))["trace_id"]
    ranges = [(note.position, note.position + note.nbytes) for note in notes]
    noted = whole.index(b'{"trace_id":')
    ranges.append((noted, whole.index(b"}", noted)))
    bits = st.sampled_from(ranges).flatmap(lambda place: st.integers(8 * place[0], 8 * place[1] - 1))
    try:
        damaged(path, data.draw(st.lists(bits, min_size=1, max_size=4, unique=True)))
        assert len(found(damage_table, any_of(ids[group] for group, ids in enumerate(traces)))) == 4 * len(traces)
    finally:
        path.write_bytes(whole)


def test_a_lost_bit_would_hide_rows_if_there_were_no_checksum(
    damage_table: TopicTable, traces: list[list[bytes | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = path_of(damage_table)
    note = filter_notes(pq.read_metadata(path))["trace_id"][0]
    end, nbytes = note.position + note.nbytes, note.nbytes // 32 * 32
    content = bytearray(path.read_bytes())
    content[end - nbytes : end] = b"\0" * nbytes
    path.write_bytes(content)
    assert len(found(damage_table, equal_to(traces[0][0]))) == 4
    monkeypatch.setattr("icestream.table.bloom.crc32", lambda _content: note.checksum)
    assert found(damage_table, equal_to(traces[0][0])) == []


@pytest.fixture
def damage_table(make_table: MakeTable) -> TopicTable:
    return make_table()


@pytest.mark.parametrize(
    "noted",
    [
        None,
        "",
        "[]",
        "{",
        '{"trace_id":7}',
        '{"trace_id":[1]}',
        '{"trace_id":[["a",1,1]]}',
        '{"other":[[4,47,1]]}',
        '{"trace_id":[[1e999,47,1]]}',
    ]
    + [
        f'{{"trace_id":[[{position},{nbytes},1]]}}'
        for position, nbytes in [(-9, 47), (10**12, 47), (4, 10**12), (4, 0)]
    ],
)
def test_what_is_no_filter_of_ours_is_not_believed(
    make_table: MakeTable, traces: list[list[bytes | None]], noted: str | None
) -> None:
    """Files of other engines have filters without checksums, or none; or something else under that name."""
    table = make_table()
    path = path_of(table)
    content = pq.read_table(path)
    schema = content.schema.with_metadata(None if noted is None else {NOTES: noted})
    with pq.ParquetWriter(path, schema, bloom_filter_options={"trace_id": True}, store_schema=False) as writer:
        writer.write_table(content.cast(schema))
    assert opened(table, equal_to(traces[3][0])) == [0]
    assert len(found(table, equal_to(traces[3][0]))) == 4


@pytest.mark.parametrize("gathered", [1, 5_000, 1 << 20])
def test_filters_are_where_the_notes_say(make_table: MakeTable, monkeypatch: pytest.MonkeyPatch, gathered: int) -> None:
    monkeypatch.setattr("icestream.table.bloom._COLLECTED_BYTES", gathered)
    path = path_of(make_table(bloom_filter_columns=FILTERED))
    content, metadata = path.read_bytes(), pq.read_metadata(path)
    for notes in filter_notes(metadata).values():
        assert len(notes) == metadata.num_row_groups
        for note in notes:
            filter_ = content[note.position : note.position + note.nbytes]
            assert FilterNote(note.position, len(filter_), crc32(filter_)) == note
            assert BloomFilter.parse(filter_) is not None
    assert pq.read_table(path)["text"].num_chunks  # rows are where they were


def test_other_readers_are_not_misled(make_table: MakeTable, traces: list[list[bytes | None]]) -> None:
    """DuckDB asks Parquet's filters of a binary column for the wrong value, and then leaves out rows that match."""
    path = path_of(make_table())
    assert pq.read_table(path, columns=["trace_id"]).num_rows == 12 * GROUP_ROWS
    with duckdb.connect() as connection:
        asked = f"SELECT count(*) FROM '{path}' WHERE trace_id = ?"
        for ids in traces:
            assert connection.execute(asked, [ids[5]]).fetchall() == [(4,)]


NUMBERS = count()
IDS = st.sampled_from([None, b"", b"a", b"b", b"\xff" * 16, b"a" * 16, b"a" * 15 + b"b"])


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    ids=st.lists(st.lists(IDS | st.binary(max_size=16), min_size=1, max_size=40), min_size=1, max_size=6),
    wanted=st.lists(st.binary(max_size=16), min_size=1, max_size=2),
    is_sorted=st.booleans(),
)
def test_with_and_without_filters_the_same_rows_are_found(
    open_table: OpenTable, ids: list[list[bytes | None]], wanted: list[bytes], is_sorted: bool
) -> None:
    starts = [sum(map(len, ids[:place])) for place in range(len(ids))]
    batches = [rows(start, part) for start, part in zip(starts, ids, strict=True)]
    tables = [
        filled(
            open_table(
                SCHEMA,
                topic=TopicName("default", f"table-{next(NUMBERS)}"),
                sort_by=["trace_id"] if is_sorted else [],
                row_group_bytes=65_536,
                bloom_filter_columns=columns,
            ),
            batches,
        )
        for columns in ("trace_id", "")
    ]
    everything = [trace_id for part in ids for trace_id in part]
    present = [offset for offset, trace_id in enumerate(everything) if trace_id is not None]
    assert [found(table, any_of([*filter(None, everything), b""])) for table in tables] == [present, present]
    for trace_id in [*wanted, *dict.fromkeys(filter(None, everything[:5]))]:
        expected = [offset for offset, found_id in enumerate(everything) if found_id == trace_id]
        assert [found(table, equal_to(trace_id)) for table in tables] == [expected, expected]
