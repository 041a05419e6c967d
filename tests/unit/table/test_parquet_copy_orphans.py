"""Uncommitted files in the folders of a Parquet copy are removed, committed ones never."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestEntry, ManifestFile
from tests.unit.table.conftest import local

from icestream.config import Settings
from icestream.model.enums import StorageFormat
from icestream.model.errors import CommitConflictError, InvalidNameError, InvalidRequestError
from icestream.model.messages import STREAM_SCHEMA
from icestream.model.names import TopicName, copy_of, is_copy, topic_of_table
from icestream.table import Tables, TableSpec, TopicTable
from icestream.table.files import RenamedFile
from icestream.table.parquet_copy import orphans as orphans_module
from icestream.table.parquet_copy.layout import (
    DATA_PATH,
    first_hour_of_day,
    first_hour_of_folder,
    hour_folder,
    own_file_pattern,
    parquet_location,
)
from icestream.table.parquet_copy.orphans import discard_files, find_copy_orphans, holds_files, remove_copy_orphans
from icestream.table.writer import write_to_tables

TOPIC = TopicName("a", "b")
BEGIN = datetime(2026, 11, 30, 22, 30, tzinfo=UTC)


def rows(start: int, end: int, *, minutes: int = 10) -> pa.RecordBatch:
    """Messages that were published one every few minutes."""
    count = end - start
    columns = {
        "offset": range(start, end),
        "publish_time": [BEGIN + timedelta(minutes=minutes * offset) for offset in range(start, end)],
        "producer": ["p"] * count,
        "sequence": range(start, end),
        "key": [None] * count,
        "attributes": [None] * count,
        "payload": [b"%d" % offset for offset in range(start, end)],
    }
    return pa.record_batch(
        [pa.array(values, STREAM_SCHEMA.field(name).type) for name, values in columns.items()], schema=STREAM_SCHEMA
    )


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[Tables]:
    made = Tables(Settings(data_dir=tmp_path))
    yield made
    made.close()


@pytest.fixture
def table(tables: Tables) -> TopicTable:
    return tables.open(TableSpec(copy_of(TOPIC), "stream", 1, STREAM_SCHEMA, partition_by=("bucket(4, key)",)))


def write(table: TopicTable, start: int, end: int, *, minutes: int = 10) -> TopicTable:
    files = table.writer().write([rows(start, end, minutes=minutes)], max_memory_bytes=1 << 24)
    return table.commit(files, start=start, end=end, epoch=1)


def files(table: TopicTable) -> list[Path]:
    return sorted(path for path in local(table.properties[DATA_PATH]).rglob("*") if path.is_file())


def test_files_lie_by_date_and_hour_and_are_named_for_their_table(table: TopicTable, tmp_path: Path) -> None:
    written = write(table, 0, 20)
    found = [path.relative_to(tmp_path / "parquet" / "a" / "b") for path in files(written)]
    assert [str(path.parent) for path in found] == [
        "date=2026-11-30/hour=22",
        "date=2026-11-30/hour=23",
        "date=2026-12-01/hour=00",
        "date=2026-12-01/hour=01",
    ]
    assert all(own_file_pattern(table.iceberg.metadata.table_uuid).fullmatch(path.name) for path in found)
    assert [offset for batch in written.scan() for offset in batch["offset"].to_pylist()] == list(range(20))


def test_a_file_is_seen_when_it_is_complete(table: TopicTable) -> None:
    with table.writer().writing(max_memory_bytes=1 << 20) as writing:
        writing.add(rows(0, 1))
        writing._write(writing._groups.rest())
        (unfinished,) = files(table)
        assert unfinished.name.startswith(".")
        assert not unfinished.match("*.parquet")
        (written,) = writing.finish()
    assert files(table) == [local(written.path)]


def test_after_an_error_neither_name_is_left(table: TopicTable) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield rows(1, 2)
        assert [path.name[0] for path in files(table)] == ["."]
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        replace(table.writer(), row_group_bytes=1).write(chain([rows(0, 1)], failing()), max_memory_bytes=1 << 20)
    assert files(table) == []


def test_a_file_that_is_given_up_is_at_no_time_seen(table: TopicTable, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    close = RenamedFile.close

    def look(file: RenamedFile) -> None:
        close(file)
        seen.append([path.name for path in files(table)])

    monkeypatch.setattr(RenamedFile, "close", look)

    def failing() -> Iterator[pa.RecordBatch]:
        yield from (rows(0, 1), rows(1, 2))
        assert files(table)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        replace(table.writer(), row_group_bytes=1).write(failing(), max_memory_bytes=1 << 20)
    assert seen == []
    assert files(table) == []


def test_two_tables_are_written_together_each_from_its_own_offset(tables: Tables, table: TopicTable) -> None:
    other = tables.open(TableSpec(TOPIC, "stream", 1, STREAM_SCHEMA))
    targets = [(other.writer(), 0), (table.writer(), 5)]
    batches = [rows(0, 3), rows(3, 7), rows(7, 9)]
    both = write_to_tables(targets, batches, max_memory_bytes=1 << 24)
    counts = [sum(file.message_count for file in own) for own in both]
    assert counts == [9, 4]
    assert [min(file.first_offset for file in own) for own in both] == [0, 5]


def test_when_one_of_two_tables_fails_neither_has_files(tables: Tables, table: TopicTable) -> None:
    other = tables.open(TableSpec(TOPIC, "stream", 1, STREAM_SCHEMA))

    def failing() -> Iterator[pa.RecordBatch]:
        yield rows(0, 3)
        raise OSError("the log is gone")

    with pytest.raises(Exception, match="gone"):
        write_to_tables([(other.writer(), 0), (table.writer(), 0)], failing(), max_memory_bytes=1)
    assert files(table) == []
    assert not list(local(other.location).rglob("*.parquet"))


def test_what_was_never_committed_goes_and_what_was_stays(table: TopicTable) -> None:
    table = write(table, 0, 20)
    kept = files(table)
    abandoned = table.writer().write([rows(20, 40)], max_memory_bytes=1 << 24)
    hour = kept[-1].parent
    theirs = [hour / "old.parquet", hour / f"{'0' * 32}-{'1' * 32}.parquet", hour.parent / "notes.txt"]
    for path in theirs:
        path.write_bytes(b"not ours")
    unfinished = hour / f".{abandoned[0].path.rpartition('/')[2]}.part"
    unfinished.write_bytes(b"cut short")
    clean = remove_copy_orphans(table)
    assert files(table) == sorted([*kept, *theirs])
    assert clean.snapshot_id != table.snapshot_id
    assert clean.ledger == table.ledger
    assert [offset for batch in clean.scan() for offset in batch["offset"].to_pylist()] == list(range(20))
    assert remove_copy_orphans(clean) is clean, "without orphans there is no fence"


def test_what_lies_in_a_table_without_commits_goes_too(table: TopicTable) -> None:
    table.writer().write([rows(0, 40)], max_memory_bytes=1 << 24)
    remove_copy_orphans(table)
    assert files(table) == []


def test_days_before_the_last_committed_one_are_not_looked_at(table: TopicTable) -> None:
    table = write(table, 0, 20)
    uuid = table.iceberg.metadata.table_uuid
    early = local(table.properties[DATA_PATH]) / "date=2026-11-30" / "hour=22" / f"{uuid.hex}-{'0' * 32}.parquet"
    early.write_bytes(b"")
    assert find_copy_orphans(table) == []


def test_manifests_of_older_days_are_not_opened(table: TopicTable, monkeypatch: pytest.MonkeyPatch) -> None:
    for start in range(0, 40, 4):  # one manifest each, over three days
        table = write(table, start, start + 4, minutes=60)
    opened: list[str] = []
    fetch = ManifestFile.fetch_manifest_entry

    def note(manifest: ManifestFile, io: FileIO, discard_deleted: bool = True) -> list[ManifestEntry]:
        opened.append(manifest.manifest_path)
        return fetch(manifest, io, discard_deleted)

    monkeypatch.setattr(ManifestFile, "fetch_manifest_entry", note)
    last_day = {path.name for path in files(table) if "date=2026-12-02" in str(path)}
    assert find_copy_orphans(table.refresh()) == []
    assert 0 < len(opened) < len(table.manifests) / 2
    assert len(last_day) >= len(opened)
    opened.clear()
    abandoned = table.writer().write([rows(40, 41, minutes=60)], max_memory_bytes=1 << 24)
    assert find_copy_orphans(table.refresh()) == [str(local(file.path)) for file in abandoned]
    assert 0 < len(opened) < len(table.manifests) / 2


def test_a_pass_that_was_planned_before_the_fence_cannot_commit(table: TopicTable) -> None:
    table = write(table, 0, 5)
    late = table.writer().write([rows(5, 10)], max_memory_bytes=1 << 24)
    fenced = remove_copy_orphans(table)
    with pytest.raises(CommitConflictError):
        table.commit(late, start=5, end=10, epoch=1)
    assert not holds_files(fenced.refresh(), late)


def test_a_file_that_is_committed_while_it_is_listed_stays(table: TopicTable, monkeypatch: pytest.MonkeyPatch) -> None:
    table = write(table, 0, 5)
    late = table.writer().write([rows(5, 10)], max_memory_bytes=1 << 24)
    find, asked = orphans_module.find_copy_orphans, []

    def commit_after_the_listing(state: TopicTable) -> list[str]:
        found = find(state)
        asked.append(len(found))
        if len(asked) == 1:
            table.commit(late, start=5, end=10, epoch=1)
        return found

    monkeypatch.setattr(orphans_module, "find_copy_orphans", commit_after_the_listing)
    after = remove_copy_orphans(table)
    assert asked == [len(late), 0]
    assert holds_files(after, late)
    assert all(local(file.path).exists() for file in late)


def test_what_an_older_snapshot_names_stays(table: TopicTable) -> None:
    table = write(table, 0, 5)
    before = files(table)
    table.iceberg.delete("offset >= 0")
    remove_copy_orphans(table.refresh())
    assert files(table) == before


def test_written_files_are_taken_back_once_or_twice(table: TopicTable) -> None:
    late = table.writer().write([rows(0, 5)], max_memory_bytes=1 << 24)
    discard_files(table, late)
    discard_files(table, late)
    assert files(table) == []


def test_dropping_a_copy_leaves_no_file_of_it(tables: Tables, table: TopicTable) -> None:
    table = write(table, 0, 20)
    table.writer().write([rows(0, 5)], max_memory_bytes=1 << 24)
    theirs = files(table)[0].parent / "old.parquet"
    theirs.write_bytes(b"not ours")
    assert tables.drop(table.name, "stream")
    assert files(table) == [theirs]


def test_a_copy_whose_files_belong_to_others_too_is_dropped_without_them(tables: Tables, table: TopicTable) -> None:
    table = write(table, 0, 20)
    with table.iceberg.transaction() as change:
        change.set_properties({"gc.enabled": "false"})
    before = files(table)
    assert tables.drop(table.name, "stream")
    assert files(table) == before


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({}, "file://{data_dir}/parquet"),
        ({"catalog": {"warehouse": "/lake/parquet"}}, "file:///lake/-parquet"),
        ({"storage": {"parquet_path": "/somewhere/else/"}}, "file:///somewhere/else"),
        ({"storage": {"parquet_path": "s3://bucket/plain/"}}, "s3://bucket/plain"),
        ({"catalog": {"warehouse": "s3://bucket/a/warehouse"}}, "s3://bucket/a/parquet"),
        ({"object_store": {"type": "s3", "bucket": "bucket"}}, "s3://bucket/-parquet"),
    ],
)
def test_where_plain_files_go(tmp_path: Path, sections: dict[str, dict[str, str]], expected: str) -> None:
    settings = Settings.model_validate({"data_dir": tmp_path, **sections})
    assert parquet_location(settings) == expected.format(data_dir=tmp_path)


def test_a_catalog_that_keeps_its_warehouse_to_itself_needs_a_path(tmp_path: Path) -> None:
    catalog = {"type": "rest", "uri": "http://127.0.0.1:1", "warehouse": "name"}
    with pytest.raises(InvalidRequestError, match="parquet_path"):
        parquet_location(Settings.model_validate({"data_dir": tmp_path, "catalog": catalog}))
    with pytest.raises(ValueError, match=r"storage\.parquet_path must be set"):
        Settings.model_validate({"data_dir": tmp_path, "catalog": catalog, "storage": {"format": "both"}})


def test_hours_and_days_by_their_folders() -> None:
    assert hour_folder(0) == "date=1970-01-01/hour=00"
    assert hour_folder(24 * 365 + 9) == "date=1971-01-01/hour=09"
    assert first_hour_of_folder("date=1971-01-01") == 24 * 365
    assert first_hour_of_folder("date=1971-01-99") is None
    assert first_hour_of_folder("hour=01") is None
    assert first_hour_of_day(24 * 365 + 9) == 24 * 365


def test_names_of_copies_are_not_those_of_topics() -> None:
    assert is_copy(copy_of(TOPIC))
    assert topic_of_table(copy_of(TOPIC)) == TOPIC
    with pytest.raises(InvalidNameError, match="Parquet copy"):
        TopicName.parse(str(copy_of(TOPIC)))
    assert StorageFormat.PARQUET.all_tables(TOPIC) == (copy_of(TOPIC), TOPIC)
