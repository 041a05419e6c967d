"""Parquet files through a real broker into a table: each row once, in order, proven equal."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.parquet_trees import body, migrated, spans, write_tree
from tests.topics import Topics

from icestream import Client
from icestream.config import Settings
from icestream.migration import ColumnOptions, FileState, Migration, MigrationReport, MigrationRequest, open_source
from icestream.model.errors import InvalidRequestError, TopicNotFoundError
from icestream.model.names import TopicName

PATIENCE_SECONDS = 120.0
SMALL_FILES = 1_000 if os.environ.get("ICESTREAM_SOAK") else 100
Rows = list[dict[str, Any]]


@pytest.fixture
def tenant() -> str:
    return f"t{uuid4().hex[:10]}"


def migrate(topics: Topics, place: Path, *, progress: Any = None, **request: Any) -> MigrationReport:
    given = MigrationRequest(**{"wait": False, "batch_rows": 50, **request})
    with Client(topics.broker.flight) as client:
        return Migration(client, open_source(str(place), Settings()), Settings(), given, progress).run()


def traces(tenant: str) -> TopicName:
    return TopicName(tenant, "traces")


def published(topics: Topics, topic: TopicName) -> pa.Table:
    return body(migrated(topics.client.read(topic)))


def in_table(topics: Topics, topic: TopicName, end: int) -> pa.Table:
    """The table's rows, in the order of their offsets, each of which is there once."""
    with topics.client.consume(topic, 0, end=end, committed=True) as consumer:
        found = pa.Table.from_batches(consumer.batches())
    assert found["_offset"].to_pylist() == list(range(end))
    return found


def states(report: MigrationReport) -> list[FileState]:
    return [file.state for file in report.files]


class TestATree:
    def test_its_rows_reach_topic_and_table_once_and_are_read_back_equal(
        self, topics: Topics, tmp_path: Path, tenant: str
    ) -> None:
        rows = write_tree(tmp_path, files=5, rows=130)
        first = migrate(topics, tmp_path, tenant=tenant)
        assert (first.signal, first.created, first.published, first.committed) == ("traces", True, 650, False)
        assert [(file.first_offset, file.last_offset) for file in first.files] == [
            (start, start + 129) for start in range(0, 650, 130)
        ]
        assert all(file.verified for file in first.files)
        topics.drain(traces(tenant))

        again = migrate(topics, tmp_path, tenant=tenant, wait=True)
        assert (again.published, again.committed, again.created) == (0, True, False)
        assert [file.checksum for file in again.files] == [file.checksum for file in first.files]
        assert all(file.verified for file in again.files)
        assert not topics.verify(traces(tenant)).findings
        assert published(topics, traces(tenant)).equals(rows)
        assert body(in_table(topics, traces(tenant), 650)).equals(rows)

    def test_its_topic_is_the_one_that_the_otlp_doors_would_make(
        self, topics: Topics, tmp_path: Path, tenant: str
    ) -> None:
        write_tree(tmp_path, files=1, rows=3)
        migrate(topics, tmp_path, tenant=tenant, dataset="old")
        described = topics.client.describe_topic(f"{tenant}/old_traces")
        assert described.partition_by == ("day(_publish_time)",)
        assert described.sort_by == ("trace_id", "start_time_unix_nano")

    def test_a_dry_run_says_what_would_be_done_and_does_nothing(
        self, topics: Topics, tmp_path: Path, tenant: str
    ) -> None:
        write_tree(tmp_path, files=2, rows=10)
        report = migrate(topics, tmp_path, tenant=tenant, dry_run=True)
        assert (report.rows, report.published, states(report)) == (20, 0, [FileState.NEW, FileState.NEW])
        assert report.mapping["trace_id"] == "trace_id"
        with pytest.raises(TopicNotFoundError):
            topics.client.describe_topic(traces(tenant))

    def test_a_part_of_it_that_was_migrated_first_is_not_published_again(
        self, topics: Topics, tmp_path: Path, tenant: str
    ) -> None:
        rows = write_tree(tmp_path, files=3, rows=20)
        migrate(topics, tmp_path / "date=2026-01-01" / "hour=01", tenant=tenant)
        report = migrate(topics, tmp_path, tenant=tenant)
        assert [file.published for file in report.files] == [20, 0, 20]
        found = published(topics, traces(tenant))
        assert sorted(found["name"].to_pylist()) == sorted(rows["name"].to_pylist())

    def test_many_small_files(self, topics: Topics, tmp_path: Path, tenant: str) -> None:
        rows = spans(2 * SMALL_FILES)
        for number in range(SMALL_FILES):
            pq.write_table(rows.slice(number * 2, 2), tmp_path / f"{number:04}.parquet")
        report = migrate(topics, tmp_path, tenant=tenant)
        assert (report.published, len(report.failed)) == (2 * SMALL_FILES, 0)
        assert all(file.verified for file in report.files)
        assert published(topics, traces(tenant)).equals(rows)


class TestFolders:
    """Trees whose folders alone have a column's values, as Hive, Spark and Arrow write them."""

    schema = pa.schema([("id", pa.int64()), ("region", pa.string())])

    def write(self, place: Path, regions: list[str | None]) -> pa.Table:
        rows = pa.table({"id": range(len(regions)), "region": pa.array(regions, pa.string())})
        pq.write_to_dataset(rows, place, partition_cols=["region"])
        return rows

    def test_their_values_reach_topic_and_table_and_are_part_of_the_proof(
        self, topics: Topics, tmp_path: Path, tenant: str
    ) -> None:
        topic = topics.create(f"{tenant}/own", self.schema)
        rows = self.write(tmp_path, ["eu", "us", None, "a/b =é", "eu"])
        dry = migrate(topics, tmp_path, topic=str(topic), dry_run=True)
        assert dry.mapping == {"id": "id", "region": "the folder region=…"}
        first = migrate(topics, tmp_path, topic=str(topic))
        assert (first.published, all(file.verified for file in first.files)) == (5, True)
        topics.drain(topic)
        again = migrate(topics, tmp_path, topic=str(topic), wait=True)
        assert (again.published, again.committed) == (0, True)
        assert all(file.verified for file in again.files)
        assert body(in_table(topics, topic, 5)).sort_by("id").equals(rows)

    def test_a_topic_that_has_another_value_is_found_different(
        self, topics: Topics, tmp_path: Path, tenant: str
    ) -> None:
        topic = topics.create(f"{tenant}/own", self.schema)
        self.write(tmp_path, ["eu", "eu"])
        migrate(topics, tmp_path, topic=str(topic), column_options=ColumnOptions(ignored=frozenset({"region"})))
        assert states(migrate(topics, tmp_path, topic=str(topic))) == [FileState.DIFFERENT]

    def test_without_a_place_they_end_it_before_anything_is_published(
        self, topics: Topics, tmp_path: Path, tenant: str
    ) -> None:
        topic = topics.create(f"{tenant}/own", pa.schema([("id", pa.int64())]))
        self.write(tmp_path, ["eu", "us"])
        with pytest.raises(InvalidRequestError, match=r"no column 'region' of its folders .*give --rename .*--ignore"):
            migrate(topics, tmp_path, topic=str(topic))
        assert topics.client.describe_topic(topic).durable_end == 0
        ignored = ColumnOptions(ignored=frozenset({"region"}))
        assert migrate(topics, tmp_path, topic=str(topic), column_options=ignored).published == 2

    def test_a_value_that_does_not_fit_refuses_its_files_and_holds_up_no_others(
        self, topics: Topics, tmp_path: Path, tenant: str
    ) -> None:
        topic = topics.create(f"{tenant}/own", pa.schema([("id", pa.int64()), ("region", pa.int32())]))
        self.write(tmp_path, ["17", "eu"])
        for dry_run in (True, False):
            report = migrate(topics, tmp_path, topic=str(topic), dry_run=dry_run)
            assert states(report)[1] is FileState.REFUSED
            assert "the folder region=eu has no int32 for column 'region'" in str(report.files[1].error)
        assert topics.client.read(topic).select(["id", "region"]).to_pylist() == [{"id": 0, "region": 17}]

    def test_a_folder_name_that_is_no_text_refuses_its_files_and_holds_up_no_others(
        self, topics: Topics, tmp_path: Path, tenant: str
    ) -> None:
        topic = topics.create(f"{tenant}/own", self.schema)
        self.write(tmp_path, ["eu"])
        odd = tmp_path / "region=M%FCnchen"
        odd.mkdir()
        pq.write_table(pa.table({"id": [7]}), odd / "x.parquet")
        report = migrate(topics, tmp_path, topic=str(topic))
        assert (report.published, sorted(states(report))) == (1, sorted([FileState.PUBLISHED, FileState.REFUSED]))


class TestOtherTopics:
    def test_messages(self, topics: Topics, tmp_path: Path, tenant: str) -> None:
        topic = topics.create(f"{tenant}/events")
        rows = pa.table({"payload": ["a", "b"], "key": [b"k", None]})
        pq.write_table(rows, tmp_path / "x.parquet")
        report = migrate(topics, tmp_path / "x.parquet", topic=str(topic))
        assert report.files[0].verified
        found = topics.client.read(topic)
        assert found["payload"].to_pylist() == [b"a", b"b"]
        assert found["key"].to_pylist() == [b"k", None]

    def test_columns_of_their_own(self, topics: Topics, tmp_path: Path, tenant: str) -> None:
        schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("tags", pa.list_(pa.string()))])
        topic = topics.create(f"{tenant}/orders", schema)
        pq.write_table(pa.table({"number": pa.array([1, 2], pa.int32()), "old": ["x", "y"]}), tmp_path / "x.parquet")
        column_options = ColumnOptions({"number": "id"}, frozenset({"old"}))
        assert migrate(topics, tmp_path, topic=str(topic), column_options=column_options).published == 2
        assert topics.client.read(topic)["id"].to_pylist() == [1, 2]

    def test_a_topic_that_is_not_there_is_not_made(self, topics: Topics, tmp_path: Path, tenant: str) -> None:
        write_tree(tmp_path, files=1, rows=1)
        with pytest.raises(TopicNotFoundError, match="icestream topic create"):
            migrate(topics, tmp_path, topic=f"{tenant}/none")


class TestWhatIsRefused:
    def test_an_unknown_column_ends_it_before_anything_is_published(
        self, topics: Topics, tmp_path: Path, tenant: str
    ) -> None:
        write_tree(tmp_path, files=1, rows=5)
        odd = spans(5, 9).append_column("color", pa.array(["red"] * 5))
        pq.write_table(odd, tmp_path / "x.parquet")
        with pytest.raises(InvalidRequestError, match=r"'color' \[x.parquet\]; give --rename"):
            migrate(topics, tmp_path, tenant=tenant)
        with pytest.raises(TopicNotFoundError):
            topics.client.describe_topic(traces(tenant))

    def test_damage_and_bad_values_hold_up_nobody_and_leave_nothing_behind(
        self, topics: Topics, tmp_path: Path, tenant: str
    ) -> None:
        rows = write_tree(tmp_path / "good", files=2, rows=100)
        write_tree(tmp_path / "torn", files=1, rows=100)
        [torn] = (tmp_path / "torn").rglob("*.parquet")
        column = pq.ParquetFile(torn).metadata.row_group(1).column(2)
        content = bytearray(torn.read_bytes())
        content[column.data_page_offset : column.data_page_offset + 60] = b"\xff" * 60
        torn.write_bytes(content)
        (tmp_path / "none.parquet").write_bytes(b"")
        pq.write_table(rows.slice(0, 0), tmp_path / "empty.parquet")
        bad = spans(100, 7)
        ids = pa.array(["ab"] * 80 + ["no id"] + ["ab"] * 19)
        bad = bad.set_column(bad.schema.get_field_index("trace_id"), "trace_id", ids)
        pq.write_table(bad, tmp_path / "value.parquet", row_group_size=30)

        report = migrate(topics, tmp_path, tenant=tenant)
        found = {Path(file.path).parts[0]: file for file in report.files}
        assert found["empty.parquet"].state is FileState.EMPTY
        assert found["none.parquet"].state is FileState.DAMAGED
        assert (found["torn"].state, found["torn"].published) == (FileState.DAMAGED, 0)
        assert "row group 1" in str(found["torn"].error)
        assert found["value.parquet"].state is FileState.REFUSED
        for said in ("value.parquet, row group 2, rows 60 to 89", "column 'trace_id'", "no hexadecimal id"):
            assert said in str(found["value.parquet"].error)
        assert published(topics, traces(tenant)).equals(rows)

    def test_another_version_of_a_file_unless_it_is_wanted(self, topics: Topics, tmp_path: Path, tenant: str) -> None:
        pq.write_table(spans(5), tmp_path / "x.parquet")
        migrate(topics, tmp_path, tenant=tenant)
        pq.write_table(spans(6), tmp_path / "x.parquet")
        [refused] = migrate(topics, tmp_path, tenant=tenant).files
        assert (refused.state, refused.published) == (FileState.REFUSED, 0)
        assert "another version" in str(refused.error)
        [wanted] = migrate(topics, tmp_path, tenant=tenant, again=True).files
        assert (wanted.state, wanted.published, wanted.verified) == (FileState.PUBLISHED, 6, True)
        [later] = migrate(topics, tmp_path, tenant=tenant).files
        assert (later.state, later.published) == (FileState.PUBLISHED, 0)

    def test_the_same_content_from_another_path_unless_it_is_wanted(
        self, topics: Topics, tmp_path: Path, tenant: str
    ) -> None:
        (tmp_path / "a").mkdir()
        pq.write_table(spans(5), tmp_path / "a" / "x.parquet")
        migrate(topics, tmp_path, tenant=tenant)
        (tmp_path / "a").rename(tmp_path / "b")
        assert states(migrate(topics, tmp_path, tenant=tenant)) == [FileState.REFUSED]
        assert migrate(topics, tmp_path, tenant=tenant, again=True).published == 5

    def test_copies_in_one_tree_are_files_of_their_own(self, topics: Topics, tmp_path: Path, tenant: str) -> None:
        for name in ("a.parquet", "b.parquet"):
            pq.write_table(spans(5), tmp_path / name)
        assert migrate(topics, tmp_path, tenant=tenant).published == 10
        assert migrate(topics, tmp_path, tenant=tenant).published == 0

    def test_files_that_were_written_from_the_topic_itself(self, topics: Topics, tmp_path: Path, tenant: str) -> None:
        pq.write_table(spans(50), tmp_path / "old.parquet")
        migrate(topics, tmp_path, tenant=tenant)
        copy = tmp_path / "copy"
        copy.mkdir()
        pq.write_table(topics.client.read(traces(tenant)), copy / "x.parquet")
        [refused] = migrate(topics, copy, tenant=tenant).files
        assert (refused.state, refused.published) == (FileState.REFUSED, 0)
        assert "its rows are in this topic" in str(refused.error)
        assert migrate(topics, copy, tenant=f"{tenant}x").published == 50

    def test_a_damaged_copy_of_the_topic_holds_up_no_others(self, topics: Topics, tmp_path: Path, tenant: str) -> None:
        pq.write_table(spans(50), tmp_path / "old.parquet")
        migrate(topics, tmp_path, tenant=tenant)
        copy = tmp_path / "copy"
        copy.mkdir()
        pq.write_table(topics.client.read(traces(tenant)), copy / "a.parquet", compression="none")
        damaged = bytearray((copy / "a.parquet").read_bytes())
        damaged[4:24] = b"\xff" * 20  # the header of the first page
        (copy / "a.parquet").write_bytes(damaged)
        pq.write_table(spans(5), copy / "b.parquet")
        report = migrate(topics, copy, tenant=tenant)
        assert (states(report), report.published) == ([FileState.DAMAGED, FileState.PUBLISHED], 5)


def test_the_data_files_of_another_topics_table(topics: Topics, tmp_path: Path, tenant: str) -> None:
    """They have offsets, and the numbers that Iceberg gives to columns and fields."""
    rows = write_tree(tmp_path, files=1, rows=90)
    migrate(topics, tmp_path, tenant=tenant)
    topics.drain(traces(tenant))
    [old] = topics.table(traces(tenant)).iceberg.inspect.files()["file_path"].to_pylist()
    report = migrate(topics, Path(old.removeprefix("file://")), tenant=f"{tenant}x")
    assert (report.published, len(report.failed)) == (90, 0)
    assert report.dropped == ["_offset", "_publish_time", "_producer", "_sequence", "_publish_time_day"]
    found = published(topics, traces(f"{tenant}x"))
    order = [("start_time_unix_nano", "ascending")]
    assert found.sort_by(order).equals(rows.sort_by(order))


class Pause:
    """Lets others work at the beginning of a step."""

    def __init__(self, step: str, work: Callable[[], object]) -> None:
        self._step, self._work = step, work

    def begin(self, what: str, _total: int, _unit: str) -> None:
        if what == self._step:
            self._work()

    def advance(self, amount: float) -> None:
        pass


class TestTogetherWithOthers:
    def test_readers_see_live_rows_and_migrated_ones(self, topics: Topics, tmp_path: Path, tenant: str) -> None:
        rows = write_tree(tmp_path, files=4, rows=60)
        live = spans(300, 500)
        migrate(topics, tmp_path / "date=2026-01-01" / "hour=00", tenant=tenant)
        topic = traces(tenant)
        sent, stop = [0], threading.Event()

        def publish() -> None:
            with Client(topics.broker.flight) as client, client.producer(topic) as producer:
                while not stop.is_set() and sent[0] < live.num_rows:
                    producer.send_batch(live.slice(sent[0], 3)).result()
                    sent[0] += 3

        publishing = threading.Thread(target=publish)
        with topics.client.consume(topic, 0, follow=True) as reader:
            publishing.start()
            report = migrate(topics, tmp_path, tenant=tenant)
            stop.set()
            publishing.join(PATIENCE_SECONDS)
            end = topics.client.describe_topic(topic).durable_end
            seen: list[pa.RecordBatch] = []
            while sum(batch.num_rows for batch in seen) < end:
                batch = reader.poll(PATIENCE_SECONDS)
                assert batch is not None
                seen.append(batch)
        assert not report.failed
        assert all(file.verified for file in report.files)
        stream = pa.Table.from_batches(seen)
        assert stream["_offset"].to_pylist() == list(range(end))
        assert body(migrated(stream)).equals(rows)
        others = stream.filter(pa.compute.invert(pa.compute.starts_with(stream["_producer"], "migrate-")))
        assert body(others).equals(live.slice(0, sent[0]))
        assert topics.client.sql(f'SELECT count(*) AS n FROM "{tenant}".traces')["n"].to_pylist() == [240 + sent[0]]

    def test_two_migrations_of_the_same_files_at_once_publish_each_row_once(
        self, topics: Topics, tmp_path: Path, tenant: str
    ) -> None:
        rows = write_tree(tmp_path, files=6, rows=150)
        together = threading.Barrier(3)
        reports: list[MigrationReport] = []

        def run() -> None:
            pause = Pause("moving", lambda: together.wait(PATIENCE_SECONDS))
            reports.append(migrate(topics, tmp_path, tenant=tenant, progress=pause, batch_rows=10))

        threads = [threading.Thread(target=run) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
        assert len(reports) == 3
        assert not any(report.failed for report in reports)
        found = migrated(topics.client.read(traces(tenant)))
        by_file = found.sort_by([("_producer", "ascending"), ("_sequence", "ascending"), ("_offset", "ascending")])
        assert (
            by_file["_offset"].to_pylist()
            == found.sort_by([("_producer", "ascending"), ("_offset", "ascending")])["_offset"].to_pylist()
        ), "rows of a file are not in its order"
        assert sorted(found["name"].to_pylist()) == sorted(rows["name"].to_pylist())

    def test_a_file_that_is_written_anew_meanwhile_is_refused(
        self, topics: Topics, tmp_path: Path, tenant: str
    ) -> None:
        topic, path = topics.create(f"{tenant}/own", pa.schema([("id", pa.int64())])), tmp_path / "x.parquet"
        pq.write_table(pa.table({"id": [1, 2]}), path, compression="none")
        size = path.stat().st_size
        pause = Pause("moving", lambda: pq.write_table(pa.table({"id": [3, 4]}), path, compression="none"))
        [refused] = migrate(topics, tmp_path, topic=str(topic), progress=pause).files
        assert path.stat().st_size == size
        assert (refused.state, refused.published) == (FileState.REFUSED, 0)
        assert "the file changed during the migration" in str(refused.error)

    def test_two_migrations_that_name_different_folders_publish_each_row_once(
        self, topics: Topics, tmp_path: Path, tenant: str
    ) -> None:
        (tmp_path / "sub").mkdir()
        rows = spans(150)
        pq.write_table(rows, tmp_path / "sub" / "x.parquet")
        other: list[MigrationReport] = []
        pause = Pause("moving", lambda: other.append(migrate(topics, tmp_path / "sub", tenant=tenant)))
        report = migrate(topics, tmp_path, tenant=tenant, progress=pause)
        assert (other[0].published, report.published, states(report)) == (150, 0, [FileState.PUBLISHED])
        assert published(topics, traces(tenant)).equals(rows)

    def test_a_copy_that_another_brought_in_meanwhile_is_refused(
        self, topics: Topics, tmp_path: Path, tenant: str
    ) -> None:
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            pq.write_table(spans(1_000), tmp_path / name / "x.parquet")
        pause = Pause("moving", lambda: migrate(topics, tmp_path / "one", tenant=tenant))
        [refused] = migrate(topics, tmp_path / "two", tenant=tenant, progress=pause).files
        assert (refused.state, refused.published) == (FileState.REFUSED, 0)
        assert "the same content was migrated from another path" in str(refused.error)
        assert topics.client.describe_topic(traces(tenant)).durable_end == 1_000

    def test_copies_that_two_sent_at_the_same_moment_are_said_to_be_there_twice(
        self, topics: Topics, tmp_path: Path, tenant: str
    ) -> None:
        """So few rows are not looked for before each file."""
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            pq.write_table(spans(10), tmp_path / name / "x.parquet")
        pause = Pause("moving", lambda: migrate(topics, tmp_path / "one", tenant=tenant))
        [double] = migrate(topics, tmp_path / "two", tenant=tenant, progress=pause).files
        assert (double.state, double.published) == (FileState.DIFFERENT, 10)
        assert "the topic has its rows twice" in str(double.error)
        pause = Pause("moving", lambda: migrate(topics, tmp_path / "one", tenant=f"{tenant}x"))
        [wanted] = migrate(topics, tmp_path / "two", tenant=f"{tenant}x", progress=pause, again=True).files
        assert (wanted.state, wanted.published) == (FileState.PUBLISHED, 10)

    def test_what_differs_in_the_topic_is_found_with_its_rows(
        self, topics: Topics, tmp_path: Path, tenant: str
    ) -> None:
        write_tree(tmp_path, files=2, rows=130)
        topics.create(str(traces(tenant)), spans(1).schema)
        dry = migrate(topics, tmp_path, tenant=tenant, dry_run=True)
        assert dry.rows == 260
        with Client(topics.broker.flight) as client:
            source = open_source(str(tmp_path), Settings())
            migration = Migration(
                client, source, Settings(), MigrationRequest(tenant=tenant, wait=False, batch_rows=50)
            )
            files = migration._look()
        wrong = spans(130, 1)
        names = wrong["name"].to_pylist()
        names[70] = "another"
        wrong = wrong.set_column(wrong.schema.get_field_index("name"), wrong.schema.field("name"), [names])
        with topics.client.producer(traces(tenant), name=files[1].identity.producer) as producer:
            producer.send_batch(wrong).result()
        report = migrate(topics, tmp_path, tenant=tenant)
        assert states(report) == [FileState.PUBLISHED, FileState.DIFFERENT]
        assert report.files[1].error == "rows 64 to 113 have other values in the topic"
