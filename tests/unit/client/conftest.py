"""Fixtures: back-offs that cost no time, and a check that clients end their threads."""

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from icestream.model.clock import Backoff


def eventually(condition: Callable[[], bool]) -> None:
    """Wait for what another thread is about to do; how long it takes does not matter."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def icestream_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("icestream")]


@pytest.fixture(autouse=True)
def quick_backoff() -> Iterator[None]:
    """Not `monkeypatch`: hypothesis does not like function-scoped fixtures, and this one suits all its examples."""
    original = Backoff.next
    Backoff.next = lambda self: 0.001  # type: ignore[method-assign]  # noqa: ARG005
    yield
    Backoff.next = original  # type: ignore[method-assign]


@pytest.fixture(autouse=True)
def no_leaked_threads() -> Iterator[None]:
    yield
    eventually(lambda: not icestream_threads())
