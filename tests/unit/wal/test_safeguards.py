"""Each safeguard of the log, alone and small: what must fail when it is taken away (see `dev/mutants.py`)."""

import errno
import threading
from collections.abc import Iterator

import pytest
import structlog
from tests.log_model import DIRECTORY, LogModel, open_log, read_all

from icestream.model.errors import DamagedError, IcestreamError, LogUnavailableError
from icestream.testing import Call, DiskOperation, Fail, FaultPlan, FaultyFiles, Kind, SimulatedDisk
from icestream.wal import Log, LogOptions, LogState
from icestream.wal.segment import SEGMENT_HEADER_BYTES, segment_path

OPTIONS = LogOptions(preallocate_bytes=0, reopen_pause_seconds=0)
TINY = LogOptions(preallocate_bytes=0, reopen_pause_seconds=0, max_file_bytes=300)
SEGMENT = segment_path(DIRECTORY, 0)
PATIENCE_SECONDS = 60.0


def publish(log: Log, model: LogModel, count: int = 1) -> None:
    for _ in range(count):
        batch = model.new_batch("p", 1, 100)
        model.acknowledge(batch, log.append(batch.payload()).base_offset)


def check_all_power_cuts(disk: SimulatedDisk, model: LogModel, options: LogOptions) -> None:
    for state in disk.all_power_cut_states():
        assert state.exists(DIRECTORY / "stream.json"), "the topic is gone"
        model.copy().check(open_log(state, options))


def test_an_acknowledged_batch_survives_every_power_cut() -> None:
    disk, model = SimulatedDisk(), LogModel()
    log = open_log(disk, OPTIONS)
    for _ in range(3):
        publish(log, model)
        check_all_power_cuts(disk, model, OPTIONS)


def test_so_do_the_segments_before_the_active_one_and_the_names_of_all() -> None:
    disk, model = SimulatedDisk(), LogModel()
    log = open_log(disk, TINY)
    for _ in range(6):
        publish(log, model)
        check_all_power_cuts(disk, model, TINY)
    assert len(log.snapshot.sealed) >= 2


def test_a_new_log_is_there_after_every_power_cut_from_the_moment_it_is_open() -> None:
    disk = SimulatedDisk()
    open_log(disk, OPTIONS)
    check_all_power_cuts(disk, LogModel(), OPTIONS)


@pytest.mark.parametrize("part", ["header", "body"])
def test_a_changed_byte_of_a_frame_is_damage_and_never_other_bytes(part: str) -> None:
    disk, model = SimulatedDisk(), LogModel()
    log = open_log(disk, OPTIONS)
    publish(log, model, 3)
    log.close()
    position = SEGMENT_HEADER_BYTES + (40 if part == "header" else 120)  # in the publish time, or in the body
    byte = disk.open(SEGMENT).read(1, position)[0]
    disk.open(SEGMENT).write([bytes([byte ^ 1])], position)
    with pytest.raises(DamagedError):
        read_all(open_log(disk, OPTIONS))


def test_a_repeated_batch_is_stored_once_also_when_a_restart_lies_between() -> None:
    disk, model = SimulatedDisk(), LogModel()
    log = open_log(disk, OPTIONS)
    publish(log, model, 2)
    for _ in range(2):
        for kept in model.kept:
            append = log.append(kept.batch.payload())
            assert (append.base_offset, append.duplicate) == (kept.base_offset, True)
        log = open_log(disk, OPTIONS)
    model.check(log)


def test_a_copy_of_a_torn_tail_is_kept() -> None:
    disk, model = SimulatedDisk(), LogModel()
    log = open_log(disk, OPTIONS)
    publish(log, model)
    log.close()
    disk.open(SEGMENT).write([b"torn"], disk.size(SEGMENT))
    model.check(open_log(disk, OPTIONS))
    copies = [disk.read_bytes(DIRECTORY / "torn" / name) for name in disk.names(DIRECTORY / "torn")]
    assert copies == [b"torn"]


@pytest.mark.parametrize("kind", [Kind.DATASYNC, Kind.WRITE])
def test_after_a_failure_nothing_is_acknowledged_until_the_log_was_recovered(kind: Kind) -> None:
    disk, model, plan = SimulatedDisk(), LogModel(), FaultPlan()
    log = open_log(FaultyFiles(disk, plan), OPTIONS)
    publish(log, model)
    plan.add(Fail(errno.EIO, accept=50), kind)
    lost = model.new_batch("p", 1, 100)
    with pytest.raises(LogUnavailableError, match="Input/output error"):
        log.append(lost.payload())
    assert log.state is LogState.FAILED
    assert (log.durable_end, len(read_all(log))) == (1, 1)
    with pytest.raises(LogUnavailableError):
        log._exclusively(lambda: None)
    append = log.append(lost.payload())
    assert not append.duplicate, "a batch that was refused is taken for one that was stored"
    model.acknowledge(lost, append.base_offset)
    publish(log, model)
    model.check(log)
    check_all_power_cuts(disk, model, OPTIONS)


def test_reopening_cuts_back_to_what_was_acknowledged() -> None:
    """The refused frame is whole in the file, and its sync failed: it must not come back."""
    disk, model, plan = SimulatedDisk(), LogModel(), FaultPlan()
    log = open_log(FaultyFiles(disk, plan), OPTIONS)
    publish(log, model)
    plan.add(Fail(errno.EIO), Kind.DATASYNC)
    with pytest.raises(LogUnavailableError):
        log.append(model.new_batch("refused", 3, 100).payload())
    model.sent = {kept.batch.body: kept.batch for kept in model.kept}
    publish(log, model)
    assert [frame.producer for frame in read_all(log)] == ["p", "p"]
    assert log.next_sequence("refused") == 0


def test_lost_bytes_below_a_frame_that_was_written_after_their_sync_are_damage_not_a_torn_tail() -> None:
    disk, model = SimulatedDisk(), LogModel()
    log = open_log(disk, OPTIONS)
    publish(log, model, 3)  # no checkpoint knows of these
    disk.open(SEGMENT).write([bytes(16)], SEGMENT_HEADER_BYTES + 100)
    with pytest.raises(DamagedError):
        open_log(disk, OPTIONS)


def test_a_reader_sees_nothing_that_is_not_durable() -> None:
    disk, model, plan = SimulatedDisk(), LogModel(), FaultPlan()
    log = open_log(FaultyFiles(disk, plan), OPTIONS)
    publish(log, model)
    seen: list[tuple[int, int]] = []

    def look(_operation: DiskOperation) -> None:
        seen.append((log.durable_end, len(read_all(log))))

    plan.add(Call(look), Kind.DATASYNC)
    publish(log, model)
    assert seen == [(1, 1)]
    assert len(read_all(log)) == 2


@pytest.fixture
def nowhere_to_log() -> Iterator[None]:
    """Whatever the program says about itself cannot be written, as on a full disk."""

    class Broken:
        def __getattr__(self, name: str) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    structlog.configure(logger_factory=lambda *_: Broken())
    yield
    structlog.reset_defaults()


@pytest.mark.usefixtures("nowhere_to_log")
def test_a_log_whose_failure_cannot_even_be_told_refuses_and_goes_on_afterwards() -> None:
    disk, model, plan = SimulatedDisk(), LogModel(), FaultPlan()
    log = open_log(FaultyFiles(disk, plan), OPTIONS)
    publish(log, model)
    plan.add(Fail(errno.ENOSPC), Kind.WRITE)
    batch = model.new_batch("p", 1, 100)
    results: list[object] = []

    def append() -> None:
        for _ in range(2):
            try:
                results.append(log.append(batch.payload()).base_offset)
            except (IcestreamError, OSError) as error:
                results.append(error)

    thread = threading.Thread(target=append, daemon=True)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    assert len(results) == 2, "the log never answers again"
    assert isinstance(results[0], LogUnavailableError)
    assert results[1] == 1
