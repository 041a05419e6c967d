"""An object against its description: whatever differs is damage."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.cloud_objects import CloudStage

from icestream.cloud import ObjectDescriptor, read_trailer
from icestream.model.errors import DamagedError
from icestream.model.frames import SparseIndex
from icestream.storage.verify.cloud import ObjectCheck


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[CloudStage]:
    stage = CloudStage(tmp_path)
    for number in range(60):
        stage.publish([b"%d" % number + b"x" * 150] * 2)
    yield stage
    stage.close()


@pytest.fixture
def descriptor(stage: CloudStage) -> ObjectDescriptor:
    """Of an object with frames of several segments."""
    made = stage.upload()
    assert made is not None
    assert len(made.parts) > 2
    return made


def check(stage: CloudStage, descriptor: ObjectDescriptor, index: SparseIndex | None = None) -> int:
    return sum(frame.message_count for _, frame in ObjectCheck(stage.store, descriptor, index))


def test_a_sound_object_is_read_wholly(stage: CloudStage, descriptor: ObjectDescriptor) -> None:
    trailer = read_trailer(stage.store, descriptor)
    assert check(stage, descriptor, trailer.index) == 120
    read = sum(length for _, _, length in stage.store.reads)
    assert read < 2 * descriptor.size, "it is read about once"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"first_offset": 1}, "where 1 is due"),
        ({"end_offset": 119}, "the end offset is 120"),
        ({"frame_count": 61}, "the number of frames is 60"),
        ({"checksum": 7}, "the checksum of the frames"),
        ({"epoch": 0}, "a frame has the epoch 1"),
        ({"first_time_us": 1 << 61, "last_time_us": 1 << 62}, "outside of the object's times"),
    ],
)
def test_what_differs_from_the_description_is_damage(
    stage: CloudStage, descriptor: ObjectDescriptor, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(DamagedError, match=reason) as caught:
        check(stage, replace(descriptor, **changes))
    assert descriptor.key in caught.value.place


def test_frames_of_another_segment_are_not_taken_for_sound(stage: CloudStage, descriptor: ObjectDescriptor) -> None:
    first, second, *rest = descriptor.parts
    mixed = replace(descriptor, parts=(first._replace(seed=second.seed), second, *rest))
    with pytest.raises(DamagedError, match="checksum"):
        check(stage, mixed)


def test_an_index_that_points_elsewhere_is_damage(stage: CloudStage, descriptor: ObjectDescriptor) -> None:
    index = SparseIndex(4096)
    index.add(0, 8, 0)
    with pytest.raises(DamagedError, match="index does not point at its frames"):
        check(stage, descriptor, index)


def test_an_object_that_is_gone_is_damage(stage: CloudStage, descriptor: ObjectDescriptor) -> None:
    stage.store.delete(descriptor.key)
    with pytest.raises(DamagedError, match="the object is gone"):
        check(stage, descriptor)
    with pytest.raises(DamagedError, match="the object is gone"):
        read_trailer(stage.store, descriptor)
