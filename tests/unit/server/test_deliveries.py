"""Messages that a client names become stretches of offsets."""

import pytest

from icestream.server.http.subscriptions import ranges_of


@pytest.mark.parametrize(
    ("offsets", "ranges", "expected"),
    [
        ([], [], []),
        ([5], [], [(5, 6)]),
        ([3, 1, 2, 7, 2], [], [(1, 4), (7, 8)]),
        ([4], [[0, 4], [6, 9]], [(0, 5), (6, 9)]),
        ([], [[0, 10], [2, 3], [5, 12]], [(0, 12)]),
        ([], [[5, 5], [7, 3]], []),
        ([8], [[7, 3]], [(8, 9)]),
        ([2], [[0, 10]], [(0, 10)]),
    ],
)
def test_neighbours_are_joined_and_nothing_is_left_out(
    offsets: list[int], ranges: list[list[int]], expected: list[tuple[int, int]]
) -> None:
    assert ranges_of(offsets, ranges) == expected
