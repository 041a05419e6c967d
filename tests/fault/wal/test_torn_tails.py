"""A log cut off, or overwritten with zeros, at every byte of its last writes."""

import pytest
from tests.log_model import DIRECTORY, Batch, LogModel, ManualPool, open_log, read_all, submit_together

from icestream.testing import DiskOperation, Kind, SimulatedDisk
from icestream.wal import LogOptions
from icestream.wal.segment import SEGMENT_HEADER_BYTES, segment_path

SEGMENT = segment_path(DIRECTORY, 0)
OPTIONS = LogOptions(preallocate_bytes=4096, small_commit_bytes=300, reopen_pause_seconds=0)


class Torn:
    """A log whose last group of frames was written and not synced when the process ended."""

    def __init__(self, *, preallocated: bool, last: list[Batch] | None = None) -> None:
        self.disk = SimulatedDisk()
        self.model = LogModel()
        self.options = OPTIONS if preallocated else LogOptions(preallocate_bytes=0)
        pool = ManualPool()
        log = open_log(self.disk, self.options, pool)
        submit_together(log, self.model, [self.model.new_batch("a", 2, 60) for _ in range(3)])
        pool.run()
        self.start = SEGMENT_HEADER_BYTES + sum(kept.batch.payload().frame_bytes for kept in self.model.kept)
        self.last = last or [self.model.new_batch("a", 3, nbytes) for nbytes in (40, 0, 75)]
        self.ends: list[int] = []
        end = self.start
        for batch in self.last:
            end += self.model.send(batch).payload().frame_bytes
            self.ends.append(end)
        self.before_sync: list[tuple[SimulatedDisk, LogModel]] = []
        self.disk.on_operation = self._watch
        submit_together(log, self.model, self.last)
        pool.run()

    def _watch(self, operation: DiskOperation) -> None:
        if operation.kind is Kind.DATASYNC and operation.path == SEGMENT:
            self.before_sync.append((self.disk.snapshot(), self.model.copy()))

    def cut(self, position: int, *, zeros: bool) -> tuple[SimulatedDisk, LogModel]:
        """The disk if only the bytes before `position` had arrived."""
        disk, model = self.before_sync[0]
        disk = disk.snapshot()
        file = disk.open(SEGMENT)
        if zeros:
            file.write([bytes(file.size() - position)], position)
        else:
            file.truncate(position)
        return disk, model.copy()


@pytest.mark.parametrize("zeros", [False, True], ids=["the file ends there", "zeros follow"])
@pytest.mark.parametrize("preallocated", [False, True], ids=["grown by writes", "preallocated"])
def test_a_tail_torn_at_any_byte_is_cut_behind_the_last_whole_frame_and_kept(
    *, zeros: bool, preallocated: bool
) -> None:
    torn = Torn(preallocated=preallocated)
    data = torn.before_sync[0][0].read_bytes(SEGMENT)
    for position in range(torn.start, torn.ends[-1] + 1):
        disk, model = torn.cut(position, zeros=zeros)
        log = open_log(disk, torn.options)
        model.check(log)
        whole = max(
            end
            for end in (torn.start, *torn.ends)
            if end <= position or (zeros and not data[position:end].strip(b"\0"))  # just padding is missing
        )
        assert log.nbytes == whole, position
        rest = data[whole:position].rstrip(b"\0")
        copies = [disk.read_bytes(DIRECTORY / "torn" / name) for name in disk.names(DIRECTORY / "torn")]
        assert [copy.rstrip(b"\0") for copy in copies] == ([rest] if rest else []), position
        for batch in torn.last:
            known = model.find(batch)
            append = log.append(model.send(batch).payload())
            assert append.duplicate == (known is not None)
            model.acknowledge(batch, append.base_offset, duplicate=append.duplicate)
        model.check(log)


def test_whole_frames_that_were_not_synced_are_kept_and_made_durable_before_they_are_shown() -> None:
    torn = Torn(preallocated=True)
    disk, model = torn.cut(torn.ends[-1], zeros=True)
    log = open_log(disk, torn.options)
    assert [bytes(frame.body) for frame in read_all(log)[-3:]] == [batch.body for batch in torn.last]
    model.check(log)
    for state in disk.all_power_cut_states():
        model.copy().check(open_log(state, torn.options))


def test_a_torn_frame_whose_body_holds_frames_is_a_torn_tail_still() -> None:
    """A body is the producer's business; a copy of log bytes in it says nothing about this log."""
    other, model = SimulatedDisk(), LogModel()
    log = open_log(other, OPTIONS)
    for _ in range(12):
        batch = model.new_batch("x", 1, 16)
        model.acknowledge(batch, log.append(batch.payload()).base_offset)
    log.close()
    inner = other.read_bytes(SEGMENT)
    for shift in range(8):
        torn = Torn(preallocated=True, last=[Batch("a", 6, 1, bytes(shift) + inner + b"end")])
        disk, expected = torn.cut(torn.ends[0] - 8, zeros=True)
        log = open_log(disk, torn.options)
        expected.check(log)
        assert log.nbytes == torn.start
