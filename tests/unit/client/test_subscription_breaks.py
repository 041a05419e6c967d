"""A subscription whose connection breaks, against a broker that keeps the protocol strictly and breaks off on order."""

import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest
from tests.unit.client.fake_subscriptions import FakeSubscriptions

from icestream import Client
from icestream.client import Subscription
from icestream.model.errors import (
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


def test_an_idle_consumer_gives_signs_of_life(broker: FakeSubscriptions, client: Client) -> None:
    broker.session_timeout_ms = 30
    with client.subscribe(TOPIC, "s"):
        broker.wait(lambda: sum("ping" in control for control in broker.controls) >= 3)
