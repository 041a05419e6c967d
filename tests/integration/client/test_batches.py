"""`send_batch`, and the size limits."""

import threading

import pyarrow as pa
import pytest
from tests.integration.client.broker import ScriptedBroker
from tests.integration.client.conftest import TOPIC

from icestream import Client
from icestream.model.errors import InvalidMessageError, OverloadedError, TooLargeError
from icestream.model.messages import MESSAGE_SCHEMA, message_batch

PAYLOADS = [b"a", b"bb", b"ccc"]


@pytest.mark.parametrize(
    "data",
    [
        message_batch(PAYLOADS),
        pa.Table.from_batches([message_batch(PAYLOADS[:1]), message_batch(PAYLOADS[1:])]),
        pa.table({"payload": PAYLOADS}),
        pa.table({"payload": pa.array(PAYLOADS, pa.large_binary())}),
        pa.table({"payload": ["a", "bb", "ccc"]}),
        pa.table({"payload": pa.array(["a", "bb", "ccc"], pa.large_string())}),
        pa.record_batch({"payload": ["a", "bb", "ccc"], "key": [b"k", None, None]}),
    ],
)
def test_tables_and_batches_with_a_payload_column_are_taken(
    client: Client, broker: ScriptedBroker, data: object
) -> None:
    with client.producer(TOPIC) as producer:
        receipt = producer.send_batch(data)
        assert receipt.offset == 0
        assert receipt.count == 3
        assert sum(count for _, count in receipt.ranges) == 3
    assert broker.payloads() == PAYLOADS


def test_keys_and_attributes_of_a_table_arrive(client: Client) -> None:
    attributes = pa.array([[("a", "b")], None], MESSAGE_SCHEMA.field("attributes").type)
    with client.producer(TOPIC) as producer:
        producer.send_batch(pa.table({"attributes": attributes, "payload": ["x", "y"], "key": ["k", "l"]}))
    messages = list(client.consume(TOPIC))
    assert [(message.key, message.attributes) for message in messages] == [(b"k", {"a": "b"}), (b"l", {})]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (pa.table({"body": ["x"]}), "no column 'body'"),
        (pa.table({"key": ["x"]}), "'payload' is missing"),
        (pa.table({"payload": [1.5]}), "does not become"),
        (pa.table({"payload": pa.array([b"x", None])}), "must not be null"),
        (pa.table({"payload": pa.array([], pa.binary())}), "no messages"),
        ([b"x"], "Table or RecordBatch"),
    ],
)
def test_data_that_does_not_fit_is_refused_and_nothing_is_sent(
    client: Client, broker: ScriptedBroker, data: object, says: str
) -> None:
    with client.producer(TOPIC) as producer, pytest.raises(InvalidMessageError, match=says):
        producer.send_batch(data)
    assert not broker.requests


def test_single_messages_and_batches_keep_their_order(client: Client, broker: ScriptedBroker) -> None:
    broker.hold_acks()
    with client.producer(TOPIC) as producer:
        expected = []
        for number in range(20):
            producer.send(b"single %d" % number)
            producer.send_batch(pa.table({"payload": [b"batch %d" % number]}))
            expected += [b"single %d" % number, b"batch %d" % number]
        broker.release_acks()
    assert broker.payloads() == expected


@pytest.mark.parametrize(
    "broker", [{"server": {"max_batch_bytes": 10_000, "max_message_bytes": 10_000}}], indirect=True
)
def test_what_exceeds_the_brokers_batch_limit_is_split_by_rows(client: Client, broker: ScriptedBroker) -> None:
    payloads = [bytes([number]) * (number * 37 % 3000) for number in range(100)]
    with client.producer(TOPIC) as producer:
        receipt = producer.send_batch(pa.table({"payload": payloads}))
        done = threading.Event()
        receipt.add_done_callback(lambda _receipt: done.set())
        assert done.wait(60)
        assert receipt.offset == 0
        assert len(receipt.ranges) == len(broker.requests) > 1
        for payload in payloads:
            producer.send(payload)
    assert broker.payloads() == payloads * 2


@pytest.mark.parametrize(
    "broker", [{"server": {"max_batch_bytes": 10_000, "max_message_bytes": 10_000}}], indirect=True
)
def test_a_batch_that_finds_no_room_for_its_rest_says_how_much_is_sent(client: Client, broker: ScriptedBroker) -> None:
    data = pa.table({"payload": [b"%03d" % number * 1000 for number in range(20)]})
    with client.producer(TOPIC, max_buffer_bytes=25_000, block_timeout=0.01) as producer:
        broker.hold_acks()
        with pytest.raises(OverloadedError, match="of 20 messages the first") as caught:
            producer.send_batch(data)
        sent = caught.value.details["sent_messages"]
        assert 0 < sent < 20
        assert not caught.value.retryable
        broker.release_acks()
        producer.block_timeout = None
        producer.send_batch(data.slice(sent))
    assert broker.payloads() == data["payload"].to_pylist()


@pytest.mark.parametrize("broker", [{"server": {"max_message_bytes": 1000}}], indirect=True)
def test_a_message_beyond_the_limit_is_refused_alone(client: Client, broker: ScriptedBroker) -> None:
    with client.producer(TOPIC) as producer:
        producer.send(b"before")
        with pytest.raises(TooLargeError):
            producer.send(b"x" * 1000)
        with pytest.raises(TooLargeError):
            producer.send(b"x" * 500, key=b"k" * 300, attributes={"a": "b" * 300})
        with pytest.raises(TooLargeError):
            producer.send_batch(pa.table({"payload": [b"ok", b"x" * 1001]}))
        producer.send(b"after")
    assert broker.payloads() == [b"before", b"after"]


OWN = pa.schema(
    [pa.field("name", pa.string(), nullable=False), pa.field("size", pa.int64()), pa.field("route", pa.string())]
)


def test_columns_that_may_be_null_may_be_left_out_of_a_topic_with_columns_of_its_own(client: Client) -> None:
    client.create_topic("default/own", schema=OWN)
    with client.producer("default/own") as producer:
        producer.send_batch(pa.table({"size": [1, 2], "name": ["a", "b"]}))
        producer.send_batch(pa.record_batch({"name": ["c"]}))
        with pytest.raises(InvalidMessageError, match="column 'name' is missing"):
            producer.send_batch(pa.table({"size": [1]}))
    rows = pa.Table.from_batches(list(client.consume("default/own").batches())).select(OWN.names)
    assert rows.to_pydict() == {"name": ["a", "b", "c"], "size": [1, 2, None], "route": [None, None, None]}
