"""What a power cut can do to the names of files and directories."""

import random
from pathlib import Path

import pytest

from icestream.testing import DiskOperation, Kind, NameLoss, SimulatedDisk

ROOT = Path("/")


def put(disk: SimulatedDisk, path: str, data: bytes = b"", *, sync: bool = True) -> None:
    file = disk.open(Path(path), create=True)
    file.write([data], 0)
    if sync:
        file.datasync()


def contents(disk: SimulatedDisk, directory: Path = ROOT) -> dict[str, object]:
    found: dict[str, object] = {}
    for name in disk.names(directory):
        try:
            found[name] = disk.read_bytes(directory / name)
        except IsADirectoryError:
            found[name] = contents(disk, directory / name)
    return found


def states(disk: SimulatedDisk, loss: NameLoss = NameLoss.ANY) -> list[dict[str, object]]:
    unique: list[dict[str, object]] = []
    for state in disk.all_power_cut_states(loss=loss):
        if (found := contents(state)) not in unique:
            unique.append(found)
    return unique


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


def test_a_synced_file_vanishes_if_its_directory_was_not_synced(disk: SimulatedDisk) -> None:
    put(disk, "/f", b"data")
    assert {} in states(disk)
    disk.sync_directory(ROOT)
    assert states(disk) == [{"f": b"data"}]


def test_a_directory_vanishes_with_all_its_synced_files_if_its_parent_was_not_synced(disk: SimulatedDisk) -> None:
    disk.make_directory(Path("/d"))
    put(disk, "/d/f", b"data")
    disk.sync_directory(Path("/d"))
    assert states(disk) == [{"d": {"f": b"data"}}, {}]
    disk.sync_directory(ROOT)
    assert states(disk) == [{"d": {"f": b"data"}}]


def test_a_removed_file_may_come_back(disk: SimulatedDisk) -> None:
    put(disk, "/f", b"data")
    disk.sync_directory(ROOT)
    disk.remove(Path("/f"))
    assert states(disk) == [{}, {"f": b"data"}]
    disk.sync_directory(ROOT)
    assert states(disk) == [{}]


def test_a_replacement_happens_as_a_whole_or_not_at_all(disk: SimulatedDisk) -> None:
    put(disk, "/f", b"old")
    put(disk, "/f.tmp", b"new")
    disk.sync_directory(ROOT)
    disk.replace(Path("/f.tmp"), Path("/f"))
    assert states(disk) == [{"f": b"new"}, {"f": b"old", "f.tmp": b"new"}]


def test_a_replacement_by_a_file_that_was_not_synced_may_leave_an_empty_one(disk: SimulatedDisk) -> None:
    put(disk, "/f", b"old")
    disk.sync_directory(ROOT)
    put(disk, "/f.tmp", b"new", sync=False)
    disk.replace(Path("/f.tmp"), Path("/f"))
    disk.sync_directory(ROOT)
    assert {"f": b""} in states(disk)
    assert {"f": b"\0\0\0"} in states(disk)
    assert {"f": b"new"} in states(disk)
    assert {"f": b"old"} not in states(disk)


def test_lost_names_are_any_in_one_mode_and_the_last_ones_in_the_other(disk: SimulatedDisk) -> None:
    put(disk, "/a")
    put(disk, "/b")
    assert states(disk, NameLoss.LAST) == [{"a": b"", "b": b""}, {"a": b""}, {}]
    assert states(disk, NameLoss.ANY) == [{"a": b"", "b": b""}, {"a": b""}, {"b": b""}, {}]


def test_changes_of_one_name_are_lost_from_the_last_one_on(disk: SimulatedDisk) -> None:
    put(disk, "/f", b"1")
    disk.remove(Path("/f"))
    put(disk, "/f", b"2")
    assert states(disk) == [{"f": b"2"}, {}, {"f": b"1"}]


def test_a_move_between_directories_is_durable_when_both_are_synced(disk: SimulatedDisk) -> None:
    disk.make_directory(Path("/d"))
    put(disk, "/f", b"data")
    disk.sync_directory(ROOT)
    disk.replace(Path("/f"), Path("/d/f"))
    disk.sync_directory(Path("/d"))
    assert states(disk) == [{"d": {"f": b"data"}}, {"d": {}, "f": b"data"}]
    disk.sync_directory(ROOT)
    assert states(disk) == [{"d": {"f": b"data"}}]


def test_what_a_durable_change_builds_on_is_durable_too(disk: SimulatedDisk) -> None:
    disk.make_directory(Path("/d"))
    put(disk, "/f", b"1")
    disk.sync_directory(ROOT)
    disk.replace(Path("/f"), Path("/d/f"))
    disk.remove(Path("/d/f"))
    disk.sync_directory(Path("/d"))
    assert states(disk) == [{"d": {}}]


def test_a_removed_tree_may_come_back_in_parts(disk: SimulatedDisk) -> None:
    disk.make_directory(Path("/d"))
    put(disk, "/d/a")
    put(disk, "/d/b")
    disk.sync_directory(Path("/d"))
    disk.sync_directory(ROOT)
    disk.remove_tree(Path("/d"))
    found = states(disk)
    assert {} in found
    assert {"d": {}} in found
    assert {"d": {"b": b""}} in found
    assert {"d": {"a": b"", "b": b""}} in found


def test_what_is_not_durable_is_counted_and_named(disk: SimulatedDisk) -> None:
    assert (disk.count_unsynced(), disk.unsynced()) == (0, [])
    put(disk, "/f", bytes(1200), sync=False)
    assert disk.count_unsynced() == 4
    assert disk.unsynced() == ["0:f -> 1", "node 1: 3 sectors of 1200 bytes"]


@pytest.mark.parametrize("loss", NameLoss)
def test_random_states_reach_every_state_and_no_other(disk: SimulatedDisk, loss: NameLoss) -> None:
    disk.make_directory(Path("/d"))
    put(disk, "/d/a", b"1")
    put(disk, "/b", b"2", sync=False)
    disk.replace(Path("/b"), Path("/c"))
    everything = states(disk, loss)
    seen = [contents(disk.power_cut(random.Random(seed), loss=loss)) for seed in range(1000)]
    assert all(state in everything for state in seen)
    assert all(state in seen for state in everything)


def test_after_a_cut_the_disk_is_durable_and_works_on(disk: SimulatedDisk) -> None:
    disk.make_directory(Path("/d"))
    put(disk, "/d/f", b"data", sync=False)
    for seed in range(20):
        found = disk.power_cut(random.Random(seed))
        assert found.unsynced() == []
        put(found, "/new", b"x")
        assert found.read_bytes(Path("/new")) == b"x"
    assert contents(disk) == {"d": {"f": b"data"}}


def test_the_hook_hears_of_each_change_before_it_happens(disk: SimulatedDisk) -> None:
    heard: list[tuple[str, dict[str, object]]] = []
    disk.on_operation = lambda operation: heard.append((str(operation), contents(disk.snapshot())))
    put(disk, "/f", b"ab")
    file = disk.open(Path("/f"))
    file.truncate(1)
    file.allocate(3)
    disk.replace(Path("/f"), Path("/g"))
    disk.sync_directory(ROOT)
    assert heard == [
        ("create /f", {}),
        ("write /f [0, 2)", {"f": b""}),
        ("datasync /f", {"f": b"ab"}),
        ("truncate /f to 1", {"f": b"ab"}),
        ("allocate /f to 3", {"f": b"a"}),
        ("replace /f -> /g", {"f": b"a\0\0"}),
        ("sync_directory /", {"g": b"a\0\0"}),
    ]


def test_an_exception_of_the_hook_keeps_the_change_from_happening(disk: SimulatedDisk) -> None:
    def refuse(operation: DiskOperation) -> None:
        if operation.kind is Kind.CREATE:
            raise RuntimeError

    disk.on_operation = refuse
    with pytest.raises(RuntimeError):
        disk.open(Path("/f"), create=True)
    assert not disk.exists(Path("/f"))
