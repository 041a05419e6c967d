import pytest
from pyiceberg.table import Table
from tests.unit.table.conftest import MEMORY_BYTES, OpenTable, append, messages

from icestream.model.errors import DamagedError, IncompatibleTableError, InvalidRequestError
from icestream.table import Ledger
from icestream.table.ledger import COMMITTED_OFFSET, EPOCH, STREAM_ID


def _set(table: Table, **properties: str) -> None:
    with table.transaction() as change:
        change.set_properties({f"icestream.{key.replace('_', '-')}": value for key, value in properties.items()})


def test_a_ledger_survives_its_properties() -> None:
    ledger = Ledger("stream-1", 7, 2**62)
    assert Ledger.from_properties(ledger.to_properties(), place="here") == ledger


@pytest.mark.parametrize("missing", [STREAM_ID, EPOCH, COMMITTED_OFFSET])
def test_a_table_without_a_ledger_is_refused(missing: str) -> None:
    properties = Ledger("s", 1, 0).to_properties()
    del properties[missing]
    with pytest.raises(IncompatibleTableError, match=missing):
        Ledger.from_properties(properties, place="default/events")


def test_a_ledger_that_is_no_number_is_refused() -> None:
    with pytest.raises(IncompatibleTableError, match="cannot be parsed"):
        Ledger.from_properties({**Ledger("s", 1, 0).to_properties(), COMMITTED_OFFSET: "many"}, place="here")


def test_a_table_that_was_set_back_is_not_believed(open_table: OpenTable) -> None:
    state = append(open_table(), 0, 5)
    first = state.snapshot_id
    assert first is not None
    state = append(state, 5, 9)
    state.iceberg.manage_snapshots().set_current_snapshot(first).commit()
    with pytest.raises(DamagedError, match="below offset 9, its newest snapshot says 5") as caught:
        _ = state.refresh().ledger
    with pytest.raises(DamagedError):
        open_table()
    _set(state.refresh().iceberg, committed_offset="5")  # as the remedy says
    assert COMMITTED_OFFSET in caught.value.remedy
    state = append(open_table(), 5, 9)
    assert [offset for batch in state.scan() for offset in batch["offset"].to_pylist()] == list(range(9))


def test_a_ledger_that_somebody_moved_is_not_believed(open_table: OpenTable) -> None:
    state = append(open_table(), 0, 5)
    _set(state.iceberg, committed_offset="1000")
    with pytest.raises(DamagedError):
        _ = state.refresh().ledger


def test_a_snapshot_of_another_engine_does_not_hide_the_ledger(open_table: OpenTable) -> None:
    state = append(open_table(), 0, 5)
    state.iceberg.delete("offset = 2")  # rewrites the file, as a compaction would
    state = state.refresh()
    assert state.ledger.committed_offset == 5
    assert append(state, 5, 6).ledger.committed_offset == 6


def test_files_of_another_table_are_refused(open_table: OpenTable) -> None:
    table = open_table()
    other = open_table(topic=table.name._replace(name="other"))
    files = other.writer().write([messages(0, 1)], max_memory_bytes=MEMORY_BYTES)
    with pytest.raises(InvalidRequestError, match="another table"):
        table.commit(files, start=0, end=1, epoch=1)


def test_an_empty_range_is_refused(open_table: OpenTable) -> None:
    with pytest.raises(InvalidRequestError, match="is empty"):
        open_table().commit([], start=0, end=0, epoch=1)
