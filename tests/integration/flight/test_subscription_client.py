"""icestream's own clients on real subscriptions."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterator

import pyarrow as pa
import pytest
from tests.integration.flight.conftest import OpenDoor, Running

from icestream import Client, aio
from icestream.client import Message, Subscription
from icestream.model.errors import (
    ClosedError,
    InvalidRequestError,
    SubscriptionBusyError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
)

TOPIC = "default/events"
PATIENCE_SECONDS = 60.0


@pytest.fixture
def client(running: Running) -> Iterator[Client]:
    with Client(running.address) as connected:
        connected.create_topic(TOPIC)
        yield connected


def publish(client: Client, count: int, keys: int = 0) -> None:
    columns = {"payload": [b"%d" % number for number in range(count)]}
    if keys:
        columns["key"] = [b"key-%d" % (number % keys) for number in range(count)]
    with client.producer(TOPIC) as producer:
        producer.send_batch(pa.table(columns)).result(PATIENCE_SECONDS)


def take(subscription: Subscription, count: int, *, ack: bool = True) -> list[Message]:
    found: list[Message] = []
    while len(found) < count:
        message = subscription.receive(PATIENCE_SECONDS)
        assert message is not None
        found.append(message)
        if ack:
            subscription.ack(message)
    return found


def offsets(found: list[Message]) -> list[int]:
    return [message.offset for message in found]


def test_exclusive_has_one_consumer_and_goes_on_where_it_was(client: Client) -> None:
    publish(client, 100)
    with client.subscribe(TOPIC, "s") as subscription:
        assert offsets(take(subscription, 40)) == list(range(40))
        with pytest.raises(SubscriptionBusyError):
            client.subscribe(TOPIC, "s")
    with client.subscribe(TOPIC, "s") as subscription:
        assert offsets(take(subscription, 60)) == list(range(40, 100))


def test_shared_gives_each_message_to_one(client: Client) -> None:
    with (
        client.subscribe(TOPIC, "s", type="shared", receiver_queue=10) as first,
        client.subscribe(TOPIC, "s", receiver_queue=10) as second,
    ):
        assert second.type == "shared"
        publish(client, 100)
        found: dict[str, list[int]] = defaultdict(list)
        while sum(map(len, found.values())) < 100:
            for name, one in (("first", first), ("second", second)):
                batch = one.receive_batch(timeout=0.1)
                if batch is not None:
                    found[name] += batch["offset"].to_pylist()
                    one.ack(batch)
        assert sorted(found["first"] + found["second"]) == list(range(100))
        assert min(map(len, found.values())) > 10


def test_failover_takes_over_at_once(client: Client) -> None:
    publish(client, 20)
    first = client.subscribe(TOPIC, "s", type="failover", consumer="first")
    assert offsets(take(first, 5)) == list(range(5))
    with client.subscribe(TOPIC, "s", consumer="second") as second:
        assert second.receive(0.1) is None
        described = client.describe_subscription(TOPIC, "s")
        assert {one.name: one.is_active for one in described.consumers} == {"first": True, "second": False}
        first.close()
        assert offsets(take(second, 15)) == list(range(5, 20))


def test_key_shared_keeps_each_key_on_one_consumer_in_order(client: Client) -> None:
    with (
        client.subscribe(TOPIC, "s", type="key-shared") as first,
        client.subscribe(TOPIC, "s") as second,
    ):
        publish(client, 200, keys=20)
        of: dict[bytes, list[tuple[str, int]]] = defaultdict(list)
        while sum(map(len, of.values())) < 200:
            for one in (first, second):
                while (message := one.receive(0.05)) is not None:
                    assert message.key is not None
                    of[message.key].append((one.consumer, message.offset))
                    one.ack(message)
    for deliveries in of.values():
        assert len({consumer for consumer, _ in deliveries}) == 1
        assert [offset for _, offset in deliveries] == sorted(offset for _, offset in deliveries)
    assert len({deliveries[0][0] for deliveries in of.values()}) == 2


def test_filters_and_positions(client: Client) -> None:
    publish(client, 100, keys=10)
    with client.subscribe(TOPIC, "s", filter="key = 'key-3'", start=50) as subscription:
        assert offsets(take(subscription, 5)) == [53, 63, 73, 83, 93]
    assert client.describe_subscription(TOPIC, "s").filter == "key = 'key-3'"
    assert client.describe_subscription(TOPIC, "s").floor_offset == 100
    with pytest.raises(InvalidRequestError):
        client.subscribe(TOPIC, "t", filter="nothing = 3")


def test_refused_messages_come_again_and_then_go_to_the_dead_letters(client: Client) -> None:
    publish(client, 3)
    with client.subscribe(TOPIC, "s", max_redeliveries=2, nack_delay=0) as subscription:
        counts: dict[int, list[int]] = defaultdict(list)
        for _ in range(5):
            message = subscription.receive(PATIENCE_SECONDS)
            assert message is not None
            counts[message.offset].append(message.redelivery_count)
            if message.offset == 1:
                subscription.nack(message)
            else:
                subscription.ack(message)
        assert counts == {0: [0], 1: [0, 1, 2], 2: [0]}
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not client.describe_subscription(TOPIC, "s").dead_letters:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    with client.subscribe("default/events-s-dead-letters", "burial", start="earliest") as dead:
        buried = dead.receive(PATIENCE_SECONDS)
        assert buried is not None
        assert buried.payload == b"1"


def test_what_times_out_comes_again(client: Client) -> None:
    publish(client, 1)
    with client.subscribe(TOPIC, "s", ack_timeout=0.1) as subscription:
        assert [message.redelivery_count for message in take(subscription, 3, ack=False)] == [0, 1, 2]


def test_a_batch_as_large_as_all_credit_and_larger_comes_through(client: Client) -> None:
    with client.producer(TOPIC) as producer:
        for _ in range(6):
            producer.send(bytes(300_000)).result(PATIENCE_SECONDS)
    with client.subscribe(TOPIC, "s", max_bytes=200_000, receiver_queue=3) as subscription:
        assert offsets(take(subscription, 6)) == list(range(6))


def test_administration(client: Client) -> None:
    publish(client, 10)
    made = client.create_subscription(TOPIC, "s", type="shared", start="latest", ack_timeout=5)
    assert (made.type, made.floor_offset, made.options["ack_timeout_ms"]) == ("shared", 10, 5000)
    assert [found.subscription for found in client.subscriptions(TOPIC)] == ["s"]
    with pytest.raises(TopicNotFoundError):
        client.subscriptions("default/other")
    assert client.seek_subscription(TOPIC, "s", 4) == 4
    with client.subscribe(TOPIC, "s") as subscription:
        assert offsets(take(subscription, 6)) == list(range(4, 10))
        subscription.flush()
        described = client.describe_subscription(TOPIC, "s")
        assert described.lag_messages == 0
        assert [one.name for one in described.consumers] == [subscription.consumer]
        client.delete_subscription(TOPIC, "s")
        with pytest.raises(SubscriptionNotFoundError):
            subscription.receive(PATIENCE_SECONDS)
    with pytest.raises(SubscriptionNotFoundError):
        client.subscribe(TOPIC, "s", create=False)
    with pytest.raises(TopicNotFoundError):
        client.subscribe("default/nothing", "s")


def test_a_consumer_outlives_its_session(open_door: OpenDoor) -> None:
    """One whose process was stopped for long goes on when it is continued."""
    running = open_door(subscriptions={"session_timeout_ms": 1_000})
    with Client(running.address) as client:
        client.create_topic(TOPIC)
        publish(client, 10)
        with client.subscribe(TOPIC, "s") as subscription:
            take(subscription, 4)
            subscription.flush()
            served = running.storage.subscriptions.get(TOPIC, "s")
            (consumer,) = served._state.consumers
            served.disconnect(consumer, ClosedError("as the broker does it"))
            assert offsets(take(subscription, 6)) == list(range(4, 10))


def test_asyncio(running: Running, client: Client) -> None:
    publish(client, 50)

    async def consume() -> None:
        async with aio.Client(running.address) as other:
            async with other.subscribe(TOPIC, "s", start=10) as subscription:
                found = []
                async for message in subscription:
                    found.append(message.offset)
                    await subscription.ack(message)
                    if len(found) == 20:
                        break
                assert found == list(range(10, 30))
                batch = await subscription.receive_batch(max_messages=5, timeout=PATIENCE_SECONDS)
                assert batch is not None
                assert batch["offset"].to_pylist() == list(range(30, 35))
                await subscription.ack(batch)
                rest = await subscription.receive_batch(timeout=PATIENCE_SECONDS)
                assert rest is not None
                await subscription.nack(rest, delay=0)
                await subscription.flush()
                again = await subscription.receive(PATIENCE_SECONDS)
                assert again is not None
                assert (again.offset, again.redelivery_count) == (35, 1)
                await subscription.ack_cumulative(49)
                await subscription.flush()
                while await subscription.receive(0.05) is not None:
                    pass
                assert await subscription.receive(0) is None
                closing = asyncio.create_task(subscription.close())
                assert await subscription.receive() is None
                await closing
            described = await other.describe_subscription(TOPIC, "s")
            assert described.floor_offset == 50
            assert await other.seek_subscription(TOPIC, "s", "earliest") == 0
            assert [one.subscription for one in await other.subscriptions()] == ["s"]
            await other.delete_subscription(TOPIC, "s")
            assert (await other.create_subscription(TOPIC, "t", type="shared")).type == "shared"

    asyncio.run(consume())
