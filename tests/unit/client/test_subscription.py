"""Consuming from a subscription, against a broker that keeps the protocol strictly and breaks off on order."""

import threading
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.unit.client.fake_subscriptions import FakeSubscriptions

from icestream import Client
from icestream.client import Subscription
from icestream.model.errors import (
    ClosedError,
    InvalidRequestError,
    SubscriptionBusyError,
    TopicNotFoundError,
    UnavailableError,
)

TOPIC = "default/t"
PATIENCE_SECONDS = 60.0


@pytest.fixture
def broker() -> Iterator[FakeSubscriptions]:
    with FakeSubscriptions() as running:
        yield running
        running.stop()


@pytest.fixture
def client(broker: FakeSubscriptions) -> Iterator[Client]:
    with Client(broker.url) as connected:
        yield connected


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


def test_messages_come_in_order_and_acknowledgements_go_out_as_ranges(
    broker: FakeSubscriptions, client: Client
) -> None:
    broker.publish(*numbered(1000))
    with client.subscribe(TOPIC, "s") as subscription:
        assert (subscription.topic, subscription.name, subscription.type) == (TOPIC, "s", "exclusive")
        assert take(subscription, 1000) == numbered(1000)
        subscription.flush()
        assert broker.acked == set(range(1000))
    assert sum(len(ranges) for ranges in broker.said("ack")) < 100


def test_a_message_says_how_often_it_was_delivered(broker: FakeSubscriptions, client: Client) -> None:
    broker.publish(b"x")
    with client.subscribe(TOPIC, "s") as subscription:
        for count in range(3):
            message = subscription.receive(PATIENCE_SECONDS)
            assert message is not None
            assert (message.payload, message.redelivery_count) == (b"x", count)
            subscription.nack(message, delay=0.25)
        broker.wait(lambda: broker.deliveries[0] == 4)
    assert next(control for control in broker.controls if "nack" in control)["delay_ms"] == 250


def test_the_default_delay_is_left_to_the_subscription(broker: FakeSubscriptions, client: Client) -> None:
    broker.publish(b"x", b"y")
    with client.subscribe(TOPIC, "s") as subscription:
        batch = take_batch(subscription)
        subscription.nack(batch)
        subscription.flush()
    (control,) = [control for control in broker.controls if "nack" in control]
    assert control["nack"] == [[0, batch.num_rows]]
    assert "delay_ms" not in control


@pytest.mark.parametrize("ack", ["message", "offset", "batch", "table", "cumulative"])
def test_all_ways_to_acknowledge(broker: FakeSubscriptions, client: Client, ack: str) -> None:
    broker.publish(*numbered(10))
    with client.subscribe(TOPIC, "s") as subscription:
        batch = take_batch(subscription)
        assert batch.num_rows == 10
        match ack:
            case "message":
                broker.publish(b"more")
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
    broker: FakeSubscriptions, client: Client
) -> None:
    broker.publish(*numbered(10))
    with client.subscribe(TOPIC, "s") as subscription:
        batch = take_batch(subscription)
        subscription.ack(batch.filter(pc.is_in(batch["offset"], pa.array([1, 2, 3, 7, 9]))))
        subscription.flush()
        assert broker.said("ack") == [[[1, 4], [7, 8], [9, 10]]]


def test_never_more_waits_than_there_is_credit_for(broker: FakeSubscriptions, client: Client) -> None:
    broker.publish(*numbered(1000))
    with client.subscribe(TOPIC, "s", receiver_queue=50) as subscription:
        broker.wait(lambda: sum(broker.deliveries.values()) == 50)
        assert take(subscription, 1000) == numbered(1000)
    assert broker.most_in_flight[0] == 50


@pytest.mark.parametrize("size", [10, 700, 1_500])
def test_credit_in_bytes_comes_back_whatever_size_messages_have(
    broker: FakeSubscriptions, client: Client, size: int
) -> None:
    payloads = [bytes(size)] * 50
    broker.publish(*payloads)
    broker.batch_messages = 1
    with client.subscribe(TOPIC, "s", max_bytes=1_000) as subscription:
        assert take(subscription, 50) == payloads


def test_batches_have_at_most_as_many_messages_as_asked_for(broker: FakeSubscriptions, client: Client) -> None:
    broker.publish(*numbered(100))
    sizes: list[int] = []
    with client.subscribe(TOPIC, "s", receiver_queue=20) as subscription:
        while sum(sizes) < 100:
            batch = take_batch(subscription, 7)
            sizes.append(batch.num_rows)
        assert max(sizes) == 7
        assert subscription.receive_batch(timeout=0) is None
        with pytest.raises(InvalidRequestError):
            subscription.receive_batch(max_messages=0)


def test_small_batches_are_joined(broker: FakeSubscriptions, client: Client) -> None:
    broker.batch_messages = 1
    broker.publish(*numbered(50))
    with client.subscribe(TOPIC, "s") as subscription:
        broker.wait(lambda: len(broker.deliveries) == 50)
        subscription.flush()  # its answer comes behind them
        batch = take_batch(subscription)
        assert batch["payload"].to_pylist() == numbered(50)


def test_messages_and_batches_can_be_mixed(broker: FakeSubscriptions, client: Client) -> None:
    broker.publish(*numbered(100))
    found: list[bytes] = []
    with client.subscribe(TOPIC, "s") as subscription:
        while len(found) < 100:
            found += [next(subscription).payload for _ in range(3)]
            batch = subscription.receive_batch(max_messages=5, timeout=0)
            found += [] if batch is None else batch["payload"].to_pylist()
    assert found == numbered(len(found))


def test_threads_share_the_messages(broker: FakeSubscriptions, client: Client) -> None:
    broker.publish(*numbered(5_000))
    broker.batch_messages = 37
    found: list[bytes] = []

    def consume() -> None:
        for message in subscription:
            found.append(message.payload)
            subscription.ack(message)

    with client.subscribe(TOPIC, "s") as subscription:
        threads = [threading.Thread(target=consume) for _ in range(4)]
        for thread in threads:
            thread.start()
        broker.wait(lambda: len(broker.acked) == 5_000)
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


# The end


def test_closing_flushes_so_that_nothing_acknowledged_comes_again(broker: FakeSubscriptions, client: Client) -> None:
    broker.publish(*numbered(500))
    with client.subscribe(TOPIC, "s") as subscription:
        take(subscription, 300)
    assert broker.acked == set(range(300))
    assert broker.said("flush") == [1]
    with client.subscribe(TOPIC, "s") as subscription:
        assert take(subscription, 200) == numbered(500)[300:]


def test_closing_the_client_closes_its_subscriptions(broker: FakeSubscriptions, client: Client) -> None:
    broker.publish(b"x")
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


def test_closing_does_not_wait_for_a_broker_that_is_gone(broker: FakeSubscriptions) -> None:
    broker.publish(b"x")
    with Client(broker.url) as client:
        subscription = client.subscribe(TOPIC, "s")
        take(subscription, 1)
        broker.stop()
        subscription.close(timeout=PATIENCE_SECONDS)


# Broken connections


@pytest.mark.parametrize("how", ["cut", "told"])
def test_after_a_broken_connection_what_was_not_acknowledged_comes_again(
    broker: FakeSubscriptions, client: Client, how: str
) -> None:
    broker.publish(*numbered(300))
    with client.subscribe(TOPIC, "s", start=0) as subscription:
        assert take(subscription, 100) == numbered(100)
        subscription.flush()
        kept = [next(subscription) for _ in range(10)]
        assert broker.acked == set(range(100))
        if how == "cut":
            broker.cut()
        else:
            broker.end_streams(UnavailableError("stopping"))
        broker.wait(lambda: len(broker.requests) == 2)
        again = next(subscription)
        while again.redelivery_count == 0:
            again = next(subscription)
        assert again.offset == kept[0].offset
        subscription.ack(again)
        assert take(subscription, 199) == numbered(300)[101:]
    assert broker.acked == set(range(300))
    first, second = broker.requests
    assert first.pop("create")
    assert not second.pop("create"), "a subscription that was deleted meanwhile would begin anew"
    assert first == second


def test_a_flush_whose_answer_cannot_come_says_so(broker: FakeSubscriptions, client: Client) -> None:
    broker.publish(b"x")
    with client.subscribe(TOPIC, "s") as subscription:
        take(subscription, 1)
        broker.refusal = UnavailableError("not yet")
        broker.end_streams(UnavailableError("stopping"))
        with pytest.raises(UnavailableError):
            subscription.flush()


def test_a_flush_that_the_broker_cannot_store_now_says_so_and_the_stream_goes_on(
    broker: FakeSubscriptions, client: Client
) -> None:
    broker.publish(b"x", b"y")
    with client.subscribe(TOPIC, "s") as subscription:
        take(subscription, 1)
        broker.flush_failure = UnavailableError("the store is away")
        with pytest.raises(UnavailableError, match="away"):
            subscription.flush()
        broker.flush_failure = None
        take(subscription, 1)
        subscription.flush()
    assert len(broker.requests) == 1


def test_many_breaks_lose_nothing(broker: FakeSubscriptions, client: Client) -> None:
    broker.publish(*numbered(2_000))
    broker.batch_messages = 10
    seen: set[bytes] = set()
    ended = threading.Event()

    def breaks() -> None:
        while not ended.wait(0.005):
            broker.cut()

    breaking = threading.Thread(target=breaks)
    with client.subscribe(TOPIC, "s", receiver_queue=100) as subscription:
        breaking.start()  # not before: a first connection that fails is the caller's
        try:
            for message in subscription:
                seen.add(message.payload)
                subscription.ack(message)
                if len(broker.acked) >= 500:
                    ended.set()
                if len(seen) == 2_000:
                    break
        finally:
            ended.set()
            breaking.join()
    assert seen == set(numbered(2_000))


def test_an_error_that_does_not_pass_ends_the_subscription(broker: FakeSubscriptions, client: Client) -> None:
    with client.subscribe(TOPIC, "s") as subscription:
        broker.end_streams(TopicNotFoundError("deleted"))
        with pytest.raises(TopicNotFoundError, match="deleted"):
            next(subscription)
        with pytest.raises(TopicNotFoundError, match="deleted"):
            subscription.receive_batch()
        assert subscription.ended


def test_a_refusal_is_raised_by_subscribe(broker: FakeSubscriptions, client: Client) -> None:
    broker.refusal = SubscriptionBusyError("taken")
    with pytest.raises(SubscriptionBusyError, match="taken"):
        client.subscribe(TOPIC, "s")


def test_a_broker_that_is_not_there_is_said_by_subscribe(broker: FakeSubscriptions, client: Client) -> None:
    broker.stop()
    with pytest.raises(UnavailableError):
        client.subscribe(TOPIC, "s")


def test_an_idle_consumer_gives_signs_of_life(broker: FakeSubscriptions, client: Client) -> None:
    broker.session_timeout_ms = 30
    with client.subscribe(TOPIC, "s"):
        broker.wait(lambda: sum("ping" in control for control in broker.controls) >= 3)


# Requests


def test_what_is_asked_for_travels_in_the_first_message(broker: FakeSubscriptions, client: Client) -> None:
    client.subscribe(
        TOPIC,
        "s",
        type="key-shared",
        start="tag:v1",
        filter="key = 'a'",
        ack_timeout=1.5,
        nack_delay=0,
        max_redeliveries=3,
        dead_letter_topic="dead",
        consumer="me",
        receiver_queue=7,
        max_bytes=8,
    ).close()
    (request,) = broker.requests
    assert len(request.pop("instance")) == 32
    assert request == {
        "topic": TOPIC,
        "subscription": "s",
        "type": "key-shared",
        "start": {"tag": "v1"},
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


def test_what_is_not_given_is_not_said(broker: FakeSubscriptions, client: Client) -> None:
    client.subscribe(TOPIC, "s").close()
    assert not broker.requests[0].keys() & {"type", "options"}


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


def test_topics_with_their_own_schema_give_batches_only() -> None:
    schema = pa.schema([("_offset", pa.int64()), ("_redelivery_count", pa.int32())])
    with FakeSubscriptions(schema) as broker, Client(broker.url) as client:
        broker.publish(*numbered(10))
        with client.subscribe(TOPIC, "s") as subscription:
            with pytest.raises(InvalidRequestError, match="schema"):
                next(subscription)
            batch = take_batch(subscription)
            assert batch["_offset"].to_pylist() == list(range(10))
            subscription.ack(batch)
        assert broker.acked == set(range(10))
        client.close()
        broker.stop()
