from itertools import pairwise

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from icestream.client.subscription import merge, ranges_of


def members(ranges: list[tuple[int, int]]) -> list[int]:
    return [offset for first, end in ranges for offset in range(first, end)]


@given(st.lists(st.integers(0, 60)))
def test_ranges_hold_exactly_the_offsets_in_order_and_as_few_as_possible(offsets: list[int]) -> None:
    ranges = ranges_of(pa.array(offsets, pa.int64()))
    assert members(ranges) == sorted(set(offsets))
    assert all(end < first for (_, end), (first, _) in pairwise(ranges))


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 9)).map(lambda pair: (pair[0], sum(pair)))))
def test_merged_ranges_hold_the_same_offsets(ranges: list[tuple[int, int]]) -> None:
    merged = merge(ranges)
    assert members(merged) == sorted(set(members(ranges)))
    assert all(end < first for (_, end), (first, _) in pairwise(merged))
