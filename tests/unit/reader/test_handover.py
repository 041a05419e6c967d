"""One stream from every tier, whatever happens to the tiers while it is read."""

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from tests.reading import TOPIC, Stage, pairs, rest_of

from icestream.model.callers import FULL_ACCESS
from icestream.model.errors import (
    CatalogUnavailableError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    RowsDeletedError,
    TableLostError,
)
from icestream.model.messages import encode_schema
from icestream.model.offsets import OffsetRanges, StartPosition
from icestream.protocol.read import ReadTicket
from icestream.server.flight.read_stream import ReadStream
from icestream.server.metrics import BrokerMetrics
from icestream.table import Tables

PAYLOAD = b"x" * 900


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    opened = Stage(tmp_path)
    yield opened
    opened.close()


def publish(stage: Stage, count: int) -> list[tuple[int, bytes]]:
    """One message a frame, four frames a segment; what a reader should find of them."""
    start = stage.topic.log.durable_end
    messages = [(offset, b"%d %s" % (offset, PAYLOAD)) for offset in range(start, start + count)]
    for _, payload in messages:
        stage.publish([payload])
    return messages


def test_a_stream_goes_from_the_table_over_the_log_to_the_end(stage: Stage) -> None:
    messages = publish(stage, 40)
    stage.commit(30)
    start = stage.prune()
    assert 20 <= start <= 30
    reader = stage.reader(0)
    assert rest_of(reader) == messages
    messages += publish(stage, 3)
    assert reader.wait(0)
    assert rest_of(reader) == messages[40:]
    assert not reader.wait(0)
    reader.close()


@pytest.mark.parametrize("start", [0, 7, 27, 28, 29, 35, 40])
def test_a_reader_starts_at_any_offset(stage: Stage, start: int) -> None:
    messages = publish(stage, 40)
    stage.commit(30)
    stage.prune()
    reader = stage.reader(start)
    assert rest_of(reader, max_bytes=1) == messages[start:]
    reader.close()


def test_what_is_pruned_under_a_reader_comes_from_the_table(stage: Stage) -> None:
    messages = publish(stage, 40)
    reader = stage.reader(0)
    stage.topic.log.cache.clear()
    found = [pair for batch in reader.read(2_000) for pair in pairs(batch)]
    assert 0 < len(found) < 8
    stage.commit()
    stage.topic.log.cache.clear()
    assert stage.prune() >= 36
    assert found + rest_of(reader) == messages
    reader.close()


def test_a_reader_holds_retention_up_for_a_while(tmp_path: Path) -> None:
    stage = Stage(tmp_path, reader={"lease_timeout_ms": 60_000})
    messages = publish(stage, 40)
    reader = stage.reader(0)
    stage.topic.log.cache.clear()
    found = [pair for batch in reader.read(2_000) for pair in pairs(batch)]
    stage.commit()
    assert stage.prune() <= len(found)
    assert found + rest_of(reader) == messages
    assert stage.prune() >= 36
    reader.close()
    stage.close()


def test_a_scan_of_files_that_are_removed_goes_on_in_those_that_replace_them(stage: Stage) -> None:
    messages: list[tuple[int, bytes]] = []
    for _ in range(5):
        messages += publish(stage, 8)
        stage.commit()
    stage.prune()
    reader = stage.reader(0)
    found = [pair for batch in reader.read(1) for pair in pairs(batch)]
    assert found == messages[:1]
    stage.compact()
    stage.expire()
    assert found + rest_of(reader, max_bytes=1) == messages
    reader.close()


def test_what_the_log_holds_is_read_without_the_catalog(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = publish(stage, 40)
    stage.commit(20)

    def away(*_: object) -> None:
        raise CatalogUnavailableError("away")

    with monkeypatch.context() as outage:
        outage.setattr(Tables, "find", away)
        for start, first in (("earliest", 0), ("39", 39), ("latest", 40), ("2020-01-01T00:00:00Z", 0)):
            assert rest_of(stage.reader(start)) == messages[first:]
    pruned = stage.prune()
    with monkeypatch.context() as outage:
        outage.setattr(Tables, "find", away)
        assert rest_of(stage.reader(pruned)) == messages[pruned:]
        with pytest.raises(CatalogUnavailableError) as failure:
            stage.reader("earliest")
        assert failure.value.retryable


def test_a_reader_goes_on_when_the_catalog_is_back(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = publish(stage, 40)
    stage.commit()
    stage.prune()
    reader = stage.reader(0)

    def away(*_: object) -> None:
        raise CatalogUnavailableError("away")

    with monkeypatch.context() as outage:
        outage.setattr(Tables, "find", away)
        with pytest.raises(CatalogUnavailableError):
            reader.read()
    assert rest_of(reader) == messages
    reader.close()


def test_an_offset_in_no_tier_is_said_to_be_so(stage: Stage) -> None:
    publish(stage, 40)
    stage.commit()
    stage.prune()
    with pytest.raises(OffsetOutOfRangeError, match="ends before 40"):
        stage.reader(41)
    stage.tables.drop(stage.topic.name, stage.topic.record.stream_id)
    with pytest.raises(TableLostError, match="were in the topic's table"):
        stage.reader(0)


def test_every_kind_of_position_is_an_offset(stage: Stage) -> None:
    publish(stage, 20)
    first = stage.commit(12)
    stage.commit().tag("release")
    publish(stage, 20)
    stage.commit(30)
    start = stage.prune()
    assert start > 20
    rows = stage.storage.topic(TOPIC)
    times = [row for batch in rows.read(stage.reader(0)) for row in batch.column("publish_time").to_pylist()]
    topic = stage.topic
    assert topic.earliest_offset == 0
    assert topic.start_offset_of(StartPosition.latest()) == 40
    assert first.snapshot_id is not None
    assert topic.start_offset_of(StartPosition.snapshot(first.snapshot_id)) == 12
    assert topic.start_offset_of(StartPosition.tag("release")) == 20
    for offset in (0, 5, 19, 30, 39):
        expected = times.index(times[offset])
        assert topic.start_offset_of(StartPosition.parse(times[offset].isoformat())) == expected
    assert topic.start_offset_of(StartPosition.parse("2020-01-01T00:00:00Z")) == 0
    assert topic.start_offset_of(StartPosition.parse("2200-01-01T00:00:00Z")) == 40
    with pytest.raises(InvalidRequestError):
        topic.start_offset_of(StartPosition.tag("nothing"))
    with pytest.raises(InvalidRequestError):
        topic.start_offset_of(StartPosition.snapshot(1))


def test_a_snapshot_of_a_topic_without_a_table_is_refused(stage: Stage) -> None:
    publish(stage, 1)
    with pytest.raises(InvalidRequestError, match="no table yet"):
        stage.reader("snapshot:17")


def test_columns_and_conditions_are_met_in_every_tier(stage: Stage) -> None:
    messages = publish(stage, 40)
    stage.commit(30)
    stage.prune()
    reader = stage.reader(0, columns=["payload"], where="offset >= 5 and offset < 35")
    assert reader.schema.names == ["offset", "payload"]
    assert rest_of(reader) == messages[5:35]
    assert reader.offset == 40
    reader.close()
    with pytest.raises(InvalidRequestError, match="no columns price"):
        stage.reader(0, columns=["price"])
    with pytest.raises(InvalidRequestError):
        stage.reader(0, where="price > 3")


OLD = pa.schema([pa.field("payload", pa.binary())])
NEW = pa.schema([*OLD, pa.field("y", pa.string())])


def test_all_tiers_give_the_columns_that_the_topic_had_when_the_reader_was_opened(tmp_path: Path) -> None:
    stage = Stage(tmp_path, schema=OLD)
    storage, topic = stage.storage, stage.topic
    for number in range(20):
        storage.publish(topic, pa.record_batch({"payload": [b"%d" % number + PAYLOAD]}, schema=OLD))
    stage.commit()
    before = stage.reader(0)
    storage.topics.update(TOPIC, {"schema": encode_schema(NEW)})
    stage.prune()
    after = stage.reader(0)
    for number in range(20, 40):
        storage.publish(topic, pa.record_batch({"payload": [b"%d" % number + PAYLOAD], "y": ["new"]}, schema=NEW))
    filtered = stage.reader(0, where="y = 'new'")
    assert [offset for offset, _ in rest_of(filtered)] == list(range(20, 40))
    stage.commit(30)
    stage.prune()
    assert len(rest_of(before)) == len(rest_of(after)) == 40
    assert before.schema.names[4:] == ["payload"]
    assert after.schema.names[4:] == ["payload", "y"]
    for reader in (before, after, filtered):
        reader.close()
    stage.close()


def test_what_a_repair_gave_up_is_passed_over_in_the_table_too(stage: Stage) -> None:
    messages = publish(stage, 20)
    lost = {0, 7, 8, 13, 19}
    table, topic = stage.table(), stage.topic
    rows = pa.Table.from_batches(topic.read(stage.reader(0)))
    kept = rows.take([offset for offset in range(20) if offset not in lost]).combine_chunks().to_batches()
    files = table.writer().write(kept, max_memory_bytes=1 << 20)
    given_up = OffsetRanges.of((offset, offset + 1) for offset in lost)
    table.commit(files, start=0, end=20, epoch=topic.record.epoch, lost=given_up)
    stage.commit()
    pruned = stage.prune()
    found: list[tuple[int, bytes]] = []
    reader = stage.reader(0)
    while reader.offset < pruned:
        for batch in reader.read():
            part = pairs(batch)
            assert part[-1][0] - part[0][0] == len(part) - 1  # so that a gap is always between two batches
            found += part
    assert found == [message for message in messages[:pruned] if message[0] not in lost]
    reader.close()
    ticket = ReadTicket(topic=TOPIC, start=0, end=pruned)
    chunks = list(ReadStream(stage.storage, ticket, FULL_ACCESS, lambda: False).chunks(BrokerMetrics(stage.storage)))
    losses = [json.loads(chunk[1].to_pybytes())["lost"] for chunk in chunks if isinstance(chunk, tuple)]
    assert losses == [1, 2, 1]


def test_a_row_that_is_missing_is_damage_and_not_a_shorter_stream(stage: Stage) -> None:
    publish(stage, 20)
    stage.commit().iceberg.delete("offset = 7")
    stage.prune()
    reader = stage.reader(0)
    with pytest.raises(RowsDeletedError, match="no offset 7"):
        rest_of(reader)
    reader.close()
