"""Sets of offsets, as ranges."""

from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.model.messages import offset_ranges
from icestream.model.offsets import MAX_RANGES, OffsetRanges, merge_ranges

ranges = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)).map(lambda pair: (pair[0], pair[0] + pair[1])))


def offsets(lost: OffsetRanges) -> set[int]:
    return {offset for first, end in lost.ranges for offset in range(first, end)}


@given(ranges, ranges)
def test_ranges_hold_what_was_added_in_order_and_apart(
    some: list[tuple[int, int]], more: list[tuple[int, int]]
) -> None:
    lost = OffsetRanges.of(some) | OffsetRanges.of(more)
    assert offsets(lost) == {offset for first, end in [*some, *more] for offset in range(first, end)}
    assert all(before[1] < after[0] for before, after in zip(lost.ranges, lost.ranges[1:], strict=False))
    assert lost.count == len(offsets(lost))
    assert OffsetRanges.parse(lost.to_text()) == lost


@given(ranges, st.integers(0, 70), st.integers(0, 70))
def test_the_rest_of_a_range_is_what_is_not_lost(some: list[tuple[int, int]], first: int, end: int) -> None:
    lost = OffsetRanges.of(some)
    rest = [offset for left, right in lost.gaps(first, end) for offset in range(left, right)]
    assert rest == [offset for offset in range(first, end) if offset not in offsets(lost)]


def test_beyond_the_limit_the_closest_are_taken_for_one() -> None:
    lost = OffsetRanges.of((10 * number, 10 * number + 1) for number in range(MAX_RANGES))
    assert len(lost.ranges) == MAX_RANGES
    more = lost | OffsetRanges.of([(23, 24)])
    assert len(more.ranges) == MAX_RANGES
    assert (20, 24) in more.ranges
    assert offsets(lost) < offsets(more)


@pytest.mark.parametrize("text", ["", "5", "[1]", "[[1]]", '{"a": 1}', '[["x", 2]]', "[null]"])
def test_another_text_is_no_ranges(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        OffsetRanges.parse(text)
    assert not OffsetRanges.parse(None)


def members(found: list[tuple[int, int]]) -> list[int]:
    return [offset for first, end in found for offset in range(first, end)]


@given(st.lists(st.integers(0, 60)))
def test_a_column_of_offsets_becomes_exactly_its_ranges_in_order_and_as_few_as_possible(column: list[int]) -> None:
    found = offset_ranges(pa.array(column, pa.int64()))
    assert members(found) == sorted(set(column))
    assert all(end < first for (_, end), (first, _) in pairwise(found))


@given(ranges)
def test_merged_ranges_hold_the_same_offsets(some: list[tuple[int, int]]) -> None:
    merged = merge_ranges(some)
    assert members(merged) == sorted(set(members(some)))
    assert all(end < first for (_, end), (first, _) in pairwise(merged))
