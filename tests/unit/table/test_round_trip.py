"""Whatever a topic's schema is, what was published comes back from the table, with its own types."""

import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.table.conftest import MEMORY_BYTES, TOPIC

from icestream.config import Settings
from icestream.model.messages import stream_schema
from icestream.model.offsets import OffsetRanges
from icestream.table import Tables, TableSpec

_INT64 = st.integers(-(2**63) + 1, 2**63 - 1)
_TIME_OF_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}


def _whole(bits: int, signed: bool) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else st.integers(0, 2**bits - 1)


def _decimals(kind: pa.DataType) -> st.SearchStrategy[Any]:
    digits = st.integers(-(10**kind.precision) + 1, 10**kind.precision - 1)
    return digits.map(lambda number: Decimal((number < 0, tuple(map(int, str(abs(number)))), -kind.scale)))


_NUMBERS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    *((getattr(pa, f"int{bits}")(), _whole(bits, signed=True)) for bits in (8, 16, 32, 64)),
    *((getattr(pa, f"uint{bits}")(), _whole(bits, signed=False)) for bits in (8, 16, 32, 64)),
    (pa.float16(), st.floats(width=16, allow_nan=False)),
    (pa.float32(), st.floats(width=32, allow_nan=False)),
    (pa.float64(), st.floats(allow_nan=False)),
    *((kind, _decimals(kind)) for kind in (pa.decimal32(7, 2), pa.decimal64(15, 15), pa.decimal128(38, 9))),
]
_TIMES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.date32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.date64(), st.integers(-(10**7), 10**7).map(lambda days: days * 86_400_000)),
    *((pa.time32(unit), st.integers(0, _TIME_OF_DAY[unit] - 1)) for unit in ("s", "ms")),
    *((pa.time64(unit), st.integers(0, _TIME_OF_DAY[unit] - 1)) for unit in ("us", "ns")),
    *((pa.duration(unit), _INT64) for unit in ("s", "ms", "us", "ns")),
    *((pa.timestamp("s", zone), st.integers(-(9 * 10**12), 9 * 10**12)) for zone in (None, "UTC")),
    *((pa.timestamp("ms", zone), st.integers(-(9 * 10**15), 9 * 10**15)) for zone in (None, "America/Lima")),
    *((pa.timestamp(unit, zone), _INT64) for unit in ("us", "ns") for zone in (None, "UTC")),
]
_TEXTS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    *((kind, st.text(max_size=20)) for kind in (pa.string(), pa.large_string(), pa.string_view())),
    *((kind, st.binary(max_size=20)) for kind in (pa.binary(), pa.large_binary(), pa.binary_view())),
    (pa.binary(5), st.binary(min_size=5, max_size=5)),
    (pa.uuid(), st.binary(min_size=16, max_size=16)),
    (pa.dictionary(pa.int32(), pa.string()), st.sampled_from(["red", "green", "blue"])),
]
_PLAIN = [*_NUMBERS, *_TIMES, *_TEXTS]
_NESTABLE = [(kind, values) for kind, values in _PLAIN if not (pa.types.is_dictionary(kind) or kind == pa.uuid())]

Column = tuple[pa.DataType, st.SearchStrategy[Any]]


def _lists(inner: Column) -> Column:
    return pa.list_(inner[0]), st.lists(st.none() | inner[1], max_size=3)


def _large_lists(inner: Column) -> Column:
    return pa.large_list(inner[0]), st.lists(st.none() | inner[1], max_size=3)


def _pairs(inner: Column) -> Column:
    if "view" in str(inner[0]):
        return _lists(inner)
    return pa.list_(inner[0], 2), st.lists(st.none() | inner[1], min_size=2, max_size=2)


def _maps(inner: Column) -> Column:
    values = st.dictionaries(st.text(max_size=5), st.none() | inner[1], max_size=3)
    return pa.map_(pa.string(), inner[0]), values.map(lambda found: list(found.items()))


def _structs(inner: Column) -> Column:
    kind = pa.struct([pa.field("a", inner[0]), pa.field("b c", pa.int16())])
    return kind, st.fixed_dictionaries({"a": st.none() | inner[1], "b c": st.none() | _whole(16, signed=True)})


_NESTED = st.recursive(
    st.sampled_from(_NESTABLE),
    lambda inner: st.builds(
        lambda wrap, column: wrap(column),
        st.sampled_from([_lists, _large_lists, _pairs, _maps, _structs]),
        inner,
    ),
    max_leaves=3,
)


@st.composite
def _batches(draw: st.DrawFn) -> list[pa.RecordBatch]:
    columns = draw(st.lists(st.sampled_from(_PLAIN) | _NESTED, min_size=1, max_size=4))
    schema = stream_schema(pa.schema([pa.field(f"c{number}", kind) for number, (kind, _) in enumerate(columns)]))
    made, start = [], 0
    for count in draw(st.lists(st.integers(0, 5), min_size=1, max_size=3)):
        offsets = pa.arange(start, start + count)
        values = [
            pa.array(draw(st.lists(st.none() | strategy, min_size=count, max_size=count)), kind)
            for kind, strategy in columns
        ]
        envelope = [offsets, offsets.cast(schema[1].type), pa.repeat("p", count), offsets]
        made.append(pa.RecordBatch.from_arrays([*envelope, *values], schema=schema))
        start += count
    return made


@given(batches=_batches(), row_group_bytes=st.sampled_from([64 * 1024, 32 * 1024 * 1024]))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_is_written_comes_back_with_the_topics_own_types(
    batches: list[pa.RecordBatch], row_group_bytes: int
) -> None:
    schema = batches[0].schema
    count = sum(batch.num_rows for batch in batches)
    with tempfile.TemporaryDirectory() as folder:
        tables = Tables(
            Settings.model_validate({"data_dir": Path(folder), "table": {"row_group_bytes": row_group_bytes}})
        )
        state = tables.open(TableSpec(TOPIC, "stream-1", 1, schema))
        files = state.writer().write(batches, max_memory_bytes=MEMORY_BYTES)
        assert sum(file.message_count for file in files) == count
        nothing = OffsetRanges() if count else OffsetRanges.of([(0, 1)])
        state = state.commit(files, start=0, end=max(count, 1), epoch=1, lost=nothing)
        found = pa.Table.from_batches(state.refresh().scan(), schema)
        assert found.combine_chunks().equals(pa.Table.from_batches(batches, schema).combine_chunks())
        tables.close()
