"""Tables that were damaged by hand make a verification fail, each with a finding that says what is wrong."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from tests.topics import Topics

from icestream.model.names import TopicName
from icestream.storage.verify import Verification
from icestream.table import TopicTable

_numbers = itertools.count()


@pytest.fixture
def topic(topics: Topics) -> TopicName:
    return topics.create(f"verify/topic_{next(_numbers)}")


def kinds(report: Verification) -> set[str]:
    return {finding.kind for finding in report.findings}


def rewrite(table: TopicTable, number: int, change: Callable[[pa.Table], pa.Table]) -> str:
    """Change the rows of a data file behind the table's back."""
    path = sorted(table.iceberg.inspect.files().column("file_path").to_pylist(), key=_first_offset)[number]
    local = Path(path.removeprefix("file://"))
    rows = change(pq.read_table(local))
    pq.write_table(rows, local)
    return str(path)


def _first_offset(path: str) -> int:
    return int(pc.min(pq.read_table(path.removeprefix("file://"), columns=["offset"])["offset"]).as_py())


def test_a_whole_table_is_sound(topics: Topics, topic: TopicName) -> None:
    topics.fill(topic, 3)
    topics.publish(topic, [b"not in the table yet"])
    report = topics.verify(topic)
    assert report.is_sound, report.findings
    assert (report.rows, report.compared, report.waiting, report.lost) == (30, 30, 1, 0)
    assert (report.log_start, report.durable_end, report.committed_offset, report.files) == (0, 31, 30, 3)


def test_a_topic_without_a_table_is_sound(topics: Topics, topic: TopicName) -> None:
    topics.publish(topic, [b"one", b"two"])
    report = topics.verify(topic)
    assert report.is_sound
    assert report.waiting == 2


def test_a_deleted_row_is_a_gap(topics: Topics, topic: TopicName) -> None:
    rewrite(topics.fill(topic, 3), 1, lambda rows: rows.filter(pc.field("offset") != 14))
    report = topics.verify(topic)
    gaps = [finding for finding in report.findings if finding.kind == "gap"]
    assert [(gap.first_offset, gap.last_offset) for gap in gaps] == [(14, 14)]
    assert "description" in kinds(report)  # the file has fewer rows than the table counts


def test_a_changed_payload_names_its_offset_and_column(topics: Topics, topic: TopicName) -> None:
    def change(rows: pa.Table) -> pa.Table:
        payloads = rows["payload"].to_pylist()
        payloads[7] = b"somebody was here"
        return rows.set_column(6, rows.schema.field("payload"), pa.array(payloads, pa.binary()))

    rewrite(topics.fill(topic, 3), 2, change)
    report = topics.verify(topic)
    assert [(finding.kind, finding.first_offset) for finding in report.findings] == [("content", 27)]
    assert "payload" in report.findings[0].text


def test_rows_out_of_order_inside_a_file_are_found(topics: Topics, topic: TopicName) -> None:
    path = rewrite(topics.fill(topic, 2), 0, lambda rows: rows.sort_by([("offset", "descending")]))
    report = topics.verify(topic)
    assert [(finding.kind, finding.place) for finding in report.findings] == [("order", path)]


def test_a_file_that_was_appended_twice_is_a_duplicate(topics: Topics, topic: TopicName) -> None:
    table = topics.fill(topic, 2)
    again = table.writer().write(table.scan(5, 15), max_memory_bytes=1 << 24)
    with table.iceberg.transaction() as change, change.update_snapshot().fast_append() as append:
        for file in again:
            append.append_data_file(file.data_file)
    report = topics.verify(topic)
    assert {"duplicate", "overlap"} <= kinds(report)
    found = [finding for finding in report.findings if finding.kind == "duplicate"]
    assert (found[0].first_offset, found[-1].last_offset) == (5, 14)


def test_rows_beyond_the_ledger_are_found(topics: Topics, topic: TopicName) -> None:
    table = topics.fill(topic, 1)
    topics.publish(topic, [b"waits"] * 5)
    waiting = topics.client.read(topic, start=10).to_batches()
    files = table.writer().write(waiting, max_memory_bytes=1 << 24)
    with table.iceberg.transaction() as change, change.update_snapshot().fast_append() as append:
        for file in files:
            append.append_data_file(file.data_file)
    report = topics.verify(topic)
    assert [(f.kind, f.first_offset, f.last_offset) for f in report.findings] == [("ledger", 10, 14)]


def test_a_missing_file_is_damage(topics: Topics, topic: TopicName) -> None:
    path = topics.fill(topic, 2).iceberg.inspect.files().column("file_path")[0].as_py()
    Path(path.removeprefix("file://")).unlink()
    report = topics.verify(topic)
    assert [(finding.kind, finding.place) for finding in report.findings] == [("damaged", path)]


def test_a_ledger_that_was_moved_is_found(topics: Topics, topic: TopicName) -> None:
    table = topics.fill(topic, 1)
    with table.iceberg.transaction() as change:
        change.set_properties({"icestream.committed-offset": "4"})
    report = topics.verify(topic)
    assert kinds(report) == {"damaged"}


def test_the_table_of_another_stream_is_found(topics: Topics, topic: TopicName) -> None:
    topics.fill(topic, 1)
    topics.client.delete_topic(topic, keep_table=True)
    topics.create(str(topic))
    report = topics.verify(topic)
    assert kinds(report) == {"stream"}
