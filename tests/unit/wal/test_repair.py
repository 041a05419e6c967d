from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from tests.unit.wal.conftest import batch, bodies

from icestream.model.errors import DamagedError
from icestream.wal import LocalFiles, Log
from icestream.wal.inspect import inspect_directory
from icestream.wal.records import load_checkpoint, load_stream
from icestream.wal.repair import repair_directory
from icestream.wal.segment import segment_path

OpenLog = Callable[..., Log]


def fill(log: Log, frames: int = 30) -> None:
    for number in range(frames):
        log.append(batch(f"message {number:04d} " + "x" * 300))
    log.close()


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def test_inspecting_a_sound_log_finds_every_frame_and_no_problem(open_log: OpenLog, directory: Path) -> None:
    fill(open_log(max_file_bytes=4096))
    report = inspect_directory(LocalFiles(), directory)
    assert report.problems == []
    assert report.end_offset == 30
    assert sum(segment.frames for segment in report.segments) == 30
    assert len(report.segments) > 2


def test_a_damaged_frame_in_a_sealed_segment_is_reported_and_then_given_up(open_log: OpenLog, directory: Path) -> None:
    fill(open_log(max_file_bytes=4096))
    flip(segment_path(directory, 0), 300)
    problems = inspect_directory(LocalFiles(), directory).problems
    assert [(problem.first_offset, problem.end_offset) for problem in problems] == [(0, 1)]

    report = repair_directory(LocalFiles(), directory)

    assert report.lost == [(0, 1)]
    assert inspect_directory(LocalFiles(), directory).problems == []
    log = open_log(max_file_bytes=4096)
    assert bodies(log, 1) == [f"message {number:04d} " + "x" * 300 for number in range(1, 30)]
    assert log.append(batch("next")).base_offset == 30
    assert [path.name for path in (directory / "torn").iterdir()] == ["00000000000000000000.log.damaged.0"]


def test_a_missing_segment_is_reported_and_then_given_up(open_log: OpenLog, directory: Path) -> None:
    fill(open_log(max_file_bytes=4096))
    bases = [segment.base_offset for segment in inspect_directory(LocalFiles(), directory).segments]
    segment_path(directory, bases[1]).unlink()
    with pytest.raises(DamagedError, match="a segment is missing"):
        open_log()

    report = repair_directory(LocalFiles(), directory)

    assert report.lost == [(bases[1], bases[2])]
    assert open_log().durable_end == 30


def test_a_lost_active_segment_does_not_free_its_offsets(open_log: OpenLog, directory: Path) -> None:
    fill(open_log(max_file_bytes=4096))
    bases = [segment.base_offset for segment in inspect_directory(LocalFiles(), directory).segments]
    segment_path(directory, bases[-1]).unlink()
    report = repair_directory(LocalFiles(), directory)
    assert report.lost == [(bases[-1], 30)]
    assert open_log().append(batch("next")).base_offset == 30


@pytest.mark.parametrize("name", ["checkpoint.json", "stream.json"])
@pytest.mark.parametrize("harm", ["missing", "damaged"])
def test_a_lost_record_is_rebuilt_without_losing_a_message(
    open_log: OpenLog, directory: Path, name: str, harm: str
) -> None:
    fill(open_log(max_file_bytes=4096))
    if harm == "missing":
        (directory / name).unlink()
    else:
        flip(directory / name, 5)
    report = repair_directory(LocalFiles(), directory)
    assert report.lost == []
    assert any(name in action for action in report.actions)
    log = open_log(max_file_bytes=4096)
    assert log.durable_end == 30
    assert len(bodies(log)) == 30


def test_repairing_a_sound_log_changes_nothing(open_log: OpenLog, directory: Path) -> None:
    fill(open_log(max_file_bytes=4096))
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    report = repair_directory(LocalFiles(), directory)
    assert report.actions == []
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before


def test_a_rebuilt_identity_has_the_epoch_of_the_newest_frame(open_log: OpenLog, directory: Path) -> None:
    fill(open_log(), frames=3)
    replace(load_stream(LocalFiles(), directory), epoch=4).save(LocalFiles(), directory)
    fill(open_log(), frames=2)
    (directory / "stream.json").unlink()

    repair_directory(LocalFiles(), directory)

    assert load_stream(LocalFiles(), directory).epoch == 4
    log = open_log()
    assert len(bodies(log)) == 5
    assert log.append(batch("next")).base_offset == 5


def test_inspecting_passes_over_segments_that_an_interrupted_prune_left(open_log: OpenLog, directory: Path) -> None:
    fill(open_log(max_file_bytes=4096))
    bases = [segment.base_offset for segment in inspect_directory(LocalFiles(), directory).segments]
    checkpoint = load_checkpoint(LocalFiles(), directory)
    replace(checkpoint, start_offset=bases[1]).save(LocalFiles(), directory)
    report = inspect_directory(LocalFiles(), directory)
    assert report.problems == []
    assert [segment.base_offset for segment in report.segments] == bases[1:]


def test_inspecting_finds_the_segment_of_another_log(open_log: OpenLog, directory: Path) -> None:
    fill(open_log(max_file_bytes=4096))
    stream = load_stream(LocalFiles(), directory)
    replace(stream, stream_id=UUID(int=8)).save(LocalFiles(), directory)
    report = inspect_directory(LocalFiles(), directory)
    assert [problem.reason for problem in report.problems] == [
        "the segment's header is not that of this log" for _ in report.segments
    ]
    with pytest.raises(DamagedError, match="not that of this log"):
        open_log()


def test_producers_are_recognised_after_a_repair_though_older_segments_were_pruned(
    open_log: OpenLog, directory: Path
) -> None:
    log = open_log(max_file_bytes=4096)
    sent = log.append(batch("once", producer="p"))
    for number in range(30):
        log.append(batch(f"message {number:04d} " + "x" * 300))
    log.prune(log.durable_end)
    start = log.start_offset
    assert start > 0
    log.close()
    flip(segment_path(directory, start), 300)
    assert repair_directory(LocalFiles(), directory).lost == [(start, start + 1)]
    again = open_log(max_file_bytes=4096).append(batch("once", producer="p"))
    assert (again.duplicate, again.base_offset) == (True, sent.base_offset)
