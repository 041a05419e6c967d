"""Fixtures: a broker that misbehaves on order, clients of it, and back-offs that cost no time."""

import threading
import time
from collections.abc import Callable, Iterator

import pytest
from tests.unit.client.fake_broker import FakeBroker

from icestream import Client
from icestream.client.connection import Backoff

TOPIC = "default/t"


def eventually(condition: Callable[[], bool]) -> None:
    """Wait for what another thread is about to do; how long it takes does not matter."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.fixture(autouse=True)
def quick_backoff() -> Iterator[None]:
    """Not `monkeypatch`: hypothesis does not like function-scoped fixtures, and this one suits all its examples."""
    original = Backoff.next
    Backoff.next = lambda self: 0.001  # type: ignore[method-assign]  # noqa: ARG005
    yield
    Backoff.next = original  # type: ignore[method-assign]


@pytest.fixture(autouse=True)
def no_leaked_threads() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    eventually(lambda: not any(thread.name.startswith("icestream") for thread in set(threading.enumerate()) - before))


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as running:
        yield running
        running.stop()


@pytest.fixture
def client(broker: FakeBroker) -> Iterator[Client]:
    with Client(broker.url) as connected:
        connected.create_topic(TOPIC)
        yield connected
