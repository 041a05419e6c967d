"""An offset that any message may have had is never given to another one, whatever was away or switched off."""

import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.cloud_objects import FragileStore
from tests.unit.storage.disaster import PATIENCE, TOPIC, Disaster, publish, rows, storage

from icestream.cloud import UploadHead
from icestream.cloud.object import topic_key
from icestream.metadata import keys, open_metadata_store
from icestream.model.errors import StaleEpochError, UnavailableError
from icestream.model.frames import Bytes
from icestream.model.messages import Frame
from icestream.model.names import TopicName
from icestream.storage import Topic
from icestream.storage.cloud import MetadataRegistry, reservation
from icestream.storage.cloud.discovery import TopicFile
from icestream.storage.cloud.reservation import STEP

OFF: list[dict[str, object]] = [{"uploader__enabled": False}, {"cloud__backend": None, "uploader__enabled": False}]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


def reserved_end(path: Path) -> int:
    with open_metadata_store(sqlite_path=path / "metadata.db") as metadata:
        entry = metadata.get(keys.cloud_head(TopicName.parse(TOPIC)))
    return UploadHead.from_bytes(entry.value).reserved_end if entry is not None else 0


def away(*_: object) -> Any:
    raise UnavailableError("it is away")


# Uploads are switched off for a while


@pytest.mark.parametrize("off", OFF)
def test_what_came_while_nothing_was_uploaded_is_told_as_lost(
    tmp_path: Path, objects: FragileStore, off: dict[str, object]
) -> None:
    with storage(tmp_path) as store:
        store.topics.create(TOPIC)
        publish(store, 3)
        kept = rows(store)
    assert reserved_end(tmp_path) == 3
    with storage(tmp_path, **off) as store:
        seen = publish(store, 2)
        assert reserved_end(tmp_path) == store.topic(TOPIC).log.offset_limit == 3 + STEP
    shutil.rmtree(tmp_path / "wal")
    with storage(tmp_path) as store:
        report = store.recover_topic(TOPIC)
        assert (report.lost_first, report.lost_end) == (3, 3 + STEP)
        assert publish(store, 1).start >= seen.stop
        assert rows(store).keys() == kept.keys() | {3 + STEP}
    assert objects.objects


def test_uploads_that_are_switched_on_again_give_it_back(tmp_path: Path, objects: FragileStore) -> None:
    for options in ({}, OFF[0], OFF[1], {}):
        with storage(tmp_path, **options) as store:
            store.topics.create(TOPIC, if_not_exists=True)
            publish(store, 3)
    assert reserved_end(tmp_path) == 12
    shutil.rmtree(tmp_path / "wal")
    with storage(tmp_path) as store:
        assert store.recover_topic(TOPIC).message == "nothing is lost"
        assert rows(store).keys() == set(range(12))
    assert objects.objects


def test_without_uploads_it_is_moved_ahead_too(
    tmp_path: Path, objects: FragileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reservation, "_PAUSE_SECONDS", 0.01)
    with storage(tmp_path) as store:
        store.topics.create(TOPIC)
        publish(store, 3)
    with storage(tmp_path, **OFF[1]) as store:
        log = store.topic(TOPIC).log
        log.offset_limit = 5
        with monkeypatch.context() as patched:
            patched.setattr(MetadataRegistry, "update", away)
            publish(store, 2)
            with pytest.raises(UnavailableError, match="not reserved"):
                publish(store, 1)
        wait_until(lambda: log.offset_limit == 5 + STEP)
        assert reserved_end(tmp_path) == 5 + STEP
        assert publish(store, 1) == range(5, 6)
    assert objects.objects


def test_without_uploads_a_log_is_opened_only_where_it_can_be_reserved(
    tmp_path: Path, objects: FragileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with storage(tmp_path) as store:
        store.topics.create(TOPIC)
        publish(store, 3)
        stream_id = store.topic(TOPIC).record.stream_id
    with storage(tmp_path, **OFF[0]) as store:
        with monkeypatch.context() as patched:
            patched.setattr(MetadataRegistry, "claim", away)
            with pytest.raises(UnavailableError):
                publish(store, 1)
        assert publish(store, 1) == range(3, 4)
    with open_metadata_store(sqlite_path=tmp_path / "metadata.db") as metadata:
        registry = MetadataRegistry(metadata, TopicName.parse(TOPIC), stream_id)
        head = registry.head()
        assert head is not None
        registry.claim(replace(head, epoch=2))
    with storage(tmp_path, **OFF[0]) as store, pytest.raises(StaleEpochError):
        publish(store, 1)
    assert objects.objects


def test_without_uploads_a_log_that_another_broker_took_over_stores_nothing_more(
    tmp_path: Path, objects: FragileStore
) -> None:
    with storage(tmp_path) as store:
        stream_id = store.topics.create(TOPIC).record.stream_id
        publish(store, 3)
    with storage(tmp_path, **OFF[0]) as store:
        log = store.topic(TOPIC).log
        with open_metadata_store(sqlite_path=tmp_path / "metadata.db") as metadata:
            registry = MetadataRegistry(metadata, TopicName.parse(TOPIC), stream_id)
            head = registry.head()
            assert head is not None
            registry.claim(replace(head, epoch=2))
        log.offset_limit = 100  # less than half a step: the next commit renews the reservation
        publish(store, 1)
        wait_until(lambda: log.taken_over is not None)
        with pytest.raises(StaleEpochError, match="another broker owns the topic now"):
            publish(store, 1)
    assert objects.objects


def test_a_reservation_whose_thread_cannot_start_is_renewed_with_a_later_commit(
    tmp_path: Path, objects: FragileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with storage(tmp_path) as store:
        store.topics.create(TOPIC)
        publish(store, 3)
    with storage(tmp_path, **OFF[0]) as store:
        log = store.topic(TOPIC).log
        log.offset_limit = 100
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            assert publish(store, 1) == range(3, 4)
        assert publish(store, 1) == range(4, 5)
        wait_until(lambda: log.offset_limit == 5 + STEP)
    assert objects.objects


def test_a_topic_that_was_never_uploaded_is_not_limited(tmp_path: Path, objects: FragileStore) -> None:
    with storage(tmp_path, **OFF[0]) as store:
        store.topics.create(TOPIC)
        publish(store, 1)
        assert store.topic(TOPIC).log.offset_limit > 1 << 60
    assert reserved_end(tmp_path) == 0
    assert not objects.objects


# The object store is away, and the metadata store is lost afterwards


def test_a_restart_without_the_object_store_leaves_nothing_wrong_there(
    tmp_path: Path, objects: FragileStore, disaster: Disaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with storage(tmp_path) as store:
        topic = store.topics.create(TOPIC)
        publish(store, 3)
        name, stream_id = topic.name, topic.record.stream_id
    file = TopicFile.read(objects, name, stream_id)
    assert file is not None
    assert file.head.reserved_end >= STEP, "what was given back is not for the object store"
    with monkeypatch.context() as patched:
        patched.setattr(FragileStore, "put", away)
        patched.setattr(FragileStore, "writer", away)
        store = storage(tmp_path).open()
        seen = publish(store, 2)
        disaster.strike(store, keep_metadata=False)
    with storage(tmp_path) as store:
        report = store.recover_topic(TOPIC)
        assert report.lost_first == 3
        assert publish(store, 1).start >= seen.stop
    assert topic_key(name, stream_id) in objects.objects


def test_of_what_is_known_of_a_reservation_the_farthest_counts(
    tmp_path: Path, objects: FragileStore, disaster: Disaster
) -> None:
    store = storage(tmp_path).open()
    topic = store.topics.create(TOPIC)
    publish(store, 3)
    topic.cloud.flush(PATIENCE)  # type: ignore[union-attr]
    file = topic_key(topic.name, topic.record.stream_id)
    disaster.strike(store, keep_metadata=False)
    objects.objects[file] = objects.objects[file].replace(b'"reserved_end":%d' % STEP, b'"reserved_end":1')
    with storage(tmp_path) as store:
        report = store.recover_topic(TOPIC)
        assert (report.lost_first, report.lost_end) == (3, 3 + STEP)
        assert any("no reservation is on record" in source for source in report.sources)


def test_a_metadata_store_that_was_set_back_does_not_set_offsets_back(
    tmp_path: Path, objects: FragileStore, disaster: Disaster
) -> None:
    with storage(tmp_path) as store:
        store.topics.create(TOPIC)
        publish(store, 3)
    shutil.copy(tmp_path / "metadata.db", tmp_path / "old")
    store = storage(tmp_path).open()
    seen = publish(store, 2)
    wait_until(lambda: b'"reserved_end":%d' % (3 + STEP) in b"".join(objects.objects.values()))
    disaster.strike(store, keep_metadata=False)
    (tmp_path / "old").rename(tmp_path / "metadata.db")
    with storage(tmp_path) as store:
        report = store.recover_topic(TOPIC)
        assert report.lost_first == report.cloud_end  # some of what was seen may have been uploaded by then
        assert 3 <= report.cloud_end <= seen.stop
        assert publish(store, 1).start >= seen.stop


# Stopping, and taking over


def test_a_message_that_is_under_way_at_the_end_keeps_its_offset(tmp_path: Path, objects: FragileStore) -> None:
    store = storage(tmp_path, uploader__shutdown_timeout_seconds=0.2).open()
    topic = store.topics.create(TOPIC)
    publish(store, 3)
    writing, go_on = hold_writes(topic)
    got: list[range] = []
    publisher = threading.Thread(target=lambda: got.append(publish(store, 1)))
    publisher.start()
    assert writing.wait(PATIENCE)
    closing = threading.Thread(target=store.close)
    closing.start()
    wait_until(lambda: reserved_end(tmp_path) < STEP or not closing.is_alive())
    go_on.set()
    closing.join(PATIENCE)
    publisher.join(PATIENCE)
    assert reserved_end(tmp_path) == 4
    shutil.rmtree(tmp_path / "wal")
    with storage(tmp_path) as again:
        assert again.recover_topic(TOPIC).next_offset == 4
    assert objects.objects


def hold_writes(topic: Topic) -> tuple[threading.Event, threading.Event]:
    """Keep the log's next write from beginning: one event says that it waits, the other lets it go on."""
    writer, writing, go_on = topic.log._segments.writer, threading.Event(), threading.Event()
    append = writer.append

    def slow(buffers: Sequence[Bytes], frames: Sequence[Frame], sizes: Sequence[int], *, durable: bool) -> None:
        writing.set()
        go_on.wait(PATIENCE)
        append(buffers, frames, sizes, durable=durable)

    writer.append = slow  # type: ignore[method-assign]
    return writing, go_on


def test_a_claim_never_sets_a_reservation_back() -> None:
    with open_metadata_store(in_memory=True) as metadata:
        name = TopicName.parse(TOPIC)
        old, new = (MetadataRegistry(metadata, name, "a-stream") for _ in range(2))
        seen = old.claim(UploadHead("a-stream", 1, reserved_end=100))
        old.update(replace(seen, reserved_end=200))
        assert new.claim(replace(seen, epoch=2)).reserved_end == 200
        assert new.head() == new.owned == replace(seen, epoch=2, reserved_end=200)
        assert new.claim(replace(seen, epoch=2, reserved_end=300)).reserved_end == 300


def test_a_recovery_gives_up_what_was_reserved_while_it_began(
    tmp_path: Path, disaster: Disaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = storage(tmp_path).open()
    store.topics.create(TOPIC)
    publish(store, 2)
    disaster.strike(store, keep_metadata=True)
    claim = MetadataRegistry.claim

    def late(registry: MetadataRegistry, head: UploadHead, *, record_revision: int) -> UploadHead:
        """The owner of the past renews between the look at the head and the claim."""
        monkeypatch.setattr(MetadataRegistry, "claim", claim)
        owner = MetadataRegistry(registry._metadata, TopicName.parse(TOPIC), head.stream_id)
        known = owner.head()
        assert known is not None
        owner.update(replace(owner.claim(known), reserved_end=5 * STEP))
        return claim(registry, head, record_revision=record_revision)

    with storage(tmp_path) as again:
        monkeypatch.setattr(MetadataRegistry, "claim", late)
        assert again.recover_topic(TOPIC).next_offset == 5 * STEP


def test_a_head_that_a_later_version_wrote_can_be_read() -> None:
    head = UploadHead("a-stream", 3, reserved_end=7)
    assert UploadHead.from_bytes(head.to_bytes().replace(b"{", b'{"unheard":1,', 1)) == head
