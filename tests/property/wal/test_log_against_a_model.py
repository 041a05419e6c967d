"""A log does what a list would do, through closes, crashes, power cuts and failing disks."""

import contextlib
import errno
import os
import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.log_model import Batch, LogModel, ManualPool, open_log, submit_together

from icestream.model.errors import LogUnavailableError, OffsetOutOfRangeError, SequenceError
from icestream.testing import Fail, FaultPlan, FaultyFiles, Kind, NameLoss, ShortWrite, SimulatedDisk, Tearing
from icestream.wal import Log, LogOptions, LogReader, offset_at_time

SOAK = bool(os.environ.get("ICESTREAM_SOAK"))
PRODUCERS = st.sampled_from(["", "a", "b"])
COUNTS = st.integers(1, 4)
SIZES = st.sampled_from([0, 1, 40, 300, 600, 2500])
FAULTS = st.sampled_from(
    [
        (Kind.WRITE, Fail(errno.ENOSPC, accept=70)),
        (Kind.WRITE, ShortWrite(33)),
        (Kind.DATASYNC, Fail(errno.EIO)),
        (Kind.ALLOCATE, Fail(errno.ENOSPC)),
        (Kind.SYNC_DIRECTORY, Fail(errno.EIO)),
        (Kind.REPLACE, Fail(errno.EIO)),
        (Kind.CREATE, Fail(errno.ENOSPC)),
    ]
)
ATTEMPTS = 50  # more than there can be faults


class LogMachine(RuleBasedStateMachine):
    log: Log
    options: LogOptions

    def __init__(self) -> None:
        super().__init__()
        self.disk = SimulatedDisk()
        self.model = LogModel()
        self.queued: list[Batch] = []

    @initialize(
        preallocate_bytes=st.sampled_from([0, 512]),
        small_commit_bytes=st.sampled_from([0, 300, 2000]),
        max_file_bytes=st.sampled_from([700, 2000, 100_000]),
    )
    def start(self, preallocate_bytes: int, small_commit_bytes: int, max_file_bytes: int) -> None:
        self.options = LogOptions(
            max_file_bytes=max_file_bytes,
            max_group_bytes=1500,
            preallocate_bytes=preallocate_bytes,
            small_commit_bytes=small_commit_bytes,
            index_interval_bytes=200,
            reopen_pause_seconds=0,
        )
        self.reopen(self.disk)

    def reopen(self, disk: SimulatedDisk) -> None:
        """A new process on what is left of the disk. What was queued survives up to a point, and not beyond."""
        self.disk = disk
        self.plan = FaultPlan()
        self.pool = ManualPool()
        self.log = open_log(FaultyFiles(disk, self.plan), self.options, self.pool)
        self.model.check(self.log)
        survivors = [batch for batch in self.queued if self.model.find(batch)]
        assert survivors == self.queued[: len(survivors)]
        self.queued = []

    # Producers

    @rule(producer=PRODUCERS, count=COUNTS, nbytes=SIZES)
    def append(self, producer: str, count: int, nbytes: int) -> None:
        self.commit()
        self.append_until_acknowledged(self.model.new_batch(producer, count, nbytes))

    def append_until_acknowledged(self, batch: Batch) -> None:
        for _ in range(ATTEMPTS):
            try:
                append = self.log.append(batch.payload())
            except LogUnavailableError:
                continue
            self.model.acknowledge(batch, append.base_offset, duplicate=append.duplicate)
            return
        raise AssertionError("the log takes nothing although the fault has ended")

    @rule(producers=st.lists(PRODUCERS, min_size=1, max_size=6), count=COUNTS, nbytes=SIZES)
    def queue(self, producers: list[str], count: int, nbytes: int) -> None:
        """Batches of many threads, or of producers that do not wait: in memory, and not on the disk yet."""
        batches = [self.model.new_batch(producer, count, nbytes) for producer in producers]
        try:
            submit_together(self.log, self.model, batches)
        except LogUnavailableError:
            self.forget_unanswered()
            return
        self.queued += batches

    @rule()
    def commit(self) -> None:
        self.pool.run()
        answered = [batch for batch in self.queued if self.model.find(batch)]
        refused = self.queued[len(answered) :]
        self.queued = []
        for batch in refused:
            self.append_until_acknowledged(batch)

    def forget_unanswered(self) -> None:
        """Producers gave up; so their next batch has the sequence of the one that the log refused."""
        self.model.sent = {kept.batch.body: kept.batch for kept in self.model.kept}
        self.model.sent.update((batch.body, batch) for batch in self.queued)

    @precondition(lambda self: any(kept.batch.producer for kept in self.model.kept))
    @rule(choice=st.randoms(use_true_random=False))
    def send_again(self, choice: random.Random) -> None:
        """A producer that heard nothing of one of its last batches."""
        self.commit()
        producer = choice.choice([kept.batch.producer for kept in self.model.kept if kept.batch.producer])
        kept = choice.choice([kept for kept in self.model.kept if kept.batch.producer == producer][-16:])
        for _ in range(ATTEMPTS):
            try:
                append = self.log.append(kept.batch.payload())
            except LogUnavailableError:
                continue
            assert (append.duplicate, append.base_offset) == (True, kept.base_offset)
            return

    @rule(producer=st.sampled_from(["a", "b"]), gap=st.integers(1, 3))
    def leave_a_gap(self, producer: str, gap: int) -> None:
        self.commit()
        known = self.log.next_sequence(producer)
        if known == 0:
            return
        try:
            with pytest.raises(SequenceError):
                self.log.append(Batch(producer, known + gap, 1, b"after a gap").payload())
        except LogUnavailableError:
            return

    # Readers

    @invariant()
    def the_durable_end_is_that_of_the_acknowledged(self) -> None:
        if hasattr(self, "log"):
            assert self.log.durable_end == self.model.end_offset

    @precondition(lambda self: self.log.start_offset < self.log.durable_end)
    @rule(choice=st.randoms(use_true_random=False), max_bytes=st.sampled_from([1, 500, 5000]))
    def read(self, choice: random.Random, max_bytes: int) -> None:
        offset = choice.randrange(self.log.start_offset, self.log.durable_end)
        reader = LogReader(self.log, offset)
        expected = iter([kept for kept in self.model.kept if kept.end_offset > offset])
        while frames := reader.read(max_bytes):
            for frame, kept in zip(frames, expected, strict=False):
                assert (frame.base_offset, bytes(frame.body)) == (kept.base_offset, kept.batch.body)
                offset = frame.end_offset
        assert offset == reader.offset == self.log.durable_end
        reader.close()

    @rule(beyond=st.integers(1, 5))
    def read_outside(self, beyond: int) -> None:
        for offset in (self.log.durable_end + beyond, self.log.start_offset - beyond):
            with pytest.raises(OffsetOutOfRangeError):
                LogReader(self.log, offset)

    @precondition(lambda self: self.log.start_offset < self.log.durable_end)
    @rule(choice=st.randoms(use_true_random=False))
    def seek_by_time(self, choice: random.Random) -> None:
        frames = LogReader(self.log, self.log.start_offset).read(1 << 30)
        frame = choice.choice(frames)
        first = next(one for one in frames if one.publish_time_us >= frame.publish_time_us)
        assert offset_at_time(self.log, frame.publish_time_us) == first.base_offset

    # Housekeeping

    @rule()
    def checkpoint(self) -> None:
        self.commit()
        try:
            self.log.checkpoint()
        except LogUnavailableError:
            return

    @rule(part=st.floats(0, 1))
    def prune(self, part: float) -> None:
        self.commit()
        below = int(self.log.durable_end * part)
        try:
            self.log.prune(below)
        except LogUnavailableError:
            return
        assert self.log.start_offset <= max(below, self.log.start_offset)

    # Ends of the process, and worse

    @rule(fault=FAULTS)
    def let_a_call_fail(self, fault: tuple[Kind, Fail | ShortWrite]) -> None:
        kind, what = fault
        self.plan.add(what, kind)

    @rule()
    def close(self) -> None:
        self.commit()
        with contextlib.suppress(LogUnavailableError):
            self.log.close()
        self.reopen(self.disk)

    @rule()
    def end_the_process(self) -> None:
        self.reopen(self.disk.snapshot())

    @rule(choice=st.randoms(use_true_random=False), tearing=st.sampled_from(Tearing), loss=st.sampled_from(NameLoss))
    def cut_the_power(self, choice: random.Random, tearing: Tearing, loss: NameLoss) -> None:
        self.reopen(self.disk.power_cut(choice, tearing=tearing, loss=loss))

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.reopen(self.disk.power_cut(random.Random(0)))


LogMachine.TestCase.settings = settings(
    max_examples=10_000 if SOAK else 250,
    stateful_step_count=40,
    deadline=None,
    derandomize=not SOAK,
    report_multiple_bugs=False,
)
TestLogAgainstAModel = LogMachine.TestCase
