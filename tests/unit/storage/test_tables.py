"""What the storage learns from the topics' tables, and what follows from it."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from icestream.config import Settings
from icestream.model.enums import AckLevel
from icestream.model.errors import (
    CatalogUnavailableError,
    IcestreamError,
    InvalidMessageError,
    InvalidRequestError,
    TopicExistsError,
    TopicNotFoundError,
    UnavailableError,
)
from icestream.model.messages import encode_schema, message_batch
from icestream.model.offsets import StartPosition
from icestream.model.units import MIB
from icestream.storage import IcebergStorage, PublishItem, Topic
from icestream.storage.retention import prunable_below, prune_logs
from icestream.storage.topic import TableProgress
from icestream.table import Tables, TableSpec

PATIENCE_SECONDS = 60.0


def settings(path: Path, **sections: Any) -> Settings:
    return Settings(data_dir=path, **{"reader": {"poll_interval_ms": 20}, **sections})


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[IcebergStorage]:
    with IcebergStorage(settings(tmp_path)) as opened:
        yield opened


@pytest.fixture
def tables(storage: IcebergStorage) -> Iterator[Tables]:
    """A pipeline's own view of the same catalog."""
    opened = Tables(storage.settings)
    yield opened
    opened.close()


def commit(tables: Tables, topic: Topic, end: int) -> int | None:
    """Put the topic's messages below `end` into its table, as the pipeline does."""
    record = topic.record
    table = tables.open(TableSpec(topic.name, record.stream_id, record.epoch, topic.stream_schema))
    start = table.ledger.committed_offset
    batches = topic.read(topic.reader(StartPosition.from_json(start)), end=end)
    files = table.writer().write(batches, max_memory_bytes=1 << 24)
    return table.commit(files, start=start, end=end, epoch=record.epoch).snapshot_id


def publish(storage: IcebergStorage, topic: Topic, *payloads: bytes) -> None:
    storage.publish(topic, message_batch(list(payloads)))


def test_the_committed_offset_is_read_from_the_catalog_without_any_hint(
    storage: IcebergStorage, tables: Tables
) -> None:
    topic = storage.topics.create("a/b")
    publish(storage, topic, b"x", b"y")
    snapshot = commit(tables, topic, 1)
    found = storage.table_watch.wait(topic, 1, PATIENCE_SECONDS)
    assert found is not None
    assert (found.offset, found.snapshot_id) == (1, snapshot)
    assert storage.table_watch.wait(topic, 2, 0.0) is None
    (stats,) = storage.stats("a/b")
    assert (stats.committed_offset, stats.table_lag_messages) == (1, 1)
    assert stats.table_lag_seconds is not None


def test_each_of_many_tables_is_looked_at_in_its_turn(storage: IcebergStorage, tables: Tables) -> None:
    topics = [storage.topics.create(f"a/{number}") for number in range(5)]
    for topic in topics:
        publish(storage, topic, b"x")
        commit(tables, topic, 1)
    for topic in reversed(topics):
        assert storage.table_watch.wait(topic, 1, PATIENCE_SECONDS) is not None


def test_all_of_the_log_waits_while_nothing_is_known_of_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An alert on the lag must fire for a catalog that nobody can read; a topic without a table has no lag."""

    def away(*_: object) -> None:
        raise CatalogUnavailableError("away")

    monkeypatch.setattr(Tables, "find", away)
    cloudy = settings(tmp_path, cloud={"backend": "memory"}, uploader={"enabled": True})
    with IcebergStorage(cloudy) as storage:
        topic = storage.topics.create("a/b")
        publish(storage, topic, b"x", b"y")
        publish(storage, storage.topics.create("a/log", storage="log"), b"x")
        (stats,) = storage.stats("a/b")
        assert (stats.committed_offset, stats.table_lag_messages) == (None, 2)
        assert stats.table_lag_bytes == topic.log.nbytes
        assert stats.table_lag_seconds is not None
        (of_log,) = storage.stats("a/log")
        lag = (of_log.table_lag_messages, of_log.table_lag_bytes, of_log.table_lag_seconds)
        assert lag == (None, None, None)


def test_a_publish_at_level_table_is_answered_when_its_snapshot_is_there(
    storage: IcebergStorage, tables: Tables
) -> None:
    topic = storage.topics.create("a/b")
    answered = threading.Event()
    append = storage.publishing.submit(
        topic,
        PublishItem(message_batch([b"x", b"y"]), lambda _: answered.set()),
        level=AckLevel.TABLE,
        inline=True,
    )
    assert topic.log.durable_end == 2
    commit(tables, topic, 1)
    assert storage.table_watch.wait(topic, 1, PATIENCE_SECONDS)
    assert not answered.is_set()
    commit(tables, topic, 2)
    assert answered.wait(PATIENCE_SECONDS)
    assert append.error is None


def test_those_who_listen_hear_how_far_somebody_waits_for_the_table(storage: IcebergStorage, tables: Tables) -> None:
    watch = storage.table_watch
    topic = storage.topics.create("a/b")
    publish(storage, topic, b"x", b"y", b"z")
    heard: list[int] = []
    watch.listeners.add(lambda of: heard.append(watch.awaited_end(of)))
    waited: list[TableProgress | IcestreamError] = []
    watch.when_committed(topic, 2, waited.append)
    watch.when_committed(topic, 1, waited.append)
    watch.when_committed(topic, 3, waited.append, hurry=False)
    assert watch.wait(topic, 3, 0.0) is None
    assert (heard, watch.awaited_end(topic)) == ([2], 2)
    assert watch.wait(topic, 3, 0.001) is None
    assert heard == [2, 3]
    commit(tables, topic, 3)
    assert watch.wait(topic, 3, PATIENCE_SECONDS, hurry=False)
    assert len(waited) == 3
    assert watch.awaited_end(topic) == 0


def test_those_who_wait_hear_of_the_end_of_the_topic_and_of_the_broker(tmp_path: Path) -> None:
    heard: list[TableProgress | IcestreamError] = []
    with IcebergStorage(settings(tmp_path)) as storage:
        first, second = storage.topics.create("a/first"), storage.topics.create("a/second")
        for topic in (first, second):
            publish(storage, topic, b"x")
            storage.table_watch.when_committed(topic, 1, heard.append)
        storage.delete("a/first")
    assert [type(what) for what in heard] == [TopicNotFoundError, UnavailableError]


def test_a_table_of_another_stream_says_nothing_about_this_one(storage: IcebergStorage, tables: Tables) -> None:
    old = storage.topics.create("a/b")
    publish(storage, old, b"x", b"y")
    commit(tables, old, 2)
    storage.delete("a/b", keep_table=True)
    new = storage.topics.create("a/b")
    publish(storage, new, b"z")
    storage.table_watch.hint(new.name)
    progress = storage.table_watch.wait(new, 0, PATIENCE_SECONDS)
    assert progress is not None
    assert progress == TableProgress(0, None, progress.read_us)


def test_deleting_a_topic_drops_its_table(storage: IcebergStorage, tables: Tables) -> None:
    topic = storage.topics.create("a/b")
    publish(storage, topic, b"x")
    commit(tables, topic, 1)
    storage.delete("a/b")
    assert tables.find(topic.name) is None


def test_a_catalog_that_is_away_keeps_the_name_of_a_deleted_topic_and_nothing_else(
    storage: IcebergStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = storage.topics.create("a/b")
    publish(storage, topic, b"x")

    def away(*_: object) -> bool:
        raise CatalogUnavailableError("away")

    with monkeypatch.context() as outage:
        outage.setattr(Tables, "drop", away)
        storage.delete("a/b")
        with pytest.raises(TopicNotFoundError):
            storage.topic("a/b")
        with pytest.raises(TopicExistsError, match="being deleted"):
            storage.topics.create("a/b")
        publish(storage, storage.topics.create("a/other"), b"x")
    assert storage.topics.create("a/b").record.stream_id != topic.record.stream_id


def test_segments_go_only_when_the_table_has_them(tmp_path: Path) -> None:
    with IcebergStorage(settings(tmp_path, wal={"max_file_size": 4096})) as storage:
        tables = Tables(storage.settings)
        topic = storage.topics.create("a/b", retention_mb=1)
        for _ in range(400):
            publish(storage, topic, b"x" * 4000)
        log = topic.log
        assert log.nbytes > 1_500_000
        assert prune_logs([topic], storage.settings.wal.retention, 0) == 0
        commit(tables, topic, 100)
        assert storage.table_watch.wait(topic, 100, PATIENCE_SECONDS)
        assert prune_logs([topic], storage.settings.wal.retention, 0) == 100
        assert log.start_offset == 100
        commit(tables, topic, 400)
        assert storage.table_watch.wait(topic, 400, PATIENCE_SECONDS)
        prune_logs([topic], storage.settings.wal.retention, 0)
        assert 900_000 < log.nbytes < MIB + 10_000
        start = log.start_offset
        tables.close()
    with IcebergStorage(settings(tmp_path)) as storage:
        assert storage.topic("a/b").log.start_offset == start


def test_segments_go_by_age(tmp_path: Path) -> None:
    with IcebergStorage(settings(tmp_path, wal={"max_file_size": 4096})) as storage:
        topic = storage.topics.create("a/b")
        for _ in range(5):
            publish(storage, topic, b"x" * 4000)
        log = topic.log
        last_us = log.snapshot.sealed[2].footer.last_time_us

        def below(committed: int, now_us: int) -> int:
            return prunable_below(log, committed=committed, minutes=1, megabytes=None, now_us=now_us)

        later = last_us + 60_000_000 + 1
        assert below(5, last_us) == 0
        assert below(5, later) == 3
        assert below(2, later) == 2
        assert prunable_below(log, committed=5, minutes=None, megabytes=None, now_us=later) == 0


OLD = pa.schema([pa.field("x", pa.int64())])
NEW = pa.schema([*OLD, pa.field("y", pa.string())])


def test_a_topic_gains_a_column_and_old_messages_have_null_there(tmp_path: Path) -> None:
    with IcebergStorage(settings(tmp_path)) as storage:
        topic = storage.topics.create("a/b", schema=OLD)
        storage.publish(topic, pa.record_batch({"x": [1]}, schema=OLD))
        before = topic.reader(StartPosition.earliest())
        storage.topics.update("a/b", {"schema": encode_schema(NEW)})
        storage.publish(topic, pa.record_batch({"x": [2], "y": ["two"]}, schema=NEW))
        storage.publish(topic, pa.record_batch({"x": [3]}, schema=OLD))  # a producer that does not know yet
        with pytest.raises(InvalidMessageError):
            storage.publish(topic, pa.record_batch({"y": ["x"]}))
        assert [batch.schema.names[4:] for batch in before.read()] == [["x"], ["x"], ["x"]]
        before.close()
    with IcebergStorage(settings(tmp_path)) as storage:
        topic = storage.topic("a/b")
        rows = pa.Table.from_batches(topic.read(topic.reader(StartPosition.earliest()))).select(["x", "y"])
        assert rows.to_pylist() == [{"x": 1, "y": None}, {"x": 2, "y": "two"}, {"x": 3, "y": None}]


def test_a_table_gains_the_column_too(storage: IcebergStorage, tables: Tables) -> None:
    topic = storage.topics.create("a/b", schema=OLD)
    storage.publish(topic, pa.record_batch({"x": [1]}, schema=OLD))
    commit(tables, topic, 1)
    storage.topics.update("a/b", {"schema": encode_schema(NEW)})
    storage.publish(topic, pa.record_batch({"x": [2], "y": ["two"]}, schema=NEW))
    commit(tables, topic, 2)
    found = tables.find(topic.name)
    assert found is not None
    rows = found.iceberg.scan().to_arrow().select(["x", "y"]).sort_by("x").to_pylist()
    assert rows == [{"x": 1, "y": None}, {"x": 2, "y": "two"}]


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema([pa.field("x", pa.int32())]),
        pa.schema([pa.field("y", pa.string()), *OLD]),
        pa.schema([*OLD, pa.field("y", pa.string(), nullable=False)]),
        pa.schema([pa.field("y", pa.string())]),
    ],
    ids=["another type", "another order", "not null", "a column less"],
)
def test_other_changes_of_the_columns_are_refused(storage: IcebergStorage, schema: pa.Schema) -> None:
    storage.topics.create("a/b", schema=OLD)
    with pytest.raises(InvalidRequestError, match="only be added to"):
        storage.topics.update("a/b", {"schema": encode_schema(schema)})


def test_a_topic_that_could_not_have_its_table_is_refused(storage: IcebergStorage) -> None:
    for partition_by in (("day(nowhere)",), ("week(publish_time)",), ("day(payload)",)):
        with pytest.raises(InvalidRequestError):
            storage.topics.create("a/b", partition_by=partition_by)
    made = storage.topics.create("a/b", partition_by=("day(publish_time)",), sort_by=("key",))
    assert made.describe().partition_by == ("day(publish_time)",)
