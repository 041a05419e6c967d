"""Objects are written, read, listed and deleted."""

import itertools
import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.conformance.object_stores.conftest import Cloud

from icestream.cloud import ObjectStore
from icestream.cloud.opendal_store import open_object_store
from icestream.config import CloudSettings
from icestream.model.errors import DamagedError, InvalidRequestError, ObjectNotFoundError

ODD_KEYS = [
    "a b/c",
    "plus+and%25percent%",
    "queries?x=1&y=2#z",
    "ünïcode/日本語/🧊",
    "dots.../.hidden/a..b",
    "quotes'\"`/(b)[c]{d}",
    "=equals;semi,comma:colon@at$dollar!~*^|<>",
]


def test_an_object_is_read_as_it_was_put(store: ObjectStore) -> None:
    store.put("a/b.json", b"{}")
    assert store.read("a/b.json", 0, 2) == b"{}"


def test_a_put_replaces_the_object(store: ObjectStore) -> None:
    store.put("key", b"the first")
    store.put("key", b"second")
    info = store.stat("key")
    assert info is not None
    assert info.size == 6
    assert store.read("key", 0, 6) == b"second"


def test_an_empty_object_is_an_object(store: ObjectStore) -> None:
    store.put("put", b"")
    store.writer("written").finish()
    assert [(info.key, info.size) for info in store.list("")] == [("put", 0), ("written", 0)]
    assert store.read("put", 0, 0) == b""


def test_stat_tells_size_and_time(store: ObjectStore, cloud: Cloud) -> None:
    store.put("key", b"12345")
    info = store.stat("key")
    assert info is not None
    assert (info.key, info.size) == ("key", 5)
    if cloud["backend"] != "memory":  # which knows no time
        assert info.modified_us is not None
        assert abs(info.modified_us / 1e6 - time.time()) < 3600


def test_any_range_is_read(store: ObjectStore) -> None:
    content = random.Random(1).randbytes(10_000)
    store.put("key", content)
    for start, length in [(0, 10_000), (0, 1), (9_999, 1), (5_000, 100), (10_000, 0), (7, 0)]:
        assert store.read("key", start, length) == content[start : start + length]


@pytest.mark.parametrize(("start", "length"), [(0, 6), (4, 2), (5, 1), (100, 5)])
def test_reading_beyond_the_end_is_damage(store: ObjectStore, start: int, length: int) -> None:
    store.put("key", b"12345")
    with pytest.raises(DamagedError, match="has 5 bytes") as caught:
        store.read("key", start, length)
    assert caught.value.place == f"{store.name}/key"


def test_what_is_not_there_is_not_found(store: ObjectStore) -> None:
    assert store.stat("none") is None
    with pytest.raises(ObjectNotFoundError) as caught:
        store.read("none", 0, 1)
    assert caught.value.place == f"{store.name}/none"


def test_a_deleted_object_is_gone(store: ObjectStore) -> None:
    store.put("a/key", b"1")
    store.delete("a/key")
    store.delete("a/key")
    assert store.stat("a/key") is None
    assert list(store.list("")) == []


@pytest.mark.parametrize("key", ODD_KEYS)
def test_a_key_may_have_odd_letters(store: ObjectStore, key: str) -> None:
    store.put("before", b"")
    with_writer = f"{key}-written"
    writer = store.writer(with_writer)
    writer.write(b"written")
    writer.finish()
    store.put(key, b"put")
    assert [info.key for info in store.list("")] == sorted(["before", key, with_writer])
    assert [info.key for info in store.list(key)] == sorted([key, with_writer])
    assert store.read(key, 0, 3) == b"put"
    assert store.read(with_writer, 1, 6) == b"ritten"
    store.delete(key)
    assert store.stat(key) is None
    assert store.stat(with_writer) is not None


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "../a", "a/../b", "a/.", " a", "a ", "a\n", "a\0b", "a\\b"])
def test_a_key_that_is_no_path_is_refused(store: ObjectStore, key: str) -> None:
    for call in (store.stat, store.delete, store.writer):
        with pytest.raises(InvalidRequestError):
            call(key)


def test_lists_are_in_order_and_by_prefix(store: ObjectStore) -> None:
    keys = ["a!b", "a-b/c", "a.b", "a/1", "a/2/3", "a/2x", "a0", "b/a/c", "b/a/d", "ba", "c"]
    shuffled = random.Random(2).sample(keys, len(keys))
    for key in shuffled:
        store.put(key, key.encode())
    prefixes = ["", "a", "a/", "a/2", "a/2/", "b", "b/a", "b/a/", "none", "none/", "c"]
    for prefix in prefixes:
        expected = [(key, len(key)) for key in keys if key.startswith(prefix)]
        assert [(info.key, info.size) for info in store.list(prefix)] == expected, prefix


def test_a_list_of_many_pages_is_complete(store: ObjectStore) -> None:
    keys = [f"folder/{number:05d}" for number in range(1_100)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: store.put(key, b""), keys))
    assert [info.key for info in store.list("folder/")] == keys


def test_a_list_that_is_not_read_to_its_end_does_no_harm(store: ObjectStore) -> None:
    for key in ("a", "b", "c"):
        store.put(key, b"")
    assert [info.key for info in itertools.islice(store.list(""), 1)] == ["a"]
    assert len(list(store.list(""))) == 3


def test_stores_with_other_prefixes_do_not_see_an_object(store: ObjectStore, cloud: Cloud, prefix: str) -> None:
    store.put("shared/key", b"1")
    longer = open_object_store(CloudSettings(**cloud), f"{prefix}0")
    inner = open_object_store(CloudSettings(**cloud), f"{prefix}/shared")
    assert list(longer.list("")) == []
    assert longer.stat("shared/key") is None
    assert [info.key for info in inner.list("")] == ["key"]
    longer.put("shared/key", b"other")
    assert store.read("shared/key", 0, 1) == b"1"
    assert [info.size for info in store.list("")] == [1]


def test_another_store_of_the_same_settings_sees_the_same_objects(
    store: ObjectStore, cloud: Cloud, prefix: str
) -> None:
    store.put("key", b"1")
    store.close()
    again = open_object_store(CloudSettings(**cloud), prefix)
    assert again.name == store.name
    assert again.read("key", 0, 1) == b"1"
