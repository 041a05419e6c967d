"""A checksum sees every value, and nothing else."""

import random
import struct
from itertools import pairwise

import pyarrow as pa
import pytest
from tests.parquet_trees import spans

from icestream.migration.fingerprint import Fingerprint


def checksum(table: pa.Table, cuts: tuple[int, ...] = ()) -> str:
    found = Fingerprint(table.schema)
    bounds = [0, *cuts, table.num_rows]
    for first, end in pairwise(bounds):
        for batch in table.slice(first, end - first).to_batches():
            found.update(batch.columns)
    assert found.rows == table.num_rows
    return found.digest()


ROWS = spans(40)


def test_it_does_not_depend_on_where_batches_are_cut() -> None:
    rng = random.Random(1)
    for _ in range(20):
        cuts = tuple(sorted(rng.sample(range(1, 40), 5)))
        assert checksum(ROWS, cuts) == checksum(ROWS)


def test_it_does_not_depend_on_what_lies_behind_nulls_or_around_a_slice() -> None:
    kept = pa.array([1, 2, 3, 4], pa.int64())
    hidden = pa.Array.from_buffers(pa.int64(), 4, [pa.array([True, False, True, True]).buffers()[1], kept.buffers()[1]])
    zeroed = pa.array([1, None, 3, 4], pa.int64())
    assert checksum(pa.table({"a": hidden})) == checksum(pa.table({"a": zeroed}))
    sliced = pa.concat_tables([ROWS.slice(30), ROWS]).combine_chunks().slice(10)
    assert checksum(sliced) == checksum(ROWS)


@pytest.mark.parametrize("column", ROWS.schema.names)
def test_it_sees_a_change_in_any_column(column: str) -> None:
    place = ROWS.schema.get_field_index(column)
    values = ROWS.column(place).combine_chunks()
    order = pa.array([1, 0, *range(2, 40)])
    swapped = values.take(order)
    other = swapped if not swapped.equals(values) else pa.nulls(40, values.type)
    if other.equals(values):
        other = pa.array([_other(values.type)] * 40, values.type)
    field = ROWS.schema.field(place).with_nullable(nullable=True)
    same = ROWS.set_column(place, field, values)
    assert checksum(ROWS.set_column(place, field, other)) != checksum(same)


def _other(kind: pa.DataType) -> object:
    return [] if pa.types.is_list(kind) else {"schema_url": "x"} if pa.types.is_struct(kind) else 7


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["ab", "c"], ["a", "bc"]),
        ([[1], [2, 3]], [[1, 2], [3]]),
        (["", None], [None, ""]),
        ([0.0], [-0.0]),
        ([[]], [None]),
        ([True, False], [False, True]),
    ],
)
def test_it_tells_apart_what_has_the_same_bytes(one: list[object], other: list[object]) -> None:
    kind = pa.array([*one, *other]).type
    assert checksum(pa.table({"a": pa.array(one, kind)})) != checksum(pa.table({"a": pa.array(other, kind)}))


def test_a_nan_equals_itself_by_its_bits() -> None:
    odd = struct.unpack("<d", b"\x01\x00\x00\x00\x00\x00\xf8\x7f")[0]
    assert checksum(pa.table({"a": [float("nan")]})) == checksum(pa.table({"a": [float("nan")]}))
    assert checksum(pa.table({"a": [float("nan")]})) != checksum(pa.table({"a": [odd]}))
