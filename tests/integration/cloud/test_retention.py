"""Retention at its most aggressive, in log and cloud, while uploads, commits and readers are at work."""

import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.reading import FAR_US, TOPIC, Stage, pairs

from icestream.config import CloudRetentionSettings, RetentionSettings
from icestream.model.errors import OffsetOutOfRangeError
from icestream.model.messages import message_batch
from icestream.model.offsets import StartPosition
from icestream.storage import Topic
from icestream.storage.retention import prune_logs, prune_objects
from icestream.subscription import SubscriptionOptions

MESSAGES = 800
READERS = 4
ROUNDS = 40 if os.environ.get("ICESTREAM_SOAK") else 3
LOG_TOPIC = "default/kept"
PATIENCE_SECONDS = 120.0
CLOUD_OLD = CloudRetentionSettings(time_minutes=1)
LOG_OLD = RetentionSettings(time_minutes=1)


def payload(offset: int) -> bytes:
    return b"%06d-" % offset + b"x" * 150


class CloudStage(Stage):
    """Ten messages a segment, uploaded as soon as it is closed."""

    def __init__(self, path: Path, lease_timeout_ms: int = 0) -> None:
        super().__init__(
            path,
            cloud={"backend": "fs", "root": str(path / "objects")},
            uploader={"enabled": True, "interval_seconds": 1},
            reader={"poll_interval_ms": 5, "lease_timeout_ms": lease_timeout_ms},
        )
        self.failure: BaseException | None = None

    def retain(self, topic: Topic) -> int:
        """Both rounds of retention, long after everything was published; how much went."""
        return prune_objects([topic], CLOUD_OLD, FAR_US) + prune_logs([topic], LOG_OLD, FAR_US)

    @contextmanager
    def meanwhile(self, *works: Callable[[], object], pause_seconds: float = 0.003) -> Iterator[None]:
        """Each work again and again on a thread of its own, until the end of the block."""
        ended = threading.Event()

        def go_on(work: Callable[[], object]) -> None:
            try:
                while not ended.wait(pause_seconds):
                    work()
            except BaseException as error:
                self.failure = error
                raise

        threads = [threading.Thread(target=go_on, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            ended.set()
            for thread in threads:
                thread.join(PATIENCE_SECONDS)
        assert self.failure is None

    def publish_all(self, topic: Topic) -> threading.Thread:
        def publish() -> None:
            for offset in range(MESSAGES):
                self.storage.publish(topic, message_batch([payload(offset)]))

        thread = threading.Thread(target=publish)
        thread.start()
        return thread


@pytest.fixture(params=[0, 60_000], ids=["leases run out at once", "leases hold"])
def stage(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[CloudStage]:
    opened = CloudStage(tmp_path, request.param)
    yield opened
    opened.close()


class Follower(threading.Thread):
    """Reads a topic from random places to its end, and checks each message against what was published."""

    def __init__(self, topic: Topic, seed: int, *, may_miss: bool) -> None:
        super().__init__()
        self._topic = topic
        self._random = random.Random(seed)
        self._may_miss = may_miss
        self._offset = 0
        self.read = 0
        self.missed = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            for _ in range(ROUNDS):
                self.follow(self._random.randint(0, self._topic.log.durable_end))
        except BaseException as error:  # noqa: BLE001 - shown by `check`
            self.failure = error

    def follow(self, start: int) -> None:
        self._offset = start
        while self._offset < MESSAGES:
            try:
                self._read_on()
            except OffsetOutOfRangeError as error:
                if not self._may_miss:
                    raise
                self._skip(error)

    def _skip(self, told: OffsetOutOfRangeError) -> None:
        """Go on where the topic begins now, which is past what could not be read."""
        earliest = self._topic.earliest_offset
        assert self._offset < earliest, str(told)
        assert "begins at" in told.message or "the next offset that one holds" in told.message
        self.missed += 1
        self._offset = earliest

    def _read_on(self) -> None:
        reader = self._topic.reader(StartPosition.offset(self._offset))
        try:
            until = min(MESSAGES, self._offset + self._random.randint(1, MESSAGES))
            while self._offset < until:
                batches = reader.read(self._random.choice((500, 4_000, 1 << 20)))
                for batch in batches:
                    for found in pairs(batch):
                        assert found == (self._offset, payload(self._offset))
                        self._offset += 1
                        self.read += 1
                if not batches:
                    reader.wait(1.0)
        finally:
            reader.close()

    def check(self) -> None:
        self.join(PATIENCE_SECONDS)
        assert not self.is_alive(), "a reader does not come to the end"
        if self.failure is not None:
            raise self.failure


def follow(topic: Topic, *, may_miss: bool) -> list[Follower]:
    followers = [Follower(topic, seed, may_miss=may_miss) for seed in range(READERS)]
    for follower in followers:
        follower.start()
    return followers


def test_every_reader_of_a_table_topic_sees_every_message_while_all_its_other_places_are_emptied(
    stage: CloudStage,
) -> None:
    topic = stage.topic
    subscription = stage.storage.subscriptions.open(TOPIC, "s", SubscriptionOptions(), start=StartPosition.earliest())
    session = subscription.connect("c")
    removed: list[int] = []
    publisher = stage.publish_all(topic)
    with stage.meanwhile(stage.commit, lambda: removed.append(stage.retain(topic))):
        followers = follow(topic, may_miss=False)
        received = 0
        while received < MESSAGES:
            batch = session.receive(max_messages=100, timeout_seconds=PATIENCE_SECONDS)
            assert batch is not None
            assert pairs(batch) == [(received + number, payload(received + number)) for number in range(batch.num_rows)]
            received += batch.num_rows
            session.ack([(0, received)])
            session.grant(batch.num_rows, batch.nbytes)
        for follower in followers:
            follower.check()
        publisher.join(PATIENCE_SECONDS)
    session.close()
    assert sum(removed) > 20
    stage.commit()
    assert topic.cloud is not None
    topic.cloud.flush(PATIENCE_SECONDS)
    stage.retain(topic)
    assert topic.log.start_offset > MESSAGES - 50
    assert len(topic.cloud.objects.spans) == 1
    assert len(list(topic.cloud.store.list("default/events/"))) == 2  # the newest object, and the topic's own record
    assert sum(follower.read for follower in followers) > READERS * 100


def test_readers_of_a_log_topic_see_every_message_or_are_told_that_retention_took_it(stage: CloudStage) -> None:
    topic = stage.storage.topics.create(LOG_TOPIC, storage="log", retention_minutes=1)
    taken = threading.Event()

    def retain() -> None:
        # All objects but the newest, now and then, so that there is something to read in between.
        prune_logs([topic], LOG_OLD, FAR_US)
        if topic.cloud is not None and len(topic.cloud.objects.spans) > 20:
            prune_objects([topic], CLOUD_OLD, FAR_US)
            taken.set()

    publisher = stage.publish_all(topic)
    with stage.meanwhile(retain):
        followers = follow(topic, may_miss=True)
        for follower in followers:
            follower.check()
        publisher.join(PATIENCE_SECONDS)
        assert taken.wait(PATIENCE_SECONDS)
    assert sum(follower.read for follower in followers) > READERS * 20
    with pytest.raises(OffsetOutOfRangeError):
        topic.reader(StartPosition.offset(0))


def test_readers_of_a_log_topic_miss_nothing_while_its_log_is_emptied_into_the_cloud(stage: CloudStage) -> None:
    topic = stage.storage.topics.create(LOG_TOPIC, storage="log")
    publisher = stage.publish_all(topic)
    with stage.meanwhile(lambda: stage.retain(topic)):
        for follower in follow(topic, may_miss=False):
            follower.check()
        publisher.join(PATIENCE_SECONDS)
    assert topic.cloud is not None
    topic.cloud.flush(PATIENCE_SECONDS)
    stage.retain(topic)
    assert topic.log.start_offset > MESSAGES - 50
    assert topic.earliest_offset == 0
    Follower(topic, 99, may_miss=False).follow(0)


def test_an_object_that_was_lost_in_the_store_keeps_its_messages_in_the_log(tmp_path: Path) -> None:
    stage = CloudStage(tmp_path)
    topic = stage.storage.topics.create(LOG_TOPIC, storage="log")
    stage.publish_all(topic).join(PATIENCE_SECONDS)
    cloud = topic.cloud
    assert cloud is not None
    cloud.flush(PATIENCE_SECONDS)
    lost = cloud.registry.get(cloud.objects.spans[3].first_offset)
    assert lost is not None
    cloud.store.delete(lost.key)
    stage.retain(topic)
    assert topic.log.start_offset <= lost.first_offset
    Follower(topic, 1, may_miss=False).follow(0)
    stage.close()
