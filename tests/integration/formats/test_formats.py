"""Plain files, a table, or both: what is written in each format, and what happens on every way between them."""

from collections.abc import Iterator
from itertools import permutations
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet
import pyarrow.parquet as pq
import pytest
from tests.plain_files import COPY, NAME, Place, offsets_by_glob
from tests.reading import TOPIC

from icestream.model import names
from icestream.model.enums import StorageFormat
from icestream.model.errors import InvalidNameError
from icestream.model.offsets import StartPosition
from icestream.pipeline.spark.session import Spark
from icestream.pipeline.tasks import Work
from icestream.storage import ReadOnlyStorage
from icestream_servers import S3Server

FORMATS = [one.value for one in StorageFormat]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.stop()


@pytest.mark.parametrize("storage_format", FORMATS)
def test_each_format_writes_what_it_says_and_nothing_else(place: Place, storage_format: str) -> None:
    place.start(storage_format)
    place.publish(25)
    place.check_readers()
    place.drain()
    place.check_fed()
    place.check_readers()
    fed = {table for table in (NAME, COPY) if place.committed(table)}
    assert fed == set(StorageFormat(storage_format).fed(NAME))
    assert place.folder.exists() == (storage_format != "iceberg")
    place.verify()


@pytest.mark.parametrize(("first", "second", "third"), [*permutations(FORMATS, 3), ("iceberg", "both", "iceberg")])
def test_on_the_way_from_one_format_to_another_nothing_is_missing_or_doubled(
    place: Place, first: str, second: str, third: str
) -> None:
    for storage_format in (first, second, third, first):
        place.start(storage_format)
        place.check_readers()  # before anything of the new format is written
        place.publish(20)
        place.check_readers()
        place.drain()
        place.check_fed()
        assert place.prune() > place.published - 20, "the log must not be what holds it all"
        place.check_readers()
        place.verify()


def test_a_log_keeps_what_one_of_the_tables_still_lacks(place: Place) -> None:
    place.start("both")
    place.publish(20)
    place.drain()
    place.start("iceberg")
    place.publish(40)
    place.drain()
    place.start("both")
    assert (place.committed(NAME), place.committed(COPY)) == (60, 20)
    assert 0 < place.prune() <= 20
    place.drain()
    assert place.prune() > 40


def test_what_may_go_is_what_every_table_has_by_its_catalog(place: Place) -> None:
    place.start("both")
    topic = place.running.storage.topic(TOPIC)
    assert topic.committed_in_all_tables == 0
    place.publish(5)
    place.drain()
    place.running.storage.table_watch._look(topic)
    assert topic.committed_in_all_tables == 5
    assert [table.ledger.committed_offset for table in topic.find_fed_tables() if table is not None] == [5, 5]


def test_both_are_written_from_one_reading_of_the_log(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.start("both")
    place.publish(10)
    asked: list[tuple[int, int]] = []
    with_ranges = Work.with_ranges

    def note(work: Work, ranges: list[tuple[int, int]]) -> Work:
        asked.extend(ranges)
        return with_ranges(work, ranges)

    monkeypatch.setattr(Work, "with_ranges", note)
    figures = place.drain().topics[NAME]
    assert asked == [(0, 10)]
    assert (figures.messages, figures.files, figures.commits) == (10, 2, 2)


def test_a_table_that_is_far_behind_does_not_hold_up_the_other(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icestream.pipeline.state.JOINED_BYTES", 0)
    place.start("iceberg")
    place.publish(40)
    place.drain()
    begins = place.prune()
    place.start("both")
    place.publish(10)
    runner = place.runner(pipeline={"max_pass_bytes": 1 << 20, "max_task_bytes": 1 << 20})
    runner.topics.refresh_all()
    runner.passes.run()
    runner.passes.run()
    assert (place.committed(NAME), place.committed(COPY)) == (50, begins)  # one pass each
    place.drain(runner)
    place.check_fed()


def test_files_are_read_by_date_and_hour(place: Place) -> None:
    place.start("parquet")
    place.publish(3)
    clock = place.running.storage.topic(TOPIC).log.context
    hour_us = 3_600_000_000
    for hours in (1, 30):
        object.__setattr__(clock, "clock", lambda now=clock.clock, hours=hours: now() + hours * hour_us)
        place.publish(4)
    place.drain()
    place.check_fed()
    found = sorted(path.relative_to(place.folder).parent.as_posix() for path in place.folder.rglob("*.parquet"))
    assert len(set(found)) == 3
    files = f"read_parquet('{place.folder}/**/*.parquet', hive_types = {{'date': DATE, 'hour': INT}})"
    rows = duckdb.sql(f"SELECT date, hour, count(*) FROM {files} GROUP BY ALL ORDER BY 1, 2").fetchall()
    assert [f"date={date}/hour={hour:02d}" for date, hour, _ in rows] == sorted(set(found))
    assert [count for _, _, count in rows] == [3, 4, 4]


def test_a_topic_with_columns_of_its_own_and_one_that_gains_a_column(place: Place) -> None:
    place.start("both")
    schema = pa.schema([pa.field("name", pa.string()), pa.field("at", pa.timestamp("ns"))])
    place.client.create_topic("default/own", schema)
    longer = schema.append(pa.field("size", pa.int64()))
    with place.client.producer("default/own") as producer:
        producer.send_batch(pa.record_batch([["a", "b"], pa.array([1, 2], pa.timestamp("ns"))], schema=schema)).result()
    place.drain()
    place.client.update_topic("default/own", schema=longer)
    with place.client.producer("default/own") as producer:
        producer.send_batch(pa.record_batch([["c"], pa.array([3], pa.timestamp("ns")), [7]], schema=longer)).result()
    place.drain()
    files = f"read_parquet('{place.folder.parent}/own/**/*.parquet', union_by_name = true)"
    assert duckdb.sql(f"SELECT _offset, name, size FROM {files} ORDER BY 1").fetchall() == [
        (0, "a", None),
        (1, "b", None),
        (2, "c", 7),
    ]


def test_describe_and_stats_tell_the_format_and_both_offsets(place: Place) -> None:
    place.start("both")
    place.publish(10)
    place.drain()
    place.publish(5)
    place.running.storage.table_watch._look(place.running.storage.topic(TOPIC))
    described = place.client.describe_topic(TOPIC)
    assert (described.format, described.committed_offset, described.parquet_offset) == ("both", 10, 10)
    stats = place.running.storage.stats(TOPIC)[0]
    assert (stats.format, stats.committed_offset, stats.parquet_offset, stats.parquet_lag_messages) == (
        "both",
        10,
        10,
        5,
    )


def test_a_receipt_is_of_the_plain_files_where_there_is_nothing_else(place: Place) -> None:
    place.start("parquet")
    place.publish(10)
    place.drain()
    committed = place.running.storage.table_watch.wait(place.running.storage.topic(TOPIC), 10, 30.0)
    assert committed is not None
    assert committed.snapshot_id == place.table(COPY).snapshot_id
    offset = place.running.storage.topic(TOPIC).start_offset_of(
        StartPosition.parse(f"snapshot:{committed.snapshot_id}")
    )
    assert offset == 10


def test_deleting_a_topic_removes_its_files_and_no_others(place: Place) -> None:
    place.start("both")
    place.publish(10)
    place.drain()
    hour = next(place.folder.rglob("*.parquet")).parent
    theirs = hour / "somebody-elses.parquet"
    theirs.write_bytes(b"not ours")
    unfinished = hour / f".{place.table(COPY).iceberg.metadata.table_uuid.hex}-{'0' * 32}.parquet.part"
    unfinished.write_bytes(b"ours, from a task that was killed")
    place.client.delete_topic(TOPIC)
    assert [path for path in place.folder.rglob("*") if path.is_file()] == [theirs]
    assert place.tables().find(COPY) is None
    assert place.tables().find(NAME) is None


def test_a_topic_made_again_begins_anew_and_one_that_was_kept_stays(place: Place) -> None:
    place.start("parquet")
    place.publish(10)
    place.drain()
    place.client.delete_topic(TOPIC)
    place.published = 0
    place.client.create_topic(TOPIC)
    place.publish(3)
    place.drain()
    place.check_fed()
    place.client.delete_topic(TOPIC, keep_table=True)
    assert offsets_by_glob(place.folder) == [0, 1, 2]


def test_a_reader_without_a_broker_finds_the_plain_files(place: Place) -> None:
    place.start("parquet")
    place.publish(10)
    place.drain()
    settings = place.settings()
    with ReadOnlyStorage(settings) as storage:
        reader = storage.reader(TOPIC)
        rows = [offset for batch in reader.read() for offset in batch.column(0).to_pylist()]
        reader.close()
        assert rows == list(range(10))
        assert storage.list_tables() == []  # it is no topic of its own


def test_a_copy_has_no_name_that_a_topic_can_have(place: Place) -> None:
    place.start("both")
    with pytest.raises(InvalidNameError, match="Parquet copy"):
        place.client.create_topic(f"{TOPIC}__parquet")


def test_a_topic_that_an_older_version_gave_such_a_name_is_left_as_it_is(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = f"{TOPIC}__parquet"
    with monkeypatch.context() as before:
        before.setattr(names, "COPY_SUFFIX", "/")
        place.start("both")
        place.client.create_topic(old)
        with place.client.producer(old) as producer:
            producer.send(b"x").result()
        place.stop()
    names._parts.cache_clear()
    for storage_format in ("both", "iceberg"):
        place.start(storage_format)
        place.publish(5)
        place.drain()
        place.check_readers()
        assert [topic.topic for topic in place.client.list_topics()] == [TOPIC]
    assert list((place.path / "wal" / old).iterdir()), "the log is kept"


def test_verify_finds_what_is_wrong_with_the_second_table(place: Place) -> None:
    place.start("both")
    place.publish(20)
    place.drain()
    report = place.verify()
    assert (report.parquet_offset, report.parquet_files, report.parquet_rows) == (20, 1, 20)
    file = next(place.folder.rglob("*.parquet"))
    chunk = pq.read_metadata(file).row_group(0).column(0)
    data = bytearray(file.read_bytes())
    begin = chunk.dictionary_page_offset or chunk.data_page_offset
    data[begin + chunk.total_compressed_size - 1] ^= 1  # the last byte of a page
    file.write_bytes(bytes(data))
    with pytest.raises(AssertionError, match="/parquet/default/events/date="):
        place.verify()


def test_with_a_real_spark_session(place: Place, spark: Spark) -> None:
    place.start("iceberg")
    place.publish(15)
    place.drain(place.runner(spark))
    place.prune()
    for storage_format in ("both", "parquet", "both"):
        place.start(storage_format)
        place.publish(15)
        place.drain(place.runner(spark))
        place.check_fed()
        place.check_readers()


def test_on_an_object_store(tmp_path: Path, s3_server: S3Server) -> None:
    sections = s3_server.settings()
    place = Place(tmp_path, **sections, storage={"parquet_path": f"s3://{s3_server.bucket}/-plain/{tmp_path.name}"})
    try:
        place.start("both")
        place.publish(10)
        place.drain()
        table = place.table(COPY)
        abandoned = table.writer().write(table.scan(), max_memory_bytes=1 << 24)
        assert {file.path.rpartition("/date=")[0] for file in abandoned} == {
            f"s3://{s3_server.bucket}/-plain/{tmp_path.name}/default/events"
        }
        place.publish(10)
        place.drain()
        place.check_readers()
        rows = sorted(_glob(place, s3_server, tmp_path.name))
        assert rows == list(range(20))
        place.client.delete_topic(TOPIC)
        assert _glob(place, s3_server, tmp_path.name) == []
    finally:
        place.stop()


def _glob(place: Place, server: S3Server, folder: str) -> list[int]:
    """As an engine with an S3 client sees the folder."""
    store = pa.fs.S3FileSystem(
        endpoint_override=server.url.removeprefix("http://"),
        scheme="http",
        access_key=place.settings().object_store.access_key.get_secret_value(),  # type: ignore[union-attr]
        secret_key=place.settings().object_store.secret_key.get_secret_value(),  # type: ignore[union-attr]
        region="us-east-1",
    )
    found = store.get_file_info(pa.fs.FileSelector(f"{server.bucket}/-plain/{folder}", recursive=True))
    files = [info.path for info in found if info.path.endswith(".parquet")]
    return [offset for path in files for offset in pa.parquet.read_table(path, filesystem=store)["offset"].to_pylist()]
