"""Positions (beginning, time, snapshot, tag) become offsets."""

import pytest
from tests.unit.table.conftest import MEMORY_BYTES, OpenTable, append, compact, messages

from icestream.model.errors import InvalidRequestError
from icestream.model.offsets import OffsetRanges
from icestream.table.contents import read_contents


def test_the_first_offset_is_that_of_the_first_row(open_table: OpenTable) -> None:
    table = open_table()
    assert table.first_offset() is None
    table = append(table, 0, 10)
    assert table.first_offset() == 0
    assert append(table, 10, 20).first_offset() == 0


def test_the_first_offset_after_a_lost_beginning(open_table: OpenTable) -> None:
    table = open_table()
    files = table.writer().write([messages(5, 9)], max_memory_bytes=MEMORY_BYTES)
    assert table.commit(files, start=0, end=9, epoch=1, lost=OffsetRanges.of([(0, 5)])).first_offset() == 5


@pytest.mark.parametrize("partition_by", [(), ("bucket(4, key)",)])
def test_a_time_is_the_first_message_published_then_or_later(
    open_table: OpenTable, partition_by: tuple[str, ...]
) -> None:
    table = open_table(partition_by=partition_by, row_group_bytes=65_536)
    for start in range(0, 300, 100):
        table = append(table, start, start + 100)
    assert [table.offset_at_time(time) for time in (-5, 0, 1, 99, 100, 250, 299)] == [0, 0, 1, 99, 100, 250, 299]
    assert table.offset_at_time(300) == 300
    assert table.offset_at_time(1 << 70) == 300


def test_the_time_in_an_empty_table_is_its_end(open_table: OpenTable) -> None:
    assert open_table().offset_at_time(0) == 0


def test_a_snapshot_stands_for_the_offset_behind_it(open_table: OpenTable) -> None:
    states = [append(open_table(), 0, 10)]
    states.append(append(states[0], 10, 30))
    for state, offset in zip(states, (10, 30), strict=True):
        assert state.snapshot_id is not None
        assert states[1].offset_of_snapshot(state.snapshot_id) == offset
        assert states[0].offset_of_snapshot(state.snapshot_id) == offset  # younger than the state that is asked


def test_a_compacted_snapshot_stands_for_the_same_offset(open_table: OpenTable) -> None:
    table = append(append(open_table(), 0, 10), 10, 30)
    made = compact(table)
    assert len(read_contents(made).files) == 1
    assert made.snapshot_id is not None
    assert made.offset_of_snapshot(made.snapshot_id) == 30


def test_bounds_tell_when_no_ancestor_of_a_snapshot_is_left(open_table: OpenTable) -> None:
    table = compact(append(append(open_table(), 0, 10), 10, 30))
    compacted = table.snapshot_id
    assert compacted is not None
    older = [snapshot.snapshot_id for snapshot in table.iceberg.metadata.snapshots if snapshot.snapshot_id != compacted]
    table.iceberg.maintenance.expire_snapshots().by_ids(older).commit()
    assert table.refresh().offset_of_snapshot(compacted) == 30


def test_an_unknown_snapshot_or_tag_is_an_error_that_helps(open_table: OpenTable) -> None:
    table = append(open_table(), 0, 10)
    with pytest.raises(InvalidRequestError, match=r"to keep a snapshot, tag it"):
        table.offset_of_snapshot(1)
    with pytest.raises(InvalidRequestError, match="no tag 'main'"):
        table.offset_of_tag("main")


def test_a_tag_keeps_its_snapshot_and_its_offset(open_table: OpenTable) -> None:
    state = append(open_table(max_snapshots=3, unused_file_grace_seconds=0), 0, 10)
    state = state.tag("billing")
    tagged = state.snapshot_id
    for start in range(10, 20):
        state = append(state, start, start + 1)
    state.unused_files.flush()
    assert state.offset_of_tag("billing") == 10
    assert state.refresh().iceberg.scan(snapshot_id=tagged).to_arrow().num_rows == 10


def test_a_table_without_a_snapshot_has_nothing_to_tag(open_table: OpenTable) -> None:
    with pytest.raises(InvalidRequestError, match="no snapshot yet"):
        open_table().tag("billing")


def test_added_files_are_those_appended_in_between(open_table: OpenTable) -> None:
    states = [append(open_table(manifest_merge_count=2), 0, 10)]
    for start in range(10, 50, 10):
        states.append(append(states[-1], start, start + 10))
    ids = [state.snapshot_id for state in states]
    found = states[-1].added_files(ids[1], ids[3])
    assert [(file.first_offset, file.last_offset, file.rows, file.snapshot_id) for file in found] == [
        (20, 29, 10, ids[2]),
        (30, 39, 10, ids[3]),
    ]
    assert [file.first_offset for file in states[-1].added_files(None)] == [0, 10, 20, 30, 40]
    assert states[-1].added_files(ids[-1]) == []
    assert open_table(stream_id="stream-1").added_files(ids[3])[0].first_offset == 40


def test_compaction_adds_no_files(open_table: OpenTable) -> None:
    table = append(open_table(), 0, 10)
    first = table.snapshot_id
    table = compact(append(table, 10, 20))
    table = append(table, 20, 30)
    assert [file.first_offset for file in table.added_files(first)] == [10, 20]


def test_everything_is_what_is_left_and_what_was_added_since(open_table: OpenTable) -> None:
    state = open_table(max_snapshots=3)
    for start in range(10):
        state = append(state, start, start + 1)
    assert [file.first_offset for file in state.added_files(None)] == list(range(10))
    with pytest.raises(InvalidRequestError, match="expired"):
        state.added_files(1)


def test_snapshots_that_do_not_follow_each_other_have_nothing_in_between(open_table: OpenTable) -> None:
    first = append(open_table(), 0, 10)
    second = append(first, 10, 20)
    with pytest.raises(InvalidRequestError, match="not before"):
        second.added_files(second.snapshot_id, first.snapshot_id)
