"""One stream from log, cloud objects and table, whatever happens to them while it is read."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.cloud_objects import CloudStage
from tests.reading import PATIENCE_SECONDS, TOPIC, pairs, rest_of

from icestream.model.errors import CatalogUnavailableError, DamagedError, OffsetOutOfRangeError, UnavailableError
from icestream.model.messages import Encoding
from icestream.model.offsets import StartPosition
from icestream.reader import TopicReader
from icestream.storage import Topic
from icestream.wal import prepare

PAYLOAD = b"x" * 900
Messages = list[tuple[int, bytes]]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[CloudStage]:
    opened = CloudStage(tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def log_stage(tmp_path: Path) -> Iterator[CloudStage]:
    """Of a topic without a table; the catalog is not to be asked for anything."""
    opened = CloudStage(tmp_path, log_topic=True)
    forbid_catalog(opened.topic)
    yield opened
    opened.close()


def forbid_catalog(topic: Topic) -> None:
    def find(_: Any) -> None:
        raise CatalogUnavailableError("the catalog was asked")

    object.__setattr__(topic._reading, "find_table", find)


def publish(stage: CloudStage, count: int) -> Messages:
    """One message a frame, four frames a segment; what a reader should find of them."""
    start = stage.topic.log.durable_end
    messages = [(offset, b"%d %s" % (offset, PAYLOAD)) for offset in range(start, start + count)]
    for _, payload in messages:
        stage.publish([payload])
    return messages


def read_into(found: Messages, reader: TopicReader) -> None:
    """To the end, or to an error; what came before it is there."""
    while batches := reader.read():
        found += [pair for batch in batches for pair in pairs(batch)]


def upload_all(stage: CloudStage, size: int) -> list[str]:
    """All that is published, so many messages an object; their keys."""
    keys = []
    for end in range(size, stage.topic.log.durable_end + size, size):
        made = stage.upload(min(end, stage.topic.log.durable_end))
        assert made is not None
        keys.append(made.key)
    return keys


def test_a_stream_goes_from_the_cloud_over_the_log_to_the_end(stage: CloudStage) -> None:
    messages = publish(stage, 40)
    upload_all(stage, 7)
    assert stage.prune_to(30) == 28
    forbid_catalog(stage.topic)
    reader = stage.reader("earliest")
    assert rest_of(reader) == messages
    messages += publish(stage, 3)
    assert reader.wait(0)
    assert rest_of(reader) == messages[40:]
    assert not reader.wait(0)
    reader.close()
    assert len(stage.cloud.leases) == 0


@pytest.mark.parametrize("start", [0, 7, 13, 14, 27, 28, 29, 40])
@pytest.mark.parametrize("max_bytes", [1, 1 << 20])
def test_a_reader_starts_at_any_offset_of_three_tiers(stage: CloudStage, start: int, max_bytes: int) -> None:
    """The table has 0 to 30, the cloud 14 to 35, the log 28 to 40."""
    messages = publish(stage, 40)
    for end in (7, 14, 28, 35):
        stage.upload(end)
    stage.commit(30)
    assert stage.drop_objects(14) == 14
    assert stage.prune_to(30) == 28
    reader = stage.reader(start)
    assert rest_of(reader, max_bytes) == messages[start:]
    reader.close()


def test_what_is_missing_between_cloud_and_log_comes_from_the_table(stage: CloudStage) -> None:
    messages = publish(stage, 40)
    stage.upload(12)
    stage.commit(36)
    assert stage.prune_to(36) == 36
    for start in range(0, 40, 3):
        reader = stage.reader(start)
        assert rest_of(reader) == messages[start:]
        reader.close()


def test_times_between_cloud_and_log_are_found_in_the_table(stage: CloudStage) -> None:
    publish(stage, 40)
    times = [row for batch in stage.topic.read(stage.reader(0)) for row in batch.column("publish_time").to_pylist()]
    stage.upload(12)
    stage.commit(36)
    assert stage.prune_to(36) == 36
    for offset in (5, 12, 20, 35, 36):
        expected = times.index(times[offset])
        assert stage.topic.start_offset_of(StartPosition.parse(times[offset].isoformat())) == expected


def test_objects_are_read_only_up_to_the_log(stage: CloudStage) -> None:
    messages = publish(stage, 40)
    upload_all(stage, 40)
    assert stage.prune_to(28) == 28
    reader = stage.reader(20)
    found: Messages = []
    while reader.offset < 40:
        found += [pair for batch in reader.read(1) for pair in pairs(batch)]
        assert len(stage.cloud.leases) == (reader.offset <= 28)
    assert found == messages[20:]
    reader.close()


def test_a_damaged_object_is_left_to_the_table(stage: CloudStage) -> None:
    messages = publish(stage, 40)
    keys = upload_all(stage, 8)
    stage.commit(30)
    stage.prune_to(28)
    stage.store.flip(keys[1], 2_000)
    del stage.store.objects[keys[2]]
    with capture_logs() as logs:
        for start in (0, 9, 14, 17):
            reader = stage.reader(start)
            assert rest_of(reader, 1_000) == messages[start:]
            reader.close()
    told = [line for line in logs if line["event"] == "cloud_read_failed"]
    assert [line["offset"] for line in told] == [8, 16]  # each once
    assert keys[1] in told[0]["error"]


def test_the_table_serves_no_more_than_the_damaged_object(stage: CloudStage) -> None:
    messages = publish(stage, 40)
    keys = upload_all(stage, 8)
    stage.commit()
    stage.prune_to(40)
    del stage.store.objects[keys[1]]
    stage.store.reads.clear()
    reader = stage.reader(8)
    assert rest_of(reader) == messages[8:]
    assert {key for key, _, _ in stage.store.reads} == {*keys[1:]}  # those behind it are read from the cloud
    reader.close()


def test_damage_that_nobody_can_make_up_for_is_told(stage: CloudStage) -> None:
    messages = publish(stage, 40)
    keys = upload_all(stage, 8)
    stage.commit(12)
    stage.prune_to(36)
    del stage.store.objects[keys[1]]
    reader = stage.reader(0)
    found: Messages = []
    for _ in range(2):  # the second time it is remembered
        with pytest.raises(DamagedError) as caught:
            read_into(found, reader)
        assert caught.value.details["object"] == keys[1]
        assert found == messages[:12]
        assert reader.offset == 12
    reader.close()
    later = stage.reader(16)
    assert rest_of(later) == messages[16:]
    later.close()


def test_an_object_in_trouble_is_not_tried_by_every_reader_at_once(log_stage: CloudStage) -> None:
    messages = publish(log_stage, 20)
    (key,) = upload_all(log_stage, 20)
    log_stage.prune_to(20)
    tier = log_stage.topic._cloud_tier
    assert tier is not None
    now = 0.0
    tier._failures._clock = lambda: now
    kept = log_stage.store.objects.pop(key)
    log_stage.store.reads.clear()
    for _ in range(5):
        reader = log_stage.reader(3)
        with pytest.raises(DamagedError):
            reader.read()
        reader.close()
    assert len(log_stage.store.reads) == 1
    now = 61.0
    log_stage.store.objects[key] = kept
    first, second = log_stage.reader(0), log_stage.reader(0)
    assert rest_of(first) == messages
    assert rest_of(second) == messages
    first.close()
    second.close()


def test_while_the_store_is_away_the_table_serves(stage: CloudStage) -> None:
    messages = publish(stage, 40)
    upload_all(stage, 8)
    stage.commit(20)
    stage.prune_to(36)
    tier = stage.topic._cloud_tier
    assert tier is not None
    now = 0.0
    tier._failures._clock = lambda: now
    stage.store.is_away = True
    reader = stage.reader(0)
    found: Messages = []
    with pytest.raises(UnavailableError) as caught:
        read_into(found, reader)
    assert caught.value.retryable
    assert found == messages[:20]
    stage.store.is_away = False
    now = 3.0
    assert rest_of(reader) == messages[20:]
    reader.close()


def test_what_is_uploaded_and_pruned_under_a_reader_comes_from_the_cloud(log_stage: CloudStage) -> None:
    messages = publish(log_stage, 40)
    reader = log_stage.reader(0)
    log_stage.topic.log.cache.clear()
    found = [pair for batch in reader.read(2_000) for pair in pairs(batch)]
    assert 0 < len(found) < 8
    upload_all(log_stage, 12)
    assert log_stage.prune_to(40) >= 36
    assert found + rest_of(reader, 1) == messages
    reader.close()


def test_objects_that_go_under_a_reader_are_read_from_the_table(stage: CloudStage) -> None:
    messages = publish(stage, 40)
    upload_all(stage, 8)
    stage.commit()
    stage.prune_to(40)
    reader = stage.reader(0)
    found = [pair for batch in reader.read(1) for pair in pairs(batch)]
    assert stage.drop_objects(32) == 32  # leases are over at once
    found += [pair for batch in reader.read(1) for pair in pairs(batch)]
    assert found + rest_of(reader) == messages
    reader.close()


def test_a_reader_of_objects_holds_retention_up_for_a_while(tmp_path: Path) -> None:
    stage = CloudStage(tmp_path, log_topic=True, reader={"lease_timeout_ms": 60_000})
    messages = publish(stage, 40)
    upload_all(stage, 8)
    stage.prune_to(40)
    reader = stage.reader(10)
    found = [pair for batch in reader.read(1) for pair in pairs(batch)]
    assert stage.drop_objects(40) == 8
    assert found + rest_of(reader) == messages[10:]
    assert stage.drop_objects(40) == 0  # all of them
    reader.close()
    stage.close()


def test_what_retention_took_of_a_log_topic_is_out_of_range(log_stage: CloudStage) -> None:
    messages = publish(log_stage, 40)
    upload_all(log_stage, 8)
    log_stage.prune_to(36)
    reader = log_stage.reader(0)
    reader.read(1)
    assert log_stage.drop_objects(24) == 24
    with pytest.raises(OffsetOutOfRangeError):
        rest_of(reader, 1)
    with pytest.raises(OffsetOutOfRangeError, match="nor in the cloud"):
        log_stage.reader(10)
    assert log_stage.topic.earliest_offset == 24
    late = log_stage.reader("earliest")
    assert rest_of(late) == messages[24:]
    for one in (reader, late):
        one.close()


def test_a_log_topic_is_described_and_read_without_a_catalog(log_stage: CloudStage) -> None:
    messages = publish(log_stage, 40)
    upload_all(log_stage, 15)
    log_stage.drop_objects(15)
    log_stage.prune_to(36)
    described = log_stage.topic.describe()
    assert described.storage == "log"
    assert described.uploaded_offset == 40
    assert described.cloud_start_offset == 15
    assert described.start_offset == 36
    reader = log_stage.reader("2020-01-01T00:00:00Z")
    assert rest_of(reader) == messages[15:]
    reader.close()


@pytest.mark.parametrize("dropped", [0, 10])
def test_times_are_found_in_every_tier(stage: CloudStage, dropped: int) -> None:
    publish(stage, 40)
    for end in (10, 25, 38):
        stage.upload(end)
    stage.commit(30)
    stage.drop_objects(dropped)
    topic = stage.topic
    reader = stage.reader(0)
    times = [row for batch in topic.read(reader) for row in batch.column("publish_time").to_pylist()]
    assert stage.prune_to(30) == 28
    for offset in range(40):
        expected = times.index(times[offset])
        assert topic.start_offset_of(StartPosition.parse(times[offset].isoformat())) == expected
    assert topic.start_offset_of(StartPosition.parse("2020-01-01T00:00:00Z")) == 0
    assert topic.start_offset_of(StartPosition.parse("2200-01-01T00:00:00Z")) == 40
    stage.store.is_away = True
    for offset in (3, 15, 29):
        expected = times.index(times[offset])
        assert topic.start_offset_of(StartPosition.parse(times[offset].isoformat())) == expected


def test_lost_messages_are_passed_over(log_stage: CloudStage) -> None:
    messages = publish(log_stage, 5)
    log_stage.topic.log.append(prepare(b"", message_count=20, encoding=Encoding.LOST))
    messages += publish(log_stage, 5)
    upload_all(log_stage, 30)
    log_stage.prune_to(30)
    for start, expected in ((0, messages), (7, messages[5:]), (25, messages[5:])):
        reader = log_stage.reader(start)
        assert rest_of(reader, 1) == expected
        reader.close()


def test_columns_and_conditions_are_met_in_objects(log_stage: CloudStage) -> None:
    messages = publish(log_stage, 40)
    upload_all(log_stage, 10)
    log_stage.prune_to(36)
    reader = log_stage.reader(3, columns=["payload"], where='"offset" in (1, 7, 8, 25, 37)')
    assert reader.schema.names == ["offset", "payload"]
    assert rest_of(reader) == [pair for pair in messages[3:] if pair[0] in (7, 8, 25, 37)]
    reader.close()


def test_a_subscription_replays_over_cloud_and_log(log_stage: CloudStage) -> None:
    messages = publish(log_stage, 40)
    upload_all(log_stage, 12)
    log_stage.prune_to(30)
    session = log_stage.storage.subscriptions.open(TOPIC, "s").connect("c")
    found: Messages = []
    while len(found) < 40:
        batch = session.receive(timeout_seconds=PATIENCE_SECONDS)
        assert batch is not None
        session.grant(batch.num_rows, batch.nbytes)
        found += pairs(batch)
    assert found == messages
    session.close()


def test_readers_lose_nothing_while_uploads_and_pruning_go_on(log_stage: CloudStage) -> None:
    total = 600
    failures: list[BaseException] = []
    found: list[Messages] = [[] for _ in range(3)]

    def follow(place: int) -> None:
        try:
            reader = log_stage.reader(0)
            while len(found[place]) < total:
                batches = reader.read(3_000)
                found[place] += [pair for batch in batches for pair in pairs(batch)]
                if not batches:
                    reader.wait(0.05)
            reader.close()
        except BaseException as error:  # noqa: BLE001 - told by the test
            failures.append(error)

    messages = publish(log_stage, 4)
    threads = [threading.Thread(target=follow, args=(place,)) for place in range(3)]
    for thread in threads:
        thread.start()
    while len(messages) < total:
        messages += publish(log_stage, 4)
        log_stage.upload(len(messages) - 2)
        log_stage.prune_to(len(messages) - 2)
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert failures == []
    assert all(one == messages for one in found)
