"""Commits are exactly-once on every catalog: with stale committers, conflicts and lost responses."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.conformance.catalogs.conftest import MEMORY_BYTES, append, messages, offsets_in

from icestream.model.errors import (
    CommitConflictError,
    CommitUnknownError,
    InvalidRequestError,
    LedgerMismatchError,
    StaleEpochError,
)
from icestream.model.offsets import OffsetRanges
from icestream.table import Ledger, Tables, TableSpec, TopicTable
from icestream.table.ledger import COMMITTED_OFFSET, EPOCH, STREAM_ID


def test_the_ledger_stands_in_properties_and_snapshot(tables: Tables, spec: TableSpec) -> None:
    state = append(tables.open(spec), 0, 10, epoch=3)
    expected = {STREAM_ID: "stream-1", EPOCH: "3", COMMITTED_OFFSET: "10"}
    snapshot = state.refresh().iceberg.metadata.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.snapshot_id == state.snapshot_id
    for key, value in expected.items():
        assert state.refresh().properties[key] == value
        assert snapshot.summary[key] == value
    assert snapshot.summary["total-records"] == "10"


def test_of_two_with_the_same_state_one_commits(tables: Tables, other_tables: Tables, spec: TableSpec) -> None:
    first = append(tables.open(spec), 0, 5)
    second = other_tables.open(spec)
    winner = append(first, 5, 9)
    with pytest.raises(CommitConflictError) as caught:
        append(second, 5, 9)
    assert caught.value.retryable
    assert second.refresh().ledger == winner.ledger
    assert offsets_in(winner) == list(range(9))


def test_of_two_that_make_the_first_commit_one_wins(tables: Tables, other_tables: Tables, spec: TableSpec) -> None:
    first, second = tables.open(spec), other_tables.open(spec)
    winner = append(first, 0, 5)
    with pytest.raises(CommitConflictError):
        append(second, 0, 5)
    assert offsets_in(winner) == list(range(5))


def test_a_writer_that_wakes_late_changes_nothing(tables: Tables, other_tables: Tables, spec: TableSpec) -> None:
    state = append(tables.open(spec), 0, 2)
    zombie = other_tables.open(spec)
    files = zombie.writer().write([messages(2, 4)], max_memory_bytes=MEMORY_BYTES)
    for start in range(2, 22, 2):  # long enough for the zombie's snapshot to be dropped
        state = append(state, start, start + 2)
    with pytest.raises(CommitConflictError):
        zombie.commit(files, start=2, end=4, epoch=1)
    assert state.refresh().ledger == Ledger("stream-1", 1, 22)
    assert offsets_in(state.refresh()) == list(range(22))


def test_commits_at_the_same_moment_leave_no_gap_and_no_duplicate(
    tables: Tables, other_tables: Tables, spec: TableSpec
) -> None:
    end = 12

    def race(start: TopicTable) -> int:
        state, conflicts = start, 0
        while (position := state.ledger.committed_offset) < end:
            try:
                state = append(state, position, position + 1)
            except CommitConflictError:
                conflicts += 1
                state = state.refresh()
        return conflicts

    states = [tables.open(spec), other_tables.open(spec), tables.open(spec)]
    with ThreadPoolExecutor(len(states)) as threads:
        list(threads.map(race, states))
    assert offsets_in(states[0].refresh()) == list(range(end))


@pytest.mark.parametrize("lost", ["the request", "the answer"])
def test_after_an_unknown_outcome_the_ledger_tells(
    tables: Tables, spec: TableSpec, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    state = append(tables.open(spec), 0, 5)
    files = state.writer().write([messages(5, 8)], max_memory_bytes=MEMORY_BYTES)
    commit = tables.catalog.commit_table
    with monkeypatch.context() as patch:
        patch.setattr(tables.catalog, "commit_table", _losing(lost, commit))
        with pytest.raises(CommitUnknownError) as caught:
            state.commit(files, start=5, end=8, epoch=1)
    assert caught.value.retryable
    after = state.refresh()
    if lost == "the request":
        assert after.ledger.committed_offset == 5
        after = after.commit(files, start=5, end=8, epoch=1)  # the files are still there
    assert after.ledger.committed_offset == 8
    assert offsets_in(after) == list(range(8))


def _losing(what: str, commit: Callable[..., Any]) -> Callable[..., Any]:
    def failing(*arguments: Any) -> None:
        if what == "the answer":
            commit(*arguments)
        raise ConnectionResetError("the connection is gone")

    return failing


def test_the_epoch_never_goes_back(tables: Tables, spec: TableSpec) -> None:
    state = append(tables.open(spec), 0, 5, epoch=7)
    with pytest.raises(StaleEpochError, match="epoch 6 is over"):
        append(state, 5, 6, epoch=6)
    assert append(state, 5, 6, epoch=7).refresh().ledger == Ledger("stream-1", 7, 6)


@pytest.mark.parametrize("start", [4, 6])
def test_a_range_that_does_not_begin_at_the_end_is_refused(tables: Tables, spec: TableSpec, start: int) -> None:
    state = append(tables.open(spec), 0, 5)
    with pytest.raises(LedgerMismatchError) as caught:
        append(state, start, 8)
    assert caught.value.details == {"committed_offset": 5}


def test_files_of_other_messages_are_refused(tables: Tables, spec: TableSpec) -> None:
    state = tables.open(spec)
    files = state.writer().write([messages(0, 5)], max_memory_bytes=MEMORY_BYTES)
    with pytest.raises(InvalidRequestError, match="do not hold exactly"):
        state.commit(files, start=0, end=4, epoch=1)
    with pytest.raises(InvalidRequestError, match="do not hold exactly"):
        state.commit([*files, *files], start=0, end=9, epoch=1)


def test_a_range_without_messages_moves_the_ledger(tables: Tables, spec: TableSpec) -> None:
    """Messages that a repair of the log gave up are nowhere, and must not stop the topic."""
    state = tables.open(spec).commit([], start=0, end=3, epoch=1, lost=OffsetRanges.of([(0, 3)]))
    state = append(state, 3, 5).commit([], start=5, end=7, epoch=1, lost=OffsetRanges.of([(5, 7)]))
    assert state.refresh().ledger.committed_offset == 7
    state = append(state, 7, 8).refresh()
    assert offsets_in(state) == [3, 4, 7]
    assert state.lost_ranges.ranges == ((0, 3), (5, 7))


def test_a_message_that_is_neither_in_a_file_nor_lost_is_refused(tables: Tables, spec: TableSpec) -> None:
    state = tables.open(spec)
    files = state.writer().write([messages(0, 3)], max_memory_bytes=MEMORY_BYTES)
    with pytest.raises(InvalidRequestError, match="do not hold exactly the messages 0 to 4"):
        state.commit(files, start=0, end=4, epoch=1)
    with pytest.raises(InvalidRequestError, match="do not hold exactly the messages 0 to 5"):
        state.commit(files, start=0, end=5, epoch=1, lost=OffsetRanges.of([(3, 4)]))
    assert state.refresh().snapshot_id is None


def test_tags_and_properties_that_others_set_survive_commits(
    tables: Tables, other_tables: Tables, spec: TableSpec
) -> None:
    state = append(tables.open(spec), 0, 1)
    tagged = state.snapshot_id
    assert tagged is not None
    theirs = other_tables.open(spec).iceberg
    theirs.manage_snapshots().create_tag(tagged, "monday").commit()
    with theirs.transaction() as change:
        change.set_properties({"owner": "somebody"})
    for start in range(1, 15):
        state = append(state, start, start + 1)
    state = state.refresh()
    assert state.properties["owner"] == "somebody"
    assert state.iceberg.metadata.refs["monday"].snapshot_id == tagged
    assert state.iceberg.scan(snapshot_id=tagged).to_arrow().num_rows == 1
    assert offsets_in(state) == list(range(15))


def test_metadata_stays_small(tables: Tables, spec: TableSpec) -> None:
    state = tables.open(spec)
    for start in range(40):
        state = append(state, start, start + 1)
        assert len(state.iceberg.metadata.snapshots) <= 5
        assert len(state.iceberg.metadata.metadata_log) <= 3
    snapshot = state.refresh().iceberg.metadata.current_snapshot()
    assert snapshot is not None
    assert len(snapshot.manifests(state.iceberg.io)) <= 3 * 4
    assert offsets_in(state.refresh()) == list(range(40))
