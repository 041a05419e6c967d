"""Consuming from a subscription, against the real broker."""

import threading

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.integration.client.broker import ScriptedBroker
from tests.integration.client.conftest import TOPIC, eventually

from icestream import Client
from icestream.client import Subscription
from icestream.model.errors import ClosedError, InvalidRequestError, UnavailableError

PATIENCE_SECONDS = 60.0


def publish(client: Client, *payloads: bytes) -> None:
    with client.producer(TOPIC) as producer:
        producer.send_batch(pa.table({"payload": list(payloads)}))


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def take(subscription: Subscription, count: int) -> list[bytes]:
    """Receive and acknowledge so many."""
    payloads: list[bytes] = []
    while len(payloads) < count:
        message = subscription.receive(PATIENCE_SECONDS)
        assert message is not None
        payloads.append(message.payload)
        subscription.ack(message)
    return payloads


def take_batch(subscription: Subscription, max_messages: int | None = None) -> pa.RecordBatch:
    batch = subscription.receive_batch(max_messages, timeout=PATIENCE_SECONDS)
    assert batch is not None
    return batch


def test_messages_come_in_order_and_acknowledgements_go_out_as_ranges(broker: ScriptedBroker, client: Client) -> None:
    publish(client, *numbered(1000))
    with client.subscribe(TOPIC, "s") as subscription:
        assert (subscription.topic, subscription.name, subscription.type) == (TOPIC, "s", "exclusive")
        assert take(subscription, 1000) == numbered(1000)
        subscription.flush()
        assert broker.acked == set(range(1000))
    assert sum(len(ranges) for ranges in broker.said("ack")) < 100


def test_a_message_says_how_often_it_was_delivered(broker: ScriptedBroker, client: Client) -> None:
    publish(client, b"x")
    with client.subscribe(TOPIC, "s") as subscription:
        for count in range(3):
            message = subscription.receive(PATIENCE_SECONDS)
            assert message is not None
            assert (message.payload, message.redelivery_count) == (b"x", count)
            subscription.nack(message, delay=0.25)
        eventually(lambda: broker.deliveries[0] == 4)
    assert next(control for control in broker.controls if "nack" in control)["delay_ms"] == 250


def test_the_default_delay_is_left_to_the_subscription(broker: ScriptedBroker, client: Client) -> None:
    publish(client, b"x", b"y")
    with client.subscribe(TOPIC, "s") as subscription:
        batch = take_batch(subscription)
        subscription.nack(batch)
        subscription.flush()
    (control,) = [control for control in broker.controls if "nack" in control]
    assert control["nack"] == [[0, batch.num_rows]]
    assert "delay_ms" not in control


@pytest.mark.parametrize("ack", ["message", "offset", "batch", "table", "cumulative"])
def test_all_ways_to_acknowledge(broker: ScriptedBroker, client: Client, ack: str) -> None:
    publish(client, *numbered(10))
    with client.subscribe(TOPIC, "s") as subscription:
        batch = take_batch(subscription)
        assert batch.num_rows == 10
        match ack:
            case "message":
                publish(client, b"more")
                message = next(subscription)
                subscription.ack(message)
                subscription.ack(batch)
            case "offset":
                for offset in range(10):
                    subscription.ack(offset)
            case "batch":
                subscription.ack(batch)
            case "table":
                subscription.ack(pa.Table.from_batches([batch.slice(0, 4), batch.slice(4)]))
            case "cumulative":
                subscription.ack_cumulative(3)
                subscription.ack_cumulative(9)
                subscription.ack_cumulative(5)
        subscription.flush()
        assert broker.acked == set(range(11 if ack == "message" else 10))


def test_what_is_left_of_a_batch_is_acknowledged_as_the_ranges_that_it_makes_up(
    broker: ScriptedBroker, client: Client
) -> None:
    publish(client, *numbered(10))
    with client.subscribe(TOPIC, "s") as subscription:
        batch = take_batch(subscription)
        subscription.ack(batch.filter(pc.is_in(batch["offset"], pa.array([1, 2, 3, 7, 9]))))
        subscription.flush()
        assert broker.said("ack") == [[[1, 4], [7, 8], [9, 10]]]


def test_never_more_waits_than_there_is_credit_for(broker: ScriptedBroker, client: Client) -> None:
    publish(client, *numbered(1000))
    with client.subscribe(TOPIC, "s", receiver_queue=50) as subscription:
        eventually(lambda: sum(broker.deliveries.values()) == 50)
        assert take(subscription, 1000) == numbered(1000)
    assert broker.most_in_flight == 50


@pytest.mark.parametrize("size", [10, 700, 1_500])
def test_credit_in_bytes_comes_back_whatever_size_messages_have(client: Client, size: int) -> None:
    payloads = [bytes(size)] * 50
    publish(client, *payloads)
    with client.subscribe(TOPIC, "s", max_bytes=1_000) as subscription:
        assert take(subscription, 50) == payloads


def test_batches_have_at_most_as_many_messages_as_asked_for(client: Client) -> None:
    publish(client, *numbered(100))
    sizes: list[int] = []
    with client.subscribe(TOPIC, "s", receiver_queue=20) as subscription:
        while sum(sizes) < 100:
            batch = take_batch(subscription, 7)
            sizes.append(batch.num_rows)
        assert max(sizes) == 7
        assert subscription.receive_batch(timeout=0) is None
        with pytest.raises(InvalidRequestError):
            subscription.receive_batch(max_messages=0)


def test_small_batches_are_joined(broker: ScriptedBroker, client: Client) -> None:
    with client.subscribe(TOPIC, "s") as subscription:
        for payload in numbered(50):
            publish(client, payload)
        eventually(lambda: len(broker.deliveries) == 50)
        subscription.flush()  # its response comes behind them
        batch = take_batch(subscription)
        assert batch["payload"].to_pylist() == numbered(50)


def test_messages_and_batches_can_be_mixed(client: Client) -> None:
    publish(client, *numbered(100))
    found: list[bytes] = []
    with client.subscribe(TOPIC, "s") as subscription:
        while len(found) < 100:
            found += [next(subscription).payload for _ in range(3)]
            batch = subscription.receive_batch(max_messages=5, timeout=0)
            found += [] if batch is None else batch["payload"].to_pylist()
    assert found == numbered(len(found))


def test_threads_share_the_messages(broker: ScriptedBroker, client: Client) -> None:
    publish(client, *numbered(5_000))
    found: list[bytes] = []

    def consume() -> None:
        for message in subscription:
            found.append(message.payload)
            subscription.ack(message)

    with client.subscribe(TOPIC, "s", receiver_queue=100) as subscription:
        threads = [threading.Thread(target=consume) for _ in range(4)]
        for thread in threads:
            thread.start()
        eventually(lambda: len(broker.acked) == 5_000)
        subscription.close()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive()
    assert sorted(found) == sorted(numbered(5_000))


def test_nothing_within_the_time_is_none(client: Client) -> None:
    with client.subscribe(TOPIC, "s") as subscription:
        assert subscription.receive(0) is None
        assert subscription.receive(0.01) is None
        assert subscription.receive_batch(timeout=0.01) is None


def test_closing_flushes_so_that_nothing_acknowledged_comes_again(broker: ScriptedBroker, client: Client) -> None:
    publish(client, *numbered(500))
    with client.subscribe(TOPIC, "s") as subscription:
        take(subscription, 300)
    assert broker.acked == set(range(300))
    assert broker.said("flush") == [1]
    with client.subscribe(TOPIC, "s") as subscription:
        assert take(subscription, 200) == numbered(500)[300:]


def test_closing_the_client_closes_its_subscriptions(broker: ScriptedBroker, client: Client) -> None:
    publish(client, b"x")
    subscription = client.subscribe(TOPIC, "s")
    take(subscription, 1)
    client.close()
    assert broker.acked == {0}
    assert subscription.ended
    assert subscription.receive() is None
    for call in (subscription.ack, subscription.nack, subscription.ack_cumulative):
        with pytest.raises(ClosedError):
            call(0)
    with pytest.raises(ClosedError):
        subscription.flush()


def test_an_iteration_ends_when_another_thread_closes(client: Client) -> None:
    subscription = client.subscribe(TOPIC, "s")
    thread = threading.Thread(target=lambda: list(subscription))
    thread.start()
    subscription.close()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()


def test_closing_does_not_wait_for_a_broker_that_is_gone(broker: ScriptedBroker, client: Client) -> None:
    publish(client, b"x")
    subscription = client.subscribe(TOPIC, "s")
    take(subscription, 1)
    broker.stop()
    subscription.close(timeout=PATIENCE_SECONDS)


def test_a_broker_that_is_not_there_is_said_by_subscribe(broker: ScriptedBroker, client: Client) -> None:
    broker.stop()
    with pytest.raises(UnavailableError):
        client.subscribe(TOPIC, "s")


def test_what_is_asked_for_travels_in_the_first_message(broker: ScriptedBroker, client: Client) -> None:
    client.subscribe(
        TOPIC,
        "s",
        type="key-shared",
        start="latest",
        filter="key = 'a'",
        ack_timeout=1.5,
        nack_delay=0,
        max_redeliveries=3,
        dead_letter_topic="dead",
        consumer="me",
        receiver_queue=7,
        max_bytes=8,
    ).close()
    (request,) = broker.subscribed
    assert len(request.pop("instance")) == 32
    assert request == {
        "topic": TOPIC,
        "subscription": "s",
        "type": "key-shared",
        "start": "latest",
        "options": {
            "filter": "key = 'a'",
            "ack_timeout_ms": 1500,
            "nack_delay_ms": 0,
            "max_redeliveries": 3,
            "dead_letter_topic": "default/dead",
        },
        "consumer": "me",
        "create": True,
        "max_messages": 7,
        "max_bytes": 8,
    }


def test_what_is_not_given_is_not_said(broker: ScriptedBroker, client: Client) -> None:
    client.subscribe(TOPIC, "s").close()
    assert not broker.subscribed[0].keys() & {"type", "options"}


def test_mistakes_are_refused_before_they_are_sent(client: Client) -> None:
    for mistake in ({"receiver_queue": 0}, {"max_bytes": 0}, {"ack_timeout": -1}, {"start": "sometime"}):
        with pytest.raises(InvalidRequestError):
            client.subscribe(TOPIC, "s", **mistake)
    with client.subscribe(TOPIC, "s", type="shared") as subscription:
        with pytest.raises(InvalidRequestError, match="shared"):
            subscription.ack_cumulative(1)
        for nothing in (-1, None, "x", True):
            with pytest.raises(InvalidRequestError):
                subscription.ack(nothing)
        with pytest.raises(InvalidRequestError):
            subscription.nack(1, delay=-1)
        with pytest.raises(InvalidRequestError, match="offset"):
            subscription.ack(pa.record_batch({"x": [1]}))


def test_topics_with_their_own_schema_give_batches_only(broker: ScriptedBroker, client: Client) -> None:
    client.create_topic("default/own", pa.schema([pa.field("number", pa.int64())]))
    with client.producer("default/own") as producer:
        producer.send_batch(pa.table({"number": range(10)}))
    with client.subscribe("default/own", "s") as subscription:
        with pytest.raises(InvalidRequestError, match="schema"):
            next(subscription)
        batch = take_batch(subscription)
        assert batch["_offset"].to_pylist() == batch["number"].to_pylist() == list(range(10))
        subscription.ack(batch)
    assert broker.acked == set(range(10))
