"""Mending a log gives up the damaged frames and nothing else, whatever happens in between."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.log_model import DIRECTORY, STREAM, LogModel, ManualPool, open_log, read_all, submit_together

from icestream.model.errors import DamagedError
from icestream.model.frames import Complete, decode
from icestream.model.messages import Encoding
from icestream.testing import SimulatedDisk
from icestream.wal import LogOptions
from icestream.wal.inspect import inspect_directory
from icestream.wal.repair import repair_directory
from icestream.wal.segment import SEGMENT_HEADER_BYTES, decode_header, segment_offsets, segment_path

OPTIONS = LogOptions(max_file_bytes=900, max_group_bytes=900, index_interval_bytes=128, reopen_pause_seconds=0)
STEP = 7  # bytes between the flips, so that every field of every frame is hit by one


class ClosedLog:
    def __init__(self) -> None:
        self.disk = SimulatedDisk()
        self.model = LogModel()
        pool = ManualPool()
        log = open_log(self.disk, OPTIONS, pool)
        for count in (2, 3, 1, 2, 3):
            submit_together(log, self.model, [self.model.new_batch("a", 2, 61) for _ in range(count)])
            pool.run()
        log.close()
        self.disk.on_operation = None
        self.segments = [segment_path(DIRECTORY, offset) for offset in segment_offsets(self.disk, DIRECTORY)]

    def flipped(self, path: Path, step: int = STEP) -> Iterator[tuple[int, SimulatedDisk]]:
        data = self.disk.read_bytes(path)
        for position in range(0, len(data), step):
            disk = self.disk.snapshot()
            file = disk.open(path)
            file.write([bytes([data[position] ^ (1 << position % 8)])], position)
            file.datasync()
            yield position, disk

    def offsets_at(self, path: Path, position: int) -> range:
        """The offsets of the frame that holds a byte; none if it is in the segment's header or footer."""
        data = memoryview(self.disk.read_bytes(path))
        start = SEGMENT_HEADER_BYTES
        header = decode_header(bytes(data[:SEGMENT_HEADER_BYTES]))
        assert header is not None
        while isinstance(outcome := decode(data, start, header.seed + start), Complete):
            if start <= position < outcome.end:
                return range(outcome.frame.base_offset, outcome.frame.end_offset)
            start = outcome.end
        return range(0)


@pytest.fixture(scope="module")
def closed() -> ClosedLog:
    return ClosedLog()


def check_repaired(disk: SimulatedDisk, model: LogModel, lost: range) -> None:
    """All frames are at their places but those of the lost offsets, where nothing is; and the log goes on."""
    log = open_log(disk, OPTIONS)
    frames = read_all(log)
    assert log.durable_end == model.end_offset
    assert [frame.base_offset for frame in frames] == [kept.base_offset for kept in model.kept]
    for frame, kept in zip(frames, model.kept, strict=True):
        if kept.base_offset in lost:
            assert frame.encoding == Encoding.LOST
            assert frame.message_count == kept.batch.message_count
        else:
            assert bytes(frame.body) == kept.batch.body
    assert log.append(model.copy().new_batch("", 1, 40).payload()).base_offset == model.end_offset


@pytest.mark.parametrize("place", [0, 1, 2], ids=["first segment", "second segment", "active segment"])
def test_a_flip_in_a_segment_costs_its_frame_alone(closed: ClosedLog, place: int) -> None:
    path = closed.segments[place]
    for position, disk in closed.flipped(path):
        report = repair_directory(disk, DIRECTORY)
        lost = closed.offsets_at(path, position)
        assert report.lost == ([(lost.start, lost.stop)] if lost else []), position
        check_repaired(disk, closed.model, lost)


@pytest.mark.parametrize("name", ["checkpoint.json", "stream.json"])
def test_a_flip_in_a_record_costs_nothing(closed: ClosedLog, name: str) -> None:
    for position, disk in closed.flipped(DIRECTORY / name, step=1):
        with pytest.raises(DamagedError):
            open_log(disk, OPTIONS)
        assert repair_directory(disk, DIRECTORY).lost == [], position
        log = open_log(disk, OPTIONS)
        closed.model.copy().check(log)
        assert (log.stream.stream_id, log.stream.topic) == (STREAM.stream_id, STREAM.topic)


def test_a_sound_log_is_left_as_it_is(closed: ClosedLog) -> None:
    disk = closed.disk.snapshot()
    report = repair_directory(disk, DIRECTORY)
    assert (report.lost, report.actions) == ([], [])
    assert {name: disk.read_bytes(DIRECTORY / name) for name in disk.names(DIRECTORY)} == {
        name: closed.disk.read_bytes(DIRECTORY / name) for name in closed.disk.names(DIRECTORY)
    }


@pytest.mark.parametrize("place", [0, 1, 2], ids=["first segment", "second segment", "active segment"])
def test_a_repair_cut_short_at_any_call_can_be_repeated_and_costs_no_more(closed: ClosedLog, place: int) -> None:
    path = closed.segments[place]
    for position in (10, SEGMENT_HEADER_BYTES + 30, closed.disk.size(path) - 10):
        disk = closed.disk.snapshot()
        file = disk.open(path)
        file.write([bytes([file.read(1, position)[0] ^ 1])], position)
        file.datasync()
        points: list[tuple[str, SimulatedDisk]] = []
        disk.on_operation = lambda operation, disk=disk, points=points: points.append((str(operation), disk.snapshot()))
        repair_directory(disk, DIRECTORY)
        points.append(("the end", disk.snapshot()))
        rng = random.Random(position)
        for operation, point in points:
            for state in (point.snapshot(), *(point.power_cut(rng) for _ in range(4))):
                try:
                    repair_directory(state, DIRECTORY)
                    check_repaired(state, closed.model, closed.offsets_at(path, position))
                except Exception as error:
                    error.add_note(f"byte {position} was flipped, the repair was cut short before: {operation}")
                    raise


def test_the_damaged_bytes_are_kept(closed: ClosedLog) -> None:
    for place, path in enumerate(closed.segments):
        disk = closed.disk.snapshot()
        disk.open(path).write([b"\xff" * 8], SEGMENT_HEADER_BYTES + 200)
        damaged = disk.read_bytes(path)
        repair_directory(disk, DIRECTORY)
        copies = [disk.read_bytes(DIRECTORY / "torn" / name) for name in disk.names(DIRECTORY / "torn")]
        assert damaged in copies, place


def test_a_newest_segment_that_is_gone_is_named_and_given_up(closed: ClosedLog) -> None:
    disk = closed.disk.snapshot()
    log = open_log(disk, OPTIONS)
    log.rotate_past(log.durable_end)
    newest = segment_path(DIRECTORY, log.durable_end)
    disk = disk.snapshot()  # as after a kill: no note of a clean end
    disk.remove(newest)
    (problem,) = inspect_directory(disk, DIRECTORY).problems
    assert (problem.file, problem.reason) == (str(newest), "the newest segment is missing")
    with pytest.raises(DamagedError, match="wal repair"):
        open_log(disk, OPTIONS)
    report = repair_directory(disk, DIRECTORY)
    assert f"offsets from {closed.model.end_offset} on" in report.actions[0]
    assert inspect_directory(disk, DIRECTORY).problems == []
    check_repaired(disk, closed.model, range(0))
