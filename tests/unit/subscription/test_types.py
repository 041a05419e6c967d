"""Who gets which message."""

from collections import defaultdict
from typing import Any

import pytest
from tests.unit.subscription.engine import Site, ack, drain, receive, take

from icestream.model.errors import ClosedError, InvalidRequestError, LimitReachedError, SubscriptionBusyError


def published(count: int, *, keys: int = 0, batch: int = 10, **settings: Any) -> Site:
    site = Site(**settings)
    for first in range(0, count, batch):
        numbers = range(first, min(first + batch, count))
        site.topic.publish(
            [b"%d" % number for number in numbers],
            [b"key %d" % (number % keys) for number in numbers] if keys else None,
        )
    return site


def test_an_exclusive_subscription_refuses_a_second_consumer_and_takes_the_next() -> None:
    site = published(5)
    subscription = site.open()
    first = subscription.connect("a")
    with pytest.raises(SubscriptionBusyError, match="consumer 'a' has it") as refused:
        subscription.connect("b")
    assert refused.value.code == "subscription_busy"
    assert not refused.value.retryable
    assert drain(first) == [0, 1, 2, 3, 4]
    ack(first, [0, 1])
    first.close()
    second = subscription.connect("b")
    batch = receive(second)
    assert batch.column("offset").to_pylist() == [2, 3, 4]
    assert batch.column("redelivery_count").to_pylist() == [1, 1, 1]
    with pytest.raises(ClosedError):
        first.receive(timeout_seconds=0)


def test_in_a_failover_subscription_the_next_consumer_takes_over_from_the_oldest_unacknowledged() -> None:
    site = published(6)
    subscription = site.open("failover")
    first, second, third = (subscription.connect(name) for name in "abc")
    assert take(first, 3) == [0, 1, 2]
    assert take(second) == take(third) == []
    ack(first, [1])
    first.close()
    assert [consumer.is_active for consumer in subscription.stats().consumers] == [True, False]
    assert drain(second) == [0, 2, 3, 4, 5]
    second.ack_cumulative(3)
    second.close()
    assert drain(third) == [4, 5]


def test_a_shared_subscription_divides_what_is_there_evenly() -> None:
    site = published(100)
    subscription = site.open("shared")
    consumers = [subscription.connect(str(number)) for number in range(4)]
    got: dict[int, list[int]] = defaultdict(list)
    for _ in range(20):
        for number, consumer in enumerate(consumers):
            got[number] += take(consumer)
    assert sorted(offset for offsets in got.values() for offset in offsets) == list(range(100))
    assert all(15 <= len(offsets) <= 40 for offsets in got.values())


def test_in_a_shared_subscription_nobody_waits_for_a_consumer_that_takes_nothing() -> None:
    site = published(50)
    subscription = site.open("shared")
    subscription.connect("stuck")
    assert drain(subscription.connect("busy")) == list(range(50))


def test_what_a_vanished_consumer_of_a_shared_subscription_had_goes_to_the_others() -> None:
    site = published(10)
    subscription = site.open("shared")
    first, second = subscription.connect("a"), subscription.connect("b")
    mine, other = take(first), take(second)
    assert sorted(mine + other) == list(range(10))
    first.close()
    assert drain(second) == mine


def test_in_a_key_shared_subscription_a_key_has_one_consumer() -> None:
    site = published(400, keys=40)
    subscription = site.open("key-shared")
    consumers = [subscription.connect(str(number)) for number in range(3)]
    keys: list[set[int]] = []
    for consumer in consumers:
        offsets = drain(consumer)
        assert offsets == sorted(offsets)
        keys.append({offset % 40 for offset in offsets})
    assert sum(len(mine) for mine in keys) == len(set.union(*keys)) == 40
    assert all(keys)


def test_a_slot_moves_to_a_new_consumer_only_when_its_messages_are_acknowledged() -> None:
    site = published(40, keys=40)
    subscription = site.open("key-shared")
    first = subscription.connect("a")
    assert len(drain(first)) == 40
    second = subscription.connect("b")
    site.topic.publish([b"x"] * 40, [b"key %d" % number for number in range(40)])
    stayed = drain(first)
    assert 0 < len(stayed) < 40
    assert drain(second) == []
    ack(first, range(40))
    moved = drain(second)
    assert sorted(stayed + moved) == list(range(40, 80))
    assert drain(first) == []


def test_a_slot_moves_at_once_when_its_consumer_has_gone() -> None:
    site = published(40, keys=40)
    subscription = site.open("key-shared")
    first, second = subscription.connect("a"), subscription.connect("b")
    had = drain(first)
    assert sorted(had + drain(second)) == list(range(40))
    first.close()
    assert drain(second) == had


def test_a_stuck_key_shared_consumer_keeps_others_back_only_at_the_limit() -> None:
    site = published(400, keys=40, max_unacknowledged_messages=200)
    subscription = site.open("key-shared")
    subscription.connect("stuck", max_messages=0)
    busy = subscription.connect("busy")
    got = drain(busy)
    assert max(got) < 200
    ack(busy, got)
    more = drain(busy)
    assert all(offset < subscription.stats().floor_offset + 200 for offset in more)
    assert len(more) < 40


def test_messages_without_key_are_spread_over_key_shared_consumers() -> None:
    site = published(1_000)
    subscription = site.open("key-shared")
    consumers = [subscription.connect("a"), subscription.connect("b")]
    counts = [len(drain(consumer)) for consumer in consumers]
    assert sum(counts) == 1_000
    assert min(counts) > 300


def test_cumulative_acknowledgement_is_for_a_single_consumer() -> None:
    site = published(5)
    shared = site.open("shared")
    with pytest.raises(InvalidRequestError, match="no cumulative acknowledgement"):
        shared.connect("a").ack_cumulative(3)
    alone = site.open(name="alone")
    consumer = alone.connect("a")
    assert take(consumer, 3) == [0, 1, 2]
    consumer.ack_cumulative(4)
    assert alone.stats().floor_offset == 3


def test_consumers_are_limited() -> None:
    subscription = Site(max_consumers=2).open("shared")
    subscription.connect("a")
    second = subscription.connect("b")
    with pytest.raises(LimitReachedError, match=r"raise subscriptions\.max_consumers"):
        subscription.connect("c")
    second.close()
    subscription.connect("c")


def test_another_consumers_messages_cannot_be_acknowledged() -> None:
    site = published(10)
    subscription = site.open("shared")
    first, second = subscription.connect("a"), subscription.connect("b")
    mine = take(first)
    ack(second, mine)
    second.nack([(offset, offset + 1) for offset in mine])
    assert subscription.stats().floor_offset == 0
    assert subscription.stats().unacknowledged == len(mine)
