"""A topic is deleted while others are at work on it."""

import contextlib

import pyarrow.flight as fl
import pytest
from tests.integration.flight.conftest import OpenDoor, Running
from tests.integration.flight.plain import PlainClient, failure, messages

TOPIC = "flight/topic"


def test_a_follower_of_a_deleted_topic_is_told_so(running: Running, client: PlainClient) -> None:
    client.publishing().publish(messages(b"a"), topic=TOPIC)
    reader = running.connect().reader(topic=TOPIC, follow=True)
    assert reader.read_chunk().data.num_rows == 1
    client.action("delete_topic", topic=TOPIC)
    error = failure(reader.read_chunk)
    assert error["code"] == "topic_not_found"
    assert TOPIC in error["place"]


def test_a_follower_of_a_deleted_topic_does_not_go_on_with_its_namesake(running: Running, client: PlainClient) -> None:
    stream = client.publishing()
    stream.publish(messages(b"a"), topic=TOPIC)
    reader = running.connect().reader(topic=TOPIC, follow=True)
    assert reader.read_chunk().data.num_rows == 1
    client.action("delete_topic", topic=TOPIC)
    for payload in (b"b", b"c", b"d"):
        stream.publish(messages(payload), topic=TOPIC)
    assert failure(reader.read_chunk)["code"] == "topic_not_found"
    assert client.payloads(TOPIC) == [b"b", b"c", b"d"]


def test_a_producer_of_a_deleted_topic_makes_it_anew_where_publishing_does_that(client: PlainClient) -> None:
    stream = client.publishing()
    stream.publish(messages(b"a"), topic=TOPIC, producer="p", sequence=0)
    old = client.action("describe_topic", topic=TOPIC)
    client.action("delete_topic", topic=TOPIC)
    answer = stream.publish(messages(b"b"), topic=TOPIC, producer="p", sequence=1)
    assert answer["base_offset"] == 0
    new = client.action("describe_topic", topic=TOPIC)
    assert new["stream_id"] != old["stream_id"]
    assert client.payloads(TOPIC) == [b"b"]


def test_a_producer_of_a_deleted_topic_is_refused_where_topics_are_made_by_hand(open_door: OpenDoor) -> None:
    client = open_door(topics={"auto_create": False}).client
    client.action("create_topic", topic=TOPIC)
    client.action("create_topic", topic="flight/other")
    stream = client.publishing()
    stream.publish(messages(b"a"), topic=TOPIC)
    client.action("delete_topic", topic=TOPIC)
    stream.refused("topic_not_found", messages(b"b"), topic=TOPIC)
    assert stream.publish(messages(b"c"), topic="flight/other")["base_offset"] == 0


def test_a_reader_that_is_far_behind_when_the_topic_goes_gets_a_typed_error(open_door: OpenDoor) -> None:
    """Its files are taken away under it: neither other bytes, nor an error that says nothing."""
    running = open_door(wal={"max_file_size": 65536, "cache_max_bytes": 1})
    stream = running.client.publishing()
    count = 400
    for number in range(count):
        stream.write(messages(number.to_bytes(4) + b"x" * 50_000), topic=TOPIC, more=True)
    stream.finish()
    reader = running.connect().reader(topic=TOPIC)
    first = reader.read_chunk().data
    running.client.action("delete_topic", topic=TOPIC)
    payloads = first["payload"].to_pylist()

    def read_on() -> None:
        while True:
            payloads.extend(reader.read_chunk().data["payload"].to_pylist())

    with pytest.raises((fl.FlightError, StopIteration)) as caught:
        read_on()
    assert [int.from_bytes(payload[:4]) for payload in payloads] == list(range(len(payloads)))
    if isinstance(caught.value, StopIteration):
        assert len(payloads) == count
    else:
        assert b'"topic_not_found"' in caught.value.extra_info, caught.value


def test_a_topic_is_deleted_while_batches_of_it_are_on_their_way(client: PlainClient) -> None:
    """Each batch is stored in the old topic or the new one, or refused with a typed error; the stream lives on."""
    stream = client.publishing()
    stream.publish(messages(b"x"), topic=TOPIC)
    for number in range(300):
        stream.write(messages(b"x"), topic=TOPIC, more=True)
        if number % 50 == 25:
            with contextlib.suppress(fl.FlightServerError):  # not made anew yet
                client.action("delete_topic", topic=TOPIC)
    answers = stream.finish()
    assert len(answers) == 300
    refused = {answer["error"]["code"] for answer in answers if "error" in answer}
    assert refused <= {"topic_not_found", "conflict", "closed", "unavailable"}
    assert answers[-1]["base_offset"] == client.action("describe_topic", topic=TOPIC)["durable_end"] - 1
