import random
from collections.abc import Callable

import pytest

from icestream.metadata import MetadataStore, Put, scan
from icestream.metadata.store import MAX_KEY_BYTES, MAX_PAGE_BYTES, MAX_PAGE_ENTRIES, MAX_VALUE_BYTES
from icestream.model.errors import ClosedError, InvalidRequestError, TooLargeError

Call = Callable[[], object]


def keys_under(store: MetadataStore, prefix: str) -> list[str]:
    return [entry.key for entry in store.list(prefix)]


def test_a_key_that_was_never_put_is_none(store: MetadataStore) -> None:
    assert store.get("/nothing") is None


def test_a_value_comes_back_as_it_was_put(store: MetadataStore) -> None:
    value = bytes(range(256))
    revision = store.put("/a", value)
    entry = store.get("/a")
    assert entry is not None
    assert (entry.key, entry.value, entry.lease) == ("/a", value, None)
    assert entry.mod_revision == entry.create_revision == revision


def test_an_empty_value_is_a_value(store: MetadataStore) -> None:
    store.put("/a", b"")
    entry = store.get("/a")
    assert entry is not None
    assert entry.value == b""


def test_a_second_put_changes_the_mod_revision_and_keeps_the_create_revision(store: MetadataStore) -> None:
    first = store.put("/a", b"1")
    second = store.put("/a", b"1")
    entry = store.get("/a")
    assert entry is not None
    assert first < second
    assert (entry.create_revision, entry.mod_revision) == (first, second)


def test_a_key_made_again_has_a_new_create_revision(store: MetadataStore) -> None:
    store.put("/a", b"1")
    store.delete("/a")
    again = store.put("/a", b"2")
    entry = store.get("/a")
    assert entry is not None
    assert entry.create_revision == again


def test_the_store_revision_is_that_of_the_last_change(store: MetadataStore) -> None:
    before = store.revision()
    changed = store.put("/a", b"1")
    assert store.revision() == changed > before


def test_delete_says_whether_the_key_was_there_and_changes_nothing_otherwise(store: MetadataStore) -> None:
    store.put("/a", b"1")
    assert store.delete("/a") is True
    revision = store.revision()
    assert store.delete("/a") is False
    assert store.get("/a") is None
    assert store.revision() == revision


def test_a_listing_is_ordered_by_key_whatever_the_order_of_writing(store: MetadataStore) -> None:
    wanted = [f"/t/{n:03d}" for n in range(40)]
    store.transaction([], [Put(key, key.encode()) for key in random.Random(1).sample(wanted, len(wanted))])
    entries = store.list("/t/")
    assert [entry.key for entry in entries] == wanted
    assert all(entry.value == entry.key.encode() for entry in entries)


def test_keys_are_ordered_by_their_utf8_bytes(store: MetadataStore) -> None:
    wanted = sorted(["/u/a", "/u/Z", "/u/é", "/u/ﬁ", "/u/\U0001f9ca", "/u/\ue000", "/u/\x7f"], key=str.encode)
    store.transaction([], [Put(key, b"") for key in wanted])
    assert keys_under(store, "/u/") == wanted


def test_a_prefix_is_plain_text_and_a_slash_makes_it_a_folder(store: MetadataStore) -> None:
    store.transaction([], [Put(key, b"") for key in ("/a", "/a/x", "/ab", "/ab/x", "/b")])
    assert keys_under(store, "/a") == ["/a", "/a/x", "/ab", "/ab/x"]
    assert keys_under(store, "/a/") == ["/a/x"]
    assert keys_under(store, "/c") == []


HOSTILE = [
    "/h/%",
    "/h/%%/x",
    "/h/_",
    "/h/*",
    "/h/?",
    "/h/[a-z]",
    "/h/'",
    '/h/"',
    "/h/`; DROP TABLE entries; --",
    "/h/\\",
    "/h/\n",
    "/h/ ",
    "/h/ä",
    "/h/a\u0308",
    "/h/\ud7ff",
    "/h/\uffff",
    "/h/\U0010ffff",
    "/h/../x",
    "/h//x",
]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_no_character_of_a_key_is_special(store: MetadataStore, hostile: str) -> None:
    store.transaction([], [Put(key, b"other") for key in ("/h/plain", "/h/xyz/x", "/h0", "/i", "/gz")])
    store.put(hostile, b"mine")
    store.put(hostile + "/below", b"mine")
    entry = store.get(hostile)
    assert entry is not None
    assert (entry.key, entry.value) == (hostile, b"mine")
    assert keys_under(store, hostile) == [hostile, hostile + "/below"]
    assert hostile in keys_under(store, "/h/")
    assert store.delete(hostile) is True
    assert keys_under(store, hostile) == [hostile + "/below"]


def test_the_empty_prefix_lists_everything(store: MetadataStore) -> None:
    store.transaction([], [Put("/a", b""), Put("/\U0010ffff", b"")])
    assert keys_under(store, "") == ["/a", "/\U0010ffff"]


def test_a_big_listing_is_read_page_by_page(store: MetadataStore) -> None:
    wanted = [f"/big/{n:05d}" for n in range(1_050)]
    for first in range(0, len(wanted), 100):
        store.transaction([], [Put(key, b"v") for key in wanted[first : first + 100]])
    store.transaction([], [Put("/bif", b""), Put("/bih", b"")])

    first_page = store.list("/big/", limit=100)
    assert [entry.key for entry in first_page] == wanted[:100]
    second_page = store.list("/big/", limit=100, start_after=first_page[-1].key)
    assert [entry.key for entry in second_page] == wanted[100:200]
    assert len(store.list("/big/")) == 1_000
    assert [entry.key for entry in scan(store, "/big/", page_entries=97)] == wanted


def test_start_after_need_not_be_a_key_or_lie_under_the_prefix(store: MetadataStore) -> None:
    store.transaction([], [Put(key, b"") for key in ("/a/1", "/a/3", "/b/1")])
    assert [e.key for e in store.list("/a/", start_after="/a/2")] == ["/a/3"]
    assert [e.key for e in store.list("/b/", start_after="/a/2")] == ["/b/1"]
    assert store.list("/a/", start_after="/b/1") == []


def test_a_page_is_bounded_by_bytes_too(store: MetadataStore) -> None:
    value = bytes(MAX_VALUE_BYTES)
    count = MAX_PAGE_BYTES // MAX_VALUE_BYTES + 2
    for n in range(count):
        store.put(f"/fat/{n:02d}", value)
    assert sum(len(entry.value) for entry in store.list("/fat/")) <= MAX_PAGE_BYTES
    assert sum(1 for _ in scan(store, "/fat/")) == count


def test_the_largest_key_and_value_are_accepted_and_one_byte_more_is_not(store: MetadataStore) -> None:
    key = "/" + "k" * (MAX_KEY_BYTES - 1)
    store.put(key, bytes(MAX_VALUE_BYTES))
    entry = store.get(key)
    assert entry is not None
    assert len(entry.value) == MAX_VALUE_BYTES
    with pytest.raises(TooLargeError):
        store.put("/v", bytes(MAX_VALUE_BYTES + 1))
    for too_long in (key + "k", "/" + "é" * (MAX_KEY_BYTES // 2)):
        for call in (store.get, store.delete, store.list, store.watch):
            with pytest.raises(TooLargeError):
                call(too_long)
    assert store.get("/v") is None


@pytest.mark.parametrize("bad", ["", "a", "a/b", "/a\0b", "/\ud800"])
def test_what_is_not_a_key_is_refused(store: MetadataStore, bad: str) -> None:
    for call in (store.get, store.delete):
        with pytest.raises(InvalidRequestError):
            call(bad)
    with pytest.raises(InvalidRequestError):
        store.put(bad, b"")


def test_a_value_that_is_not_bytes_is_refused(store: MetadataStore) -> None:
    with pytest.raises(InvalidRequestError):
        store.put("/a", "text")  # type: ignore[arg-type]


@pytest.mark.parametrize("limit", [0, -1, MAX_PAGE_ENTRIES + 1])
def test_a_page_size_out_of_bounds_is_refused(store: MetadataStore, limit: int) -> None:
    with pytest.raises(InvalidRequestError):
        store.list("/", limit=limit)


def test_random_changes_leave_what_a_dictionary_would_hold(store: MetadataStore) -> None:
    chance = random.Random(7)
    names = [f"/r/{a}{b}" for a in "ab%_" for b in ("", "/x", "b")]
    expected: dict[str, bytes] = {}
    for n in range(150):
        key = chance.choice(names)
        if chance.random() < 0.4:
            assert store.delete(key) is (expected.pop(key, None) is not None)
        else:
            expected[key] = b"%d" % n
            store.put(key, expected[key])
        prefix = chance.choice(names)
        wanted = sorted((k, v) for k, v in expected.items() if k.startswith(prefix))
        assert [(e.key, e.value) for e in store.list(prefix)] == wanted


def test_every_call_after_close_raises_closed_and_close_may_be_repeated(store: MetadataStore) -> None:
    lease = store.lease(10)
    store.close()
    store.close()
    calls: list[Call] = [
        lambda: store.get("/a"),
        lambda: store.put("/a", b""),
        lambda: store.create("/a", b""),
        lambda: store.compare_and_swap("/a", 0, b""),
        lambda: store.list("/"),
        lambda: store.delete("/a"),
        lambda: store.transaction([], []),
        lambda: store.lease(1),
        lambda: store.watch("/"),
        store.revision,
        lease.keep_alive,
        lease.revoke,
        lambda: lease.remaining,
    ]
    for call in calls:
        with pytest.raises(ClosedError):
            call()
