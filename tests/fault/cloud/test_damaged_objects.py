"""One flipped bit anywhere in an object: right data, or an error that names the object; never other data."""

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cloud_objects import CloudStage
from tests.reading import pairs

from icestream.cloud import FOOTER_BYTES, ObjectDescriptor
from icestream.model.errors import DamagedError
from icestream.model.frames import HEADER_BYTES

SOAK = bool(os.environ.get("ICESTREAM_SOAK"))
SEED = 20_261_116
FLIPS = 20
MESSAGES = 60
Messages = list[tuple[int, bytes]]


class Uploaded:
    """A topic whose log keeps only the end of it. The first of its objects is the one that is damaged."""

    def __init__(self, path: Path, *, committed: int, inline: bool) -> None:
        self.stage = CloudStage(path)
        self.messages: Messages = []
        for first in range(0, MESSAGES, 3):  # bodies of all lengths, so that there is padding
            payloads = [b"%d " % offset + b"x" * (offset * 7) for offset in range(first, first + 3)]
            self.stage.publish(payloads)
            self.messages += list(enumerate(payloads, first))
        made = self.stage.upload(MESSAGES // 2, inline=inline, index_interval=512)
        assert made is not None
        self.object: ObjectDescriptor = made
        self.stage.upload()
        if committed:
            self.stage.commit(committed)
        self.stage.prune_to(MESSAGES)
        assert self.stage.topic.log.start_offset > MESSAGES // 2
        self.sound = self.stage.store.objects[made.key]
        self.positions = self._positions()

    def _positions(self) -> dict[str, range]:
        made, size = self.object, len(self.sound)
        index_bytes = int.from_bytes(self.sound[-FOOTER_BYTES + 16 : -FOOTER_BYTES + 24], "little")
        return {
            "the first header": range(HEADER_BYTES),
            "frames": range(made.data_bytes),
            "the index": range(made.data_bytes, made.data_bytes + index_bytes),
            "the description": range(made.data_bytes + index_bytes, size - FOOTER_BYTES),
            "the footer": range(size - FOOTER_BYTES, size),
        }

    def read_with_flip(self, position: int, bit: int, start: int) -> tuple[Messages, DamagedError | None]:
        """What a reader finds that has never seen the object before, and what stopped it."""
        store, key = self.stage.store, self.object.key
        store.objects[key] = self.sound
        store.flip(key, position, bit)
        self._forget()
        reader = self.stage.reader(start)
        found: Messages = []
        try:
            while batches := reader.read(2_000):
                found += [pair for batch in batches for pair in pairs(batch)]
        except DamagedError as error:
            return found, error
        finally:
            reader.close()
        return found, None

    def _forget(self) -> None:
        tier: Any = self.stage.topic._cloud_tier
        tier._failures._known.clear()
        tier._pool.indexes._kept.clear()


@pytest.fixture(scope="module", params=[True, False], ids=["inline-index", "index-in-object"])
def alone(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Uploaded]:
    """No table has the messages."""
    made = Uploaded(tmp_path_factory.mktemp("alone"), committed=0, inline=request.param)
    yield made
    made.stage.close()


@pytest.fixture(scope="module")
def with_table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Uploaded]:
    """The table has all that is in the objects."""
    made = Uploaded(tmp_path_factory.mktemp("table"), committed=MESSAGES, inline=True)
    yield made
    made.stage.close()


def flips(uploaded: Uploaded, region: str) -> Iterator[tuple[int, int, int]]:
    """Bits to flip, and where to start reading."""
    chosen = random.Random(f"{SEED} {region}")
    positions = uploaded.positions[region]
    for position in positions if SOAK else [chosen.choice(positions) for _ in range(FLIPS)]:
        yield position, chosen.randrange(8), chosen.choice([0, chosen.randrange(MESSAGES // 2)])


@pytest.mark.parametrize("region", ["the first header", "frames", "the index", "the description", "the footer"])
def test_a_flip_is_told_or_does_not_matter(alone: Uploaded, region: str) -> None:
    told = 0
    for position, bit, start in flips(alone, region):
        found, error = alone.read_with_flip(position, bit, start)
        assert found == alone.messages[start : start + len(found)], (position, bit, start)
        if error is None:
            assert start + len(found) == MESSAGES
            continue
        told += 1
        assert error.details["object"] == alone.object.key
        assert error.details["first_offset"] <= start + len(found) < error.details["end_offset"] == MESSAGES // 2
        assert error.details["position"] <= position < alone.object.data_bytes
    assert (told > 0) == (region in ("the first header", "frames"))  # behind the frames nothing is needed to read them


def test_every_flip_in_frames_that_are_read_is_told(alone: Uploaded) -> None:
    for position, bit, _ in flips(alone, "frames"):
        found, error = alone.read_with_flip(position, bit, 0)
        assert error is not None
        assert found == alone.messages[: len(found)]


@pytest.mark.parametrize("region", ["the first header", "frames", "the index", "the footer"])
def test_with_a_table_a_flip_does_not_matter(with_table: Uploaded, region: str) -> None:
    for position, bit, start in flips(with_table, region):
        assert with_table.read_with_flip(position, bit, start) == (with_table.messages[start:], None)


def test_an_object_that_ends_anywhere_is_told(alone: Uploaded) -> None:
    chosen = random.Random(SEED)
    store, key, end = alone.stage.store, alone.object.key, alone.object.data_bytes
    for length in range(end) if SOAK else [0, 1, end - 1, *(chosen.randrange(end) for _ in range(FLIPS))]:
        store.objects[key] = alone.sound[:length]
        alone._forget()
        reader = alone.stage.reader(0)
        with pytest.raises(DamagedError) as caught:
            reader.read()
        assert caught.value.details["object"] == key
        reader.close()
