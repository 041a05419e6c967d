"""Progress is exact, compact, and survives what it must."""

import json
import random
from typing import Any

import numpy as np
import pytest
from tests.unit.subscription.engine import TOPIC, ListTopic, Site, ack, drain, receive, take

from icestream.metadata import MemoryMetadataStore, keys
from icestream.model.errors import (
    ConflictError,
    DamagedError,
    LimitReachedError,
    SubscriptionBusyError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
    UnavailableError,
)
from icestream.model.offsets import StartPosition
from icestream.subscription import SubscriptionOptions, Subscriptions
from icestream.subscription.progress import Progress, as_ranges, expanded

KEY = keys.subscription_progress("sub", TOPIC)


def filled(count: int, **settings: Any) -> Site:
    site = Site(**settings)
    site.topic.publish([b"x"] * count)
    return site


def record(site: Site) -> dict[str, Any]:
    entry = site.metadata.get(KEY)
    assert entry is not None
    found: dict[str, Any] = json.loads(entry.value)
    return found


@pytest.mark.parametrize("step", [2, 3, 50])
def test_ranges_and_bitmaps_come_back_as_they_were(step: int) -> None:
    offsets = [offset for offset in range(101, 30_000) if offset % step]
    progress = Progress(100, as_ranges([(offset, offset + 1) for offset in offsets], operation="test"))
    text = json.dumps(progress.to_json())
    again = Progress.from_json(json.loads(text))
    assert again.floor == 100
    assert expanded(again.acknowledged).tolist() == offsets
    assert len(text) < 12_000


def test_the_worst_pattern_of_a_full_window_fits_into_a_record() -> None:
    generator = np.random.default_rng(1)
    offsets = np.flatnonzero(generator.random(1_000_000) < 0.5) + 1
    pairs = np.column_stack((offsets, offsets + 1))
    progress = Progress(0, as_ranges(pairs.tolist(), operation="test"))
    text = json.dumps(progress.to_json())
    assert len(text) < 200_000
    assert np.array_equal(expanded(Progress.from_json(json.loads(text)).acknowledged), offsets)


def test_what_was_acknowledged_does_not_come_again_after_a_restart() -> None:
    site = filled(20)
    consumer = site.open("shared").connect("a")
    assert len(drain(consumer)) == 20
    ack(consumer, [0, 1, 2, 5, 6, 19])
    site.restart()
    again = site.subscriptions.get(TOPIC, "sub").connect("b")
    assert drain(again) == [3, 4, *range(7, 19)]


def test_a_subscription_is_durable_before_it_is_returned() -> None:
    site = filled(3)
    site.subscriptions.open(TOPIC, "sub", start=StartPosition.latest())
    site.restart(clean=False)
    site.topic.publish([b"x"])
    assert drain(site.subscriptions.get(TOPIC, "sub").connect("a")) == [3]


def test_counts_and_delays_survive_a_restart() -> None:
    site = filled(5)
    consumer = site.open(nack_delay_ms=1_000).connect("a")
    drain(consumer)
    consumer.nack([(2, 4)])
    site.restart()
    consumer = site.subscriptions.get(TOPIC, "sub").connect("a")
    assert drain(consumer) == [0, 1, 4]
    site.pass_time(1_010)
    batch = receive(consumer)
    assert batch.column("offset").to_pylist() == [2, 3]
    assert batch.column("redelivery_count").to_pylist() == [1, 1]


def test_after_a_crash_just_what_was_not_written_comes_again() -> None:
    site = filled(10)
    subscription = site.open()
    consumer = subscription.connect("a")
    drain(consumer)
    ack(consumer, [0, 1])
    subscription.flush()
    ack(consumer, [2, 3])
    site.restart(clean=False)
    assert drain(site.subscriptions.get(TOPIC, "sub").connect("a")) == list(range(2, 10))


class Away(MemoryMetadataStore):
    """A store that can be out of reach, or lose an answer."""

    away = False
    loses_answer = False
    transactions = 0

    def transaction(self, conditions: Any, operations: Any) -> Any:
        if self.away:
            raise UnavailableError("the store is away")
        self.transactions += 1
        result = super().transaction(conditions, operations)
        if self.loses_answer:
            self.loses_answer = False
            raise UnavailableError("the answer was lost")
        return result


def test_a_store_that_is_away_delays_writes_and_nothing_else() -> None:
    store = Away()
    site = filled(10, metadata=store)
    subscription = site.open()
    store.away = True
    consumer = subscription.connect("a")
    assert len(drain(consumer)) == 10
    ack(consumer, range(5))
    with pytest.raises(UnavailableError):
        subscription.flush()
    ack(consumer, range(5, 7))
    store.away = False
    site.subscriptions.flush()
    assert record(site)["progress"] == {"floor": 7}


def test_a_write_whose_answer_was_lost_is_not_taken_for_another_brokers() -> None:
    store = Away()
    site = filled(10, metadata=store)
    subscription = site.open()
    consumer = subscription.connect("a")
    drain(consumer)
    ack(consumer, [0])
    store.loses_answer = True
    with pytest.raises(UnavailableError):
        subscription.flush()
    ack(consumer, [1])
    site.subscriptions.flush()
    site.subscriptions.flush()
    assert not consumer.closed
    assert record(site)["progress"] == {"floor": 2}


def test_many_subscriptions_are_written_in_few_transactions() -> None:
    store = Away()
    site = filled(3, metadata=store)
    for number in range(250):
        consumer = site.open(name=f"s{number}").connect("a")
        assert take(consumer) == [0, 1, 2]
        ack(consumer, [0])
    store.transactions = 0
    site.subscriptions.flush()
    assert store.transactions == 3


def test_a_broker_that_lost_a_subscription_cannot_overwrite_the_others_progress() -> None:
    site = filled(10)
    old = site.open().connect("a")
    drain(old)
    site.subscriptions.flush()
    with Subscriptions(
        site.metadata, lambda _: site.topic, lambda *_: None, clock=site.clock, background=False
    ) as other:
        new = other.get(TOPIC, "sub").connect("b")
        assert len(drain(new)) == 10
        other.flush()
        ack(old, range(10))
        site.subscriptions.flush()
        with pytest.raises(ConflictError, match="another broker serves the subscription"):
            old.receive(timeout_seconds=0)
        assert record(site)["progress"].get("floor") == 0
        ack(new, range(4))
    again = site.subscriptions.get(TOPIC, "sub")
    assert drain(again.connect("c")) == list(range(4, 10))


def test_seeking_forgets_what_is_in_flight_and_keeps_consumers() -> None:
    site = filled(10)
    subscription = site.open()
    consumer = subscription.connect("a")
    assert take(consumer, 4) == [0, 1, 2, 3]
    ack(consumer, [0, 1])
    assert site.subscriptions.seek(TOPIC, "sub", StartPosition.offset(8)) == 8
    assert record(site)["progress"] == {"floor": 8}
    assert drain(consumer) == [8, 9]
    ack(consumer, [2, 8])
    assert site.subscriptions.seek(TOPIC, "sub", StartPosition.earliest()) == 0
    assert drain(consumer) == list(range(10))


def test_messages_can_be_acknowledged_by_others_than_their_consumer() -> None:
    site = filled(10)
    subscription = site.open()
    subscription.acknowledge([(0, 2), (5, 6)])
    consumer = subscription.connect("a")
    assert take(consumer, 2) == [2, 3]
    subscription.acknowledge([(0, 4), (8, 9)])
    assert drain(consumer) == [4, 6, 7, 9]
    subscription.acknowledge([(0, 100)])
    assert subscription.stats().floor_offset == 10
    site.topic.publish([b"x"] * 95)
    assert drain(consumer) == list(range(10, 105))


def test_options_can_change_while_nobody_is_connected() -> None:
    site = filled(5)
    consumer = site.open().connect("a")
    with pytest.raises(SubscriptionBusyError, match="type and filter cannot change"):
        site.open("shared")
    assert site.open(nack_delay_ms=5).options.nack_delay_ms == 5
    consumer.close()
    assert site.open("shared").options.type == "shared"
    site.restart()
    assert site.subscriptions.open(TOPIC, "sub").options == SubscriptionOptions(type=site.open("shared").options.type)


def test_a_topic_made_again_is_another_stream() -> None:
    site = filled(10)
    consumer = site.open().connect("a")
    drain(consumer)
    ack(consumer, range(10))
    site.subscriptions.flush()
    site.topic = ListTopic(stream_id="second")
    site.topic.publish([b"x"] * 3)
    again = site.subscriptions.get(TOPIC, "sub")
    assert drain(again.connect("b")) == [0, 1, 2]
    assert record(site)["stream_id"] == "second"


def test_deleting_a_topic_ends_its_subscriptions_and_their_consumers() -> None:
    site = filled(3)
    site.open(name="other")
    site.restart()
    consumer = site.open().connect("a")
    site.topic.deleted = True
    site.subscriptions.delete_topic(TOPIC)
    with pytest.raises(TopicNotFoundError):
        consumer.receive(timeout_seconds=0)
    assert site.metadata.list(keys.subscriptions()) == []
    assert site.subscriptions.find() == []


def test_deleting_a_subscription_tells_its_consumers() -> None:
    site = filled(3)
    consumer = site.open().connect("a")
    site.subscriptions.delete(TOPIC, "sub")
    with pytest.raises(SubscriptionNotFoundError):
        consumer.receive(timeout_seconds=0)
    with pytest.raises(SubscriptionNotFoundError):
        site.subscriptions.get(TOPIC, "sub")
    site.subscriptions.flush()
    assert site.metadata.get(KEY) is None
    assert drain(site.open().connect("a")) == [0, 1, 2]


def test_a_subscription_is_made_only_when_it_may_be() -> None:
    site = Site(max_subscriptions=1)
    with pytest.raises(SubscriptionNotFoundError, match="there is no such subscription"):
        site.subscriptions.open(TOPIC, "sub", create=False)
    with pytest.raises(TopicNotFoundError):
        site.subscriptions.open("default/none", "sub")
    site.open()
    with pytest.raises(LimitReachedError, match=r"raise subscriptions\.max_subscriptions"):
        site.open(name="another")


def test_a_damaged_record_is_left_alone_and_keeps_nobody_from_the_others() -> None:
    site = filled(3)
    site.open()
    site.open(name="other")
    site.metadata.put(KEY, b"{}")
    site.restart(clean=False)
    assert [found.name for found in site.subscriptions.find()] == ["other"]


def test_a_long_acknowledged_stretch_is_not_read_again() -> None:
    site = Site()
    for _ in range(60):
        site.topic.publish([b"x" * 100] * 1_000)
    consumer = site.open("shared").connect("a", max_messages=1_000_000, max_bytes=1 << 30)
    assert len(drain(consumer)) == 60_000
    consumer.ack([(1, 59_999)])
    site.restart()
    site.topic.bytes_read = 0
    again = site.subscriptions.get(TOPIC, "sub").connect("b")
    assert drain(again) == [0, 59_999]
    assert site.topic.bytes_read < 5_000_000


def test_random_acknowledgements_leave_exactly_the_rest() -> None:
    generator = random.Random(5)
    site = filled(5_000)
    consumer = site.open("shared").connect("a", max_messages=10_000, max_bytes=1 << 30)
    drain(consumer)
    done = set(generator.sample(range(5_000), 3_000))
    ack(consumer, sorted(done))
    site.restart()
    left = drain(site.subscriptions.get(TOPIC, "sub").connect("b"))
    assert left == [offset for offset in range(5_000) if offset not in done]


def test_an_unreadable_record_ends_its_subscription_and_the_progress_of_others_is_written() -> None:
    site = filled(3)
    others = [site.open("shared", name=name) for name in ("a", "b")]
    for subscription in (broken := site.open("shared", name="broken"), *others):
        consumer = subscription.connect("consumer")
        ack(consumer, drain(consumer))
    site.metadata.put(keys.subscription_progress("broken", TOPIC), b"garbage")
    site.subscriptions.flush()
    assert broken.ended
    for name in ("a", "b"):
        entry = site.metadata.get(keys.subscription_progress(name, TOPIC))
        assert entry is not None
        assert json.loads(entry.value)["progress"]["floor"] == 3
    with pytest.raises(DamagedError, match="cannot be read"):
        site.subscriptions.get(TOPIC, "broken")
