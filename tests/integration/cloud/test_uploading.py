"""Uploads of a storage's topics: when they happen, and what becomes of them when something fails."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.integration.cloud.stage import NEVER, PATIENCE_SECONDS, Stage, cloud_of, publish, uploaded, wait_until

from icestream.cloud.object import topic_key
from icestream.config import Settings
from icestream.model.errors import DamagedError, DeadlineError, InvalidRequestError, StaleEpochError, UnavailableError
from icestream.model.units import MIB
from icestream.storage import IcebergStorage
from icestream.storage.cloud import MetadataRegistry
from icestream.storage.cloud.reservation import STEP
from icestream_servers.s3 import ACCESS_KEY, REGION, SECRET_KEY, S3Server


def test_a_sealed_segment_is_uploaded_at_once_and_the_rest_with_it(stage: Stage) -> None:
    with stage.open() as storage:
        topic = storage.topics.create("default/events")
        publish(storage, topic)
        assert cloud_of(topic).uploaded_end == 0
        publish(storage, topic, 100, 600)
        publish(storage, topic, 100, 600)
        wait_until(lambda: cloud_of(topic).uploaded_end >= 110)


def test_so_many_bytes_as_an_object_may_have_are_uploaded_at_once(stage: Stage) -> None:
    settings = stage.settings(max_object_mb=1)
    wal = settings.wal.model_copy(update={"max_file_size": 1 << 30})
    with IcebergStorage(settings.model_copy(update={"wal": wal})) as storage:
        topic = storage.topics.create("default/events")
        for _ in range(3):
            publish(storage, topic, 400, 1_000)
        wait_until(lambda: cloud_of(topic).uploaded_end > 0)
        assert all(span.size <= MIB + 100_000 for span in cloud_of(topic).objects.spans)


def test_new_messages_are_uploaded_when_the_interval_is_over(stage: Stage) -> None:
    with stage.open(interval_seconds=1) as storage:
        topic = storage.topics.create("default/events")
        for _ in range(2):
            publish(storage, topic)
            wait_until(lambda: uploaded(topic))
        assert cloud_of(topic).status.objects == 2


def test_a_flush_returns_when_all_that_was_durable_is_uploaded(stage: Stage) -> None:
    with stage.open() as storage:
        topic = storage.topics.create("default/events")
        publish(storage, topic)
        assert cloud_of(topic).flush(PATIENCE_SECONDS) == 10
        assert cloud_of(topic).flush(PATIENCE_SECONDS) == 10
        status = cloud_of(topic).status
        assert (status.state, status.uploads, status.objects, status.lag_messages, status.lag_bytes) == (
            "ok",
            1,
            1,
            0,
            0,
        )
        publish(storage, topic)
        status = cloud_of(topic).status
        assert status.lag_messages == 10
        assert status.lag_bytes > 1_000
        assert status.lag_seconds is not None


def test_a_flush_says_what_failed_and_when_the_time_is_up(stage: Stage) -> None:
    go_on = threading.Event()
    with stage.open() as storage:
        topic = storage.topics.create("default/events")
        publish(storage, topic)
        wait_until(lambda: bool(stage.objects))  # the topic's file; nothing else is under way

        def fail(operation: str, _key: str) -> None:
            if operation == "finish":
                raise UnavailableError("the store is away")

        def hang(operation: str, _key: str) -> None:
            if operation == "finish":
                go_on.wait(PATIENCE_SECONDS)

        stage.store.before = fail
        with pytest.raises(UnavailableError, match="the store is away"):
            cloud_of(topic).flush(PATIENCE_SECONDS)
        assert cloud_of(topic).status.state == "failing"
        stage.store.before = hang
        with pytest.raises(DeadlineError):
            cloud_of(topic).flush(0.01)
        go_on.set()
        assert cloud_of(topic).flush(PATIENCE_SECONDS) == 10
        assert cloud_of(topic).status.last_error is None


def test_a_topic_that_cannot_be_uploaded_holds_up_nobody_else(stage: Stage) -> None:
    def fail(operation: str, key: str) -> None:
        if operation == "finish" and "/bad/" in key:
            raise UnavailableError("no")

    stage.store.before = fail
    with stage.open(threads=1) as storage:
        bad, good = (storage.topics.create(f"default/{name}") for name in ("bad", "good"))
        for number in range(3):
            for topic in (bad, good):
                publish(storage, topic)
            with pytest.raises(UnavailableError):
                cloud_of(bad).flush(PATIENCE_SECONDS)
            assert cloud_of(good).flush(PATIENCE_SECONDS) == 10 * (number + 1)
        assert cloud_of(bad).status.failures >= 3
        stage.store.before = lambda _operation, _key: None
        assert cloud_of(bad).flush(PATIENCE_SECONDS) == 30


def test_damage_stops_the_uploads_of_its_topic_and_is_told(stage: Stage) -> None:
    with stage.open() as storage:
        topic = storage.topics.create("default/events")
        publish(storage, topic)
        with topic.log.snapshot.active.path.open("r+b") as file:
            file.seek(300)
            file.write(b"damage")
        with capture_logs() as logs, pytest.raises(DamagedError):
            cloud_of(topic).flush(PATIENCE_SECONDS)
        assert any(line["event"] == "topic_upload_stopped" for line in logs)
        assert cloud_of(topic).status.state == "stopped"
        with pytest.raises(DamagedError):
            cloud_of(topic).flush(PATIENCE_SECONDS)


def test_a_topic_that_another_broker_took_over_is_not_uploaded_any_more(stage: Stage) -> None:
    with stage.open() as storage:
        topic = storage.topics.create("default/events")
        publish(storage, topic)
        cloud_of(topic).flush(PATIENCE_SECONDS)
        registry = cloud_of(topic).registry
        newer = MetadataRegistry(registry._metadata, topic.name, topic.record.stream_id)
        head = newer.head()
        assert head is not None
        newer.claim(type(head)(**(vars(head) | {"epoch": head.epoch + 1})))
        publish(storage, topic)
        with pytest.raises(StaleEpochError):
            cloud_of(topic).flush(PATIENCE_SECONDS)
        assert cloud_of(topic).status.state == "stopped"
        newer.claim(newer.head() or head)
        assert [one.end_offset for one in newer.objects()] == [10]


def test_the_end_uploads_what_is_left_and_gives_offsets_back(stage: Stage) -> None:
    with stage.open() as storage:
        topic = storage.topics.create("default/events")
        publish(storage, topic)
        registry = cloud_of(topic).registry
        assert registry.head().reserved_end == STEP
    assert registry.owned.reserved_end == 10
    with stage.open() as storage:
        topic = storage.topics.get("default/events")
        head = cloud_of(topic).registry.head()
        assert (head.uploaded_end, head.object_count) == (10, 1)
        kept = json.loads(stage.objects[topic_key(topic.name, topic.record.stream_id)])
        assert kept["head"]["reserved_end"] in (STEP, 10 + STEP), "the object store never hears of less"
        assert kept["record"]["topic"] == "default/events"


def test_the_end_comes_in_bounded_time_even_if_the_store_does_not_answer(stage: Stage) -> None:
    hanging, go_on = threading.Event(), threading.Event()

    def hang(operation: str, _key: str) -> None:
        if operation == "write":
            hanging.set()
            go_on.wait(PATIENCE_SECONDS)
            raise UnavailableError("too slow")

    stage.store.before = hang
    opened = stage.open(shutdown_timeout_seconds=0.2)
    storage = opened.__enter__()
    topic = storage.topics.create("default/events")
    publish(storage, topic)
    closing = threading.Thread(target=opened.__exit__, args=(None, None, None))
    closing.start()
    assert hanging.wait(PATIENCE_SECONDS)
    go_on.set()  # a request of a real store ends by its own timeout
    closing.join(PATIENCE_SECONDS)
    assert not closing.is_alive()
    stage.store.before = lambda _operation, _key: None
    with stage.open() as storage:
        wait_until(lambda: storage.topics.get("default/events").opened_log is not None)
        assert cloud_of(storage.topics.get("default/events")).flush(PATIENCE_SECONDS) == 10


def test_what_an_earlier_run_left_is_uploaded_though_nobody_uses_the_topic(stage: Stage) -> None:
    settings = stage.settings()
    without = settings.model_copy(update={"uploader": settings.uploader.model_copy(update={"enabled": False})})
    with IcebergStorage(without) as storage:
        topic = storage.topics.create("default/events")
        publish(storage, topic, 100, 600)
        publish(storage, topic, 100, 600)  # in a second segment
        with pytest.raises(InvalidRequestError):
            cloud_of(topic).flush()
    with stage.open() as storage:
        topic = storage.topics.get("default/events")
        wait_until(lambda: topic.opened_log is not None and uploaded(topic))


def test_no_offset_is_given_out_before_it_is_reserved(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any) -> None:
        raise UnavailableError("the metadata store is away")

    with stage.open() as storage:
        topic = storage.topics.create("default/events")
        with monkeypatch.context() as patched:
            patched.setattr(MetadataRegistry, "claim", away)
            with pytest.raises(UnavailableError) as raised:
                publish(storage, topic)
            assert raised.value.retryable
        publish(storage, topic)
        topic.log.offset_limit = 15
        with monkeypatch.context() as patched:
            patched.setattr(MetadataRegistry, "update", away)
            with pytest.raises(UnavailableError, match="not reserved"):
                publish(storage, topic)
            publish(storage, topic, 5)
        wait_until(lambda: topic.log.offset_limit > STEP)
        publish(storage, topic)
        assert cloud_of(topic).registry.head().reserved_end == topic.log.offset_limit


def test_the_object_store_hears_of_a_record_that_has_changed(stage: Stage) -> None:
    with stage.open() as storage:
        topic = storage.topics.create("default/events")
        publish(storage, topic)
        storage.topics.update("default/events", {"retention_minutes": 7})
        key = topic_key(topic.name, topic.record.stream_id)

        def known() -> Any:
            return json.loads(stage.objects[key])["record"]["retention_minutes"] if key in stage.objects else None

        wait_until(lambda: known() == 7)


def test_a_deleted_topic_leaves_nothing_and_goes_on_where_the_store_refused(stage: Stage) -> None:
    with stage.open() as storage:
        topic = storage.topics.create("default/events")
        for _ in range(3):
            publish(storage, topic)
            cloud_of(topic).flush(PATIENCE_SECONDS)
        left = iter([True, False])

        def refuse(operation: str, _key: str) -> None:
            if operation == "delete" and not next(left, True):
                raise UnavailableError("no")

        stage.store.before = refuse
        storage.delete("default/events")
        assert stage.objects
        stage.store.before = lambda _operation, _key: None
        storage.topics.deletions.finish_all()
        assert not stage.objects
        assert cloud_of(topic).registry.head() is None
        assert cloud_of(topic).registry.objects() == []
        again = storage.topics.create("default/events")
        publish(storage, again)
        assert cloud_of(again).flush(PATIENCE_SECONDS) == 10


def test_a_topic_is_deleted_while_it_is_uploaded(stage: Stage) -> None:
    uploading, go_on = threading.Event(), threading.Event()

    def wait(operation: str, _key: str) -> None:
        if operation == "write":
            uploading.set()
            go_on.wait(PATIENCE_SECONDS)

    with stage.open() as storage:
        topic = storage.topics.create("default/events")
        publish(storage, topic)
        stage.store.before = wait
        cloud = cloud_of(topic)
        with pytest.raises(DeadlineError):
            cloud.flush(0.0)
        assert uploading.wait(PATIENCE_SECONDS)
        deleting = threading.Thread(target=storage.delete, args=("default/events",))
        deleting.start()
        go_on.set()
        deleting.join(PATIENCE_SECONDS)
        assert not deleting.is_alive()
        assert not stage.objects


def test_segments_are_rotated_and_pruned_while_they_are_uploaded(stage: Stage) -> None:
    with stage.open() as storage:
        topic = storage.topics.create("default/events")
        done = threading.Event()

        def prune() -> None:
            while not done.is_set():
                topic.log.prune(cloud_of(topic).uploaded_end)

        pruning = threading.Thread(target=prune)
        _ = topic.log
        pruning.start()
        try:
            for _ in range(60):
                publish(storage, topic, 20, 1_000)
            assert cloud_of(topic).flush(PATIENCE_SECONDS) == 1_200
        finally:
            done.set()
            pruning.join()
        offset = 0
        for one in cloud_of(topic).registry.objects():
            assert one.first_offset == offset
            offset = one.end_offset
        assert offset == 1_200
        assert topic.log.start_offset > 0


def test_a_topic_is_uploaded_to_a_real_s3_server(tmp_path: Path, s3_server: S3Server) -> None:
    settings = Settings.model_validate(
        {
            "data_dir": tmp_path,
            "wal": {"max_file_size": 1 << 20},
            "cloud": {
                "backend": "s3",
                "root": f"s3://{s3_server.bucket}/{tmp_path.name}",
                "region": REGION,
                "endpoint": s3_server.url,
                "access_key": ACCESS_KEY,
                "secret_key": SECRET_KEY,
            },
            "uploader": {"enabled": True, "interval_seconds": NEVER, "max_object_mb": 2},
        }
    )
    with IcebergStorage(settings) as storage:
        topic = storage.topics.create("default/events")
        for _ in range(8):
            publish(storage, topic, 500, 1_000)
        cloud = cloud_of(topic)
        assert cloud.flush(PATIENCE_SECONDS) == 4_000
        for one in cloud.registry.objects():
            found = cloud.store.stat(one.key)
            assert found is not None
            assert found.size == one.size
        assert cloud.registry.head().object_count >= 2
        storage.delete("default/events")
        assert list(cloud.store.list("")) == []
