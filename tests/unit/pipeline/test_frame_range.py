"""A range out of undecoded frames."""

import pytest

from icestream.model.errors import DamagedError
from icestream.model.messages import Encoding, Frame, message_batch
from icestream.pipeline.tasks import FrameRange


def frame(first: int, *payloads: bytes) -> Frame:
    body = message_batch(list(payloads)).serialize()
    return Frame(first, len(payloads), 0, 1, "", 0, Encoding.ARROW_IPC, 0, body)


POISON = Frame(4, 2, 0, 1, "", 0, Encoding.ARROW_IPC, 0, b"garbage")
LOST = Frame(2, 2, 0, 1, "", 0, Encoding.LOST, 0, b"")


def read(start: int, end: int, *frames: Frame) -> tuple[list[int], FrameRange]:
    reading = FrameRange(start, end)
    reading.use_schemas({})
    batches = list(reading.take(frames))
    return [offset for batch in batches for offset in batch.column(0).to_pylist()], reading


def test_what_lies_behind_the_range_is_not_opened() -> None:
    offsets, reading = read(1, 4, frame(0, b"a", b"b"), frame(2, b"c", b"d"), POISON)
    assert offsets == [1, 2, 3]
    assert (reading.next_offset, reading.lost) == (4, 0)


def test_what_lies_within_is() -> None:
    with pytest.raises(DamagedError):
        read(1, 5, frame(0, b"a", b"b"), frame(2, b"c", b"d"), POISON)


def test_a_range_may_end_within_a_frame_and_has_what_is_lost_counted() -> None:
    offsets, reading = read(0, 5, frame(0, b"a", b"b"), LOST, frame(4, b"e", b"f"))
    assert offsets == [0, 1, 4]
    assert (reading.next_offset, reading.lost, reading.lost_ranges.ranges) == (5, 2, ((2, 4),))
    offsets, reading = read(0, 3, frame(0, b"a", b"b"), LOST)
    assert (offsets, reading.next_offset, reading.lost) == ([0, 1], 3, 1)
