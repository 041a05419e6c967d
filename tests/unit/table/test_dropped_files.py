"""Removing what a dropped table has left."""

from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.unit.table.conftest import TOPIC, OpenTable, append

from icestream.config import Settings
from icestream.table import Tables
from icestream.table.dropped_files import MAX_FAILURES, remove_table_files
from icestream.table.files import DurableFileIO


def files(location: str) -> list[Path]:
    return [path for path in Path(urlsplit(location).path).rglob("*") if path.is_file()]


def test_files_that_only_older_snapshots_have_go_too(open_table: OpenTable, tmp_path: Path) -> None:
    state = append(append(open_table(unused_file_grace_seconds=3600), 0, 10), 10, 20)
    state.iceberg.delete("offset < 15")
    tables = Tables(Settings(data_dir=tmp_path))
    assert tables.drop(TOPIC, "stream-1")
    tables.close()
    assert files(state.location) == []


def test_a_table_made_again_in_the_same_folder_keeps_its_files(open_table: OpenTable, tmp_path: Path) -> None:
    old = append(open_table(), 0, 10)
    tables = Tables(Settings(data_dir=tmp_path))
    tables.catalog.drop_table(tuple(TOPIC))
    tables.close()
    new = append(open_table(stream_id="stream-2"), 0, 5)
    assert new.location == old.location
    remove_table_files(old.iceberg)
    assert [batch.num_rows for batch in new.refresh().scan()] == [5]


def test_a_table_whose_files_belong_to_others_keeps_them(open_table: OpenTable, tmp_path: Path) -> None:
    state = append(open_table(), 0, 10)
    with state.iceberg.transaction() as transaction:
        transaction.set_properties({"gc.enabled": "false"})
    before = files(state.location)
    tables = Tables(Settings(data_dir=tmp_path))
    assert tables.drop(TOPIC, "stream-1")
    tables.close()
    assert files(state.location) == before


def test_a_store_that_fails_keeps_what_names_the_rest_and_does_not_undo_the_drop(
    open_table: OpenTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = open_table(manifest_merge_count=100)
    for start in range(2 * MAX_FAILURES):
        state = append(state, start, start + 1)
    asked: list[object] = []

    def refuse(_io: DurableFileIO, location: object) -> None:
        asked.append(location)
        raise OSError("the store is away")

    monkeypatch.setattr(DurableFileIO, "delete", refuse)
    tables = Tables(Settings(data_dir=tmp_path))
    assert tables.drop(TOPIC, "stream-1")
    assert tables.find(TOPIC) is None
    tables.close()
    assert len(asked) == MAX_FAILURES
    assert all(str(path).endswith(".parquet") for path in asked)
    assert Path(urlsplit(state.iceberg.metadata_location).path).exists()
