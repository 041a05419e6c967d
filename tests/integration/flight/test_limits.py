"""What the Flight door does at its limits, and how little one client can do to another."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow.compute as pc
import pyarrow.flight as fl
import pytest
from tests.integration.flight.conftest import OpenDoor, Running
from tests.integration.flight.plain import PATIENCE_SECONDS, PlainClient, Publishing, failure, messages

from icestream.model.frames import Bytes
from icestream.wal.files import LocalFile

TOPIC = "flight/topic"
MAX_TRIES = 10_000


@contextmanager
def syncs_held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Nothing becomes durable until the end of the block; the event says that a sync has begun."""
    begun, released, write = threading.Event(), threading.Event(), LocalFile.write

    def hold(file: LocalFile, buffers: Sequence[Bytes], position: int, *, durable: bool = False) -> int:
        if durable:
            begun.set()
            assert released.wait(PATIENCE_SECONDS)
        return write(file, buffers, position, durable=durable)

    monkeypatch.setattr(LocalFile, "write", hold)
    try:
        yield begun
    finally:
        released.set()


def test_one_stream_too_many_is_refused_for_now(open_door: OpenDoor) -> None:
    running = open_door(server={"max_connections": 2})
    running.client.action("create_topic", topic=TOPIC)
    first, second = running.client.publishing(), running.client.publishing()
    for stream in (first, second):
        stream.publish(messages(b"x"), topic=TOPIC)

    def publish() -> None:
        running.connect().publishing().publish(messages(b"x"), topic=TOPIC)

    for call in (publish, lambda: running.client.read(topic=TOPIC)):
        error = failure(call)
        assert (error["code"], error["retryable"]) == ("overloaded", True)
        assert "max_connections" in error["remedy"]
    assert running.client.action("ping")["version"]  # administration needs no stream
    first.finish()
    assert second.publish(messages(b"x"), topic=TOPIC)["base_offset"] == 2
    assert retried(running.client) == 3


def retried(client: PlainClient) -> int:
    """How many messages a read finds that may have to wait for its place."""
    for _ in range(MAX_TRIES):
        try:
            return int(client.read(topic=TOPIC).num_rows)
        except fl.FlightUnavailableError:
            continue
    raise AssertionError("the place of a finished stream was never free again")


def test_a_message_and_a_batch_that_are_too_large_are_refused_and_the_stream_goes_on(open_door: OpenDoor) -> None:
    client = open_door(server={"max_message_bytes": 1000, "max_batch_bytes": 10_000}).client
    stream = client.publishing()
    for payloads, words in (([b"x" * 1000], "message 0"), ([b"x", b"x" * 1001], "message 1"), ([b"x" * 900] * 12, "")):
        error = stream.refused("too_large", messages(*payloads), topic=TOPIC)
        assert words in error["message"]
        assert not error["retryable"]
        assert error["remedy"]
    assert stream.publish(messages(*[b"x" * 900] * 9), topic=TOPIC)["count"] == 9


def test_a_large_key_counts_too(open_door: OpenDoor) -> None:
    stream = open_door(server={"max_message_bytes": 1000}).client.publishing()
    stream.refused("too_large", messages(b"", keys=[b"k" * 1001]), topic=TOPIC)


def test_more_topics_than_allowed_are_refused(open_door: OpenDoor) -> None:
    client = open_door(server={"max_topics": 2}).client
    stream = client.publishing()
    for name in ("a/1", "a/2"):
        stream.publish(messages(b"x"), topic=name)
    error = stream.refused("limit_reached", messages(b"x"), topic="a/3")
    assert "max_topics" in error["remedy"]
    client.action("delete_topic", topic="a/1")
    assert stream.publish(messages(b"x"), topic="a/3")["base_offset"] == 0


def test_bytes_in_flight_are_bounded_over_all_streams(open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"max_message_bytes": 8000, "max_batch_bytes": 9000, "max_in_flight_bytes": 10_000}
    running = open_door(server=limits)
    first, second = running.client.publishing(), running.connect().publishing()
    assert first.publish(messages(b"x"), topic=TOPIC)["base_offset"] == 0
    with syncs_held(monkeypatch) as begun:
        first.write(messages(b"x" * 7000), topic=TOPIC, more=True)
        assert begun.wait(PATIENCE_SECONDS)
        for stream in (second, first):
            error = stream.refused("overloaded", messages(b"y" * 7000), topic="flight/other", more=True, id=99)
            assert error["retryable"]
            assert "max_in_flight_bytes" in error["remedy"]
    assert first.answer()["base_offset"] == 1
    assert second.publish(messages(b"y" * 7000), topic=TOPIC)["base_offset"] == 2
    assert running.storage.budget.used_bytes == 0


def test_what_is_not_durable_is_not_shown_to_a_reader(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = running.client.publishing()
    stream.publish(messages(b"a"), topic=TOPIC)
    running.client.action("create_topic", topic="flight/other")
    with syncs_held(monkeypatch) as begun:
        stream.write(messages(b"b"), topic=TOPIC, more=True)
        assert begun.wait(PATIENCE_SECONDS)
        assert stream.publish(messages(b"c"), topic="flight/other", ack="memory")["base_offset"] == 0
        assert running.client.payloads(TOPIC) == [b"a"]
        assert running.client.payloads("flight/other") == []
        assert running.client.action("describe_topic", topic=TOPIC)["durable_end"] == 1
        assert failure(running.client.read, topic=TOPIC, start=2)["code"] == "offset_out_of_range"
    assert stream.answer()["base_offset"] == 1
    assert running.client.payloads(TOPIC) == [b"a", b"b"]


@pytest.mark.parametrize(("more", "count"), [(True, 20_000), (False, 3000)], ids=["sends on", "is waited for"])
def test_a_client_that_never_reads_its_answers_holds_up_nobody_else(running: Running, more: bool, count: int) -> None:
    silent = running.client.publishing()
    others = [running.connect().publishing() for _ in range(3)]

    def write() -> None:
        for number in range(count):
            silent.write(messages(b"x"), topic=TOPIC, producer="silent", sequence=number, more=more)

    writing = threading.Thread(target=write, daemon=True)
    writing.start()
    for number in range(200):
        for place, other in enumerate(others):
            assert other.publish(messages(b"y"), topic=f"flight/other-{place}")["base_offset"] == number
        others[0].publish(messages(b"y"), topic=TOPIC)
    answers = [silent.answer() for _ in range(count)]
    writing.join(PATIENCE_SECONDS)
    assert [answer["id"] for answer in answers] == list(range(count))
    found = running.client.read(topic=TOPIC).filter(pc.field("producer") == "silent")
    assert found["sequence"].to_pylist() == list(range(count))


def test_a_reader_that_does_not_read_on_holds_up_nobody_else(running: Running) -> None:
    stream: Publishing = running.client.publishing()
    for _ in range(50):
        stream.write(messages(b"x" * 1_000_000), topic=TOPIC, more=True)
    for _ in range(50):
        stream.answer()
    slow = [running.connect().reader(topic=TOPIC, follow=True) for _ in range(5)]
    for reader in slow:
        assert reader.read_chunk().data.num_rows
    for offset in range(50, 100):
        assert stream.publish(messages(b"y"), topic=TOPIC)["base_offset"] == offset
    assert len(running.client.payloads(TOPIC)) == 100
    for reader in slow:
        reader.cancel()
