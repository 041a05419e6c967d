"""The room on the log's disk, as it is measured, counted down and waited for."""

from pathlib import Path

import pytest

from icestream.model.errors import DiskFullError, LogUnavailableError, OverloadedError
from icestream.storage.disk import Disk, free_bytes

MB = 1024 * 1024
WAL = Path("wal")


class Measure:
    def __init__(self, megabytes: int) -> None:
        self.megabytes = megabytes
        self.looks = 0
        self.broken = False

    def __call__(self, _: Path) -> int:
        self.looks += 1
        if self.broken:
            raise OSError("the disk does not answer")
        return self.megabytes * MB


def test_the_room_is_what_the_file_system_says(tmp_path: Path) -> None:
    assert 0 < free_bytes(tmp_path) < 1 << 62
    assert Disk(tmp_path, 0).free_bytes > 0


def test_publishing_is_refused_below_the_limit_and_goes_on_with_some_more_than_that() -> None:
    measure = Measure(1000)
    disk = Disk(WAL, 800, measure=measure)
    disk.take(1)
    measure.megabytes = 799
    assert not disk.look()
    with pytest.raises(DiskFullError, match="799 MiB left") as caught:
        disk.take(1)
    error = caught.value
    assert error.retryable
    assert isinstance(error, OverloadedError)
    assert isinstance(error, LogUnavailableError)
    assert error.details == {"free_bytes": 799 * MB, "min_free_bytes": 800 * MB}
    for megabytes in (800, 850, 899):
        measure.megabytes = megabytes
        assert not disk.look()
        with pytest.raises(DiskFullError):
            disk.take(1)
    measure.megabytes = 900
    assert disk.look()
    disk.take(1)


def test_a_refused_publish_costs_no_look() -> None:
    measure = Measure(1)
    disk = Disk(WAL, 100, measure=measure)
    for _ in range(10):
        with pytest.raises(DiskFullError):
            disk.take(1)
    assert measure.looks == 1


def test_what_is_published_between_two_looks_is_counted() -> None:
    measure = Measure(104)
    disk = Disk(WAL, 100, measure=measure)
    disk.take(2 * MB)
    assert measure.looks == 1
    measure.megabytes = 99
    with pytest.raises(DiskFullError):
        disk.take(1)
    assert measure.looks == 2


def test_a_fast_producer_makes_the_disk_be_looked_at_every_few_megabytes() -> None:
    measure = Measure(1_000_000)
    disk = Disk(WAL, 100, measure=measure)
    for _ in range(100):
        disk.take(4 * MB)
    assert 15 <= measure.looks <= 30


def test_without_a_limit_nothing_is_counted_or_refused() -> None:
    measure = Measure(0)
    disk = Disk(WAL, 0, measure=measure)
    for _ in range(5):
        disk.take(1 << 40)
    assert disk.look()
    assert not disk.is_full


def test_a_disk_that_cannot_be_asked_is_as_it_was() -> None:
    measure = Measure(1000)
    disk = Disk(WAL, 100, measure=measure)
    measure.broken = True
    assert disk.look()
    assert disk.free_bytes == 1000 * MB
