"""Frames are read from objects by index, in ranges and ahead, and each is checked."""

import gc
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.cloud_objects import FragileStore, upload

from icestream.cloud import ObjectDescriptor, ObjectMap, SegmentPart
from icestream.cloud.reader import CloudReader, ObjectRemovedError, ReadPool, offset_at_time
from icestream.cloud.registry import StaticDescriptions
from icestream.config import ReaderSettings
from icestream.metadata import open_metadata_store
from icestream.model.errors import DamagedError, UnavailableError
from icestream.model.messages import Encoding, Frame
from icestream.model.names import TopicName
from icestream.storage.cloud import MetadataRegistry
from icestream.wal import LocalFiles, Log, LogContext, LogOptions, StreamInfo, prepare

TOPIC = "default/events"
BODY = b"x" * 1_000
PATIENCE_SECONDS = 60.0


class Objects:
    """A log of small segments, and what of it lies in the store. The clock is one microsecond ahead at each frame."""

    def __init__(self, path: Path, segment_bytes: int = 8_192, **reading: int) -> None:
        self.time_us = 1_000_000
        options = LogOptions(max_file_bytes=segment_bytes, index_interval_bytes=1_024, preallocate_bytes=0)
        context = LogContext(LocalFiles(16), options=options, clock=self._clock)
        stream = StreamInfo(TOPIC, uuid4(), 1)
        self.log = Log.create(context, path / "log", stream)
        self.store = FragileStore()
        self.registry = MetadataRegistry(
            open_metadata_store(in_memory=True), TopicName.parse(TOPIC), str(stream.stream_id)
        )
        self.map = ObjectMap(self.registry)
        self.pool = ReadPool(ReaderSettings.model_validate(reading))

    def _clock(self) -> int:
        self.time_us += 1
        return self.time_us

    def append(self, frames: int, messages: int = 3, body: bytes = BODY) -> None:
        for number in range(frames):
            payload = prepare(body + b"%d" % number, message_count=messages, encoding=Encoding.ARROW_IPC, producer="p")
            self.log.append(payload._replace(sequence=self.log.next_sequence("p")))

    def upload(self, end: int | None = None, **options: Any) -> ObjectDescriptor:
        made = upload(self.log, self.store, self.registry, self.map, end, **options)
        assert made is not None
        return made

    def reader(self, offset: int = 0, end: int | None = None) -> CloudReader:
        return CloudReader(self.map, self.store, offset, end=end, pool=self.pool)

    def close(self) -> None:
        self.pool.close()
        self.log.close()


@pytest.fixture
def objects(tmp_path: Path) -> Iterator[Objects]:
    made = Objects(tmp_path)
    yield made
    made.close()


def rest_of(reader: CloudReader, max_bytes: int = 1 << 20) -> list[Frame]:
    found: list[Frame] = []
    while frames := reader.read(max_bytes):
        found += frames
    return found


def offsets(frames: list[Frame]) -> list[int]:
    return [frame.base_offset for frame in frames]


def test_frames_come_back_as_the_log_has_them_from_object_to_object(objects: Objects) -> None:
    objects.append(20)
    objects.upload(30)
    objects.append(20)
    objects.upload()
    reader = objects.reader()
    found = rest_of(reader, max_bytes=5_000)
    assert offsets(found) == list(range(0, 120, 3))
    assert [bytes(frame.body) for frame in found] == [BODY + b"%d" % number for number in [*range(20), *range(20)]]
    assert [frame.sequence for frame in found] == list(range(0, 120, 3))
    assert reader.offset == 120
    assert reader.read() == []
    objects.append(1)
    objects.upload()
    assert offsets(reader.read()) == [120]


@pytest.mark.parametrize("inline", [True, False])
def test_an_offset_is_sought_by_the_index(objects: Objects, *, inline: bool) -> None:
    objects.append(400)
    made = objects.upload(inline=inline, index_interval=4_096)
    assert (made.index is not None) == inline
    for offset in (1, 2, 3, 599, 600, 1_199):
        objects.store.reads.clear()
        found = objects.reader(offset).read(1)
        assert found[0].base_offset <= offset < found[0].end_offset
        *trailer, (_, start, _) = objects.store.reads
        assert start > made.data_bytes * (offset - 3) / 1_200 - 6_144
        assert len(trailer) == (not inline and offset == 1)  # once read, an index is kept


def test_a_frame_larger_than_any_range_is_put_together(tmp_path: Path) -> None:
    objects = Objects(tmp_path, segment_bytes=64 << 20)
    large = b"".join(b"%07d " % number for number in range(1_200_000))
    objects.append(3, body=b"before")
    objects.append(1, body=large)
    objects.append(300, body=large[:20_000])
    objects.upload()
    found = rest_of(objects.reader())
    assert offsets(found) == list(range(0, 912, 3))
    assert bytes(found[3].body) == large + b"0"
    assert bytes(found[303].body) == large[:20_000] + b"299"
    objects.close()


def test_damage_names_object_byte_and_offsets(objects: Objects) -> None:
    objects.append(30)
    objects.upload(30)
    made = objects.upload()
    objects.store.flip(made.key, 5_000)
    reader = objects.reader(24)
    assert offsets(reader.read()) == [24, 27]
    assert reader.read()[0].base_offset == 30  # what is sound before the damage is read
    with pytest.raises(DamagedError, match="checksum") as caught:
        reader.read()
    error = caught.value
    assert error.place.startswith(f"{made.key} at byte ")
    assert error.details["first_offset"] == reader.offset
    assert 30 < error.details["first_offset"] < error.details["end_offset"] == 90
    assert error.details["position"] <= 5_000


def test_an_object_that_is_cut_short_or_gone_is_damaged(objects: Objects) -> None:
    objects.append(30)
    made = objects.upload(inline=False)
    whole = objects.store.objects[made.key]
    objects.store.objects[made.key] = whole[:20_000]
    with pytest.raises(DamagedError, match="shorter"):
        rest_of(objects.reader())
    del objects.store.objects[made.key]
    for offset in (0, 50):
        with pytest.raises(DamagedError, match="missing") as caught:
            rest_of(objects.reader(offset))
        assert caught.value.details["object"] == made.key


def test_frames_of_another_object_are_not_taken_for_its_own(objects: Objects) -> None:
    objects.append(30)
    first, second = objects.upload(45), objects.upload()
    objects.store.objects[second.key] = objects.store.objects[first.key].ljust(second.size, b"\0")
    with pytest.raises(DamagedError):
        rest_of(objects.reader(45))


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"first_offset": 1}, "begins with offset 0"),
        ({"end_offset": 91}, "last offset"),
        ({"epoch": 0}, "epoch 1"),
    ],
)
def test_an_object_that_is_not_as_described_is_damaged(objects: Objects, wrong: dict[str, int], reason: str) -> None:
    objects.append(30)
    described = replace(objects.upload(), **wrong)  # type: ignore[arg-type]
    reader = CloudReader(
        ObjectMap(StaticDescriptions([described])), objects.store, described.first_offset, pool=objects.pool
    )
    with pytest.raises(DamagedError, match=reason):
        rest_of(reader)


def test_a_frame_ends_where_its_part_ends(objects: Objects) -> None:
    objects.append(3)
    made = objects.upload()
    (part,) = made.parts
    described = replace(made, parts=(part, SegmentPart(2_000, part.seed)))
    reader = CloudReader(ObjectMap(StaticDescriptions([described])), objects.store, 0, pool=objects.pool)
    with pytest.raises(DamagedError, match="past the end of its part"):
        rest_of(reader)


def test_what_retention_takes_under_a_reader_is_no_damage(objects: Objects) -> None:
    objects.append(30, body=bytes(100_000))
    made = objects.upload()
    reader = objects.reader()
    assert reader.read()
    objects.map.remove_before(made.end_offset)
    objects.store.delete(made.key)
    with pytest.raises(ObjectRemovedError):
        rest_of(reader)


def test_without_a_sound_index_the_frames_are_walked_over(objects: Objects) -> None:
    objects.append(30)
    made = objects.upload(inline=False)
    objects.store.flip(made.key, made.data_bytes + 30)
    assert offsets(objects.reader(50).read()) == list(range(48, 90, 3))


def test_what_retention_took_is_no_damage(objects: Objects) -> None:
    objects.append(30)
    made = objects.upload(45)
    objects.upload()
    reader = objects.reader()
    assert offsets(reader.read(1)) == [0]
    other = ObjectMap(objects.registry)
    assert other.first_offset == 0
    head = objects.registry.head()
    assert head is not None
    objects.registry.remove([made], head)
    objects.store.delete(made.key)
    with pytest.raises(ObjectRemovedError):
        CloudReader(objects.map, objects.store, 6, pool=objects.pool).read()
    assert objects.map.first_offset == 45  # looked at anew
    with pytest.raises(ObjectRemovedError):
        CloudReader(other, objects.store, 6, pool=objects.pool).read()
    assert objects.reader(6).read() == []


def test_after_an_error_a_reader_goes_on_where_it_was(objects: Objects) -> None:
    objects.append(30)
    objects.upload(45)
    objects.upload()
    reader = objects.reader()
    found = reader.read(1 << 20)
    objects.store.is_away = True
    with pytest.raises(UnavailableError):
        reader.read()
    objects.store.is_away = False
    assert offsets(found + rest_of(reader)) == list(range(0, 90, 3))


def test_times_are_found_in_objects(objects: Objects) -> None:
    objects.append(300, messages=2)
    for end in (100, 200, 400, 600):
        objects.upload(end)
    frames = rest_of(objects.reader())
    for frame in (frames[0], frames[1], frames[57], frames[100], frames[299]):
        found = offset_at_time(objects.map, objects.store, objects.pool, frame.publish_time_us)
        assert found == frame.base_offset
    last = frames[-1].publish_time_us
    assert offset_at_time(objects.map, objects.store, objects.pool, 0) == 0
    assert offset_at_time(objects.map, objects.store, objects.pool, last + 1) is None


def test_reading_ahead_is_bounded_and_given_back(tmp_path: Path) -> None:
    ahead, everybody = 2 << 20, 12 << 20
    objects = Objects(tmp_path, 64 << 20, cloud_prefetch_bytes=ahead, cloud_prefetch_max_bytes=everybody)
    objects.append(60, body=bytes(1 << 20))
    objects.upload()
    readers = [objects.reader() for _ in range(4)]
    for reader in readers:
        for _ in range(4):
            reader.read()
        assert objects.pool.free_bytes >= 0
        if reader is readers[0]:  # the last range that is begun may be more than there was room for
            assert objects.pool.free_bytes >= everybody - ahead - (4 << 20)
    assert objects.pool.free_bytes < everybody
    for reader in readers:
        assert len(rest_of(reader)) >= 50
    readers[0].close()
    del reader, readers
    gc.collect()
    assert objects.pool.free_bytes == everybody
    objects.close()


def test_the_first_range_is_small_and_read_alone(objects: Objects) -> None:
    objects.append(30, body=bytes(100_000))
    objects.upload(30)
    objects.upload()
    reader = objects.reader()
    reader.read(1)
    assert [length for _, _, length in objects.store.reads] == [512 << 10]


def test_a_reader_does_not_wait_for_the_reads_of_others(tmp_path: Path) -> None:
    objects = Objects(tmp_path, 64 << 20, cloud_threads=1)
    objects.append(400, body=bytes(100_000))
    objects.upload()
    blocked, release = threading.Event(), threading.Event()

    def hold(_key: str, _start: int) -> None:
        if threading.current_thread().name.startswith("cloud-read"):
            blocked.set()
            release.wait(PATIENCE_SECONDS)

    objects.store.reading = hold
    slow = objects.reader()
    found = slow.read() + slow.read()
    assert blocked.wait(PATIENCE_SECONDS)  # the only thread is busy with what the slow reader has not asked for yet
    assert len(rest_of(objects.reader(600))) == 200
    release.set()
    assert offsets(found + rest_of(slow)) == list(range(0, 1_200, 3))
    objects.close()


def test_objects_past_the_end_are_left_alone(objects: Objects) -> None:
    objects.append(30)
    keys = [objects.upload(end).key for end in (30, 60, 90)]
    assert offsets(rest_of(objects.reader(end=60))) == list(range(0, 60, 3))
    assert keys[2] not in {key for key, _, _ in objects.store.reads}


def test_an_object_that_was_found_already_is_not_added_twice(objects: Objects) -> None:
    objects.append(20)
    made = objects.upload(30)
    objects.map.add(made)
    assert [span.first_offset for span in objects.map.spans] == [0]
    objects.upload()
    assert [span.first_offset for span in objects.map.spans] == [0, 30]
