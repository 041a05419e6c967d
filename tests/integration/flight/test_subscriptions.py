"""Subscriptions at the native door, by the protocol's own words."""

import json
from collections.abc import Callable, Iterator
from time import monotonic, sleep
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from tests.integration.flight.conftest import OpenDoor, Running
from tests.integration.flight.plain import PATIENCE_SECONDS, PlainClient, encoded, failure, messages
from tests.integration.flight.subscribing import Subscribing

TOPIC = "default/events"
Subscribe = Callable[..., Subscribing]


@pytest.fixture
def topic(client: PlainClient) -> str:
    client.action("create_topic", topic=TOPIC)
    return TOPIC


def publish(client: PlainClient, count: int, keys: list[bytes | None] | None = None) -> None:
    batch = messages(*(b"%d" % number for number in range(count)), keys=keys)
    assert "error" not in client.publishing().publish(batch, topic=TOPIC)


@pytest.fixture
def subscribe(running: Running, topic: str) -> Iterator[Subscribe]:
    """Opens streams on connections of their own."""
    opened: list[Subscribing] = []

    def start(name: str = "s", **fields: Any) -> Subscribing:
        opened.append(Subscribing.to(running.connect().flight, topic, name, **fields))
        return opened[-1]

    yield start
    for stream in opened:
        stream.vanish()


def leave(client: PlainClient, stream: Subscribing) -> None:
    """Break off, and wait until the broker has noticed."""
    stream.vanish()
    deadline = monotonic() + PATIENCE_SECONDS
    while client.action("describe_subscription", topic=TOPIC, subscription="s")["consumers"]:
        assert monotonic() < deadline, "the consumer is still there"
        sleep(0.01)


def refusal(stream: Subscribing) -> dict[str, Any]:
    """The error that a stream must end with."""
    while not isinstance(found := stream.next(), Exception):
        assert found is not None, "the stream ended without an error"
    assert isinstance(found, fl.FlightError)
    error: dict[str, Any] = json.loads(found.extra_info)
    stream.close()
    return error


def test_a_stream_delivers_what_is_there_and_what_comes(client: PlainClient, subscribe: Subscribe) -> None:
    publish(client, 10)
    stream = subscribe(consumer="me")
    assert stream.accepted == {
        "topic": TOPIC,
        "subscription": "s",
        "type": "exclusive",
        "consumer": "me",
        "session_timeout_ms": 30_000,
    }
    batch = stream.batch()
    assert batch.schema.names[0] == "offset"
    assert batch.schema.names[-1] == "redelivery_count"
    assert batch["payload"].to_pylist() == [b"%d" % number for number in range(10)]
    publish(client, 5)
    assert stream.offsets(5) == list(range(10, 15))
    assert stream.finish() is None


def test_what_was_acknowledged_does_not_come_again_and_the_rest_does(client: PlainClient, subscribe: Subscribe) -> None:
    publish(client, 10)
    stream = subscribe()
    assert stream.offsets(10) == list(range(10))
    stream.say(ack=[[0, 3], [5, 6]])
    stream.say(flush=7)
    assert stream.message() == {"flushed": 7}
    leave(client, stream)
    assert subscribe().offsets(6) == [3, 4, 6, 7, 8, 9]


def test_one_message_may_say_several_things(client: PlainClient, subscribe: Subscribe) -> None:
    publish(client, 10)
    stream = subscribe(max_messages=4)
    assert stream.offsets(4) == [0, 1, 2, 3]
    assert stream.nothing()
    stream.say(ack=[[0, 1]], nack=[[1, 2]], delay_ms=0, grant=[2, 0], ping=1, flush=1)
    found: list[tuple[int, int]] = []
    flushed = False
    while len(found) < 2 or not flushed:
        item = stream.next()
        if isinstance(item, pa.RecordBatch):
            found += list(zip(item["offset"].to_pylist(), item["redelivery_count"].to_pylist(), strict=True))
        else:
            flushed = item == {"flushed": 1}
    assert (1, 1) in found


def test_no_more_comes_than_there_is_credit_for(client: PlainClient, subscribe: Subscribe) -> None:
    publish(client, 20)
    stream = subscribe(max_messages=3)
    assert stream.offsets(3) == [0, 1, 2]
    assert stream.nothing()
    stream.say(grant=[2, 0])
    assert stream.offsets(2) == [3, 4]
    assert stream.nothing()


def test_cumulative_acknowledgements(client: PlainClient, subscribe: Subscribe) -> None:
    publish(client, 10)
    stream = subscribe(type="failover")
    assert stream.offsets(10) == list(range(10))
    stream.say(ack_cumulative=6)
    assert stream.nothing()
    assert stream.finish() is None
    assert subscribe().offsets(3) == [7, 8, 9]


def test_the_same_consumer_on_a_new_connection_takes_over(client: PlainClient, subscribe: Subscribe) -> None:
    publish(client, 3)
    first = subscribe(instance="one")
    assert first.offsets(3) == [0, 1, 2]
    second = subscribe(instance="one")
    assert second.offsets(3) == [0, 1, 2]
    found = first.message()
    assert found["error"]["code"] == "closed"
    assert json.loads(first.finish().extra_info)["code"] == "closed"
    stranger = Subscribing(client.flight)
    stranger.say(topic=TOPIC, subscription="s", instance="two")
    assert refusal(stranger)["code"] == "subscription_busy"


def test_a_deleted_topic_ends_its_streams(client: PlainClient, subscribe: Subscribe) -> None:
    stream = subscribe()
    client.action("delete_topic", topic=TOPIC)
    assert stream.message()["error"]["code"] == "topic_not_found"
    assert json.loads(stream.finish().extra_info)["code"] == "topic_not_found"


def test_a_deleted_subscription_ends_its_streams(client: PlainClient, subscribe: Subscribe) -> None:
    stream = subscribe()
    client.action("delete_subscription", topic=TOPIC, subscription="s")
    assert stream.message()["error"]["code"] == "subscription_not_found"
    assert json.loads(stream.finish().extra_info)["code"] == "subscription_not_found"
    assert client.action("list_subscriptions")["subscriptions"] == []


def test_a_stopping_broker_ends_its_streams(running: Running, subscribe: Subscribe) -> None:
    stream = subscribe()
    running.door.end_streams()
    assert stream.message()["error"]["code"] == "unavailable"
    assert json.loads(stream.finish().extra_info)["code"] == "unavailable"
    late = Subscribing(running.client.flight)
    late.say(topic=TOPIC, subscription="s")
    assert refusal(late)["code"] == "unavailable"


def test_a_silent_consumer_is_ended_and_one_that_pings_is_not(open_door: OpenDoor) -> None:
    running = open_door(subscriptions={"session_timeout_ms": 1_000})
    running.client.action("create_topic", topic=TOPIC)
    silent = Subscribing.to(running.connect().flight, TOPIC, "silent")
    alive = Subscribing.to(running.connect().flight, TOPIC, "alive")
    ended = None
    while ended is None:
        alive.say(ping=1)
        ended = silent.wait(0.2)
    assert ended["error"]["code"] == "closed"
    assert ended["error"]["retryable"]
    silent.finish()
    assert alive.nothing()
    alive.vanish()


def test_a_topic_with_its_own_schema_is_delivered_with_its_columns(running: Running) -> None:
    schema = pa.schema([pa.field("price", pa.float64())])
    client = running.client
    client.action("create_topic", topic="default/trades", schema=encoded(schema))
    batch = pa.record_batch({"price": [1.5, 2.5, 3.5]}, schema=schema)
    assert "error" not in client.publishing(schema).publish(batch, topic="default/trades")
    stream = Subscribing.to(running.connect().flight, "default/trades", "s", options={"filter": "price > 2"})
    found = stream.batch()
    assert (found.schema.names[0], found.schema.names[-1]) == ("_offset", "_redelivery_count")
    assert found["price"].to_pylist() == [2.5, 3.5]
    stream.vanish()


# Mistakes


@pytest.mark.parametrize(
    ("first", "code"),
    [
        (b"no JSON", "invalid_request"),
        (b"{}", "invalid_request"),
        (b'{"topic": "default/events"}', "invalid_request"),
        (b'{"topic": "default/nothing", "subscription": "s"}', "topic_not_found"),
        (b'{"topic": "default/events", "subscription": "a/b"}', "invalid_name"),
        (b'{"topic": "default/events", "subscription": "s", "create": false}', "subscription_not_found"),
        (b'{"topic": "default/events", "subscription": "s", "type": "funny"}', "invalid_request"),
        (b'{"topic": "default/events", "subscription": "s", "start": "sometime"}', "invalid_request"),
        (b'{"topic": "default/events", "subscription": "s", "more": 1}', "invalid_request"),
        (b'{"topic": "default/events", "subscription": "s", "max_messages": 0}', "invalid_request"),
        (b'{"topic": "default/events", "subscription": "s", "max_bytes": -1}', "invalid_request"),
        (b'{"topic": "default/events", "subscription": "s", "consumer": 5}', "invalid_request"),
        (b'{"topic": "default/events", "subscription": "s", "options": {"filter": "price >"}}', "invalid_request"),
        (b'{"topic": "default/events", "subscription": "s", "options": {"nonsense": 1}}', "invalid_request"),
        (b'{"topic": "default/events", "subscription": "s", "options": 5}', "invalid_request"),
    ],
)
def test_a_bad_first_message_is_refused(client: PlainClient, topic: str, first: bytes, code: str) -> None:
    assert topic == TOPIC
    stream = Subscribing(client.flight)
    stream.say(first)
    assert refusal(stream)["code"] == code
    assert client.action("list_subscriptions", topic=TOPIC)["subscriptions"] == []


@pytest.mark.parametrize(
    "mistake",
    [
        b"no JSON",
        b"[]",
        b"\xff",
        b'{"ack": 5}',
        b'{"ack": [[1]]}',
        b'{"ack": [[-1, 5]]}',
        b'{"ack": [[1, 99999999999999999999]]}',
        b'{"grant": [1]}',
        b'{"grant": [-1, 1]}',
        b'{"nack": [[0, 1]], "delay_ms": -5}',
        b'{"nack": [[0, 1]], "delay_ms": 99999999999999}',
        b'{"ack_cumulative": 1}',
        b'{"more": 1}',
        b'{"ack": [' + b"[1, 2]," * 200_000 + b"[1, 2]]}",
    ],
    ids=lambda mistake: mistake[:30].decode(errors="replace"),
)
def test_a_bad_message_ends_the_stream_and_gives_back_what_it_had(
    client: PlainClient, subscribe: Subscribe, mistake: bytes
) -> None:
    publish(client, 3)
    stream = subscribe(type="shared")
    assert stream.offsets(3) == [0, 1, 2]
    stream.say(mistake)
    assert refusal(stream)["code"] == "invalid_request"
    assert subscribe().offsets(3) == [0, 1, 2]


def test_a_stream_that_says_nothing_ends_quietly(client: PlainClient) -> None:
    assert Subscribing(client.flight).finish() is None


def test_ranges_of_nothing_and_of_what_others_have_are_passed_over(client: PlainClient, subscribe: Subscribe) -> None:
    publish(client, 3)
    stream = subscribe()
    assert stream.offsets(3) == [0, 1, 2]
    stream.say(ack=[[2, 1], [1, 1], [5, 900], [1, 2], [0, 2]])
    assert stream.nothing()
    leave(client, stream)
    assert subscribe().offsets(1) == [2]


def test_a_consumer_sends_no_data(subscribe: Subscribe) -> None:
    stream = subscribe()
    stream.writer.begin(pa.schema([("x", pa.int64())]))
    stream.writer.write_batch(pa.record_batch({"x": [1]}))
    assert refusal(stream)["code"] == "invalid_request"


def test_other_exchanges_are_refused(client: PlainClient) -> None:
    stream = Subscribing(client.flight, path="other")
    assert refusal(stream)["code"] == "invalid_request"


def test_streams_are_counted(open_door: OpenDoor) -> None:
    running = open_door(server={"max_connections": 1})
    running.client.action("create_topic", topic=TOPIC)
    stream = Subscribing.to(running.client.flight, TOPIC, "s")
    other = Subscribing(running.client.flight)
    other.say(topic=TOPIC, subscription="t")
    assert refusal(other)["code"] == "overloaded"
    assert stream.finish() is None
    assert Subscribing.to(running.client.flight, TOPIC, "t").finish() is None


# Administration


def test_a_subscription_is_made_described_moved_and_deleted(client: PlainClient, topic: str) -> None:
    publish(client, 10)
    name: dict[str, Any] = {"topic": topic, "subscription": "s"}
    options = {"filter": "offset > 2", "ack_timeout_ms": 5_000, "max_redeliveries": 3}
    made = client.action("create_subscription", **name, type="shared", start=4, options=options)
    assert (made["type"], made["floor_offset"], made["filter"]) == ("shared", 4, "offset > 2")
    assert made["options"] == {"type": "shared", "nack_delay_ms": 1000, **options}
    assert client.action("describe_subscription", **name)["durable_end"] == 10
    assert [found["subscription"] for found in client.action("list_subscriptions")["subscriptions"]] == ["s"]
    assert failure(client.action, "list_subscriptions", topic="default/other")["code"] == "topic_not_found"
    assert client.action("seek_subscription", **name, position=7) == {"offset": 7}
    assert client.action("describe_subscription", **name)["floor_offset"] == 7
    assert client.action("delete_subscription", **name) == {}
    assert failure(client.action, "describe_subscription", **name)["code"] == "subscription_not_found"
    assert failure(client.action, "delete_subscription", **name)["code"] == "subscription_not_found"


def test_options_that_are_not_given_stay_as_they_are(client: PlainClient, topic: str) -> None:
    name: dict[str, Any] = {"topic": topic, "subscription": "s"}
    client.action("create_subscription", **name, type="shared", options={"filter": "offset > 2", "ack_timeout_ms": 9})
    again = client.action("create_subscription", **name, options={"nack_delay_ms": 5})
    assert again["options"] == {"type": "shared", "filter": "offset > 2", "ack_timeout_ms": 9, "nack_delay_ms": 5}
    cleared = client.action("create_subscription", **name, options={"filter": "", "ack_timeout_ms": 0})
    assert cleared["options"] == {"type": "shared", "nack_delay_ms": 5}


def test_a_connected_subscription_keeps_its_type(client: PlainClient, subscribe: Subscribe) -> None:
    subscribe(type="shared")
    error = failure(client.action, "create_subscription", topic=TOPIC, subscription="s", type="exclusive")
    assert error["code"] == "subscription_busy"


def test_moving_a_subscription_delivers_again_to_a_consumer_that_stays(
    client: PlainClient, subscribe: Subscribe
) -> None:
    publish(client, 5)
    stream = subscribe()
    assert stream.offsets(5) == [0, 1, 2, 3, 4]
    stream.say(ack=[[0, 5]])
    assert stream.nothing()
    client.action("seek_subscription", topic=TOPIC, subscription="s", position=3)
    assert stream.offsets(2) == [3, 4]


@pytest.mark.parametrize(
    ("action", "fields"),
    [
        ("create_subscription", {}),
        ("create_subscription", {"subscription": "s", "type": "funny"}),
        ("create_subscription", {"subscription": "s", "options": {"type": 5}}),
        ("create_subscription", {"subscription": "s", "options": {"ack_timeout_ms": "5"}}),
        ("seek_subscription", {"subscription": "s", "position": "sometime"}),
        ("list_subscriptions", {"prefix": "x"}),
    ],
)
def test_bad_requests_are_refused(client: PlainClient, topic: str, action: str, fields: dict[str, Any]) -> None:
    given = fields if action == "list_subscriptions" else {"topic": topic, **fields}
    assert failure(client.action, action, **given)["code"] == "invalid_request"
