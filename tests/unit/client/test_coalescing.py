"""Producers whose batches were acknowledged together wait a moment for each other, and hold up nobody else."""

import threading

import pytest

from icestream.client.publisher import COALESCE_SECONDS, Outbox, Publisher
from icestream.protocol.publish import PublishOutcome

NOW = 1000.0
LATER = NOW + COALESCE_SECONDS


@pytest.fixture
def publisher() -> Publisher:
    made = Publisher(wake=lambda: None)
    made.connected()
    return made


def producers(publisher: Publisher, names: str) -> list[Outbox]:
    """Make producers whose first batches were written and acknowledged together, and which have a second one."""
    lock = threading.Lock()
    made = [Outbox("a/topic", lock, name=name, new_name=None) for name in names]
    for outbox in made:
        publisher.attach(outbox)
        add(outbox)
        publisher.schedule(outbox)
    batches = publisher.next_batches(NOW)
    assert [batch.outbox for batch in batches] == made
    assert publisher.request(batches, seen=0) is not None
    publisher.written(batches, NOW)
    acks = [PublishOutcome(id=number, base_offset=number, publish_time_us=1) for number in range(len(made))]
    publisher.settled(PublishOutcome(answers=acks), NOW)
    for outbox in made:
        add(outbox)
    return made


def add(outbox: Outbox) -> None:
    outbox.open_batch(1, NOW)
    outbox.add(b"x", None, None, 1)


def start(publisher: Publisher, outbox: Outbox, now: float = NOW) -> str:
    """Return the names of the producers whose batches the calling thread has to write."""
    return "".join(batch.outbox.name for batch in publisher.start(outbox, now, direct=True))


def test_the_last_one_writes_what_all_have(publisher: Publisher) -> None:
    first, second, third = producers(publisher, "abc")
    assert start(publisher, first) == ""
    assert start(publisher, second) == ""
    assert start(publisher, third) == "abc"


def test_another_producer_goes_at_once(publisher: Publisher) -> None:
    first, _ = producers(publisher, "ab")
    other = Outbox("a/topic", first.lock, name="c", new_name=None)
    add(other)
    assert start(publisher, first) == ""
    assert start(publisher, other) == "c"


def test_one_that_comes_too_late_goes_at_once(publisher: Publisher) -> None:
    first, _ = producers(publisher, "ab")
    assert start(publisher, first, LATER) == "a"


def test_the_sender_thread_writes_for_those_whose_time_is_up(publisher: Publisher) -> None:
    first, second, absent = producers(publisher, "abc")
    assert start(publisher, first) == ""
    assert start(publisher, second) == ""
    assert publisher.next_due() == LATER
    publisher.advance(LATER)
    assert [batch.outbox for batch in publisher.next_batches(LATER)] == [first, second]
    assert not absent.is_scheduled
