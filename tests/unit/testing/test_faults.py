"""Files that fail as a plan says."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from icestream.testing import (
    Call,
    Crash,
    DiskOperation,
    Fail,
    FaultPlan,
    FaultyFiles,
    Kind,
    ShortWrite,
    SimulatedCrash,
    SimulatedDisk,
)
from icestream.wal.files import LocalFiles

PATH = Path("/f")


@pytest.fixture
def files() -> FaultyFiles:
    return FaultyFiles(SimulatedDisk())


def test_without_rules_everything_passes_through(tmp_path: Path) -> None:
    files = FaultyFiles(LocalFiles())
    files.make_directory(tmp_path / "d")
    file = files.open(tmp_path / "d" / "f", create=True)
    assert file.write([b"ab", b"c"], 0) == 3
    file.datasync()
    file.allocate(5)
    file.truncate(4)
    assert (file.size(), file.read(9, 1)) == (4, b"bc\0")
    file.close()
    files.replace(tmp_path / "d" / "f", tmp_path / "d" / "g")
    assert files.names(tmp_path / "d") == ["g"]
    assert files.read_bytes(tmp_path / "d" / "g") == b"abc\0"
    assert files.size(tmp_path / "d" / "g") == 4
    files.sync_directory(tmp_path / "d")
    files.remove(tmp_path / "d" / "g")
    files.remove_tree(tmp_path / "d")
    assert not files.exists(tmp_path / "d")


def test_the_nth_call_of_a_kind_fails_and_only_as_often_as_told(files: FaultyFiles) -> None:
    file = files.open(PATH, create=True)
    files.plan.add(Fail(errno.EIO), Kind.DATASYNC, nth=2, times=2)
    file.datasync()
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output error") as caught:
            file.datasync()
        assert caught.value.errno == errno.EIO
    file.datasync()
    assert [str(operation) for operation, _ in files.plan.injected] == ["datasync /f", "datasync /f"]


def test_a_rule_without_times_fails_until_it_is_cleared(files: FaultyFiles) -> None:
    file = files.open(PATH, create=True)
    files.plan.add(Fail(errno.ENOSPC), Kind.WRITE, Kind.ALLOCATE, times=None)
    for _ in range(5):
        with pytest.raises(OSError, match="No space left"):
            file.write([b"x"], 0)
        with pytest.raises(OSError, match="No space left"):
            file.allocate(10)
    files.plan.clear()
    assert file.write([b"x"], 0) == 1


def test_a_rule_holds_for_matching_paths_alone(files: FaultyFiles) -> None:
    files.plan.add(Fail(errno.EIO), Kind.CREATE, path="*.index", times=None)
    files.open(Path("/a.log"), create=True)
    with pytest.raises(OSError, match="Input/output error"):
        files.open(Path("/a.index"), create=True)


def test_a_short_write_takes_some_bytes_and_the_next_one_fails(files: FaultyFiles) -> None:
    file = files.open(PATH, create=True)
    files.plan.add(ShortWrite(3), Kind.WRITE, nth=1).add(Fail(errno.ENOSPC), Kind.WRITE, nth=2)
    assert file.write([b"ab", b"cde"], 0) == 3
    with pytest.raises(OSError, match="No space left"):
        file.write([b"de"], 3)
    assert file.write([b"de"], 3) == 2
    assert files.read_bytes(PATH) == b"abcde"


def test_a_failing_write_or_allocation_may_have_done_a_part(files: FaultyFiles) -> None:
    file = files.open(PATH, create=True)
    files.plan.add(Fail(errno.EIO, accept=2), Kind.WRITE).add(Fail(errno.ENOSPC, accept=4), Kind.ALLOCATE)
    with pytest.raises(OSError, match="Input/output error"):
        file.write([b"abc"], 0)
    assert files.read_bytes(PATH) == b"ab"
    with pytest.raises(OSError, match="No space left"):
        file.allocate(100)
    assert files.read_bytes(PATH) == b"ab\0\0"


def test_a_failed_datasync_leaves_the_simulated_disk_in_doubt() -> None:
    disk = SimulatedDisk()
    files = FaultyFiles(disk, FaultPlan().add(Fail(errno.EIO), Kind.DATASYNC))
    file = files.open(PATH, create=True)
    files.sync_directory(Path("/"))
    file.write([b"data"], 0)
    with pytest.raises(OSError, match="Input/output error"):
        file.datasync()
    file.datasync()
    assert {state.read_bytes(PATH) for state in disk.all_power_cut_states()} == {b"", b"\0\0\0\0", b"data"}


@pytest.mark.parametrize(
    ("kind", "call"),
    [
        (Kind.MAKE_DIRECTORY, lambda files: files.make_directory(Path("/e"))),
        (Kind.REPLACE, lambda files: files.replace(PATH, Path("/g"))),
        (Kind.REMOVE, lambda files: files.remove(PATH)),
        (Kind.REMOVE_TREE, lambda files: files.remove_tree(Path("/d"))),
        (Kind.SYNC_DIRECTORY, lambda files: files.sync_directory(Path("/"))),
    ],
)
def test_calls_on_names_fail_before_they_do_anything(
    files: FaultyFiles, kind: Kind, call: Callable[[FaultyFiles], None]
) -> None:
    files.open(PATH, create=True)
    files.make_directory(Path("/d"))
    files.plan.add(Fail(errno.EIO), kind)
    with pytest.raises(OSError, match="Input/output error"):
        call(files)
    assert files.names(Path("/")) == ["d", "f"]


def test_reads_and_opens_fail_too_when_named(files: FaultyFiles) -> None:
    file = files.open(PATH, create=True)
    files.plan.add(Fail(errno.EIO), Kind.READ, Kind.OPEN, Kind.NAMES, times=None)
    for call in (
        lambda: file.read(1, 0),
        lambda: files.read_bytes(PATH),
        lambda: files.open(PATH),
        lambda: files.names(Path("/")),
    ):
        with pytest.raises(OSError, match="Input/output error"):
            call()


def test_after_a_crash_the_process_can_touch_nothing(files: FaultyFiles) -> None:
    file = files.open(PATH, create=True)
    files.plan.add(Crash(accept=2), Kind.WRITE)
    with pytest.raises(SimulatedCrash):
        file.write([b"abc"], 0)
    for call in (
        lambda: file.write([b"x"], 0),
        file.datasync,
        file.size,
        lambda: files.exists(PATH),
        lambda: files.remove(PATH),
    ):
        with pytest.raises(SimulatedCrash):
            call()
    assert files.inner.read_bytes(PATH) == b"ab"


def test_a_crash_at_a_datasync_loses_nothing_of_the_page_cache() -> None:
    disk = SimulatedDisk()
    files = FaultyFiles(disk, FaultPlan().add(Crash(), Kind.DATASYNC))
    file = files.open(PATH, create=True)
    file.write([b"data"], 0)
    with pytest.raises(SimulatedCrash):
        file.datasync()
    disk.sync_directory(Path("/"))
    disk.open(PATH).datasync()
    assert {state.read_bytes(PATH) for state in disk.all_power_cut_states()} == {b"data"}


def test_a_function_is_called_before_the_call_goes_on(files: FaultyFiles) -> None:
    seen: list[tuple[DiskOperation, bool]] = []
    files.plan.add(Call(lambda operation: seen.append((operation, files.exists(PATH)))), Kind.CREATE)
    files.open(PATH, create=True)
    assert seen == [(DiskOperation(Kind.CREATE, PATH), False)]
    assert files.exists(PATH)


def test_a_random_plan_injects_the_same_faults_for_the_same_seed() -> None:
    def run(seed: int) -> list[str]:
        files = FaultyFiles(SimulatedDisk(), FaultPlan.random(seed, chance=0.2))
        for number in range(50):
            try:
                file = files.open(Path(f"/{number}"), create=True)
                file.write([bytes(2000)], 0)
                file.datasync()
            except OSError:
                continue
        return [f"{operation}: {fault}" for operation, fault in files.plan.injected]

    assert run(1) == run(1)
    assert run(1) != run(2)
    assert {line.split()[0] for line in run(1)} == {"create", "write", "datasync"}
