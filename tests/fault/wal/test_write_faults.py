"""Errors at every write, sync, allocation and change of a name: refused, survived, and nothing lost or doubled."""

import errno
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pytest
from tests.log_model import DIRECTORY, Batch, LogModel, open_log, read_all

from icestream.model.enums import SyncMode
from icestream.model.errors import LogUnavailableError
from icestream.testing import (
    Crash,
    DiskOperation,
    Fail,
    Fault,
    FaultPlan,
    FaultyFiles,
    Kind,
    ShortWrite,
    SimulatedCrash,
    SimulatedDisk,
)
from icestream.wal import Log, LogOptions
from icestream.wal.segment import segment_path

OPTIONS = LogOptions(
    max_file_bytes=1500,
    max_group_bytes=1000,
    preallocate_bytes=512,
    small_commit_bytes=200,
    index_interval_bytes=256,
    reopen_pause_seconds=0,
)
ATTEMPTS = 30
SEGMENT = segment_path(DIRECTORY, 0)


@dataclass
class Machine:
    """A log on a disk that fails by plan, a producer that does not give up, and snapshots for power cuts."""

    plan: FaultPlan
    options: LogOptions = OPTIONS
    disk: SimulatedDisk = field(default_factory=SimulatedDisk)
    model: LogModel = field(default_factory=LogModel)
    snapshots: list[tuple[str, SimulatedDisk, LogModel]] = field(default_factory=list)
    refusals: int = 0

    def __post_init__(self) -> None:
        self.files = FaultyFiles(self.disk, self.plan)
        self.disk.on_operation = self._note

    def _note(self, operation: DiskOperation) -> None:
        if self.plan.injected:
            self.snapshots.append((str(operation), self.disk.snapshot(), self.model.copy()))

    def open(self) -> Log:
        for _ in range(ATTEMPTS):
            try:
                return open_log(self.files, self.options)
            except OSError:
                continue
        raise AssertionError("the log does not open although the fault has ended")

    def publish(self, log: Log, batch: Batch) -> None:
        for _ in range(ATTEMPTS):
            try:
                append = log.append(batch.payload())
            except LogUnavailableError:
                self.refusals += 1
                shown = read_all(log)
                end = shown[-1].end_offset if shown else log.start_offset
                assert end == log.durable_end == self.model.end_offset, "readers see what was not acknowledged"
                continue
            self.model.acknowledge(batch, append.base_offset, duplicate=append.duplicate)
            return
        raise AssertionError("the log takes nothing although the fault has ended")

    def keep_house(self, chore: Callable[..., object], *arguments: int) -> None:
        try:
            chore(*arguments)
        except LogUnavailableError:
            self.refusals += 1

    def run(self) -> Log:
        """Two lives of a log, with rotation, checkpoints, pruning and retries of what was stored."""
        for _ in range(2):
            log = self.open()
            for number in range(7):
                batch = self.model.new_batch("a" if number % 3 else "", 2, (30, 200, 500)[number % 3])
                self.publish(log, batch)
                if number % 3:
                    self.publish(log, batch)
            self.keep_house(log.checkpoint)
            self.keep_house(log.prune, log.durable_end // 2)
            self.keep_house(log.close)
        return self.open()

    def check(self, log: Log, seed: int) -> None:
        self.model.check(log)
        rng = random.Random(seed)
        snapshots = [*rng.sample(self.snapshots, min(4, len(self.snapshots))), ("the end", self.disk, self.model)]
        for operation, disk, model in snapshots:
            state = disk.power_cut(rng)
            try:
                model.copy().check(open_log(state, self.options))
            except Exception as error:
                error.add_note(f"the power was cut before: {operation}")
                raise


def every_nth(fault: Fault, kind: Kind, times: int, options: LogOptions = OPTIONS) -> Iterator[Machine]:
    """Machines whose 1st, 2nd, … call of a kind has the fault, as long as there is such a call."""
    nth = 1
    while True:
        machine = Machine(FaultPlan().add(fault, kind, nth=nth, times=times), options)
        log = machine.run()
        if not machine.plan.injected:
            return
        try:
            machine.check(log, nth)
        except BaseException as error:
            error.add_note(f"{fault} at {machine.plan.injected[0][0]}, call {nth} of its kind")
            raise
        yield machine
        nth += 1


FAULTS = [
    (Kind.WRITE, Fail(errno.EIO)),
    (Kind.WRITE, Fail(errno.ENOSPC)),
    (Kind.WRITE, Fail(errno.EDQUOT, accept=100)),
    (Kind.WRITE, ShortWrite(0)),
    (Kind.WRITE, ShortWrite(1)),
    (Kind.WRITE, ShortWrite(100)),
    (Kind.DATASYNC, Fail(errno.EIO)),
    (Kind.DATASYNC, Fail(errno.ENOSPC)),
    (Kind.ALLOCATE, Fail(errno.ENOSPC)),
    (Kind.ALLOCATE, Fail(errno.ENOSPC, accept=300)),
    (Kind.TRUNCATE, Fail(errno.EIO)),
    (Kind.SYNC_DIRECTORY, Fail(errno.EIO)),
    (Kind.CREATE, Fail(errno.ENOSPC)),
    (Kind.CREATE, Fail(errno.EMFILE)),
    (Kind.REPLACE, Fail(errno.EIO)),
    (Kind.REMOVE, Fail(errno.EIO)),
    (Kind.MAKE_DIRECTORY, Fail(errno.ENOSPC)),
]


@pytest.mark.parametrize("times", [1, 3], ids=["once", "three times"])
@pytest.mark.parametrize(("kind", "fault"), FAULTS, ids=[f"{kind} {fault}" for kind, fault in FAULTS])
def test_nothing_is_lost_or_doubled_by_a_fault_at_any_call(kind: Kind, fault: Fault, times: int) -> None:
    met = sum(1 for _ in every_nth(fault, kind, times))
    assert met > (2 if kind in (Kind.MAKE_DIRECTORY, Kind.REMOVE) else 4)


@pytest.mark.parametrize("kind", [Kind.WRITE, Kind.DATASYNC], ids=str)
def test_without_preallocation_a_fault_at_any_call_does_no_harm_either(kind: Kind) -> None:
    options = LogOptions(max_file_bytes=1500, preallocate_bytes=0, reopen_pause_seconds=0)
    assert sum(1 for _ in every_nth(Fail(errno.EIO, accept=50), kind, 1, options)) > 4


@pytest.mark.parametrize("seed", range(40))
def test_random_faults_of_all_kinds_lose_nothing(seed: int) -> None:
    plan = FaultPlan.random(seed, chance=0.03)
    machine = Machine(plan)
    log = machine.open()
    for number in range(30):
        if number == 24:
            plan.clear()
        batch = machine.model.new_batch("a", 1, (30, 200, 500)[number % 3])
        machine.publish(log, batch)
        if number % 10 == 9:
            machine.keep_house(log.checkpoint)
    machine.check(log, seed)


@pytest.mark.parametrize(
    ("kind", "code"),
    [(Kind.WRITE, errno.ENOSPC), (Kind.ALLOCATE, errno.ENOSPC), (Kind.DATASYNC, errno.EIO)],
    ids=["disk full at writes", "disk full at allocations", "failing syncs"],
)
def test_while_a_fault_lasts_producers_are_refused_and_readers_served_and_afterwards_all_goes_on(
    kind: Kind, code: int
) -> None:
    machine = Machine(FaultPlan())
    log = machine.open()
    for _ in range(3):
        machine.publish(log, machine.model.new_batch("a", 1, 300))
    machine.plan.add(Fail(code), kind, times=None)
    batch = machine.model.new_batch("a", 1, 1000)
    for _ in range(5):
        with pytest.raises(LogUnavailableError) as caught:
            log.append(batch.payload())
        assert caught.value.retryable
        assert caught.value.remedy
        assert len(read_all(log)) == 3
        assert log.durable_end == 3
    machine.plan.clear()
    machine.publish(log, batch)
    machine.check(log, 1)


def test_a_file_system_that_cannot_preallocate_is_used_without() -> None:
    machine = Machine(FaultPlan().add(Fail(errno.EOPNOTSUPP), Kind.ALLOCATE, times=None))
    log = machine.open()
    machine.publish(log, machine.model.new_batch("a", 1, 300))
    assert machine.plan.injected
    machine.check(log, 1)


def test_a_frame_that_fits_is_stored_though_there_is_no_room_for_zeros_ahead() -> None:
    machine = Machine(FaultPlan().add(Fail(errno.ENOSPC, accept=100), Kind.WRITE, path=str(SEGMENT), nth=2))
    log = machine.open()
    for _ in range(3):
        machine.publish(log, machine.model.new_batch("a", 1, 20))
    assert [operation.position > 64 for operation, _ in machine.plan.injected] == [True]
    assert machine.refusals == 0
    machine.check(log, 1)


def test_what_a_failed_sync_may_have_lost_is_not_shown_after_a_restart_unless_it_is_durable() -> None:
    """The new process reads the old one's bytes from memory, and no sync of them is left to be made."""
    machine = Machine(FaultPlan())
    log = machine.open()
    machine.publish(log, machine.model.new_batch("a", 1, 300))
    machine.plan.add(Fail(errno.EIO), Kind.DATASYNC)
    lost = machine.model.new_batch("a", 1, 300)
    with pytest.raises(LogUnavailableError):
        log.append(lost.payload())
    log = open_log(machine.disk, OPTIONS)
    machine.model.check(log)
    append = log.append(machine.model.send(lost).payload())
    machine.model.acknowledge(lost, append.base_offset, duplicate=append.duplicate)
    for state in machine.disk.all_power_cut_states():
        machine.model.copy().check(open_log(state, OPTIONS))


def test_in_sync_mode_interval_a_sync_that_succeeds_covers_what_an_earlier_failed_one_left() -> None:
    machine = Machine(FaultPlan(), replace(OPTIONS, sync_mode=SyncMode.INTERVAL))
    log = machine.open()
    for _ in range(2):
        machine.publish(log, machine.model.new_batch("a", 1, 300))
    machine.plan.add(Fail(errno.EIO), Kind.DATASYNC)
    with pytest.raises(LogUnavailableError):
        log.sync()
    machine.publish(log, machine.model.new_batch("a", 1, 300))
    log.sync()
    for seed in range(50):
        state = machine.disk.power_cut(random.Random(seed))
        machine.model.copy().check(open_log(state, machine.options))


def test_the_end_of_the_process_at_any_call_loses_nothing() -> None:
    nth = 1
    while True:
        machine = Machine(FaultPlan().add(Crash(accept=nth % 300), nth=nth))
        try:
            log = machine.run()
        except SimulatedCrash:
            answered = {kept.batch for kept in machine.model.kept}
            unanswered = [batch for batch in machine.model.sent.values() if batch.producer and batch not in answered]
            log = open_log(machine.disk, OPTIONS)
            machine.model.check(log)
            for batch in unanswered:
                machine.publish(log, machine.model.send(batch))
            machine.publish(log, machine.model.new_batch("", 1, 10))
        machine.check(log, nth)
        if not machine.plan.injected:
            break
        nth += 1
    assert nth > 100


@pytest.fixture
def torn() -> SimulatedDisk:
    """A process ended within a write."""
    machine = Machine(FaultPlan())
    log = machine.open()
    machine.publish(log, machine.model.new_batch("a", 1, 300))
    machine.plan.add(Crash(accept=200), Kind.WRITE)
    with pytest.raises(SimulatedCrash):
        log.append(machine.model.new_batch("a", 1, 300).payload())
    return machine.disk


def test_a_torn_tail_of_which_no_copy_can_be_kept_is_not_cut(torn: SimulatedDisk) -> None:
    before = torn.read_bytes(SEGMENT)
    plan = FaultPlan().add(Fail(errno.ENOSPC), Kind.CREATE, Kind.WRITE, path="*/torn/*", times=None)
    with pytest.raises(OSError, match="No space left"):
        open_log(FaultyFiles(torn, plan), OPTIONS)
    assert torn.read_bytes(SEGMENT) == before


def test_the_copy_of_a_torn_tail_is_whole_although_the_disk_took_it_in_parts(torn: SimulatedDisk) -> None:
    before = torn.read_bytes(SEGMENT).rstrip(b"\0")
    open_log(FaultyFiles(torn, FaultPlan().add(ShortWrite(20), Kind.WRITE, path="*/torn/*")), OPTIONS)
    after = torn.read_bytes(SEGMENT)
    copies = [torn.read_bytes(DIRECTORY / "torn" / name) for name in torn.names(DIRECTORY / "torn")]
    assert before[len(after) :] in copies
