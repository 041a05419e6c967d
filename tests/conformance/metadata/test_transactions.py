import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from icestream.metadata import Absent, Condition, Delete, Exists, MetadataStore, Operation, Put, RevisionIs, ValueIs
from icestream.metadata.store import MAX_TRANSACTION_OPERATIONS, MAX_VALUE_BYTES
from icestream.model.errors import ConflictError, InvalidRequestError, TooLargeError


def value_of(store: MetadataStore, key: str) -> bytes | None:
    entry = store.get(key)
    return entry.value if entry else None


def test_create_makes_an_absent_key_once(store: MetadataStore) -> None:
    revision = store.create("/a", b"1")
    entry = store.get("/a")
    assert entry is not None
    assert entry.mod_revision == revision
    with pytest.raises(ConflictError):
        store.create("/a", b"2")
    assert value_of(store, "/a") == b"1"


def test_compare_and_swap_takes_only_the_expected_revision(store: MetadataStore) -> None:
    first = store.put("/a", b"1")
    second = store.compare_and_swap("/a", first, b"2")
    assert second > first
    with pytest.raises(ConflictError):
        store.compare_and_swap("/a", first, b"3")
    assert value_of(store, "/a") == b"2"


def test_revision_zero_stands_for_an_absent_key(store: MetadataStore) -> None:
    store.compare_and_swap("/a", 0, b"1")
    with pytest.raises(ConflictError):
        store.compare_and_swap("/a", 0, b"2")
    assert store.transaction([RevisionIs("/b", 0)], []).succeeded


def test_a_key_deleted_and_made_again_does_not_pass_for_the_old_one(store: MetadataStore) -> None:
    old = store.put("/a", b"same")
    store.delete("/a")
    store.put("/a", b"same")
    with pytest.raises(ConflictError):
        store.compare_and_swap("/a", old, b"x")


def test_each_condition_holds_when_it_should_and_only_then(store: MetadataStore) -> None:
    revision = store.put("/here", b"v")
    holding: list[Condition] = [Exists("/here"), Absent("/gone"), RevisionIs("/here", revision), ValueIs("/here", b"v")]
    failing: list[Condition] = [
        Exists("/gone"),
        Absent("/here"),
        RevisionIs("/here", revision + 1),
        RevisionIs("/gone", revision),
        ValueIs("/here", b"w"),
        ValueIs("/gone", b""),
    ]
    for condition in holding:
        assert store.transaction([condition], []).succeeded, condition
    for condition in failing:
        assert not store.transaction([condition], []).succeeded, condition


def test_a_transaction_with_one_failing_condition_changes_nothing(store: MetadataStore) -> None:
    store.put("/a", b"old")
    before = store.revision()
    result = store.transaction([Exists("/a"), Absent("/b"), ValueIs("/a", b"new")], [Delete("/a"), Put("/b", b"x")])
    assert not result.succeeded
    assert result.revision == store.revision() == before
    assert (value_of(store, "/a"), value_of(store, "/b")) == (b"old", None)


def test_all_operations_of_a_transaction_share_one_revision(store: MetadataStore) -> None:
    store.put("/c", b"old")
    result = store.transaction([Exists("/c")], [Put("/a", b"1"), Put("/b", b"2"), Delete("/c"), Delete("/never")])
    assert result.succeeded
    assert result.revision == store.revision()
    assert {entry.key: entry.mod_revision for entry in store.list("/")} == {
        "/a": result.revision,
        "/b": result.revision,
    }


def test_a_transaction_that_changes_nothing_takes_no_revision(store: MetadataStore) -> None:
    before = store.revision()
    assert store.transaction([], [Delete("/never")]).succeeded
    assert store.transaction([], []).succeeded
    assert store.revision() == before


def test_a_refused_transaction_changes_nothing(store: MetadataStore) -> None:
    before = store.revision()
    half = bytes(MAX_VALUE_BYTES // 2 + 200_000)
    refused: list[tuple[type[Exception], list[Condition], list[Operation]]] = [
        (InvalidRequestError, [], [Put("/a", b"1"), Put("/a", b"2")]),
        (InvalidRequestError, [], [Put("/a", b"1"), Delete("/a")]),
        (InvalidRequestError, [Exists("no-slash")], [Put("/a", b"1")]),
        (TooLargeError, [], [Put("/a", b"1"), Put("/b", bytes(MAX_VALUE_BYTES + 1))]),
        (TooLargeError, [], [Put("/a", half), Put("/b", half)]),
        (TooLargeError, [ValueIs("/c", half)], [Put("/a", half)]),
        (TooLargeError, [], [Put(f"/{n}", b"") for n in range(MAX_TRANSACTION_OPERATIONS + 1)]),
        (TooLargeError, [Absent(f"/{n}") for n in range(MAX_TRANSACTION_OPERATIONS + 1)], [Put("/a", b"1")]),
    ]
    for error, conditions, operations in refused:
        with pytest.raises(error):
            store.transaction(conditions, operations)
    assert store.list("/") == []
    assert store.revision() == before


def test_no_update_is_lost_when_threads_swap_one_counter(store: MetadataStore) -> None:
    threads, rounds = 6, 25
    store.put("/counter", b"0")
    together = threading.Barrier(threads)

    def count() -> None:
        together.wait()
        done = 0
        while done < rounds:
            entry = store.get("/counter")
            assert entry is not None
            try:
                store.compare_and_swap("/counter", entry.mod_revision, b"%d" % (int(entry.value) + 1))
            except ConflictError:
                continue
            done += 1

    with ThreadPoolExecutor(threads) as pool:
        for future in [pool.submit(count) for _ in range(threads)]:
            future.result()
    assert value_of(store, "/counter") == b"%d" % (threads * rounds)


def test_of_threads_that_create_one_key_exactly_one_succeeds(store: MetadataStore) -> None:
    threads = 8
    together = threading.Barrier(threads)

    def create(n: int) -> bool:
        together.wait()
        try:
            store.create("/owner", b"%d" % n)
        except ConflictError:
            return False
        return True

    with ThreadPoolExecutor(threads) as pool:
        winners = [n for n, won in enumerate(pool.map(create, range(threads))) if won]
    assert len(winners) == 1
    assert value_of(store, "/owner") == b"%d" % winners[0]


def test_readers_never_see_half_a_transaction(store: MetadataStore) -> None:
    store.transaction([], [Put("/pair/a", b"0"), Put("/pair/b", b"0")])
    stop = threading.Event()

    def write() -> None:
        for n in range(1, 60):
            store.transaction([], [Put("/pair/a", b"%d" % n), Put("/pair/b", b"%d" % n)])
        stop.set()

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        while not stop.is_set() and not writing.done():
            a, b = store.list("/pair/")
            assert (a.value, a.mod_revision) == (b.value, b.mod_revision)
        writing.result()
