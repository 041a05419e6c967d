"""What a power cut can do to a file's bytes."""

import random
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.testing import PAGE_BYTES, SECTOR_BYTES, SimulatedDisk, SimulatedFile, Tearing

PATH = Path("/f")
S = SECTOR_BYTES


def durable_file(disk: SimulatedDisk, data: bytes = b"") -> SimulatedFile:
    file = disk.open(PATH, create=True)
    file.write([data], 0)
    file.datasync()
    disk.sync_directory(Path("/"))
    return file


def states(disk: SimulatedDisk, tearing: Tearing = Tearing.SECTOR) -> set[bytes]:
    return {state.read_bytes(PATH) for state in disk.all_power_cut_states(tearing=tearing)}


def test_synced_bytes_are_there_in_every_state() -> None:
    disk = SimulatedDisk()
    durable_file(disk, b"x" * 1000)
    assert states(disk) == {b"x" * 1000}
    assert disk.unsynced() == []


def test_each_unsynced_sector_may_be_old_or_new_whatever_the_others_are() -> None:
    disk = SimulatedDisk()
    durable_file(disk, b"o" * 3 * S).write([b"n" * 3 * S], 0)
    expected = {b"".join(sectors) for sectors in product((b"o" * S, b"n" * S), repeat=3)}
    assert states(disk) == expected


def test_a_sector_written_twice_may_hold_any_of_its_three_contents() -> None:
    disk = SimulatedDisk()
    file = durable_file(disk, b"0" * 10)
    file.write([b"1"], 0)
    file.write([b"2"], 1)
    assert states(disk) == {b"0000000000", b"1000000000", b"1200000000"}


def test_a_grown_file_may_have_its_old_size_or_zeros_or_the_data() -> None:
    disk = SimulatedDisk()
    file = durable_file(disk, b"old")
    file.write([b"new"], 3)
    assert states(disk) == {b"old", b"old\0\0\0", b"oldnew"}
    file.datasync()
    assert states(disk) == {b"oldnew"}


def test_a_long_write_may_leave_the_size_at_each_page() -> None:
    disk = SimulatedDisk(sector_bytes=8192)
    durable_file(disk).write([b"x" * 8192], 0)
    assert {len(state) for state in states(disk)} == {0, PAGE_BYTES, 8192}


def test_allocated_room_reads_as_zeros_and_may_be_gone() -> None:
    disk = SimulatedDisk()
    file = durable_file(disk, b"ab")
    file.allocate(5)
    assert states(disk) == {b"ab", b"ab\0\0\0"}
    file.datasync()
    file.write([b"c"], 2)
    assert states(disk) == {b"ab\0\0\0", b"abc\0\0"}


def test_a_truncation_may_be_undone_with_the_bytes_behind_it() -> None:
    disk = SimulatedDisk()
    file = durable_file(disk, b"a" * S + b"b" * S)
    file.truncate(S)
    assert states(disk) == {b"a" * S, b"a" * S + b"b" * S}
    file.datasync()
    assert states(disk) == {b"a" * S}


def test_bytes_behind_a_durable_truncation_never_come_back() -> None:
    disk = SimulatedDisk()
    file = durable_file(disk, b"secret")
    file.truncate(0)
    file.write([b"ok"], 4)
    found = states(disk)
    assert b"secret" in found  # nothing arrived at all
    assert b"\0\0\0\0ok" in found
    assert not [state for state in found if state.startswith(b"s") and state != b"secret" and b"ok" not in state]
    file.datasync()
    assert states(disk) == {b"\0\0\0\0ok"}


def test_tearing_by_byte_adds_every_prefix_of_the_new_bytes() -> None:
    disk = SimulatedDisk(sector_bytes=8)
    durable_file(disk, b"oooooooo").write([b"abcd"], 2)
    assert states(disk, Tearing.SECTOR) == {b"oooooooo", b"ooabcdoo"}
    assert states(disk, Tearing.BYTE) == {b"oooooooo", b"ooaooooo", b"ooaboooo", b"ooabcooo", b"ooabcdoo"}


def test_too_many_states_are_refused_with_their_number() -> None:
    disk = SimulatedDisk()
    durable_file(disk, b"o" * 30 * S).write([b"n" * 30 * S], 0)
    with pytest.raises(ValueError, match=str(2**30)):
        list(disk.all_power_cut_states(limit=1000))


class TestAfterAFailedSync:
    def test_programs_see_the_new_bytes_but_a_later_sync_does_not_save_them(self) -> None:
        disk = SimulatedDisk()
        file = durable_file(disk, b"old")
        file.write([b"new"], 0)
        file.fail_datasync()
        assert file.read(3, 0) == b"new"
        file.datasync()
        assert states(disk) == {b"old", b"new"}

    def test_writing_the_bytes_again_and_syncing_saves_them(self) -> None:
        disk = SimulatedDisk()
        file = durable_file(disk, b"old")
        file.write([b"new"], 0)
        file.fail_datasync()
        file.write([b"new"], 0)
        file.datasync()
        assert states(disk) == {b"new"}

    def test_other_sectors_are_saved_by_later_syncs(self) -> None:
        disk = SimulatedDisk()
        file = durable_file(disk, b"o" * 2 * S)
        file.write([b"n" * S], 0)
        file.fail_datasync()
        file.write([b"n" * S], S)
        file.datasync()
        assert states(disk) == {b"o" * S + b"n" * S, b"n" * 2 * S}

    def test_the_size_is_in_doubt_until_it_is_set_again(self) -> None:
        disk = SimulatedDisk()
        file = durable_file(disk, b"a" * S)
        file.write([b"b" * S], S)
        file.fail_datasync()
        file.datasync()
        assert {len(state) for state in states(disk)} == {S, 2 * S}
        file.truncate(S)
        file.datasync()
        assert states(disk) == {b"a" * S}

    def test_a_truncation_and_new_bytes_make_the_file_sound_again(self) -> None:
        disk = SimulatedDisk()
        file = durable_file(disk, b"a" * 700)
        file.write([b"b" * 2000], 700)
        file.fail_datasync()
        file.truncate(700)
        file.datasync()
        assert states(disk) == {b"a" * 700}
        file.write([b"c" * 2000], 700)
        file.datasync()
        assert states(disk) == {b"a" * 700 + b"c" * 2000}

    def test_dropping_the_caches_shows_what_the_disk_holds(self) -> None:
        seen = set()
        for seed in range(50):
            disk = SimulatedDisk()
            file = durable_file(disk, b"o" * 2 * S)
            file.write([b"n" * 2 * S], 0)
            file.fail_datasync()
            disk.drop_caches(random.Random(seed))
            seen.add(disk.read_bytes(PATH))
            assert states(disk) == {disk.read_bytes(PATH)}
        assert seen == {b"o" * 2 * S, b"n" * 2 * S, b"o" * S + b"n" * S, b"n" * S + b"o" * S}

    def test_dropping_the_caches_keeps_bytes_that_were_not_failed(self) -> None:
        disk = SimulatedDisk()
        durable_file(disk, b"old").write([b"new"], 0)
        disk.drop_caches(random.Random(0))
        assert disk.read_bytes(PATH) == b"new"


CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 40), st.binary(min_size=1, max_size=20)),
        st.tuples(st.just("truncate"), st.integers(0, 50)),
        st.tuples(st.just("allocate"), st.integers(1, 50)),
        st.tuples(st.sampled_from(["datasync", "fail_datasync"])),
    ),
    max_size=8,
)


def play(file: SimulatedFile, changes: list[tuple[object, ...]]) -> None:
    for verb, *arguments in changes:
        if verb == "write":
            position, data = arguments
            file.write([data], position)  # type: ignore[list-item, arg-type]
        else:
            getattr(file, str(verb))(*arguments)


@settings(max_examples=150, deadline=None)
@given(CHANGES, st.sampled_from(Tearing))
def test_random_states_are_among_all_states_and_the_present_is_one_of_them(
    changes: list[tuple[object, ...]], tearing: Tearing
) -> None:
    disk = SimulatedDisk(sector_bytes=16)
    play(durable_file(disk), changes)
    try:
        found = states(disk, tearing)
    except ValueError:
        return  # too many to list
    assert disk.read_bytes(PATH) in found
    for seed in range(30):
        state = disk.power_cut(random.Random(seed), tearing=tearing).read_bytes(PATH)
        if tearing is Tearing.SECTOR:  # torn sizes are drawn from more values than are listed
            assert state in found


@settings(max_examples=150, deadline=None)
@given(CHANGES, CHANGES)
def test_a_snapshot_and_its_origin_do_not_touch_each_other(
    before: list[tuple[object, ...]], after: list[tuple[object, ...]]
) -> None:
    disk = SimulatedDisk(sector_bytes=16)
    file = durable_file(disk)
    play(file, before)
    snapshot = disk.snapshot()
    again = disk.snapshot()
    seen = snapshot.read_bytes(PATH)
    cut = snapshot.power_cut(random.Random(1)).read_bytes(PATH)
    play(file, after)
    assert snapshot.read_bytes(PATH) == seen
    assert snapshot.power_cut(random.Random(1)).read_bytes(PATH) == cut
    play(snapshot.open(PATH), after)
    assert snapshot.read_bytes(PATH) == disk.read_bytes(PATH)
    assert again.read_bytes(PATH) == seen
