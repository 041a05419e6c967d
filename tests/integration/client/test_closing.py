import threading

import pytest
from tests.integration.client.broker import ScriptedBroker
from tests.integration.client.conftest import TOPIC, icestream_threads

from icestream import Client
from icestream.client.transport import DoPutStream
from icestream.model.errors import ClosedError


def test_leaving_a_producer_flushes_also_when_the_block_failed(client: Client, broker: ScriptedBroker) -> None:
    class OwnError(Exception):
        pass

    def fails() -> None:
        with client.producer(TOPIC, linger_ms=3_600_000) as producer:
            producer.send(b"sent")
            broker.faults.append(None)
            raise OwnError

    with pytest.raises(OwnError):
        fails()
    assert broker.payloads() == [b"sent"]


def test_the_callers_error_is_not_hidden_by_a_failed_flush(client: Client, broker: ScriptedBroker) -> None:
    broker.faults.append("fatal")

    def fails() -> None:
        with client.producer(TOPIC) as producer:
            producer.send(b"x")
            raise KeyError

    with pytest.raises(KeyError):
        fails()


def test_a_closed_producer_takes_no_more(client: Client) -> None:
    producer = client.producer(TOPIC)
    producer.send(b"x")
    producer.close()
    producer.close()
    with pytest.raises(ClosedError):
        producer.send(b"y")


def test_closing_the_client_sends_what_is_on_its_way(client: Client, broker: ScriptedBroker) -> None:
    producer = client.producer(TOPIC, linger_ms=3_600_000)
    receipt = producer.send(b"x")
    client.close()
    assert receipt.offset == 0
    assert broker.payloads() == [b"x"]


def test_closing_the_client_fails_open_receipts_and_ends_all_threads(client: Client, broker: ScriptedBroker) -> None:
    producer = client.producer(TOPIC)
    broker.hold_acks()
    receipt = producer.send(b"x")
    queued = producer.send(b"y")
    called = threading.Event()
    receipt.add_done_callback(lambda _receipt: called.set())
    client.close(timeout=0)
    for open_one in (receipt, queued):
        with pytest.raises(ClosedError):
            open_one.result(timeout=60)
    assert called.is_set()
    with pytest.raises(ClosedError):
        producer.send(b"z")
    with pytest.raises(ClosedError):
        client.producer(TOPIC)
    with pytest.raises(ClosedError):
        client.list_topics()
    client.close()
    broker.release_acks()


def test_closing_without_a_broker_does_not_wait(broker: ScriptedBroker) -> None:
    client = Client(broker.url)
    client.create_topic(TOPIC)
    producer = client.producer(TOPIC, retry_timeout=None)
    producer.send(b"0").result()
    broker.stop()
    receipt = producer.send(b"1")
    client.close(timeout=5)
    with pytest.raises(ClosedError):
        receipt.result(timeout=60)
    assert not icestream_threads()


def test_a_client_without_producers_has_no_threads(client: Client) -> None:
    client.ping()
    assert not icestream_threads()


def test_a_producer_whose_write_was_interrupted_sends_again_and_closes(
    client: Client, broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = client.producer(TOPIC, retry_timeout=None)
    producer.send(b"0").result(timeout=60)
    write = DoPutStream.write

    def interrupted(*_: object) -> None:
        monkeypatch.setattr(DoPutStream, "write", write)
        raise KeyboardInterrupt

    monkeypatch.setattr(DoPutStream, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        producer.send(b"1")
    producer.send(b"2")
    producer.close(timeout=60)
    assert broker.payloads() == [b"0", b"1", b"2"]
