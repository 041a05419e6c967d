"""The power is cut before every change that a log makes, and again while it recovers."""

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from tests.log_model import DIRECTORY, Batch, LogModel, ManualPool, open_log, submit_together

from icestream.model.enums import SyncMode
from icestream.testing import DiskOperation, NameLoss, SimulatedDisk, Tearing
from icestream.wal import Log, LogOptions

SOAK = bool(os.environ.get("ICESTREAM_SOAK"))
STATES_PER_SCENARIO = 7000 if SOAK else 300
TINY = LogOptions(
    max_file_bytes=4096,
    max_group_bytes=2048,
    preallocate_bytes=1024,
    small_commit_bytes=600,
    index_interval_bytes=256,
    reopen_pause_seconds=0,
)


@dataclass(frozen=True)
class Point:
    """A moment at which the power may go: what the disk is like, and what the log has promised."""

    operation: str
    disk: SimulatedDisk
    model: LogModel
    created: bool


@dataclass
class Recorder:
    """Keeps a point before each change of a disk."""

    disk: SimulatedDisk
    model: LogModel = field(default_factory=LogModel)
    created: bool = False
    points: list[Point] = field(default_factory=list)
    durable_offset: int | None = None
    """Where a sync mode promises less than an acknowledgement: up to where the log was synced."""

    def __post_init__(self) -> None:
        self.disk.on_operation = self.note

    def note(self, operation: DiskOperation | str) -> None:
        model = self.model.copy()
        if self.durable_offset is not None:
            model.kept = tuple(kept for kept in model.kept if kept.end_offset <= (self.durable_offset or 0))
        self.points.append(Point(str(operation), self.disk.snapshot(), model, self.created))


Workload = Callable[[Recorder, LogOptions, random.Random], None]


def publish(recorder: Recorder, log: Log, pool: ManualPool, rng: random.Random, sizes: tuple[int, ...]) -> None:
    """As many batches as several threads would have queued while another one was writing."""
    model = recorder.model
    batches = [
        model.new_batch(rng.choice(("", "a", "b", "c")), rng.randint(1, 5), rng.choice(sizes))
        for _ in range(rng.randint(1, 6))
    ]
    submit_together(log, model, batches)
    pool.run()


def produce(
    recorder: Recorder, options: LogOptions, rng: random.Random, sizes: tuple[int, ...] = (10, 100, 700)
) -> None:
    pool = ManualPool()
    log = open_log(recorder.disk, options, pool)
    recorder.created = True
    for number in range(12):
        publish(recorder, log, pool, rng, sizes)
        if number % 5 == 4:
            log.checkpoint()
    log.close()


def produce_large(recorder: Recorder, options: LogOptions, rng: random.Random) -> None:
    produce(recorder, options, rng, (10, 600, 5000, 9000))


def produce_and_reopen(recorder: Recorder, options: LogOptions, rng: random.Random) -> None:
    """Clean closes, ends without one, and pruning in between."""
    for number in range(5):
        pool = ManualPool()
        log = open_log(recorder.disk, options, pool)
        recorder.created = True
        for _ in range(3):
            publish(recorder, log, pool, rng, (10, 100, 700))
        if number % 2:
            log.close()
        else:
            log.prune(rng.randrange(log.durable_end))


def produce_lazily(recorder: Recorder, options: LogOptions, rng: random.Random) -> None:
    """Acknowledged when written, synced now and then: a power cut may take the end, and only the end."""
    recorder.durable_offset = 0
    pool = ManualPool()
    log = open_log(recorder.disk, options, pool)
    recorder.created = True
    for number in range(16):
        publish(recorder, log, pool, rng, (10, 100, 700))
        if number % 4 == 3:
            log.sync()
            recorder.durable_offset = log.durable_end
        if number % 6 == 5:
            log.checkpoint()
    log.close()
    recorder.durable_offset = log.durable_end


@dataclass(frozen=True)
class Scenario:
    workload: Workload
    options: LogOptions = TINY
    tearing: Tearing = Tearing.SECTOR
    loss: NameLoss = NameLoss.ANY
    sector_bytes: int = 512


SCENARIOS = {
    "group commits and rotation": Scenario(produce),
    "room reserved for every commit": Scenario(produce, replace(TINY, small_commit_bytes=0)),
    "zeros ahead of every commit": Scenario(produce, replace(TINY, small_commit_bytes=4096)),
    "without preallocation": Scenario(produce, replace(TINY, preallocate_bytes=0)),
    "torn at any byte": Scenario(produce, tearing=Tearing.BYTE),
    "names lost in order": Scenario(produce, replace(TINY, max_file_bytes=2048), loss=NameLoss.LAST),
    "sectors of 4 KiB": Scenario(produce, replace(TINY, max_file_bytes=20_000), sector_bytes=4096),
    "frames of many pages": Scenario(produce_large, replace(TINY, max_file_bytes=30_000, preallocate_bytes=16_384)),
    "closed, ended, pruned and reopened": Scenario(produce_and_reopen, replace(TINY, max_file_bytes=2048)),
    "sync mode interval": Scenario(produce_lazily, replace(TINY, sync_mode=SyncMode.INTERVAL)),
    "sync mode os, torn at any byte": Scenario(
        produce_lazily, replace(TINY, sync_mode=SyncMode.OS), tearing=Tearing.BYTE
    ),
}


def resend(log: Log, model: LogModel, unanswered: list[Batch]) -> None:
    """What producers do that heard nothing: send again, and get the place of the first time if it is there."""
    for batch in unanswered:
        known = model.find(batch)
        append = log.append(model.send(batch).payload())
        assert append.duplicate == (known is not None)
        model.acknowledge(batch, append.base_offset, duplicate=append.duplicate)


def recover_and_go_on(point: Point, scenario: Scenario, rng: random.Random) -> None:
    """Lose the power, or (one time in four) just the process; recover, go on, and lose the power once more."""
    if rng.randrange(4):
        found = point.disk.power_cut(rng, tearing=scenario.tearing, loss=scenario.loss)
    else:
        found = point.disk.snapshot()
    assert not point.created or found.exists(DIRECTORY / "stream.json"), "the topic is gone"
    recorder = Recorder(found, point.model.copy(), created=point.created)
    if scenario.options.sync_mode is not SyncMode.ALWAYS:
        recorder.durable_offset = recorder.model.end_offset
    model = recorder.model
    answered = {kept.batch for kept in model.kept}
    unanswered = [batch for batch in model.sent.values() if batch.producer and batch not in answered]

    log = open_log(found, scenario.options)
    model.check(log)
    recorder.created = True
    if scenario.options.sync_mode is not SyncMode.ALWAYS:
        recorder.durable_offset = log.durable_end
    resend(log, model, unanswered)
    batch = model.new_batch("", 1, 50)
    model.acknowledge(batch, log.append(batch.payload()).base_offset)
    recorder.note("the end")

    again = rng.choice(recorder.points)
    cut = again.disk.power_cut(rng, tearing=scenario.tearing, loss=scenario.loss)
    log = open_log(cut, scenario.options)
    again.model.check(log)


def check_states(points: list[Point], scenario: Scenario, count: int) -> None:
    """Each point at least once, if there are enough; those at which more can go wrong more often."""
    weights = [point.disk.count_unsynced() for point in points]
    chosen = points[:count] + random.Random(count).choices(points, weights, k=max(0, count - len(points)))
    for number, point in enumerate(chosen):
        try:
            recover_and_go_on(point, scenario, random.Random(number))
        except Exception as error:
            error.add_note(f"state {number}, the power was cut before: {point.operation}")
            error.add_note("not durable were: " + ", ".join(point.disk.unsynced()))
            raise


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_power_cut_loses_what_was_acknowledged_or_stops_the_log(name: str) -> None:
    scenario = SCENARIOS[name]
    recorder = Recorder(SimulatedDisk(scenario.sector_bytes))
    scenario.workload(recorder, scenario.options, random.Random(1))
    recorder.note("the end")
    check_states(recorder.points, scenario, STATES_PER_SCENARIO)


def test_every_state_after_a_power_cut_of_a_small_log_recovers() -> None:
    recorder = Recorder(SimulatedDisk())
    pool = ManualPool()
    log = open_log(recorder.disk, replace(TINY, max_file_bytes=1200), pool)
    recorder.created = True
    for count in (1, 2, 1):
        submit_together(log, recorder.model, [recorder.model.new_batch("a", 2, 200) for _ in range(count)])
        pool.run()
    log.close()
    checked = 0
    for point in recorder.points:
        for state in point.disk.all_power_cut_states(limit=20_000):
            assert not point.created or state.exists(DIRECTORY / "stream.json"), point.operation
            point.model.copy().check(open_log(state, replace(TINY, max_file_bytes=1200)))
            checked += 1
    assert checked > 200


def test_a_copy_of_every_torn_tail_is_kept() -> None:
    scenario = SCENARIOS["group commits and rotation"]
    recorder = Recorder(SimulatedDisk())
    scenario.workload(recorder, scenario.options, random.Random(2))
    kept = 0
    for number, point in enumerate(recorder.points * 10):
        state = point.disk.power_cut(random.Random(number))
        before = {name: state.read_bytes(DIRECTORY / name) for name in state.names(DIRECTORY) if name.endswith(".log")}
        open_log(state, scenario.options)
        for name, data in before.items():
            after = state.read_bytes(DIRECTORY / name) if state.exists(DIRECTORY / name) else b""
            cut = data[len(after) :].rstrip(b"\0")
            copies = [
                state.read_bytes(DIRECTORY / "torn" / copy).rstrip(b"\0")
                for copy in state.names(DIRECTORY / "torn")
                if copy.startswith(name)
            ]
            assert not cut or cut in copies, (point.operation, name, len(cut))
            kept += bool(cut)
    assert kept > 10


def test_a_missing_directory_sync_would_be_found() -> None:
    """The test's own test: on a disk that forgets to sync directories a power cut does lose acknowledged frames."""

    class Forgetful(SimulatedDisk):
        def sync_directory(self, path: Path) -> None:
            """Do nothing."""

    recorder = Recorder(Forgetful())
    produce(recorder, TINY, random.Random(1))
    recorder.note("the end")
    scenario = SCENARIOS["names lost in order"]
    with pytest.raises(AssertionError):
        check_states(recorder.points[-1:], scenario, 200)
