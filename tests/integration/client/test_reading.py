import threading
from datetime import datetime, timedelta

import pytest
from tests.integration.client.broker import ScriptedBroker
from tests.integration.client.conftest import TOPIC, eventually

from icestream import Client, Consumer, StartPosition
from icestream.client import consumer as consumer_module
from icestream.model.errors import (
    DamagedError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    TopicNotFoundError,
    UnavailableError,
)


def fill(client: Client, count: int, start: int = 0, size: int = 0) -> None:
    """Publish numbers, with at least `size` bytes each: readers get about 256 KiB in a batch."""
    with client.producer(TOPIC, max_batch_messages=7, linger_ms=3_600_000) as producer:
        for number in range(start, start + count):
            producer.send(b"%d" % number + bytes(size), key=b"k%d" % number)


def offsets(consumer: Consumer) -> list[int]:
    return [message.offset for message in consumer]


def test_read_gives_a_table_of_the_range(client: Client) -> None:
    fill(client, 50)
    assert client.read(TOPIC)["offset"].to_pylist() == list(range(50))
    assert client.read(TOPIC, 10, 20)["payload"].to_pylist() == [b"%d" % number for number in range(10, 20)]
    assert client.read(TOPIC, start="latest").num_rows == 0


def test_read_raises_the_brokers_errors(client: Client) -> None:
    with pytest.raises(TopicNotFoundError):
        client.read("default/none")
    with pytest.raises(OffsetOutOfRangeError) as caught:
        client.read(TOPIC, 5)
    assert caught.value.details["durable_end"] == 0


def test_messages_have_all_their_fields(client: Client) -> None:
    with client.producer(TOPIC, name="mine") as producer:
        producer.send(b"hello", key=b"k", attributes={"a": "b"})
    with client.consume(TOPIC) as consumer:
        (message,) = consumer
    assert (message.offset, message.payload, message.key, message.attributes) == (0, b"hello", b"k", {"a": "b"})
    assert (message.producer, message.sequence) == ("mine", 0)
    assert message.publish_time == client.read(TOPIC)["publish_time"][0].as_py()


@pytest.mark.parametrize(
    ("start", "first"),
    [
        ("earliest", 0),
        (7, 7),
        (StartPosition.offset(9), 9),
    ],
)
def test_consuming_starts_where_it_is_told(client: Client, start: object, first: int) -> None:
    fill(client, 30)
    with client.consume(TOPIC, start) as consumer:  # type: ignore[arg-type]
        assert offsets(consumer) == list(range(first, 30))


def test_consuming_starts_with_the_first_message_at_or_after_a_time(client: Client) -> None:
    fill(client, 30)
    times = client.read(TOPIC)["publish_time"].to_pylist()
    for time in (times[14], times[14] + timedelta(microseconds=1)):
        first = next((offset for offset, published in enumerate(times) if published >= time), len(times))
        with client.consume(TOPIC, time) as consumer:
            assert offsets(consumer) == list(range(first, 30))


def test_a_wrong_start_is_refused(client: Client) -> None:
    for start in ("yesterday", -1, datetime(2024, 1, 1)):  # noqa: DTZ001 - the missing time zone is the point
        with pytest.raises(InvalidRequestError):
            client.consume(TOPIC, start)


def test_consuming_stops_at_end_or_after_so_many(client: Client) -> None:
    fill(client, 30)
    with client.consume(TOPIC, 5, end=12) as consumer:
        assert offsets(consumer) == list(range(5, 12))
    with client.consume(TOPIC, max_messages=11, follow=True) as consumer:
        assert sum(batch.num_rows for batch in consumer.batches()) == 11
        assert consumer.ended


def test_following_gives_new_messages_as_they_come(client: Client) -> None:
    fill(client, 10)
    with client.consume(TOPIC, follow=True) as consumer:
        assert [next(consumer).offset for _ in range(10)] == list(range(10))
        assert consumer.poll(timeout=0.01) is None
        fill(client, 5, start=10)
        assert [next(consumer).offset for _ in range(5)] == list(range(10, 15))


def test_following_from_latest_begins_at_the_end_as_it_was_when_asked(client: Client) -> None:
    fill(client, 10)
    with client.consume(TOPIC, "latest", follow=True, max_messages=5) as consumer:
        fill(client, 5, start=10)
        assert offsets(consumer) == list(range(10, 15))


def test_close_from_another_thread_ends_an_iteration_that_waits(client: Client) -> None:
    fill(client, 3)
    consumer = client.consume(TOPIC, follow=True)
    got: list[int] = []
    three = threading.Event()

    def work() -> None:
        for message in consumer:
            got.append(message.offset)
            if len(got) == 3:
                three.set()

    thread = threading.Thread(target=work)
    thread.start()
    assert three.wait(60)
    consumer.close()
    consumer.close()
    thread.join(60)
    assert not thread.is_alive()
    assert got == [0, 1, 2]


def test_closing_the_client_ends_its_consumers(client: Client) -> None:
    consumer = client.consume(TOPIC, follow=True)
    client.close()
    assert list(consumer) == []


def test_a_following_consumer_survives_lost_connections(client: Client, broker: ScriptedBroker) -> None:
    fill(client, 40, size=20_000)
    broker.max_batches_read = 2
    with client.consume(TOPIC, follow=True, max_messages=40) as consumer:
        assert offsets(consumer) == list(range(40))
    assert len(broker.tickets) > 1
    assert broker.tickets[1]["start"] > 0


def test_a_following_consumer_survives_a_restart_of_the_broker(broker: ScriptedBroker) -> None:
    with Client(broker.url) as client:
        client.create_topic(TOPIC)
        fill(client, 10)
        with client.consume(TOPIC, follow=True, max_messages=20) as consumer:
            got = [next(consumer).offset for _ in range(10)]
            assert consumer.interruption is None
            broker.stop()
            eventually(lambda: consumer.interruption is not None)
            broker.start()
            fill(client, 10, start=10)
            got += offsets(consumer)
            assert got == list(range(20))
            assert consumer.interruption is None


def test_rows_from_before_the_resumed_offset_are_dropped_and_gaps_are_damage(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(client, 14)
    real = Consumer._ticket

    def from_the_beginning(self: Consumer) -> dict[str, object]:
        return {**real(self), "start": 0}

    monkeypatch.setattr(Consumer, "_ticket", from_the_beginning)
    with client.consume(TOPIC, 3) as consumer:
        assert offsets(consumer) == list(range(3, 14))

    def too_far(self: Consumer) -> dict[str, object]:
        return {**real(self), "start": 7}

    monkeypatch.setattr(Consumer, "_ticket", too_far)
    with client.consume(TOPIC, 3) as consumer, pytest.raises(DamagedError, match="offset 7"):
        next(consumer)


def test_a_consumer_that_does_not_follow_reports_a_lost_connection(client: Client, broker: ScriptedBroker) -> None:
    fill(client, 40, size=20_000)
    broker.max_batches_read = 2
    with client.consume(TOPIC) as consumer, pytest.raises(UnavailableError):
        offsets(consumer)


def test_following_a_topic_that_is_not_there_fails_at_once(client: Client) -> None:
    with client.consume("default/none", follow=True) as consumer, pytest.raises(TopicNotFoundError):
        next(consumer)


def test_a_consumer_reads_ahead_only_so_far(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(client, 70, size=20_000)
    monkeypatch.setattr(consumer_module, "PREFETCH_BYTES", 1)
    with client.consume(TOPIC) as consumer:
        seen = []
        for batch in consumer.batches():
            assert len(consumer._delivered) <= 1
            seen += batch.column("offset").to_pylist()
    assert seen == list(range(70))
