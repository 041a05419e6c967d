"""What a storage that uploads does while one of the stores does not answer, or something has gone wrong for good."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.integration.cloud.stage import PATIENCE_SECONDS, Stage, cloud_of, publish, wait_until

from icestream.cloud.uploader import Uploader
from icestream.model.errors import DamagedError, DeadlineError, StaleEpochError, TopicExistsError, UnavailableError
from icestream.server.metrics import cloud_metrics
from icestream.storage import IcebergStorage
from icestream.storage.cloud import MetadataRegistry
from icestream.storage.cloud.reservation import STEP
from icestream.storage.cloud.uploads import TopicUploads, UploadScheduler


class Hanging:
    """A store that does not answer until the test is over."""

    def __init__(self, *operations: str) -> None:
        self.asked = threading.Event()
        self.answer = threading.Event()
        self._operations = operations

    def __call__(self, operation: str, _key: str) -> None:
        if operation in self._operations:
            self.asked.set()
            self.answer.wait(2 * PATIENCE_SECONDS)
            raise UnavailableError("too slow")


def in_time(call: Callable[[], object]) -> None:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive(), "it waits for a store that is away"


def away(*_: Any, **__: Any) -> Any:
    raise UnavailableError("the metadata store is away")


# The end


def test_the_end_does_not_wait_for_a_request_that_hangs(stage: Stage) -> None:
    hanging = Hanging("put", "write", "writer", "list", "stat")
    storage = IcebergStorage(stage.settings(shutdown_timeout_seconds=0.5)).open()
    topics = [storage.topics.create(f"default/t{number}") for number in range(5)]
    stage.store.before = hanging
    for topic in topics:
        publish(storage, topic)
    registry = cloud_of(topics[0]).registry
    try:
        in_time(storage.close)
    finally:
        hanging.answer.set()
    assert registry.owned is not None
    assert registry.owned.reserved_end == 10, "offsets are given back though the object store is away"


def test_the_end_gives_up_giving_back_where_the_metadata_store_is_away(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []

    def refuse(*_: Any) -> None:
        tries.append(1)
        away()

    with stage.open() as storage:
        for number in range(40):
            publish(storage, storage.topics.create(f"default/t{number}"))
            cloud_of(storage.topics.get(f"default/t{number}")).flush(PATIENCE_SECONDS)
        monkeypatch.setattr(MetadataRegistry, "update", refuse)
    assert 1 <= len(tries) <= 8


# One topic


def test_a_topic_whose_log_is_damaged_gets_offsets_as_long_as_it_is_used(stage: Stage) -> None:
    with stage.open() as storage:
        topic = storage.topics.create("default/events")
        publish(storage, topic)
        with topic.log.snapshot.active.path.open("r+b") as file:
            file.seek(300)
            file.write(b"damage")
        with pytest.raises(DamagedError):
            cloud_of(topic).flush(PATIENCE_SECONDS)
        topic.log.offset_limit = 20
        wait_until(lambda: topic.log.offset_limit > STEP)
        publish(storage, topic)


def test_a_broker_that_knows_of_a_newer_owner_takes_no_more_messages(stage: Stage) -> None:
    with stage.open() as storage:
        topic = storage.topics.create("default/events")
        publish(storage, topic)
        cloud_of(topic).flush(PATIENCE_SECONDS)
        newer = MetadataRegistry(storage.topics._metadata, topic.name, topic.record.stream_id)
        head = newer.head()
        assert head is not None
        newer.claim(replace(head, epoch=head.epoch + 1))
        publish(storage, topic)
        assert storage.stats("default/events")[0].error is None
        with pytest.raises(StaleEpochError):
            cloud_of(topic).flush(PATIENCE_SECONDS)
        with pytest.raises(StaleEpochError) as raised:
            publish(storage, topic)
        assert not raised.value.retryable
        assert topic.log.durable_end == 20
        (stats,) = storage.stats("default/events")
        assert stats.error is not None
        assert "taken over the topic's cloud objects" in stats.error
        assert stats.message_count == 20


def test_figures_are_those_known_last_while_the_metadata_store_is_away(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stage.open() as storage:
        topic = storage.topics.create("default/events")
        publish(storage, topic)
        cloud_of(topic).flush(PATIENCE_SECONDS)
        with monkeypatch.context() as outage:
            outage.setattr(MetadataRegistry, "_transaction", away)
            publish(storage, topic)
            with pytest.raises(UnavailableError):
                cloud_of(topic).flush(PATIENCE_SECONDS)
            outage.setattr(MetadataRegistry, "_read", lambda _: pytest.fail("figures are worth no request"))
            (stats,) = storage.stats("default/events")
        assert (stats.uploaded_offset, stats.upload_lag_messages, stats.cloud_objects) == (10, 10, 1)
        assert stats.upload_error is not None


def test_a_cycle_that_finds_nothing_to_ship_though_something_is_waited_for_is_not_repeated_at_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    cycles: list[int] = []
    with stage.open() as storage:
        topic = storage.topics.create("default/events")
        with monkeypatch.context() as fault:
            fault.setattr(Uploader, "cycle", lambda _: cycles.append(1))
            publish(storage, topic)
            with pytest.raises(DeadlineError):
                cloud_of(topic).flush(0.2)
        assert 1 <= len(cycles) < 10


# All topics


def test_metrics_wait_for_a_metadata_store_that_is_away_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def refuse(_: MetadataRegistry) -> None:
        asked.append(1)
        away()

    with stage.open(enabled=False) as storage:
        topics = [storage.topics.create(f"default/t{number}") for number in range(5)]
        monkeypatch.setattr(MetadataRegistry, "objects", refuse)
        assert list(cloud_metrics(topics))
        assert len(asked) == 1


def test_a_log_that_fails_in_an_unknown_way_keeps_no_other_from_being_opened(stage: Stage) -> None:
    opened = threading.Event()

    def fail() -> Any:
        raise TypeError("something that nobody thought of")

    uploading = UploadScheduler(stage.settings().uploader)
    with capture_logs() as logs:
        uploading.start(lambda: [fail, opened.set])
        assert opened.wait(PATIENCE_SECONDS)
        uploading.stop()
    assert any(line["event"] == "log_open_failed_for_upload" for line in logs)


def test_offsets_are_reserved_though_a_topic_fails_in_an_unknown_way(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = TopicUploads.renew_reservation

    def fail(uploads: TopicUploads) -> None:
        if str(uploads.cloud.topic) == "default/first":
            raise TypeError("something that nobody thought of")
        real(uploads)

    monkeypatch.setattr(TopicUploads, "renew_reservation", fail)
    with stage.open() as storage:
        topics = [storage.topics.create(name) for name in ("default/first", "default/second")]
        for topic in topics:
            publish(storage, topic)
        topics[1].log.offset_limit = 10
        wait_until(lambda: topics[1].log.offset_limit > STEP)


# Creating and deleting


def test_two_that_make_a_topic_at_once_get_the_same_one(stage: Stage) -> None:
    listing, go_on = threading.Event(), threading.Event()
    results: list[Any] = []

    def wait(operation: str, _key: str) -> None:
        if operation == "list" and not listing.is_set():
            listing.set()
            go_on.wait(PATIENCE_SECONDS)

    with stage.open() as storage:
        stage.store.before = wait
        second = threading.Thread(target=lambda: results.append(storage.topic("default/events", create=True)))
        second.start()
        assert listing.wait(PATIENCE_SECONDS)
        topic = storage.topic("default/events", create=True)
        publish(storage, topic)
        cloud_of(topic).flush(PATIENCE_SECONDS)
        go_on.set()
        second.join(PATIENCE_SECONDS)
        assert results == [topic]


def test_a_new_topic_does_not_wait_long_for_the_object_store(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icestream.storage.lost_topics._LOOK_SECONDS", 0.05)
    hanging = Hanging("list")
    with stage.open() as storage:
        stage.store.before = hanging
        try:
            for number in range(20):  # more than may be under way at a time
                publish(storage, storage.topic(f"default/t{number}", create=True))
            assert hanging.asked.is_set()
        finally:
            hanging.answer.set()


def test_a_deletion_that_takes_long_goes_on_alone_in_its_own_thread(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icestream.storage.topics._PATIENCE_SECONDS", 0.05)
    deleting, go_on = threading.Event(), threading.Event()
    threads: set[str] = set()

    def wait(operation: str, _key: str) -> None:
        if operation == "delete":
            threads.add(threading.current_thread().name)
            deleting.set()
            go_on.wait(PATIENCE_SECONDS)

    with stage.open() as storage:
        topic = storage.topics.create("default/events")
        publish(storage, topic)
        cloud_of(topic).flush(PATIENCE_SECONDS)
        stage.store.before = wait
        storage.delete("default/events")
        assert deleting.wait(PATIENCE_SECONDS)
        with pytest.raises(TopicExistsError, match="being deleted"):
            storage.topics.create("default/events")
        go_on.set()
        wait_until(lambda: not stage.objects)
        wait_until(lambda: not storage.topics.deletions._unfinished)
        assert threads == {"deleter"}
        storage.topics.create("default/events")


def test_the_name_of_a_deleted_topic_says_what_keeps_it(stage: Stage) -> None:
    def refuse(operation: str, _key: str) -> None:
        if operation == "delete":
            raise UnavailableError("the bucket is closed today")

    with stage.open() as storage:
        topic = storage.topics.create("default/events")
        publish(storage, topic)
        cloud_of(topic).flush(PATIENCE_SECONDS)
        stage.store.before = refuse
        storage.delete("default/events")
        with pytest.raises(TopicExistsError, match="the bucket is closed today"):
            storage.topics.create("default/events")
        stage.store.before = lambda _operation, _key: None
        assert storage.topics.create("default/events").record.stream_id != topic.record.stream_id
