"""Ranges of offsets that were given up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.model.offsets import MAX_RANGES, LostRanges

ranges = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)).map(lambda pair: (pair[0], pair[0] + pair[1])))


def offsets(lost: LostRanges) -> set[int]:
    return {offset for first, end in lost.ranges for offset in range(first, end)}


@given(ranges, ranges)
def test_ranges_hold_what_was_added_in_order_and_apart(
    some: list[tuple[int, int]], more: list[tuple[int, int]]
) -> None:
    lost = LostRanges.of(some) | LostRanges.of(more)
    assert offsets(lost) == {offset for first, end in [*some, *more] for offset in range(first, end)}
    assert all(before[1] < after[0] for before, after in zip(lost.ranges, lost.ranges[1:], strict=False))
    assert lost.messages == len(offsets(lost))
    assert LostRanges.parse(lost.to_text()) == lost


@given(ranges, st.integers(0, 70), st.integers(0, 70))
def test_the_rest_of_a_range_is_what_is_not_lost(some: list[tuple[int, int]], first: int, end: int) -> None:
    lost = LostRanges.of(some)
    rest = [offset for left, right in lost.others(first, end) for offset in range(left, right)]
    assert rest == [offset for offset in range(first, end) if offset not in offsets(lost)]


def test_beyond_the_limit_the_closest_are_taken_for_one() -> None:
    lost = LostRanges.of((10 * number, 10 * number + 1) for number in range(MAX_RANGES))
    assert len(lost.ranges) == MAX_RANGES
    more = lost | LostRanges.of([(23, 24)])
    assert len(more.ranges) == MAX_RANGES
    assert (20, 24) in more.ranges
    assert offsets(lost) < offsets(more)


@pytest.mark.parametrize("text", ["", "5", "[1]", "[[1]]", '{"a": 1}', '[["x", 2]]', "[null]"])
def test_another_text_is_no_ranges(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        LostRanges.parse(text)
    assert not LostRanges.parse(None)
