"""Compaction joins small files, and changes no row, no order, no ledger."""

import random
import threading
from decimal import Decimal

import pyarrow as pa
import pytest
from tests.integration.maintenance.conftest import Keep
from tests.topics import Topics

from icestream.model.names import TopicName
from icestream.pipeline.maintenance.report import MaintenanceReport, MaintenanceStep
from icestream.table.contents import read_contents
from icestream.table.scan import ordered_scan

OWN_SCHEMA = pa.schema(
    [
        pa.field("device-id", pa.string(), nullable=False),
        pa.field("reading", pa.struct([("degrees-c", pa.float64()), ("tags", pa.list_(pa.string()))])),
        pa.field("history", pa.list_(pa.struct([("at", pa.timestamp("ms", tz="UTC")), ("value", pa.float32())]))),
        pa.field("labels", pa.map_(pa.string(), pa.int64())),
        pa.field("price", pa.decimal128(12, 3)),
        pa.field("taken", pa.timestamp("ns")),
    ]
)


def own_rows(start: int, count: int) -> pa.RecordBatch:
    rows = [
        {
            "device-id": f"device {number % 3}",
            "reading": None if number % 5 == 0 else {"degrees-c": number / 4, "tags": ["a", None, str(number)]},
            "history": None if number % 4 == 0 else [{"at": number, "value": float("nan")}, None],
            "labels": [("n", number), ("none", None)],
            "price": Decimal(number) / 8,
            "taken": number * 1_001,
        }
        for number in range(start, start + count)
    ]
    columns = [pa.array([row[field.name] for row in rows], field.type) for field in OWN_SCHEMA]
    return pa.RecordBatch.from_arrays(columns, schema=OWN_SCHEMA)


def sound(reports: list[MaintenanceReport]) -> MaintenanceReport:
    (report,) = reports
    assert report.errors == []
    return report


LAYOUTS = {
    "plain": {},
    "partitioned": {"partition_by": ["bucket(3, key)"]},
    "sorted": {"sort_by": ["key"]},
    "partitioned_and_sorted": {"partition_by": ["bucket(3, key)"], "sort_by": ["key"]},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_files_become_few_and_rows_stay(topics: Topics, maintenance: Keep, layout: str) -> None:
    topic = topics.create(f"compact/{layout}", **LAYOUTS[layout])
    before = topics.fill(topic, 6)
    report = sound(maintenance().run([topic], [MaintenanceStep.COMPACT]))
    after = topics.table(topic)
    assert report.before is not None
    assert report.after is not None
    assert report.before.files == 6
    assert report.after.files == 1
    assert report.after.rows == 60
    assert after.ledger == before.ledger
    assert after.properties == before.properties
    verified = topics.verify(topic)
    assert verified.is_sound, verified.findings
    assert verified.compared == 60


def test_own_columns_of_any_depth_survive(topics: Topics, maintenance: Keep) -> None:
    """Spark writes other names than ours into its files, inside structs too; the values must be found again."""
    topic = topics.create("compact/own", OWN_SCHEMA)
    for number in range(5):
        topics.publish(topic, own_rows(number * 10, 10))
        topics.drain(topic)
    before = pa.Table.from_batches(ordered_scan(topics.table(topic)))
    sound(maintenance().run([topic], [MaintenanceStep.COMPACT]))
    assert len(read_contents(topics.table(topic)).files) == 1
    after = pa.Table.from_batches(ordered_scan(topics.table(topic)))
    assert str(after.combine_chunks()) == str(before.combine_chunks())
    verified = topics.verify(topic)
    assert verified.is_sound, verified.findings


def test_small_files_are_not_joined_across_a_large_one(topics: Topics, maintenance: Keep) -> None:
    topic = topics.create("compact/large_between")
    topics.fill(topic, 3)
    topics.publish(topic, [random.Random(number).randbytes(4_000) for number in range(60)])
    topics.drain(topic)
    topics.fill(topic, 3)
    sound(maintenance(target_file_bytes=65_536, min_input_files=2).run([topic], [MaintenanceStep.COMPACT]))
    files = read_contents(topics.table(topic)).files
    assert [(file.first_offset, file.last_offset) for file in files] == [(0, 29), (30, 89), (90, 119)]
    assert topics.verify(topic).is_sound


def test_a_compacted_table_is_left_alone(topics: Topics, maintenance: Keep) -> None:
    topic = topics.create("compact/twice")
    topics.fill(topic, 5)
    keeper = maintenance()
    sound(keeper.run([topic], [MaintenanceStep.COMPACT]))
    snapshot = topics.table(topic).snapshot_id
    report = sound(keeper.run([topic], [MaintenanceStep.COMPACT]))
    assert report.steps[0].done == {}
    assert topics.table(topic).snapshot_id == snapshot


def test_commits_and_compaction_race_without_harm(topics: Topics, maintenance: Keep) -> None:
    topic = topics.create("compact/race")
    topics.fill(topic, 6)
    keeper = maintenance(min_input_files=2)
    reports: list[MaintenanceReport] = []
    stopping = threading.Event()

    def compact() -> None:
        while not stopping.is_set():
            reports.extend(keeper.run([topic], [MaintenanceStep.COMPACT]))

    thread = threading.Thread(target=compact)
    thread.start()
    try:
        topics.fill(topic, 40)
    finally:
        stopping.set()
        thread.join()
    assert topics.table(topic).ledger.committed_offset == 460
    compacted = [report for report in reports if report.steps[0].done]
    assert compacted, "no compaction came through"
    verified = topics.verify(topic)
    assert verified.is_sound, verified.findings
    assert verified.compared == 460


def test_a_topic_without_a_table_is_reported(maintenance: Keep) -> None:
    (report,) = maintenance().run([TopicName("compact", "nobody")])
    assert report.error is not None
    assert "no table" in report.error
