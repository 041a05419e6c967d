import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from icestream.metadata import CompactedError, Delete, Event, MetadataStore, Put, Watch
from icestream.model.errors import ClosedError, InvalidRequestError

# Long enough that only a missing event can use it up.
PATIENCE_SECONDS = 60


def take(watch: Watch, count: int) -> list[Event]:
    """So many events; fewer if one is missing, rather than wait for it for ever."""
    found: list[Event] = []
    while len(found) < count and (events := watch.wait(PATIENCE_SECONDS)):
        found.extend(events)
    return found


def test_a_watch_sees_puts_and_deletes_under_its_prefix_in_order(store: MetadataStore) -> None:
    with store.watch("/w/") as watch:
        one = store.put("/w/a", b"1")
        store.put("/other", b"x")
        store.put("/w", b"x")
        two = store.put("/w/a", b"2")
        store.delete("/w/a")
        three = store.revision()
        assert take(watch, 3) == [
            Event("put", "/w/a", b"1", one),
            Event("put", "/w/a", b"2", two),
            Event("delete", "/w/a", None, three),
        ]
        assert watch.wait(0) == ()


def test_a_watch_without_a_start_sees_only_what_comes_after_it(store: MetadataStore) -> None:
    store.put("/w/old", b"")
    with store.watch("/w/") as watch:
        store.put("/w/new", b"")
        assert next(watch).key == "/w/new"


def test_a_prefix_with_pattern_characters_watches_just_itself(store: MetadataStore) -> None:
    with store.watch("/w/%_") as watch:
        store.put("/w/abc", b"")
        store.put("/w/%_c", b"")
        assert next(watch).key == "/w/%_c"


def test_a_watch_from_a_revision_includes_that_revision(store: MetadataStore) -> None:
    revisions = [store.put("/w/a", b"%d" % n) for n in range(5)]
    with store.watch("/w/", start_revision=revisions[2]) as watch:
        assert [event.revision for event in take(watch, 3)] == revisions[2:]


def test_a_watch_may_start_in_the_future(store: MetadataStore) -> None:
    now = store.put("/w/a", b"1")
    with store.watch("/w/", start_revision=now + 2) as watch:
        store.put("/w/a", b"2")
        later = store.put("/w/a", b"3")
        assert next(watch).revision >= now + 2
        assert later >= now + 2


def test_list_then_watch_misses_nothing(store: MetadataStore) -> None:
    store.put("/w/a", b"1")
    revision = store.revision()
    store.put("/w/b", b"between")
    known = {entry.key: entry.value for entry in store.list("/w/")}
    with store.watch("/w/", start_revision=revision + 1) as watch:
        store.put("/w/c", b"after")
        for event in take(watch, 2):
            assert event.value is not None
            known[event.key] = event.value
    assert known == {"/w/a": b"1", "/w/b": b"between", "/w/c": b"after"}


def test_wait_hands_out_a_transaction_as_one(store: MetadataStore) -> None:
    store.put("/w/gone", b"")
    with store.watch("/w/") as watch:
        result = store.transaction([], [Put("/w/b", b"1"), Put("/x", b""), Delete("/w/gone"), Put("/w/a", b"2")])
        store.put("/w/c", b"3")
        events = watch.wait(PATIENCE_SECONDS)
        assert {(event.kind, event.key) for event in events} == {
            ("put", "/w/b"),
            ("delete", "/w/gone"),
            ("put", "/w/a"),
        }
        assert {event.revision for event in events} == {result.revision}
        assert [event.key for event in watch.wait(PATIENCE_SECONDS)] == ["/w/c"]


def test_watchers_that_restart_lose_and_repeat_nothing(store: MetadataStore) -> None:
    first = store.revision() + 1
    for n in range(12):
        store.transaction([], [Put("/w/a", b"%d" % n), Put("/w/b", b"%d" % n)])
    seen: list[Event] = []
    resume = first
    for _ in range(12):
        with store.watch("/w/", start_revision=resume) as watch:
            seen.extend(watch.wait(PATIENCE_SECONDS))
            resume = watch.resume_revision
    assert [(event.key, event.value) for event in seen] == [
        (key, b"%d" % n) for n in range(12) for key in ("/w/a", "/w/b")
    ]
    with store.watch("/w/", start_revision=resume) as watch:
        assert watch.wait(0) == ()


def test_a_restart_in_the_middle_of_a_transaction_repeats_it(store: MetadataStore) -> None:
    with store.watch("/w/") as watch:
        store.transaction([], [Put("/w/a", b""), Put("/w/b", b"")])
        assert next(watch).key == "/w/a"
        resume = watch.resume_revision
        assert [event.key for event in watch.wait(PATIENCE_SECONDS)] == ["/w/b"]
    with store.watch("/w/", start_revision=resume) as again:
        assert [event.key for event in take(again, 2)] == ["/w/a", "/w/b"]


def test_concurrent_writers_are_seen_in_revision_order_each_once(store: MetadataStore) -> None:
    writers, each = 4, 25
    watches = [store.watch("/w/"), store.watch("/w/0/")]

    def write(writer: int) -> None:
        for n in range(each):
            store.put(f"/w/{writer}/{n:03d}", b"")

    with ThreadPoolExecutor(writers + 2) as pool:
        everything = pool.submit(take, watches[0], writers * each)
        of_one = pool.submit(take, watches[1], each)
        for future in [pool.submit(write, writer) for writer in range(writers)]:
            future.result()
        events = everything.result(PATIENCE_SECONDS)
        own = of_one.result(PATIENCE_SECONDS)
    revisions = [event.revision for event in events]
    assert revisions == sorted(set(revisions))
    assert {event.key for event in events} == {f"/w/{w}/{n:03d}" for w in range(writers) for n in range(each)}
    assert own == [event for event in events if event.key.startswith("/w/0/")]


def test_a_waiting_watch_is_woken_by_a_change(store: MetadataStore) -> None:
    with store.watch("/w/") as watch, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(watch.wait, PATIENCE_SECONDS)
        store.put("/w/a", b"1")
        assert [event.key for event in waiting.result(PATIENCE_SECONDS)] == ["/w/a"]


def test_wait_gives_up_after_its_timeout(store: MetadataStore) -> None:
    with store.watch("/w/") as watch:
        assert watch.wait(0) == ()
        assert watch.wait(0.01) == ()


def test_close_from_another_thread_ends_an_iteration_and_a_wait(store: MetadataStore) -> None:
    iterated, waited = store.watch("/w/"), store.watch("/w/")
    began = threading.Barrier(3)

    def iterate() -> list[Event]:
        began.wait()
        return list(iterated)

    def wait() -> None:
        began.wait()
        with pytest.raises(ClosedError):
            waited.wait()

    with ThreadPoolExecutor(2) as pool:
        iteration, waiting = pool.submit(iterate), pool.submit(wait)
        began.wait()
        iterated.close()
        waited.close()
        assert iteration.result(PATIENCE_SECONDS) == []
        waiting.result(PATIENCE_SECONDS)
    iterated.close()
    with pytest.raises(ClosedError):
        iterated.wait(0)


def test_closing_the_store_ends_its_watches(store: MetadataStore) -> None:
    watch = store.watch("/w/")
    with ThreadPoolExecutor(1) as pool:
        iteration = pool.submit(list[Event], watch)
        store.close()
        assert iteration.result(PATIENCE_SECONDS) == []


def test_a_start_that_is_no_longer_kept_is_a_typed_error(
    store: MetadataStore, forget_history: Callable[[], None]
) -> None:
    old = store.put("/w/a", b"1")
    forget_history()
    with pytest.raises(CompactedError):
        store.watch("/w/", start_revision=old)
    with store.watch("/w/", start_revision=store.revision() + 1) as watch:
        store.put("/w/a", b"2")
        assert next(watch).value == b"2"


def test_a_watch_that_falls_behind_the_kept_history_is_told_so(
    store: MetadataStore, change_and_forget: Callable[[str], None]
) -> None:
    with store.watch("/w/") as watch:
        change_and_forget("/w/a")
        for _ in range(2):
            with pytest.raises(CompactedError):
                watch.wait(PATIENCE_SECONDS)


@pytest.mark.parametrize("start", [0, -1])
def test_a_start_below_the_first_revision_is_refused(store: MetadataStore, start: int) -> None:
    with pytest.raises(InvalidRequestError):
        store.watch("/w/", start_revision=start)
