"""A watch that surely sleeps is woken by whatever it waits for, without polling."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from icestream.metadata import Event, MemoryMetadataStore

PATIENCE_SECONDS = 60


class StoreThatTellsOfSleepers(MemoryMetadataStore):
    """A watch asks `poll_seconds` with the lock in hand and gives it back by falling asleep.

    So whoever gets the lock after `asking` was set finds the watch asleep.
    """

    def __init__(self) -> None:
        super().__init__()
        self.asking = threading.Event()

    def poll_seconds(self) -> float | None:
        self.asking.set()
        return None

    def until_asleep(self) -> None:
        assert self.asking.wait(PATIENCE_SECONDS)
        with self.changed:
            pass


@pytest.fixture
def store() -> Iterator[StoreThatTellsOfSleepers]:
    with StoreThatTellsOfSleepers() as opened:
        yield opened


def test_closing_a_sleeping_watch_ends_it(store: StoreThatTellsOfSleepers) -> None:
    watch = store.watch("/w/")
    with ThreadPoolExecutor(1) as pool:
        iteration = pool.submit(list[Event], watch)
        store.until_asleep()
        watch.close()
        assert iteration.result(PATIENCE_SECONDS) == []


def test_closing_the_store_ends_a_sleeping_watch(store: StoreThatTellsOfSleepers) -> None:
    watch = store.watch("/w/")
    with ThreadPoolExecutor(1) as pool:
        iteration = pool.submit(list[Event], watch)
        store.until_asleep()
        store.close()
        assert iteration.result(PATIENCE_SECONDS) == []


def test_a_change_wakes_a_sleeping_watch(store: StoreThatTellsOfSleepers) -> None:
    watch = store.watch("/w/")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(watch.wait)
        store.until_asleep()
        store.put("/other", b"")
        store.put("/w/a", b"")
        assert [event.key for event in waiting.result(PATIENCE_SECONDS)] == ["/w/a"]
