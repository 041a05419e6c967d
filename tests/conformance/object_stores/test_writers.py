"""An object is created whole or not at all, and once."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from icestream.cloud import ObjectStore
from icestream.model.errors import ClosedError, ObjectExistsError, UnavailableError

MIB = 1024 * 1024
WRITERS = 8
SIZES = {"small": 1000, "in-parts": 11 * MIB}


def test_a_large_object_comes_back_whole(store: ObjectStore) -> None:
    rng = random.Random(3)
    content = rng.randbytes(20 * MIB + 12_345)
    writer = store.writer("large")
    start = 0
    while start < len(content):
        end = start + rng.choice([1, 100, 65_536, 3 * MIB, 7 * MIB])
        writer.write(memoryview(content)[start:end])
        start = end
    writer.finish()
    info = store.stat("large")
    assert info is not None
    assert info.size == len(content)
    assert store.read("large", 0, len(content)) == content
    for _ in range(10):
        first = rng.randrange(len(content))
        length = min(rng.choice([1, 1000, 6 * MIB]), len(content) - first)
        assert store.read("large", first, length) == content[first : first + length]


def test_any_kind_of_bytes_is_written(store: ObjectStore) -> None:
    writer = store.writer("key")
    for data in (b"ab", bytearray(b"cd"), memoryview(b"..ef..")[2:4], b"", memoryview(b"ghij").cast("H")):
        writer.write(data)
    writer.finish()
    assert store.read("key", 0, 10) == b"abcdefghij"


@pytest.mark.parametrize("size", SIZES)
def test_nothing_is_seen_before_the_end(store: ObjectStore, size: str) -> None:
    writer = store.writer("folder/key")
    writer.write(bytes(SIZES[size]))
    assert store.stat("folder/key") is None
    assert list(store.list("")) == []
    writer.finish()
    assert [(info.key, info.size) for info in store.list("")] == [("folder/key", SIZES[size])]


@pytest.mark.parametrize("size", SIZES)
def test_an_object_that_is_given_up_leaves_nothing(store: ObjectStore, size: str) -> None:
    writer = store.writer("folder/key")
    writer.write(bytes(SIZES[size]))
    writer.abort()
    writer.abort()
    assert store.stat("folder/key") is None
    assert list(store.list("")) == []
    for call in (writer.finish, lambda: writer.write(b"more")):
        with pytest.raises(ClosedError):
            call()
    again = store.writer("folder/key")
    again.write(b"1" * SIZES[size])
    again.finish()
    assert store.read("folder/key", 0, SIZES[size]) == b"1" * SIZES[size]


def test_giving_up_a_finished_object_leaves_it(store: ObjectStore) -> None:
    writer = store.writer("key")
    writer.write(b"1")
    writer.finish()
    writer.abort()
    assert store.read("key", 0, 1) == b"1"


@pytest.mark.parametrize("size", SIZES)
def test_an_object_that_is_there_is_left_as_it_is(store: ObjectStore, size: str) -> None:
    store.put("key", b"first")
    writer = store.writer("key")
    writer.write(bytes(SIZES[size]))
    with pytest.raises(ObjectExistsError) as caught:
        writer.finish()
    writer.abort()
    assert caught.value.place == f"{store.name}/key"
    assert not caught.value.retryable
    assert store.read("key", 0, 5) == b"first"


@pytest.mark.parametrize("size", SIZES)
def test_of_writers_in_a_race_one_wins(store: ObjectStore, size: str) -> None:
    barrier = threading.Barrier(WRITERS)

    def write(number: int) -> bool:
        writer = store.writer("key")
        writer.write(bytes([number]) * SIZES[size])
        barrier.wait(60)
        try:
            writer.finish()
        except (ObjectExistsError, UnavailableError):  # the second while the winner's upload is still in progress
            return False
        return True

    with ThreadPoolExecutor(WRITERS) as pool:
        won = list(pool.map(write, range(WRITERS)))
    assert won.count(True) == 1
    assert store.read("key", 0, SIZES[size]) == bytes([won.index(True)]) * SIZES[size]
