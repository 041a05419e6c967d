"""ReadLeases: what is read is left alone, for a while."""

from collections.abc import Callable

import pytest
from tests.unit.wal.conftest import batch

from icestream.model.errors import OffsetOutOfRangeError
from icestream.wal import Log, LogReader
from icestream.wal.read_leases import ReadLeases


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_lease_holds_back_what_is_at_or_above_its_offset() -> None:
    leases = ReadLeases(10.0, Clock())
    first, second = leases.take(5), leases.take(8)
    assert leases.floor(20) == 5
    assert leases.floor(4) == 4
    leases.release(first)
    assert leases.floor(20) == 8
    second.offset = 20
    assert leases.floor(20) == 20


def test_a_lease_counts_for_a_bounded_time_even_if_its_reader_moves() -> None:
    clock = Clock()
    leases = ReadLeases(10.0, clock)
    slow = leases.take(5)
    clock.now = 100.0
    assert leases.floor(20) == 5  # it was in nobody's way until now
    clock.now = 109.0
    slow.offset = 6
    assert leases.floor(30) == 6
    clock.now = 111.0
    assert leases.floor(30) == 30
    slow.offset = 40
    assert leases.floor(35) == 35
    assert leases.floor(50) == 40  # it was out of the way meanwhile: that counts anew


def test_a_reader_that_was_forgotten_holds_nothing() -> None:
    leases = ReadLeases(10.0)
    lease = leases.take(5)
    assert len(leases) == 1
    del lease
    assert leases.floor(20) == 20


def test_a_log_keeps_the_segments_that_are_read(open_log: Callable[..., Log]) -> None:
    log = open_log(max_file_bytes=200)
    for number in range(10):
        log.append(batch("x" * 150 + str(number)))
    reader = LogReader(log, 3)
    log.cache.clear()
    assert log.prune(9) == 3
    assert log.start_offset == 3
    assert [frame.base_offset for frame in reader.read(1)] == [3]
    assert log.prune(9) == 1
    reader.close()
    assert log.prune(9) == 5


def test_a_reader_without_a_lease_is_told_that_its_segment_went(open_log: Callable[..., Log]) -> None:
    log = open_log(max_file_bytes=200, lease_timeout_seconds=0)
    for number in range(10):
        log.append(batch("x" * 150 + str(number)))
    reader = LogReader(log, 3)
    log.cache.clear()
    assert [frame.base_offset for frame in reader.read(1)] == [3]
    assert log.prune(9) == 9
    with pytest.raises(OffsetOutOfRangeError):
        reader.read()
    reader.close()
