"""One flipped bit at every byte of a small log that was closed cleanly.

Whatever was durable and is changed is an error that names its place; it never becomes a shorter log, nor other bytes.
What is derived is made anew, and nobody notices.
"""

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.log_model import DIRECTORY, LogModel, ManualPool, open_log, read_all, submit_together

from icestream.model.errors import DamagedError
from icestream.model.frames import Complete, decode
from icestream.testing import Fail, FaultPlan, FaultyFiles, Kind, SimulatedDisk
from icestream.wal import Files, Log, LogOptions
from icestream.wal.segment import (
    SEGMENT_FOOTER_BYTES,
    SEGMENT_HEADER_BYTES,
    decode_header,
    segment_offsets,
    segment_path,
)

OPTIONS = LogOptions(max_file_bytes=900, max_group_bytes=900, index_interval_bytes=128, reopen_pause_seconds=0)


class ClosedLog:
    """Three segments, the last one active, closed cleanly."""

    def __init__(self) -> None:
        self.disk = SimulatedDisk()
        self.model = LogModel()
        pool = ManualPool()
        log = open_log(self.disk, OPTIONS, pool)
        for count in (2, 3, 1, 2, 3):
            submit_together(log, self.model, [self.model.new_batch("a", 2, 61) for _ in range(count)])
            pool.run()
        log.close()
        self.segments = [segment_path(DIRECTORY, offset) for offset in segment_offsets(self.disk, DIRECTORY)]
        assert len(self.segments) == 3

    def flipped(self, path: Path) -> Iterator[tuple[int, SimulatedDisk]]:
        """Disks that differ from the closed one by a bit, at each byte of the file in turn."""
        data = self.disk.read_bytes(path)
        for position, byte in enumerate(data):
            disk = self.disk.snapshot()
            disk.open(path).write([bytes([byte ^ (1 << position % 8)])], position)
            yield position, disk

    def frame_at(self, path: Path, position: int) -> tuple[int, int]:
        """Where the frame that holds a byte begins, and its first offset; the footer counts as one."""
        data = memoryview(self.disk.read_bytes(path))
        start, offset = SEGMENT_HEADER_BYTES, int(path.stem)
        header = decode_header(bytes(data[:SEGMENT_HEADER_BYTES]))
        assert header is not None
        while isinstance(outcome := decode(data, start, header.seed + start), Complete):
            if position < outcome.end:
                return start, offset
            start, offset = outcome.end, outcome.frame.end_offset
        return start, offset


@pytest.fixture(scope="module")
def closed() -> ClosedLog:
    return ClosedLog()


def read_through(files: Files) -> Log:
    log = open_log(files, OPTIONS)
    read_all(log)
    return log


def test_the_log_is_sound_without_a_flip(closed: ClosedLog) -> None:
    closed.model.copy().check(open_log(closed.disk.snapshot(), OPTIONS))


@pytest.mark.parametrize("place", [0, 1, 2], ids=["first segment", "second segment", "active segment"])
def test_a_flip_in_a_segment_is_an_error_that_names_file_position_and_offsets(closed: ClosedLog, place: int) -> None:
    path = closed.segments[place]
    for position, disk in closed.flipped(path):
        with pytest.raises(DamagedError) as caught:
            read_through(disk)
        details = caught.value.details
        assert details["file"] == str(path), position
        assert str(path) in caught.value.place
        assert "repair" in caught.value.remedy
        if position < SEGMENT_HEADER_BYTES:
            assert (details["position"], details["first_offset"]) == (0, int(path.stem)), position
        elif place < 2 and position >= closed.disk.size(path) - SEGMENT_FOOTER_BYTES:
            assert details["position"] == closed.disk.size(path) - SEGMENT_FOOTER_BYTES, position
        else:
            assert (details["position"], details["first_offset"]) == closed.frame_at(path, position), position


@pytest.mark.parametrize("place", [0, 1, 2], ids=["first segment", "second segment", "active segment"])
def test_a_damaged_segment_is_left_as_it_is(closed: ClosedLog, place: int) -> None:
    path = closed.segments[place]
    for position, disk in closed.flipped(path):
        before = disk.read_bytes(path)
        with pytest.raises(DamagedError):
            read_through(disk)
        assert disk.read_bytes(path) == before, position


@pytest.mark.parametrize("place", [0, 1, 2], ids=["first segment", "second segment", "active segment"])
def test_a_segment_that_lost_its_end_is_damage(closed: ClosedLog, place: int) -> None:
    path = closed.segments[place]
    for length in range(closed.disk.size(path)):
        disk = closed.disk.snapshot()
        disk.open(path).truncate(length)
        with pytest.raises(DamagedError) as caught:
            read_through(disk)
        assert caught.value.details["file"] == str(path), length


@pytest.mark.parametrize("place", [0, 1, 2], ids=["first segment", "second segment", "active segment"])
def test_a_segment_that_is_gone_is_damage(closed: ClosedLog, place: int) -> None:
    disk = closed.disk.snapshot()
    disk.remove(closed.segments[place])
    with pytest.raises(DamagedError) as caught:
        open_log(disk, OPTIONS)
    assert caught.value.details["file"] == str(closed.segments[place])


@pytest.mark.parametrize("suffix", [".index", ".producers"])
def test_a_flip_in_a_derived_file_does_no_harm(closed: ClosedLog, suffix: str) -> None:
    for segment in closed.segments:
        path = segment.with_suffix(suffix)
        if not closed.disk.exists(path):
            continue
        for _, disk in closed.flipped(path):
            log = open_log(disk, OPTIONS)
            closed.model.copy().check(log)
            for kept in closed.model.kept:
                assert bytes(read_all(log, kept.base_offset)[0].body) == kept.batch.body


@pytest.mark.parametrize("suffix", [".index", ".producers"])
def test_derived_files_that_are_cut_short_or_gone_are_made_anew(closed: ClosedLog, suffix: str) -> None:
    names = [name for name in closed.disk.names(DIRECTORY) if name.endswith(suffix)]
    assert names
    for name in names:
        for length in (None, *range(closed.disk.size(DIRECTORY / name))):
            disk = closed.disk.snapshot()
            if length is None:
                disk.remove(DIRECTORY / name)
            else:
                disk.open(DIRECTORY / name).truncate(length)
            closed.model.copy().check(open_log(disk, OPTIONS))


def test_a_rebuilt_index_is_saved_for_the_next_time(closed: ClosedLog) -> None:
    disk = closed.disk.snapshot()
    path = closed.segments[0].with_suffix(".index")
    disk.open(path).truncate(10)
    read_through(disk)
    assert disk.read_bytes(path) == closed.disk.read_bytes(path)


def test_an_index_that_cannot_be_saved_does_not_keep_a_reader_from_reading(closed: ClosedLog) -> None:
    disk = closed.disk.snapshot()
    disk.open(closed.segments[0].with_suffix(".index")).truncate(10)
    plan = FaultPlan().add(Fail(errno.ENOSPC), Kind.CREATE, Kind.WRITE, path="*.index", times=None)
    log = open_log(FaultyFiles(disk, plan), OPTIONS)
    assert len(read_all(log)) == len(closed.model.kept)


@pytest.mark.parametrize("name", ["checkpoint.json", "stream.json"])
def test_a_flip_in_a_record_is_an_error_that_names_the_remedy(closed: ClosedLog, name: str) -> None:
    for position, disk in closed.flipped(DIRECTORY / name):
        with pytest.raises(DamagedError) as caught:
            open_log(disk, OPTIONS)
        assert caught.value.details["file"] == str(DIRECTORY / name), position
        assert "repair" in caught.value.remedy


def test_a_missing_checkpoint_is_damage(closed: ClosedLog) -> None:
    disk = closed.disk.snapshot()
    disk.remove(DIRECTORY / "checkpoint.json")
    with pytest.raises(DamagedError) as caught:
        open_log(disk, OPTIONS)
    assert caught.value.details["file"] == str(DIRECTORY / "checkpoint.json")
    assert "repair" in caught.value.remedy


def test_a_flip_below_a_durable_frame_is_damage_even_if_no_checkpoint_covers_it() -> None:
    """The frames behind it were written after it had been synced, and say so."""
    disk, model = SimulatedDisk(), LogModel()
    options = LogOptions(reopen_pause_seconds=0)
    log = open_log(disk, options)
    for _ in range(4):
        batch = model.new_batch("a", 1, 100)
        model.acknowledge(batch, log.append(batch.payload()).base_offset)
    path = segment_path(DIRECTORY, 0)
    frame_bytes = model.kept[0].batch.payload().frame_bytes
    for position in range(SEGMENT_HEADER_BYTES, SEGMENT_HEADER_BYTES + 3 * frame_bytes):
        damaged = disk.snapshot()
        byte = damaged.open(path).read(1, position)[0]
        damaged.open(path).write([bytes([byte ^ 0x10])], position)
        with pytest.raises(DamagedError) as caught:
            open_log(damaged, options)
        start = position - (position - SEGMENT_HEADER_BYTES) % frame_bytes
        assert caught.value.details["position"] == start
        assert caught.value.details["first_offset"] == (start - SEGMENT_HEADER_BYTES) // frame_bytes
