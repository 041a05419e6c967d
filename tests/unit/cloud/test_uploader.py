"""The uploader under damage, gaps, other owners and lost notes."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.fault.cloud.uploads import DIRECTORY, STREAM_ID, TOPIC, World
from tests.memory_objects import MemoryObjects

from icestream.cloud import ObjectMap, UploadHead, read_trailer
from icestream.cloud.object import ObjectName, object_key
from icestream.cloud.object_builder import LogPosition, ObjectBuilder
from icestream.metadata import keys
from icestream.metadata.store import OutcomeUnknownError
from icestream.model.errors import ConflictError, DamagedError, StaleEpochError, UnavailableError
from icestream.model.messages import Encoding
from icestream.storage.cloud.log_source import NOTES_FILE, LogSource
from icestream.storage.cloud.registry import MetadataRegistry
from icestream.storage.verify.cloud import ObjectCheck
from icestream.wal import LocalFiles, Log, LogContext, LogOptions, StreamInfo, prepare
from icestream.wal.repair import repair_directory
from icestream.wal.segment import segment_path


def flip(world: World, path: Path, position: int) -> None:
    file = world.disk.open(path)
    byte = file.read(1, position)
    file.write([bytes([byte[0] ^ 1])], position)
    file.close()


def test_objects_are_cut_at_the_largest_size_and_hold_the_segments_bytes() -> None:
    world = World(max_object_bytes=3_000)
    world.publish(60)
    made = world.upload()
    world.check()
    assert len(made) > 2
    assert max(one.data_bytes for one in made) <= 3_000
    assert any(len(one.parts) > 1 for one in made), "none of them has frames of two segments"
    segment = world.disk.read_bytes(segment_path(DIRECTORY, 0))
    first = world.objects[made[0].key][: made[0].data_bytes]
    assert segment[64:].startswith(first[: made[0].part_end(made[0].parts[0])])


def test_a_frame_larger_than_an_object_and_a_read_is_shipped_alone() -> None:
    world = World(max_object_bytes=500)
    world.publish(2)
    text = b"y" * 1_500
    world.log.append(prepare(text, message_count=1, encoding=Encoding.ARROW_IPC, producer="p", sequence=2))
    world.expected.append(text)
    world.publish(2)
    assert len(world.upload()) >= 3
    world.check()


def test_nothing_to_ship_makes_no_object_and_asks_the_store_for_nothing() -> None:
    world = World()
    world.publish(3)
    world.upload()
    steps = world.steps
    assert world.uploader.cycle() is None
    assert world.steps == steps


def test_damage_in_the_log_is_told_and_nothing_of_the_object_is_shipped() -> None:
    world = World(max_object_bytes=100_000)
    world.publish(30)
    flip(world, segment_path(DIRECTORY, 0), 700)
    with pytest.raises(DamagedError, match="affected and not uploaded") as raised:
        world.uploader.cycle()
    assert str(segment_path(DIRECTORY, 0)) in raised.value.place
    assert not world.objects
    assert world.described() == []


def test_an_object_that_the_store_garbled_is_not_described_but_sent_again() -> None:
    world = World()
    world.publish(5)
    store = world.store
    keep = store.store

    def garble(key: str, data: bytes, *, exclusive: bool = False) -> None:
        keep(key, data[:-1] + b"?", exclusive=exclusive)

    store.store = garble  # type: ignore[method-assign]
    with pytest.raises(UnavailableError, match="does not hold the object as it was sent"):
        world.uploader.cycle()
    assert world.described() == []
    store.store = keep  # type: ignore[method-assign]
    world.may_send_again = True
    world.upload()
    world.check()


def test_a_log_pruned_past_the_head_goes_on_at_its_start_and_takes_older_objects_off_the_record() -> None:
    world = World(max_object_bytes=800)
    world.publish(10)
    old = world.upload()
    assert len(old) > 1
    world.publish(40)
    world.log.prune(world.log.durable_end)
    start = world.log.start_offset
    assert start > world.head().uploaded_end
    made = world.upload()
    assert made[0].first_offset == start
    assert world.head().first_offset == start
    assert not set(world.objects) & {one.key for one in old}
    world.check()


def test_a_topic_without_a_table_never_leaves_a_gap() -> None:
    world = World()
    world.publish(3)
    world.upload()
    world.publish(40)
    world.log.prune(world.log.durable_end)
    uploader = world.make_uploader(has_table=False)
    with pytest.raises(DamagedError, match="messages before it are not uploaded"):
        uploader.cycle()
    assert len(world.described()) == 1


def test_notes_ahead_of_the_metadata_store_are_an_error_that_says_so() -> None:
    world = World()
    world.publish(20)
    world.upload()
    world.metadata.put(keys.cloud_head(TOPIC), UploadHead(str(STREAM_ID), 1).to_bytes())
    for one in world.described():
        world.metadata.delete(keys.cloud_object(TOPIC, one.first_offset))
    world.start()
    with pytest.raises(ConflictError, match="set back to an older state") as raised:
        world.uploader.cycle()
    assert not raised.value.retryable
    assert NOTES_FILE in str(raised.value)
    # Without the notes, the objects are found in the store and described anew; none is sent.
    world.disk.on_operation = None
    world.disk.remove(DIRECTORY / NOTES_FILE)
    world.start()
    world.upload()
    world.check()
    assert not world.store.finished


def test_damaged_notes_are_made_anew_and_nothing_is_sent_again() -> None:
    world = World()
    world.publish(20)
    world.upload()
    flip(world, DIRECTORY / NOTES_FILE, 5)
    world.start()
    world.publish(3)
    assert sum(one.frame_count for one in world.upload()) == 3
    world.check()


def test_a_new_owner_describes_or_removes_what_the_last_one_left() -> None:
    world = World(max_object_bytes=100_000)
    world.publish(9)
    world.upload()
    world.publish(6)
    prefix_offsets = [(9, 12), (9, 15), (12, 14)]
    for first, end in prefix_offsets:  # none of them is an object that the log would make
        world.objects[object_key(TOPIC, str(STREAM_ID), ObjectName(first, end, 1))] = b"rubbish"
    later = object_key(TOPIC, str(STREAM_ID), ObjectName(9, 12, 7))
    beyond = object_key(TOPIC, str(STREAM_ID), ObjectName(14, 99, 1))
    world.objects[later] = world.objects[beyond] = b"not ours"
    world.registry.claim(replace(world.head(), epoch=2))
    world.start()
    world.may_send_again = True
    world.upload()
    assert world.objects.pop(later) == b"not ours", "an object of a later owner was touched"
    assert world.objects.pop(beyond) == b"not ours", "an object that the log does not have was touched"
    world.check()


def test_an_owner_of_the_past_can_describe_nothing() -> None:
    world = World()
    world.publish(5)
    world.upload()
    newer = MetadataRegistry(world.metadata, TOPIC, str(STREAM_ID))
    newer.claim(replace(world.head(), epoch=2))
    world.publish(5)
    with pytest.raises(StaleEpochError):
        world.uploader.cycle()
    with pytest.raises(StaleEpochError):
        world.uploader.cycle()
    assert world.head().uploaded_end == 5
    assert len(world.described()) == 1


def test_a_change_that_came_through_late_is_not_taken_for_another_owner() -> None:
    world = World()
    world.publish(5)
    world.metadata.put(keys.cloud_head(TOPIC), replace(world.head(), reserved_end=77).to_bytes())
    with pytest.raises(ConflictError) as raised:
        world.registry.update(replace(world.head(), reserved_end=99))
    assert raised.value.retryable
    world.upload()
    world.check()
    assert world.head().reserved_end == 77


def test_a_claim_that_the_last_owner_was_quicker_than_is_tried_again() -> None:
    world = World()
    world.publish(5)
    newer = MetadataRegistry(world.metadata, TOPIC, str(STREAM_ID))
    head = world.head()
    world.upload()
    with pytest.raises(ConflictError) as raised:
        newer.claim(replace(head, epoch=2))
    assert raised.value.retryable
    read = newer._read

    def read_and_be_late() -> tuple[UploadHead | None, int]:
        found = read()
        world.publish(1)
        world.upload()
        newer._read = read  # type: ignore[method-assign]
        return found

    newer._read = read_and_be_late  # type: ignore[method-assign]
    with pytest.raises(ConflictError) as raised:
        newer.claim(replace(world.head(), epoch=2))
    assert raised.value.retryable
    newer.claim(replace(world.head(), epoch=2))
    assert world.head().epoch == 2


def test_the_records_of_an_earlier_topic_of_that_name_do_not_stand_in_the_way() -> None:
    world = World()
    world.publish(5)
    world.upload()
    other = "another-stream"
    newer = MetadataRegistry(world.metadata, TOPIC, other)
    with pytest.raises(StaleEpochError, match="another stream"):
        newer.claim(UploadHead(other, 1))  # the topic's record does not say that the name is this stream's
    record = b'{"topic":"default/events","stream_id":"another-stream","created_us":1}'
    world.metadata.put(keys.topic(TOPIC), record)
    newer.claim(UploadHead(other, 1))
    assert newer.objects() == []
    assert ObjectMap(newer).first_offset is None
    with pytest.raises(StaleEpochError):
        world.registry.update(UploadHead(str(STREAM_ID), 1))


def test_stores_that_share_objects_see_each_others() -> None:
    objects: dict[str, bytes] = {}
    MemoryObjects(objects).put("a", b"1")
    assert MemoryObjects(objects).read("a", 0, 1) == b"1"


def test_the_head_is_never_read_anew_while_somebody_changes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their change, made from the head as it was before, would pass for one of the head as it is now."""
    world = World()
    changing = world.uploader._changing
    real, held = world.registry.refresh, []

    def refresh() -> UploadHead:
        held.append(changing.locked())
        return real()

    monkeypatch.setattr(world.registry, "refresh", refresh)
    world.publish(5)
    assert world.upload()
    assert held
    assert all(held)


def test_an_object_whose_publication_had_no_response_is_in_the_object_map() -> None:
    world = World(max_object_bytes=1_000)
    world.publish(10)
    assert world.uploader.cycle() is not None
    before = world.map.end_offset
    transaction = world.metadata.transaction

    def unknown(*arguments: Any) -> Any:
        transaction(*arguments)
        patched.setattr(world.metadata, "get", away)  # so the registry cannot find out either
        raise OutcomeUnknownError("no response")

    def away(_key: str) -> Any:
        raise UnavailableError("no response")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(world.metadata, "transaction", unknown)
        with pytest.raises(UnavailableError):
            world.uploader.cycle()
    assert world.head().uploaded_end > before
    world.upload()
    assert world.map.span_at(before) is not None
    world.check()


def test_a_time_is_found_in_an_object_with_lost_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icestream.cloud.object_builder.INDEX_INTERVAL_BYTES", 300)
    times = itertools.count(1_000)
    options = LogOptions(max_file_bytes=2_000, preallocate_bytes=0)
    context = LogContext(LocalFiles(), options=options, clock=lambda: next(times))
    log = Log.create(context, tmp_path, StreamInfo(str(TOPIC), STREAM_ID))
    for number in range(24):
        text = b"%d %s" % (number, b"x" * 150)
        log.append(prepare(text, message_count=1, encoding=Encoding.ARROW_IPC))
    log.close()
    second = sorted(tmp_path.glob("*.log"))[1]
    data = bytearray(second.read_bytes())
    data[150] ^= 1
    second.write_bytes(data)
    assert len(repair_directory(LocalFiles(), tmp_path).lost) == 1
    world = World()
    log = Log.open(context, tmp_path)
    builder = ObjectBuilder(TOPIC, str(STREAM_ID), LogSource(log), world.store)
    log_range = builder.source.plan(0, LogPosition(0, 0), None)
    assert log_range is not None
    world.may_send_again = True  # the object is none of the world's topic
    descriptor = builder.build(object_key(TOPIC, "other", ObjectName(0, log_range.end_offset, 1)), log_range)
    log.close()
    index = read_trailer(world.store, descriptor).index
    frames = list(ObjectCheck(world.store, descriptor, index))
    assert [frame.publish_time_us for _, frame in frames].count(0) == 1
    for position, frame in frames:
        if frame.publish_time_us:
            assert (index.position_of_time(frame.publish_time_us) or 0) <= position
