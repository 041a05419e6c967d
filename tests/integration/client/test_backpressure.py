import threading

import pytest
from tests.integration.client.broker import ScriptedBroker
from tests.integration.client.conftest import TOPIC

from icestream import Client
from icestream.model.errors import ClosedError, OverloadedError


def test_a_full_buffer_is_an_overloaded_error_after_the_block_timeout(client: Client, broker: ScriptedBroker) -> None:
    producer = client.producer(TOPIC, max_buffer_bytes=10_000, block_timeout=0.01)
    broker.hold_acks()
    sent = [producer.send(b"x" * 1000) for _ in range(9)]
    for _ in range(3):
        with pytest.raises(OverloadedError, match="max_buffer_bytes"):
            producer.send(b"x" * 1000)
        assert producer._outbox._room_callbacks == []
    assert producer._outbox.buffered_bytes <= 10_000
    broker.release_acks()
    assert sent[-1].result(timeout=60) == 8
    assert producer.send(b"y").result(timeout=60) == 9
    assert producer._outbox.buffered_bytes == 0


def test_send_waits_for_room_and_memory_stays_bounded(client: Client, broker: ScriptedBroker) -> None:
    limit = 50_000
    with client.producer(TOPIC, max_buffer_bytes=limit, max_batch_bytes=5_000, block_timeout=None) as producer:
        highest = 0
        for _ in range(2_000):
            producer.send(b"x" * 500)
            highest = max(highest, producer._outbox.buffered_bytes)
        assert highest <= limit
    assert len(broker.payloads()) == 2_000


def test_a_message_larger_than_the_buffer_goes_when_the_buffer_is_empty(client: Client, broker: ScriptedBroker) -> None:
    with client.producer(TOPIC, max_buffer_bytes=100, block_timeout=None) as producer:
        for _ in range(3):
            producer.send(b"x" * 1000)
    assert len(broker.payloads()) == 3


def test_lingering_messages_do_not_keep_a_full_buffer_shut(client: Client, broker: ScriptedBroker) -> None:
    with client.producer(TOPIC, linger_ms=3_600_000, max_buffer_bytes=2_000, block_timeout=None) as producer:
        for _ in range(20):
            producer.send(b"x" * 500)
    assert len(broker.payloads()) == 20


def test_closing_the_client_frees_a_sender_that_waits_for_room(client: Client, broker: ScriptedBroker) -> None:
    producer = client.producer(TOPIC, max_buffer_bytes=1_000, block_timeout=None)
    broker.hold_acks()
    producer.send(b"x" * 900)
    errors: list[Exception] = []
    waiting = threading.Event()

    def blocked() -> None:
        waiting.set()
        try:
            producer.send(b"y" * 900)
        except ClosedError as error:
            errors.append(error)

    thread = threading.Thread(target=blocked)
    thread.start()
    waiting.wait()
    client.close(timeout=0)
    thread.join(60)
    assert len(errors) == 1
    broker.release_acks()
