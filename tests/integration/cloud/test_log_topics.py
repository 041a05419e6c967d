"""Topics without a table: what they can do, what they refuse, and that nobody asks a catalog for them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.reading import FAR_US, Stage, pairs, rest_of

from icestream.model.enums import AckLevel
from icestream.model.errors import InvalidRequestError, OffsetOutOfRangeError
from icestream.model.messages import message_batch
from icestream.model.offsets import StartPosition
from icestream.storage import IcebergStorage, Topic
from icestream.storage.retention import prune_logs, prune_objects
from icestream.subscription import SubscriptionOptions
from icestream.table import Tables

NAME = "default/kept"
PATIENCE_SECONDS = 60.0


class LogStage(Stage):
    """A storage that uploads, with a topic that has no table."""

    def __init__(self, path: Path, **topic: Any) -> None:
        super().__init__(
            path,
            cloud={"backend": "fs", "root": str(path / "objects")},
            uploader={"enabled": True, "interval_seconds": 3600},
        )
        self.storage.topics.create(NAME, storage="log", **topic)

    @property
    def topic(self) -> Topic:
        return self.storage.topic(NAME)

    def put(self, count: int) -> list[tuple[int, bytes]]:
        """Messages, one a frame, and all of them uploaded as one or more objects; what a reader finds of them."""
        topic, start = self.topic, self.topic.log.durable_end
        found = [(offset, b"%d-" % offset + b"x" * 900) for offset in range(start, start + count)]
        for _, payload in found:
            self.storage.publish(topic, message_batch([payload]))
        assert topic.cloud is not None
        assert topic.cloud.flush(PATIENCE_SECONDS) == topic.log.durable_end
        return found

    def read(self, start: str = "earliest") -> list[tuple[int, bytes]]:
        reader = self.topic.reader(StartPosition.parse(start))
        try:
            return rest_of(reader)
        finally:
            reader.close()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[LogStage]:
    opened = LogStage(tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def no_catalog(stage: LogStage, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: object) -> None:
        pytest.fail("the catalog was asked for a topic that has no table")

    _ = stage.storage.table_watch.tables
    for method in ("find", "open", "drop"):
        monkeypatch.setattr(Tables, method, asked)


def test_a_broker_that_uploads_nothing_makes_no_topic_without_a_table(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    with pytest.raises(InvalidRequestError, match="uploads none") as caught:
        stage.storage.topics.create(NAME, storage="log")
    assert "uploader.enabled" in caught.value.remedy
    assert [str(topic.name) for topic in stage.storage.topics.find()] == ["default/events"]
    stage.close()


def test_it_is_described_as_what_it_is_also_after_a_restart(stage: LogStage) -> None:
    assert stage.topic.describe().storage == "log"
    stage.restart()
    assert stage.topic.describe().storage == "log"
    assert stage.storage.topic("default/events").describe().storage == "table"


@pytest.mark.usefixtures("no_catalog")
def test_messages_go_into_objects_and_are_read_from_there_when_the_log_is_pruned(stage: LogStage) -> None:
    messages = stage.put(30) + stage.put(30)
    assert prune_logs([stage.topic], stage.settings.wal.retention, FAR_US) > 0
    assert stage.topic.log.start_offset > 30
    assert stage.topic.earliest_offset == 0
    assert stage.read() == messages
    assert stage.read("17") == messages[17:]


@pytest.mark.usefixtures("no_catalog")
def test_it_can_be_deleted_and_made_again_without_a_catalog(stage: LogStage) -> None:
    stage.put(5)
    cloud = stage.topic.cloud
    assert cloud is not None
    stage.storage.delete(NAME)
    assert not list(cloud.store.list("default/kept/"))
    stage.storage.topics.create(NAME, storage="log")
    assert stage.topic.log.durable_end == 0


@pytest.mark.parametrize(
    "options",
    [{"ack": "table"}, {"partition_by": ["day(publish_time)"]}, {"sort_by": ["key"]}],
    ids=lambda one: next(iter(one)),
)
def test_what_only_a_table_can_do_is_refused_at_creation(stage: LogStage, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match="no table"):
        stage.storage.topics.create("default/other", storage="log", **options)


def test_an_unknown_kind_of_storage_is_refused(stage: LogStage) -> None:
    with pytest.raises(InvalidRequestError, match='storage must be one of table, log, not "tape"'):
        stage.storage.topics.create("default/other", storage="tape")


def test_no_message_of_it_is_acknowledged_from_a_table(stage: LogStage) -> None:
    topic = stage.topic
    with pytest.raises(InvalidRequestError, match="no table"):
        stage.storage.publish(topic, message_batch([b"x"]), level=AckLevel.TABLE)
    assert topic.log.durable_end == 0
    assert stage.storage.budget.used_bytes == 0
    with pytest.raises(InvalidRequestError, match="no table"):
        stage.storage.table_watch.wait(topic, 1, PATIENCE_SECONDS)


def test_its_retention_can_be_changed_and_its_kind_cannot(stage: LogStage) -> None:
    topics = stage.storage.topics
    assert topics.update(NAME, {"retention_minutes": 5, "retention_mb": 7}).record.retention_mb == 7
    with pytest.raises(InvalidRequestError, match="no table"):
        topics.update(NAME, {"ack": "table"})
    for name in (NAME, "default/events"):
        with pytest.raises(InvalidRequestError, match="storage of a topic cannot be changed"):
            topics.update(name, {"storage": "table"})


def test_the_pipeline_is_not_told_of_it(stage: LogStage) -> None:
    stage.put(3)
    stage.publish([b"x"])
    backlog = stage.storage.backlog
    answer = backlog.ask()
    while not answer.complete:
        answer = backlog.ask()
    assert [entry.topic for entry in answer.topics] == ["default/events"]


@pytest.mark.usefixtures("no_catalog")
def test_a_hint_about_it_asks_no_catalog(stage: LogStage) -> None:
    stage.put(3)
    watch = stage.storage.table_watch
    watch.hint(stage.topic.name)
    watch._look_at({stage.topic.name})
    assert stage.topic.committed.offset is None


def test_its_own_retention_takes_objects_and_with_them_the_log(tmp_path: Path) -> None:
    stage = LogStage(tmp_path, retention_minutes=1)
    messages: list[tuple[int, bytes]] = []
    for _ in range(4):
        messages += stage.put(8)
    topic = stage.topic
    assert topic.cloud is not None
    count = len(topic.cloud.objects.spans)
    assert count >= 4
    assert prune_objects([topic], stage.settings.cloud.retention, FAR_US) == count - 1
    first = topic.cloud.objects.first_offset
    assert first is not None
    prune_logs([topic], stage.settings.wal.retention, 0)
    assert first - 4 <= topic.log.start_offset <= first
    assert first - 4 <= topic.earliest_offset <= first
    assert stage.read() == messages[topic.earliest_offset :]
    with pytest.raises(OffsetOutOfRangeError) as caught:
        stage.read("0")
    assert str(topic.earliest_offset) in str(caught.value)
    stage.restart()
    assert stage.read() == messages[stage.topic.earliest_offset :]
    stage.close()


def test_a_subscription_whose_place_retention_took_is_told_and_goes_on_where_it_is_sent(tmp_path: Path) -> None:
    stage = LogStage(tmp_path, retention_minutes=1)
    subscription = stage.storage.subscriptions.open(NAME, "slow", SubscriptionOptions(), start=StartPosition.earliest())
    messages = [message for _ in range(4) for message in stage.put(8)]
    prune_objects([stage.topic], stage.settings.cloud.retention, FAR_US)
    prune_logs([stage.topic], stage.settings.wal.retention, FAR_US)
    earliest = stage.topic.earliest_offset
    assert earliest > 0
    session = subscription.connect("c")
    with pytest.raises(OffsetOutOfRangeError, match=f"begins at {earliest}"):
        session.receive(timeout_seconds=PATIENCE_SECONDS)
    session.close()
    subscription.seek(earliest)
    session = subscription.connect("c")
    batch = session.receive(timeout_seconds=PATIENCE_SECONDS)
    assert batch is not None
    assert pairs(batch)[0] == messages[earliest]
    session.close()
    stage.close()


def test_a_log_whose_record_was_lost_is_taken_in_as_what_it_was(stage: LogStage) -> None:
    stage.put(3)
    stage.storage.publish(stage.storage.topic("default/events"), message_batch([b"x"]))
    stage.storage.close()
    stage.settings.metadata.sqlite_path.unlink()
    stage.storage = IcebergStorage(stage.settings).open()
    assert stage.topic.record.storage == "log"
    assert stage.storage.topic("default/events").record.storage == "table"
