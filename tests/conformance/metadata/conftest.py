"""The stores that the suite runs on. Another one is another subclass of `Harness` in `HARNESSES`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from icestream.metadata import MemoryMetadataStore, MetadataStore, Put, SqliteMetadataStore

HISTORY_EVENTS = 200


class Harness(ABC):
    store: MetadataStore

    @abstractmethod
    def pass_time(self, seconds: float) -> None:
        """Let leases grow older: by moving a clock, or, where the store has its own, by waiting."""

    @abstractmethod
    def forget_history(self) -> None:
        """Make the store drop the changes it has kept so far."""


class EmbeddedHarness(Harness):
    def __init__(self, open_store: Callable[[Callable[[], int]], MetadataStore]) -> None:
        self.now_us = 1_700_000_000_000_000
        self.store = open_store(lambda: self.now_us)

    def pass_time(self, seconds: float) -> None:
        self.now_us += round(seconds * 1_000_000)

    def forget_history(self) -> None:
        for first in range(0, HISTORY_EVENTS, 100):
            self.store.transaction([], [Put(f"/noise/{first + n}", b"") for n in range(100)])


def memory(_folder: Path) -> Harness:
    return EmbeddedHarness(lambda clock: MemoryMetadataStore(history_events=HISTORY_EVENTS, clock=clock))


def sqlite(folder: Path) -> Harness:
    path = folder / "metadata.db"
    return EmbeddedHarness(lambda clock: SqliteMetadataStore(path, history_events=HISTORY_EVENTS, clock=clock))


HARNESSES = [memory, sqlite]


@pytest.fixture(params=HARNESSES, ids=lambda make: str(make.__name__))
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    made: Harness = request.param(tmp_path)
    yield made
    made.store.close()


@pytest.fixture
def store(harness: Harness) -> MetadataStore:
    return harness.store


@pytest.fixture
def pass_time(harness: Harness) -> Callable[[float], None]:
    return harness.pass_time


@pytest.fixture
def forget_history(harness: Harness) -> Callable[[], None]:
    return harness.forget_history
