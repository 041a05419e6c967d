"""A bloom filter says of every value that was put in that it may be there, and of most others that they are not."""

import random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.table.bloom import BloomFilter, stored

KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "binary": (pa.binary(), st.binary(max_size=80)),
    "string": (pa.string(), st.text(max_size=40)),
    "fixed": (pa.binary(16), st.binary(min_size=16, max_size=16)),
    "int": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "long": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
}


def written(values: pa.Array, distinct: int = 1_000) -> tuple[bytes, str]:
    """The filter that Parquet makes of values, and their type there."""
    sink = pa.BufferOutputStream()
    options = {"v": {"ndv": distinct, "fpp": 0.01}}
    pq.write_table(pa.table({"v": values}), sink, bloom_filter_options=options)
    content = sink.getvalue()
    chunk = pq.read_metadata(pa.BufferReader(content)).row_group(0).column(0)
    begin = chunk.bloom_filter_offset
    return bytes(content[begin : begin + chunk.bloom_filter_length]), chunk.physical_type


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=50, deadline=None)
@given(data=st.data(), distinct=st.sampled_from([1, 50, 10_000]))
def test_every_value_that_was_put_in_is_found(kind: str, data: st.DataObject, distinct: int) -> None:
    type_, strategy = KINDS[kind]
    values = data.draw(st.lists(st.none() | strategy, min_size=1, max_size=200))
    content, physical_type = written(pa.array(values, type_), distinct)
    bloom = BloomFilter.parse(content)
    assert bloom is not None
    for value in values:
        if value is not None:
            found = stored(value, physical_type)
            assert found is not None
            assert bloom.may_hold(found)


def test_most_other_values_are_not_found() -> None:
    chance = random.Random(3)
    bloom = BloomFilter.parse(written(pa.array([chance.randbytes(16) for _ in range(1_000)]))[0])
    assert bloom is not None
    assert sum(bloom.may_hold(chance.randbytes(16)) for _ in range(10_000)) < 500


def test_what_is_no_filter_of_the_known_kind_is_none() -> None:
    content = written(pa.array([b"a", b"b"]))[0]
    assert BloomFilter.parse(content) is not None
    assert [BloomFilter.parse(content[:end]) for end in range(len(content))] == [None] * len(content)
    header = len(content) - 32
    for place in range(header):
        changed = bytearray(content)
        changed[place] ^= 0x01
        assert BloomFilter.parse(bytes(changed)) is None
    assert BloomFilter.parse(content + b"\0" * 32) is None
    assert BloomFilter.parse(b"\x15" + b"\xff" * 100) is None


@pytest.mark.parametrize(
    ("value", "physical_type"),
    [(1.5, "DOUBLE"), (True, "INT32"), (2**31, "INT32"), (1, "BYTE_ARRAY"), ("a", "INT64"), (b"a", "BOOLEAN")],
)
def test_other_values_are_not_asked_about(value: object, physical_type: str) -> None:
    assert stored(value, physical_type) is None
