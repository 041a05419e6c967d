"""Producers that were answered together wait a moment for each other, and hold up nobody else."""

import time
from typing import Any

import pytest

from icestream.client.publisher import Outbox, Publisher
from icestream.model.messages import MESSAGE_SCHEMA

A_WHILE = 3600.0


class Stream:
    answers = 0

    def __init__(self) -> None:
        self.written: list[Any] = []

    def write(self, record: Any, metadata: bytes) -> None:
        self.written.append((record, metadata))


@pytest.fixture
def publisher() -> Publisher:
    made = Publisher(None, MESSAGE_SCHEMA)  # type: ignore[arg-type]
    made._stream = Stream()  # type: ignore[assignment]
    return made


def outbox(publisher: Publisher, name: str) -> Outbox:
    made = Outbox("a/topic", publisher.lock, name=name, new_name=None, next_sequence=1)
    batch = made.new_batch(time.monotonic())
    batch.append(b"x", None, None, 1)
    made.queue.append(batch)
    return made


def answered_together(publisher: Publisher, *outboxes: Outbox, seconds: float = A_WHILE) -> None:
    publisher._gathering.begin(outboxes, time.monotonic())
    publisher._gathering.until = time.monotonic() + seconds


def begin(publisher: Publisher, which: Outbox) -> list[str]:
    with publisher.lock:
        return [batch.owner.name for batch in publisher.begin(which, time.monotonic())]


def test_the_last_one_writes_what_all_have(publisher: Publisher) -> None:
    first, second, third = (outbox(publisher, name) for name in "abc")
    answered_together(publisher, first, second, third)
    assert begin(publisher, first) == []
    assert begin(publisher, second) == []
    assert begin(publisher, third) == ["a", "b", "c"]


def test_another_producer_goes_at_once(publisher: Publisher) -> None:
    first, second, other = (outbox(publisher, name) for name in "abc")
    answered_together(publisher, first, second)
    assert begin(publisher, first) == []
    assert begin(publisher, other) == ["c"]


def test_one_that_comes_too_late_goes_at_once(publisher: Publisher) -> None:
    first, second = (outbox(publisher, name) for name in "ab")
    answered_together(publisher, first, second, seconds=-1.0)
    assert begin(publisher, first) == ["a"]


def test_the_sender_thread_writes_for_those_whose_time_is_up(publisher: Publisher) -> None:
    first, second, absent = (outbox(publisher, name) for name in "abc")
    answered_together(publisher, first, second, absent)
    assert begin(publisher, first) == []
    assert begin(publisher, second) == []
    with publisher.lock:
        publisher._end_gathering()
        assert [batch.owner.name for batch in publisher._next_batches(time.monotonic())] == ["a", "b"]
    assert not absent.scheduled
