import threading

import pyarrow as pa
import pytest
from tests.integration.client.broker import ScriptedBroker
from tests.integration.client.conftest import TOPIC, eventually, icestream_threads

from icestream import Client
from icestream.client.producer import Receipt
from icestream.model.errors import DeadlineError, InvalidMessageError, InvalidNameError, InvalidRequestError


def test_a_receipt_gives_offset_and_publish_time(client: Client) -> None:
    with client.producer(TOPIC) as producer:
        first, second = producer.send(b"a"), producer.send(b"b")
        assert (first.offset, second.result()) == (0, 1)
        assert first.done()
        assert first.exception() is None
        assert first.publish_time == client.read(TOPIC)["publish_time"][0].as_py()


def test_key_and_attributes_arrive_also_beside_messages_without_them(client: Client, broker: ScriptedBroker) -> None:
    broker.hold_acks()
    with client.producer(TOPIC) as producer:
        producer.send(b"lone")
        producer.send(b"plain")
        attributes = {"source": "web"}
        producer.send(b"keyed", key=b"k", attributes=attributes)
        attributes["source"] = "changed afterwards"
        producer.send(bytearray(b"buffer"), key=memoryview(b"m"))  # type: ignore[arg-type]
        producer.send(b"plain again")
        broker.release_acks()
    messages = list(client.consume(TOPIC))
    assert [message.payload for message in messages] == [b"lone", b"plain", b"keyed", b"buffer", b"plain again"]
    assert [message.key for message in messages] == [None, None, b"k", b"m", None]
    assert [message.attributes for message in messages] == [{}, {}, {"source": "web"}, {}, {}]


def test_the_first_message_goes_at_once_and_the_next_collect_until_it_is_acknowledged(
    client: Client, broker: ScriptedBroker
) -> None:
    with client.producer(TOPIC) as producer:
        producer.send(b"known").result()
        broker.hold_acks()
        receipts = [producer.send(b"%d" % number) for number in range(100)]
        broker.release_acks()
        assert [receipt.offset for receipt in receipts] == list(range(1, 101))
    assert len(broker.requests) <= 3
    assert "more" not in broker.requests[1]


def test_full_batches_go_without_waiting_but_never_more_than_allowed(client: Client, broker: ScriptedBroker) -> None:
    with client.producer(TOPIC, max_batch_messages=10, max_in_flight=3) as producer:
        producer.send(b"known").result()
        broker.hold_acks()
        for number in range(100):
            producer.send(b"%d" % number)
        eventually(lambda: len(producer._outbox.sent) == 3)
        broker.release_acks()
    assert broker.payloads()[1:] == [b"%d" % number for number in range(100)]
    assert any(seen.get("more") for seen in broker.requests)


def test_a_lingering_batch_waits_until_it_is_full_or_flushed(client: Client, broker: ScriptedBroker) -> None:
    with client.producer(TOPIC, linger_ms=3_600_000, max_batch_messages=5) as producer:
        receipts = []
        for number in range(7):
            assert producer.next_sequence == number  # also while messages wait in the open batch
            receipts.append(producer.send(b"x"))
        assert producer.next_sequence == 7
        assert receipts[0].offset == 0
        assert len(broker.requests) == 1
        assert not receipts[6].done()
        producer.flush()
        assert receipts[6].offset == 6


def test_a_lingering_batch_goes_when_its_time_has_come(client: Client, broker: ScriptedBroker) -> None:
    with client.producer(TOPIC, linger_ms=5) as producer:
        receipts = [producer.send(b"x") for _ in range(5)]
        assert receipts[4].result(timeout=30) == 4
        assert len(broker.requests) <= 5


def test_a_thousand_producers_share_one_stream_and_two_threads(client: Client, broker: ScriptedBroker) -> None:
    names = [f"default/many-{number}" for number in range(10)]
    for name in names:
        client.create_topic(name)
    producers = [client.producer(name) for name in names * 100]
    receipts = [producer.send(producer.topic.encode()) for producer in producers for _ in range(2)]
    for receipt in receipts:
        receipt.result(timeout=60)
    assert len(icestream_threads()) == 2
    assert broker.streams == 1
    assert all(broker.payloads(name) == [name.encode()] * 200 for name in names)


def test_many_threads_may_share_a_producer(client: Client, broker: ScriptedBroker) -> None:
    with client.producer(TOPIC) as producer:

        def work(worker: int) -> None:
            for number in range(200):
                producer.send(b"%d %d" % (worker, number)).result(timeout=60)

        threads = [threading.Thread(target=work, args=(worker,)) for worker in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    stored = [tuple(map(int, payload.split())) for payload in broker.payloads()]
    for worker in range(8):
        assert [number for who, number in stored if who == worker] == list(range(200))


def test_callbacks_run_once_whether_added_before_or_after(client: Client, broker: ScriptedBroker) -> None:
    called: list[int] = []
    finished = threading.Event()
    with client.producer(TOPIC) as producer:
        broker.hold_acks()
        receipt = producer.send(b"x")

        def fails(_receipt: Receipt) -> None:
            raise ValueError

        receipt.add_done_callback(fails)
        receipt.add_done_callback(lambda done: called.append(done.offset))
        receipt.add_done_callback(lambda _done: finished.set())
        assert not called
        broker.release_acks()
        assert finished.wait(60)
        receipt.add_done_callback(lambda done: called.append(done.offset))
        assert called == [0, 0]


def test_a_result_that_does_not_come_in_time_is_a_deadline_error(client: Client, broker: ScriptedBroker) -> None:
    producer = client.producer(TOPIC)
    broker.hold_acks()
    receipt = producer.send(b"x")
    with pytest.raises(DeadlineError):
        receipt.result(timeout=0.01)
    with pytest.raises(DeadlineError):
        producer.flush(timeout=0.01)
    broker.release_acks()
    assert receipt.offset == 0


def test_a_name_is_open_once_in_a_client(client: Client) -> None:
    first = client.producer(TOPIC, name="same")
    with pytest.raises(InvalidRequestError, match="has a producer 'same' open"):
        client.producer(TOPIC, name="same")
    first.close()
    client.producer(TOPIC, name="same").close()


def test_a_named_producer_goes_on_where_it_stopped(client: Client, broker: ScriptedBroker) -> None:
    with client.producer(TOPIC, name="mine") as producer:
        producer.send(b"a")
        producer.send(b"b")
    with client.producer(TOPIC, name="mine") as producer:
        producer.send(b"c")
    assert broker.requests[-1]["sequence"] == 2
    assert broker.payloads() == [b"a", b"b", b"c"]


def test_the_acknowledgement_level_travels_with_each_batch(client: Client, broker: ScriptedBroker) -> None:
    with client.producer(TOPIC, ack="memory") as producer:
        producer.send(b"a")
    assert broker.requests[0]["ack"] == "memory"


@pytest.mark.parametrize("payload", ["text", 1, None, ["x"]])
def test_a_payload_that_is_not_bytes_is_refused_at_once(client: Client, payload: object) -> None:
    with client.producer(TOPIC) as producer, pytest.raises(InvalidMessageError, match="bytes"):
        producer.send(payload)  # type: ignore[arg-type]


@pytest.mark.parametrize("attributes", [{"a": 1}, {b"a": "b"}, {"a": "\ud800"}])
def test_attributes_that_are_not_text_are_refused_at_once(client: Client, attributes: dict[str, str]) -> None:
    with client.producer(TOPIC) as producer:
        good = producer.send(b"good")
        with pytest.raises(InvalidMessageError, match="text"):
            producer.send(b"x", attributes=attributes)
        assert good.offset == 0


def test_wrong_options_are_refused(client: Client) -> None:
    with pytest.raises(InvalidRequestError, match="max_in_flight"):
        client.producer(TOPIC, max_in_flight=9)
    with pytest.raises(InvalidRequestError):
        client.producer(TOPIC, linger_ms=-1)
    with pytest.raises(InvalidNameError):
        client.producer(TOPIC, name="\n")
    with pytest.raises(InvalidNameError):
        client.producer("../x")


def test_topics_with_their_own_schema_take_batches_only(client: Client, broker: ScriptedBroker) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())])
    client.create_topic("default/own", schema)
    with client.producer("default/own") as producer, client.producer(TOPIC) as ordinary:
        with pytest.raises(InvalidRequestError, match="send_batch"):
            producer.send(b"x")
        receipt = producer.send_batch(pa.table({"text": ["a", "b"], "id": [1, 2]}))
        assert (receipt.offset, receipt.count) == (0, 2)
        ordinary.send(b"x")
    assert broker.streams == 2
    table = client.read("default/own")
    assert table.column_names == ["_offset", "_publish_time", "_producer", "_sequence", "id", "text"]
    assert table["id"].to_pylist() == [1, 2]
    with client.consume("default/own") as consumer, pytest.raises(InvalidRequestError, match="batches"):
        next(consumer)
