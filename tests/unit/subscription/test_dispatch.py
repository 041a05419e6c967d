"""Flow control, filters, errors, and being woken."""

import threading
import time
from collections.abc import Iterator

import pyarrow as pa
import pytest
from tests.unit.subscription.engine import START_US, TOPIC, ListTopic, Site, ack, cursor_of, drain, receive, take

from icestream.config import SubscriptionSettings
from icestream.metadata import MemoryMetadataStore
from icestream.model.enums import SubscriptionType
from icestream.model.errors import (
    ClosedError,
    DamagedError,
    InvalidNameError,
    InvalidRequestError,
    TopicNotFoundError,
    UnavailableError,
)
from icestream.model.messages import MESSAGE_SCHEMA
from icestream.subscription import BrokerSubscription, ConsumerSession, SubscriptionOptions, Subscriptions

SECONDS = 30
"""More than anything here takes, unless it hangs."""


def test_a_consumer_gets_no_more_messages_than_its_credit() -> None:
    site = Site()
    site.topic.publish([b"x"] * 100)
    consumer = site.open().connect("a", max_messages=10)
    assert drain(consumer) == list(range(10))
    consumer.grant(3, 0)
    assert drain(consumer) == [10, 11, 12]
    ack(consumer, range(13))
    assert drain(consumer) == []


def test_a_consumer_gets_no_more_bytes_than_its_credit_but_always_one_message() -> None:
    site = Site()
    site.topic.publish([b"x" * 1_000] * 10)
    consumer = site.open().connect("a", max_bytes=3_500)
    assert drain(consumer) == [0, 1, 2, 3]  # the last one overdraws it
    consumer.grant(2, 0)
    assert len(drain(consumer)) == 2


def test_credit_given_bit_by_bit_does_not_drift() -> None:
    site = Site()
    site.topic.publish([b"x" * 100] * 2_000)
    consumer = site.open().connect("a", max_messages=50, max_bytes=20_000)
    got: list[int] = []
    while offsets := take(consumer, 50):
        got += offsets
        for _ in offsets:
            consumer.grant(1, 1)  # a consumer that counts its bytes wrongly
    assert got == list(range(2_000))


def test_a_consumer_may_begin_without_credit() -> None:
    site = Site()
    site.topic.publish([b"x"] * 5)
    consumer = site.open().connect("a", max_messages=0, max_bytes=0)
    assert take(consumer) == []
    consumer.grant(2, 1_000_000)
    assert drain(consumer) == [0, 1]


def test_deliveries_stay_within_the_limit_of_unacknowledged_messages() -> None:
    site = Site(max_unacknowledged_messages=10)
    site.topic.publish([b"x"] * 100)
    subscription = site.open()
    consumer = subscription.connect("a")
    assert drain(consumer) == list(range(10))
    ack(consumer, [1, 2, 3])
    assert drain(consumer) == []
    ack(consumer, [0])
    assert drain(consumer) == [10, 11, 12, 13]


def test_no_more_is_read_ahead_than_the_buffer_takes() -> None:
    site = Site(max_buffer_bytes=64 * 1024)
    for number in range(40):
        site.topic.publish([b"x" * 10_000], [b"%d" % number])
    subscription = site.open("key-shared")
    stuck, busy = subscription.connect("stuck"), subscription.connect("busy")
    got = drain(busy)
    assert sum(piece.nbytes for piece in cursor_of(subscription)._buffer) <= 64 * 1024
    assert sorted(got + drain(stuck)) == list(range(40))


def test_messages_that_the_filter_leaves_out_count_as_acknowledged() -> None:
    site = Site()
    site.topic.publish([b"%d" % n for n in range(10)], [b"even" if n % 2 == 0 else b"odd" for n in range(10)])
    subscription = site.open(filter="key = 'odd'")
    consumer = subscription.connect("a")
    assert drain(consumer) == [1, 3, 5, 7, 9]
    stats = subscription.stats()
    assert (stats.floor_offset, stats.lag_messages) == (1, 5)
    ack(consumer, [1, 3, 5, 7, 9])
    assert subscription.stats().floor_offset == 10
    none = site.open(name="none", filter="key = 'neither'")
    assert drain(none.connect("a")) == []
    assert none.stats().floor_offset == 10


def test_options_are_checked() -> None:
    site = Site(ListTopic(pa.schema([("price", pa.float64())])))
    with pytest.raises(InvalidRequestError, match="needs a column `key`"):
        site.open("key-shared")
    with pytest.raises(InvalidRequestError):
        site.open(filter="nothing = 1")
    with pytest.raises(InvalidRequestError):
        site.open(filter="price >")
    with pytest.raises(InvalidRequestError, match="nack_delay_ms must be int >= 0, not -1"):
        site.open(nack_delay_ms=-1)
    with pytest.raises(InvalidRequestError, match="its own dead-letter topic"):
        site.open(dead_letter_topic=str(TOPIC))
    with pytest.raises(InvalidNameError):
        site.open(name="a/b")
    with pytest.raises(InvalidRequestError, match="typ is not known here"):
        SubscriptionOptions.from_json({"typ": "shared"})
    with pytest.raises(InvalidRequestError, match="one of exclusive, shared, failover, key-shared"):
        SubscriptionOptions.from_json({"type": "both"})
    given = SubscriptionOptions(type=SubscriptionType.SHARED, ack_timeout_ms=5, filter="price > 1")
    assert SubscriptionOptions.from_json(given.to_json()) == given


def test_keys_of_other_types_are_hashed_too() -> None:
    kinds = {pa.int64(): [1, 2, 1, None], pa.string(): ["a", "b", "a", None], pa.float64(): [1.5] * 4}
    for kind, values in kinds.items():
        schema = pa.schema([pa.field("key", kind)])
        site = Site(ListTopic(schema))
        site.topic.publish_batch(pa.RecordBatch.from_arrays([pa.array(values, kind)], schema=schema))
        subscription = site.open("key-shared")
        first, second = subscription.connect("a"), subscription.connect("b")
        got = [drain(first), drain(second)]
        assert sorted(got[0] + got[1]) == [0, 1, 2, 3]
        assert any({0, 2} <= set(mine) for mine in got)


def test_an_error_of_reading_reaches_the_consumer_and_is_not_the_end() -> None:
    site = Site()
    site.topic.publish([b"x"] * 3)
    consumer = site.open().connect("a")
    site.topic.fault = DamagedError("the segment is damaged")
    with pytest.raises(DamagedError):
        consumer.receive(timeout_seconds=0)
    site.topic.fault = None
    assert drain(consumer) == [0, 1, 2]
    site.topic.publish([b"x"])
    site.topic.fault = ClosedError("the log is closed")
    site.topic.deleted = True
    with pytest.raises(TopicNotFoundError):
        consumer.receive(timeout_seconds=0)


def test_new_columns_reach_consumers_that_connect_afterwards() -> None:
    old = pa.schema([("a", pa.int64())])
    new = old.append(pa.field("b", pa.int64()))
    site = Site(ListTopic(old))
    site.topic.publish_batch(pa.RecordBatch.from_pydict({"a": [1]}, schema=old))
    subscription = site.open("shared")
    before = subscription.connect("before")
    assert take(before) == [0]
    site.topic.stream_schema = ListTopic(new).stream_schema
    site.topic.publish_batch(pa.RecordBatch.from_pydict({"a": [2, 3], "b": [20, 30]}, schema=new))
    after = subscription.connect("after")
    batch = receive(after, 1)
    assert batch.schema.equals(after.schema)
    assert batch.column("b").to_pylist() == [20]
    batch = receive(before)
    assert batch.schema.equals(before.schema)
    assert "b" not in batch.schema.names


def test_lag_is_known_in_messages_bytes_and_seconds() -> None:
    site = Site()
    site.topic.publish([b"x"] * 4, at_us=0)
    site.topic.publish([b"x"] * 4, at_us=3_000_000)
    subscription = site.open()
    site.clock.now_us = START_US + 10_000_000
    stats = subscription.stats()
    assert (stats.lag_messages, stats.lag_bytes, stats.lag_seconds) == (8, 80, 10.0)
    consumer = subscription.connect("a")
    drain(consumer)
    assert subscription.stats().lag_seconds == 10.0
    ack(consumer, range(6))
    stats = subscription.stats()
    assert (stats.lag_messages, stats.lag_seconds) == (2, 7.0)
    assert stats.lag_bytes > 0
    ack(consumer, range(8))
    stats = subscription.stats()
    assert (stats.lag_messages, stats.lag_bytes, stats.lag_seconds) == (0, 0, 0.0)


# With threads


@pytest.fixture
def topic() -> ListTopic:
    return ListTopic()


@pytest.fixture
def running(topic: ListTopic) -> Iterator[Subscriptions]:
    with Subscriptions(
        MemoryMetadataStore(),
        lambda _: topic,
        lambda *_: None,
        SubscriptionSettings(progress_interval_ms=10, max_dispatch_delay_ms=5),
    ) as subscriptions:
        yield subscriptions


def shared(running: Subscriptions, name: str = "sub") -> BrokerSubscription:
    return running.open(TOPIC, name, SubscriptionOptions(type=SubscriptionType.SHARED))


class Receiver(threading.Thread):
    """Takes and acknowledges until its session ends."""

    def __init__(self, session: ConsumerSession) -> None:
        super().__init__(daemon=True)
        self.session = session
        self.got: list[int] = []
        self.ended: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            while True:
                batch = self.session.receive()
                assert batch is not None
                self.got += batch.column(0).to_pylist()
                ack(self.session, batch.column(0).to_pylist())
                self.session.grant(batch.num_rows, batch.nbytes)
        except (ClosedError, UnavailableError, TopicNotFoundError) as error:
            self.ended = error


def eventually(condition: object) -> None:
    assert callable(condition)
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_a_waiting_consumer_is_woken_by_a_message(running: Subscriptions, topic: ListTopic) -> None:
    receiver = Receiver(running.open(TOPIC, "sub").connect("a"))
    for number in range(20):
        topic.publish([b"x"])
        eventually(lambda: len(receiver.got) == number + 1)  # noqa: B023
    receiver.session.close()
    receiver.join(SECONDS)
    assert isinstance(receiver.ended, ClosedError)


def test_waiting_consumers_share_what_arrives_one_by_one(running: Subscriptions, topic: ListTopic) -> None:
    receivers = [Receiver(shared(running).connect(str(number))) for number in range(4)]
    for number in range(200):
        topic.publish([b"x"])
        eventually(lambda: sum(len(receiver.got) for receiver in receivers) == number + 1)  # noqa: B023
    assert sorted(offset for receiver in receivers for offset in receiver.got) == list(range(200))
    assert min(len(receiver.got) for receiver in receivers) >= 20


def test_every_one_of_many_waiting_subscriptions_gets_everything(running: Subscriptions, topic: ListTopic) -> None:
    receivers = [Receiver(running.open(TOPIC, f"s{number}").connect("a")) for number in range(40)]
    for _ in range(30):
        topic.publish([b"x"] * 3)
    eventually(lambda: all(len(receiver.got) == 90 for receiver in receivers))
    running.flush()
    assert {found.stats().floor_offset for found in running.find(TOPIC)} == {90}


def test_a_consumer_that_is_not_served_leaves_the_message_to_a_waiting_one(
    running: Subscriptions, topic: ListTopic
) -> None:
    subscription = shared(running)
    listening = subscription.connect("listens, and never asks")
    woken = threading.Event()
    listening.listeners.add(woken.set)
    assert listening.receive(timeout_seconds=0) is None
    receiver = Receiver(subscription.connect("waits"))
    topic.publish([b"x"])
    eventually(lambda: receiver.got == [0])
    assert woken.wait(SECONDS)


def test_a_waiting_consumer_is_woken_by_credit_by_the_end_of_another_and_by_a_seek(
    running: Subscriptions, topic: ListTopic
) -> None:
    topic.publish([b"x"] * 4)
    subscription = running.open(TOPIC, "sub", SubscriptionOptions(type=SubscriptionType.FAILOVER))
    first = subscription.connect("a")
    assert take(first) == [0, 1, 2, 3]
    receiver = Receiver(subscription.connect("b", max_messages=0))
    first.close()
    receiver.session.grant(10, 1_000)
    eventually(lambda: receiver.got == [0, 1, 2, 3])
    subscription.seek(2)
    eventually(lambda: receiver.got[4:] == [2, 3])


def test_nobody_is_told_again_and_again_of_what_he_cannot_have(running: Subscriptions, topic: ListTopic) -> None:
    topic.publish([b"x"] * 10)
    session = shared(running).connect("a", max_messages=2)
    told: list[int] = []
    session.listeners.add(lambda: told.append(len(told)))
    assert take(session) == [0, 1]
    before = len(told)
    assert take(session) == []
    assert len(told) == before


def test_closing_ends_every_wait(running: Subscriptions, topic: ListTopic) -> None:
    receivers = [Receiver(shared(running, name).connect("a")) for name in ("x", "y")]
    running.close()
    for receiver in receivers:
        receiver.join(SECONDS)
        assert isinstance(receiver.ended, UnavailableError)
    assert topic.listeners == set()
    assert topic.stream_schema.names[-1] == MESSAGE_SCHEMA.names[-1]
    with pytest.raises(ClosedError):
        running.open(TOPIC, "z")


def test_a_thousand_idle_subscriptions_cost_next_to_nothing(running: Subscriptions, topic: ListTopic) -> None:
    topic.publish([b"x"] * 10)
    sessions = [running.open(TOPIC, f"s{number}").connect("a") for number in range(1_000)]
    for session in sessions:
        ack(session, drain(session))
    running.flush()
    windows = sum(cursor_of(session.subscription).window.nbytes for session in sessions)
    assert windows < 4_000_000
    assert len([thread for thread in threading.enumerate() if thread.name in {"subscriptions", "progress"}]) == 2
    assert len(topic.listeners) == 1
