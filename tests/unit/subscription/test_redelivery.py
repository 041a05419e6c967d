"""What comes again, when, and what becomes of messages that come too often."""

import pyarrow as pa
import pytest
from tests.unit.subscription.engine import TOPIC, ListTopic, Site, ack, cursor_of, drain, receive, take

from icestream.model.errors import ClosedError, InvalidRequestError, UnavailableError
from icestream.model.names import TopicName

OWN = pa.schema([pa.field("key", pa.int64()), pa.field("price", pa.float64())])


def one_each(site: Site, count: int) -> None:
    for number in range(count):
        site.topic.publish([b"%d" % number])


def test_a_refused_message_comes_again_after_the_delay_and_counts() -> None:
    site = Site()
    one_each(site, 3)
    consumer = site.open(nack_delay_ms=100).connect("a")
    assert drain(consumer) == [0, 1, 2]
    consumer.nack([(1, 2)])
    assert drain(consumer) == []
    site.pass_time(90)
    assert drain(consumer) == []
    site.pass_time(20)
    batch = receive(consumer)
    assert (batch.column("offset").to_pylist(), batch.column("redelivery_count").to_pylist()) == ([1], [1])
    consumer.nack([(1, 2)], delay_ms=0)
    batch = receive(consumer)
    assert batch.column("redelivery_count").to_pylist() == [2]


def test_a_delay_is_checked() -> None:
    consumer = Site().open().connect("a")
    with pytest.raises(InvalidRequestError, match="a delay is 0 to"):
        consumer.nack([(0, 1)], delay_ms=-1)
    with pytest.raises(InvalidRequestError, match="not ranges of offsets"):
        consumer.ack([(0, 1, 2)])  # type: ignore[list-item]
    with pytest.raises(InvalidRequestError, match="not ranges of offsets"):
        consumer.ack([(0, 2**64)])


def test_messages_that_are_not_acknowledged_in_time_come_again() -> None:
    site = Site()
    one_each(site, 3)
    subscription = site.open("shared", ack_timeout_ms=1_000)
    first, second = subscription.connect("a"), subscription.connect("b")
    assert take(first) == [0]
    site.pass_time(500)
    assert take(first) == [1]
    site.pass_time(510)
    assert drain(second) == [0, 2]
    ack(first, [0, 1])  # too late for 0
    assert subscription.stats().unacknowledged == 2
    site.pass_time(1_100)
    assert take(first) == [0]
    assert subscription.stats().redeliveries == 2


def test_a_silent_consumer_is_disconnected_and_a_living_one_is_not() -> None:
    site = Site(session_timeout_ms=1_000)
    one_each(site, 2)
    subscription = site.open("shared")
    silent, alive = subscription.connect("a"), subscription.connect("b")
    assert take(silent) == [0]
    for _ in range(3):
        alive.touch()
        site.pass_time(400)
    assert silent.closed
    assert not alive.closed
    with pytest.raises(ClosedError, match="silent for 1000 ms") as closed:
        silent.receive(timeout_seconds=0)
    assert closed.value.retryable
    silent.ack([(0, 1)])  # answers of the dead count for nothing
    assert drain(alive) == [0, 1]


def test_a_consumer_without_a_time_limit_stays() -> None:
    site = Site(session_timeout_ms=100)
    consumer = site.open().connect("a", session_timeout_ms=0)
    site.pass_time(10_000)
    assert not consumer.closed


def test_a_message_that_was_refused_too_often_becomes_a_dead_letter() -> None:
    site = Site()
    one_each(site, 3)
    subscription = site.open(max_redeliveries=2, nack_delay_ms=0)
    consumer = subscription.connect("a")
    assert drain(consumer) == [0, 1, 2]
    for _ in range(2):
        consumer.nack([(1, 2)])
        assert drain(consumer) == [1]
    consumer.nack([(1, 2)])
    assert drain(consumer) == []
    assert subscription.stats().dead_letters == 0
    site.subscriptions.tick()
    [(topic, letters)] = site.dead
    assert topic == TopicName("default", "events-sub-dead-letters")
    assert letters.schema.names == ["key", "attributes", "payload"]
    assert letters.column("payload").to_pylist() == [b"1"]
    assert dict(letters.column("attributes").to_pylist()[0]) == {
        "icestream.origin_topic": "default/events",
        "icestream.origin_offset": "1",
        "icestream.origin_subscription": "sub",
        "icestream.origin_redelivery_count": "2",
    }
    ack(consumer, [0, 2])
    stats = subscription.stats()
    assert (stats.dead_letters, stats.floor_offset, stats.lag_messages) == (1, 3, 0)


def test_a_message_counts_as_acknowledged_only_once_its_dead_letter_is_stored() -> None:
    site = Site()
    one_each(site, 2)
    subscription = site.open(max_redeliveries=0, nack_delay_ms=0)
    consumer = subscription.connect("a")
    assert drain(consumer) == [0, 1]
    site.dead_letter_fault = UnavailableError("no disk")
    consumer.nack([(0, 2)])
    site.subscriptions.tick()
    assert subscription.stats().floor_offset == 0
    site.dead_letter_fault = None
    consumer.close()
    site.restart()
    subscription = site.subscriptions.get(TOPIC, "sub")
    consumer = subscription.connect("b")
    assert drain(consumer) == []  # they do not come again, but are still to be stored
    site.subscriptions.tick()
    assert [letters.num_rows for _, letters in site.dead] == [1, 1]
    assert subscription.stats().floor_offset == 2


def test_ends_of_consumers_do_not_make_dead_letters() -> None:
    site = Site()
    one_each(site, 1)
    subscription = site.open(max_redeliveries=1)
    for count in range(5):
        with_message = subscription.connect("a")
        batch = receive(with_message)
        assert batch.column("redelivery_count").to_pylist() == [count]
        with_message.close()
    assert site.dead == []


def test_a_dead_letter_of_a_topic_with_its_own_columns_keeps_them_and_gets_its_origin() -> None:
    site = Site(ListTopic(OWN))
    site.topic.publish_batch(pa.RecordBatch.from_pydict({"key": [7], "price": [1.5]}, schema=OWN))
    subscription = site.open(max_redeliveries=0, dead_letter_topic="other/dead")
    assert subscription.schema.names[-1] == "_redelivery_count"
    consumer = subscription.connect("a")
    assert drain(consumer) == [0]
    consumer.nack([(0, 1)])
    site.subscriptions.tick()
    [(topic, letters)] = site.dead
    assert topic == TopicName("other", "dead")
    assert letters.to_pylist() == [
        {
            "key": 7,
            "price": 1.5,
            "origin_topic": "default/events",
            "origin_offset": 0,
            "origin_subscription": "sub",
            "origin_redelivery_count": 0,
        }
    ]


def test_delivered_messages_are_not_kept_but_read_again() -> None:
    site = Site(max_buffer_bytes=64 * 1024)
    for _ in range(50):
        site.topic.publish([b"x" * 20_000] * 2)
    subscription = site.open(nack_delay_ms=0)
    consumer = subscription.connect("a", max_bytes=1 << 30)
    assert drain(consumer) == list(range(100))
    assert cursor_of(subscription)._buffer == []
    read = site.topic.bytes_read
    consumer.nack([(10, 12), (90, 91)])
    assert drain(consumer) == [10, 11, 90]
    assert site.topic.bytes_read - read < 10 * 20_000


def test_a_message_that_a_repair_gave_up_is_passed_over() -> None:
    site = Site()
    site.topic.publish([b"x"] * 10)
    subscription = site.open(nack_delay_ms=0)
    consumer = subscription.connect("a")
    assert len(drain(consumer)) == 10
    site.topic.lose(3, 5)
    consumer.nack([(2, 6)])
    assert drain(consumer) == [2, 5]
    ack(consumer, [offset for offset in range(10) if offset not in {3, 4}])
    assert subscription.stats().floor_offset == 10
    fresh = site.open(name="fresh").connect("b")
    assert drain(fresh) == [0, 1, 2, 5, 6, 7, 8, 9]


def test_without_a_dead_letter_topic_a_dead_message_is_delivered_again_and_not_acknowledged() -> None:
    site = Site()
    one_each(site, 2)
    subscription = site.open(max_redeliveries=0, nack_delay_ms=0)
    consumer = subscription.connect("a")
    assert drain(consumer) == [0, 1]
    site.dead_letter_fault = UnavailableError("no disk")
    consumer.nack([(0, 2)])
    site.subscriptions.tick()
    assert drain(consumer) == []
    dead = subscription.dead_offsets()
    assert dead.tolist() == [0, 1]
    site.open(max_redeliveries=None, nack_delay_ms=0)
    # As if the thread had looked for dead messages just before the options changed.
    site.subscriptions._services.dead_letters._move(subscription, dead)
    assert drain(consumer) == [0, 1]
    assert subscription.stats().floor_offset == 0
    consumer.nack([(0, 2)])
    ack(consumer, drain(consumer))
    assert (subscription.stats().floor_offset, site.dead) == (2, [])
