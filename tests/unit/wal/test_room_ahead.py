"""Room ahead of the writer: zeros for small commits, reserved for large ones."""

import itertools

from tests.log_model import DIRECTORY, LogModel, open_log

from icestream.testing import DiskOperation, Kind, SimulatedDisk
from icestream.wal import LogOptions
from icestream.wal.segment import segment_path

OPTIONS = LogOptions(preallocate_bytes=64 << 10, small_commit_bytes=1000)
SEGMENT = segment_path(DIRECTORY, 0)


def changes(payload_bytes: int, count: int) -> tuple[list[Kind], list[int]]:
    """What commits of one message each do to the segment, and its size after each of them."""
    disk, model, seen, sizes = SimulatedDisk(), LogModel(), list[Kind](), list[int]()
    log = open_log(disk, OPTIONS)

    def note(operation: DiskOperation) -> None:
        if operation.path == SEGMENT:
            seen.append(operation.kind)

    disk.on_operation = note
    for _ in range(count):
        log.append(model.new_batch("a", 1, payload_bytes).payload())
        sizes.append(disk.size(SEGMENT))
    return seen, sizes


def test_small_commits_find_zeros_and_change_nothing_but_bytes() -> None:
    seen, sizes = changes(100, 40)
    write = [Kind.WRITE, Kind.DATASYNC]
    assert seen == write * 41  # the zeros once, then each frame by one write that is a sync as well
    assert set(sizes) == {sizes[0]}
    assert sizes[0] > 16 << 10


def test_there_are_twice_as_many_zeros_each_time_up_to_a_bound() -> None:
    _, sizes = changes(800, 600)
    steps = [after - before for before, after in itertools.pairwise(sizes) if after != before]
    assert len(steps) >= 4
    assert all(step <= OPTIONS.preallocate_bytes + 1000 for step in steps)
    assert steps[0] < steps[1] < steps[-1]


def test_large_commits_only_reserve() -> None:
    seen, _ = changes(2000, 10)
    assert seen[:3] == [Kind.ALLOCATE, Kind.WRITE, Kind.DATASYNC]
    assert seen.count(Kind.WRITE) == 10
