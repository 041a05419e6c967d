"""Rows that another engine deleted: the error names it, and an operator can accept it."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate
from pyiceberg.typedef import Record
from tests.reading import TOPIC, Stage, rest_of

from icestream.cli.main import cli
from icestream.model.callers import FULL_ACCESS
from icestream.model.errors import CommitConflictError, DamagedError, InvalidRequestError, RowsDeletedError
from icestream.model.names import TopicName
from icestream.protocol.read import ReadTicket
from icestream.query.topics import BrokerTopics
from icestream.server.flight.read_stream import ReadStream
from icestream.server.metrics import BrokerMetrics
from icestream.storage.verify import DirectoryLogs, verify_topic
from icestream.table import TopicTable, removed_rows

MESSAGES = 40
NAME = TopicName.parse(TOPIC)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """Two data files of 20 messages, of which the log has given up the first."""
    opened = Stage(tmp_path)
    for number in range(MESSAGES):
        opened.publish([b"%d %s" % (number, b"x" * 900)])
    opened.commit(20)
    opened.commit()
    assert opened.prune() > 20
    yield opened
    opened.close()


class _DeleteManifest(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def add_delete_file(table: TopicTable, rows: pa.Table, content: DataFileContent, ids: Sequence[int] = ()) -> None:
    """Commit a delete file, as engines do that merge on read."""
    iceberg, io = table.iceberg, table.iceberg.io
    path = f"{table.location}/data/deletes-{table.snapshot_id}.parquet"
    with io.new_output(path).create() as stream:
        pq.write_table(rows, stream)
    number, sequence = iceberg.metadata.new_snapshot_id(), iceberg.metadata.next_sequence_number()
    file = DataFile.from_args(
        content=content,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=rows.num_rows,
        file_size_in_bytes=1,
        equality_ids=list(ids) or None,
    )
    output = io.new_output(f"{table.location}/metadata/deletes-{number}.avro")
    with _DeleteManifest(iceberg.spec(), iceberg.schema(), output, number, "deflate") as manifest:
        manifest.add_entry(
            ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, snapshot_id=number, data_file=file)
        )
    place = f"{table.location}/metadata/snap-{number}.avro"
    with write_manifest_list(2, io.new_output(place), number, table.snapshot_id, sequence, "deflate") as manifests:
        manifests.add_manifests([manifest.to_manifest_file(), *table.manifests])
    counts = {"added-delete-files": "1", "engine-name": "spark", "engine-version": "4.0.1"}
    snapshot = Snapshot.model_validate(
        {
            "snapshot-id": number,
            "parent-snapshot-id": table.snapshot_id,
            "sequence-number": sequence,
            "timestamp-ms": iceberg.metadata.last_updated_ms + 1,
            "manifest-list": place,
            "summary": Summary(Operation.OVERWRITE, **counts),
            "schema-id": iceberg.metadata.current_schema_id,
        }
    )
    head = SetSnapshotRefUpdate.model_validate({"ref-name": "main", "type": "branch", "snapshot-id": number})
    iceberg.catalog.commit_table(iceberg, (), (AddSnapshotUpdate(snapshot=snapshot), head))


def delete_positions(stage: Stage) -> set[int]:
    table = stage.table()
    path = next(task.file.file_path for task in table.iceberg.scan(row_filter="offset = 3").plan_files())
    add_delete_file(
        table,
        pa.table({"file_path": [path, path], "pos": pa.array([3, 7], pa.int64())}),
        DataFileContent.POSITION_DELETES,
    )
    return {3, 7}


def delete_by_value(stage: Stage) -> set[int]:
    """A file of values: here of offsets, the only column whose values differ."""
    table = stage.table()
    ids = [table.offset_id]
    field = pa.field("offset", pa.int64(), metadata={"PARQUET:field_id": str(ids[0])})
    rows = pa.table([pa.array([5, 6, 25], pa.int64())], schema=pa.schema([field]))
    add_delete_file(table, rows, DataFileContent.EQUALITY_DELETES, ids)
    return {5, 6, 25}


def delete_by_rewriting(stage: Stage) -> set[int]:
    stage.table().iceberg.delete("offset = 4 or offset = 9 or offset = 10 or offset = 33")
    return {4, 9, 10, 33}


def delete_a_whole_file(stage: Stage) -> set[int]:
    stage.table().iceberg.delete("offset < 20")
    return set(range(20))


WAYS = [delete_positions, delete_by_value, delete_by_rewriting, delete_a_whole_file]


def accept(stage: Stage, *options: str) -> dict[str, Any]:
    command = ["table", "accept-deletes", TOPIC, "--data", str(stage.settings.data_dir), "--json", *options]
    done = CliRunner().invoke(cli, command)
    assert done.exit_code == 0, done.output
    (found,) = json.loads(done.stdout.splitlines()[-1])["tables"]
    return dict(found)


def sql_offsets(stage: Stage) -> list[int]:
    topic = BrokerTopics(stage.storage).find(NAME, fresh=True)
    return [row for batch in topic.batches(["offset"], None, 0, MESSAGES) for row in batch.column(0).to_pylist()]


@pytest.mark.parametrize("delete", WAYS)
def test_deleted_rows_are_an_error_that_names_who_did_it(stage: Stage, delete: Any) -> None:
    before = stage.table().snapshot_id
    delete(stage)
    snapshot = stage.table().iceberg.metadata.current_snapshot()
    assert snapshot is not None
    with pytest.raises(RowsDeletedError) as failure:
        rest_of(stage.reader(0))
    said = str(failure.value)
    assert f"snapshot {snapshot.snapshot_id}" in said
    assert snapshot.summary is not None
    assert f"operation {snapshot.summary.operation.value}" in said
    assert "by spark 4.0.1" in said or "by an engine that does not name itself" in said
    assert f"icestream table accept-deletes {TOPIC}" in said
    assert f"set the table back to snapshot {before}" in said
    with pytest.raises(RowsDeletedError):
        sql_offsets(stage)


@pytest.mark.parametrize("delete", WAYS)
def test_accepted_deletes_are_passed_over(stage: Stage, delete: Any) -> None:
    gone = delete(stage)
    planned = accept(stage, "--dry-run")
    with pytest.raises(RowsDeletedError):
        rest_of(stage.reader(0))
    assert accept(stage) == planned
    assert planned["rows"] == len(gone)
    start = stage.topic.log.start_offset
    in_log = {offset for offset in gone if offset >= start}
    found = [offset for offset, _ in rest_of(stage.reader(0))]
    assert found == [offset for offset in range(MESSAGES) if offset not in gone or offset in in_log]
    assert sql_offsets(stage) == [offset for offset in range(MESSAGES) if offset not in gone]
    table = stage.table()
    assert table.removals[-1]["snapshot_id"] == planned["snapshots"][-1]["snapshot_id"]
    assert not list(table.iceberg.inspect.delete_files().to_pylist())
    with pytest.raises(InvalidRequestError, match="no row is missing"):
        table.accept_deletes()
    stage.publish([b"later"])
    stage.commit()
    assert stage.table().removed_ranges.count == len(gone)


@pytest.mark.parametrize("delete", WAYS)
def test_verify_knows_accepted_deletes(stage: Stage, delete: Any) -> None:
    gone = delete(stage)
    directory = stage.settings.wal.dir
    stage.storage.close()
    logs = DirectoryLogs(directory)
    assert not verify_topic(NAME, logs.view, stage.tables).is_sound
    accept(stage)
    report = verify_topic(NAME, logs.view, stage.tables)
    assert report.findings == []
    assert (report.removed, report.lost) == (len(gone), 0)
    assert any("deleted rows, and that was accepted" in note for note in report.notes)
    stage.storage.open()


def test_the_stream_of_a_client_has_a_reason_of_its_own_for_removed_rows(stage: Stage) -> None:
    delete_by_rewriting(stage)
    accept(stage)
    ticket = ReadTicket(topic=TOPIC, start=0, end=20)
    chunks = list(ReadStream(stage.storage, ticket, FULL_ACCESS, lambda: False).chunks(BrokerMetrics(stage.storage)))
    said = [json.loads(chunk[1].to_pybytes()) for chunk in chunks if isinstance(chunk, tuple)]
    assert said == [{"lost": 1, "removed": 1}, {"lost": 2, "removed": 2}]


def test_rows_that_nobody_is_known_to_have_deleted_are_damage(stage: Stage) -> None:
    gone = delete_by_rewriting(stage)
    stage.publish([b"later"])
    stage.commit()
    stage.expire()
    with pytest.raises(DamagedError, match="no offset 4") as failure:
        rest_of(stage.reader(0))
    assert not isinstance(failure.value, RowsDeletedError)
    with pytest.raises(DamagedError, match="--by-unknown"):
        stage.table().accept_deletes()
    assert accept(stage, "--by-unknown")["rows"] == len(gone)
    assert rest_of(stage.reader(0))


def test_a_commit_meanwhile_refuses_the_acceptance(stage: Stage) -> None:
    table = stage.table()
    delete_positions(stage)
    old = stage.table()
    stage.publish([b"later"])
    stage.commit()
    with pytest.raises(CommitConflictError):
        old.accept_deletes()
    assert stage.table().accept_deletes().count == 2
    assert table.removed_ranges.count == 0


def test_compaction_is_no_deletion(stage: Stage) -> None:
    stage.compact()
    assert [offset for offset, _ in rest_of(stage.reader(0))] == list(range(MESSAGES))
    with pytest.raises(InvalidRequestError, match="no row is missing"):
        stage.table().accept_deletes()


def test_more_ranges_than_a_table_can_note_are_refused_and_nothing_changes(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.table().iceberg.delete("offset == 3")
    stage.table().iceberg.delete("offset == 7")
    monkeypatch.setattr(removed_rows, "_MAX_RANGES", 1)
    with pytest.raises(InvalidRequestError, match="more than 1 separate ranges"):
        stage.table().accept_deletes()
    monkeypatch.setattr(removed_rows, "_MAX_RANGES", 2)
    assert stage.table().accept_deletes().count == 2
